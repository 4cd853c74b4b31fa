"""Where rows are while chains run; records are packed, copied to the host, and unpacked."""

import numpy as np
import pytest

import modicum as mo
from modicum.run import iterations
from modicum.run.iterations import place_rows

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture
def rows():
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    return mo.Rows(x=x, y=np.zeros(20, np.float32), dtype="float32")


def test_rows_that_fit_are_put_on_the_device(rows):
    for limit in (None, rows.nbytes):
        placed = place_rows(rows, limit).result()
        np.testing.assert_array_equal(placed["x"], np.arange(40).reshape(20, 2))
    assert place_rows(rows, rows.nbytes - 1).result() is rows
    assert place_rows(rows, 0).result() is rows


def test_stores_have_a_limit_of_their_own(rows, tmp_path, monkeypatch):
    store = mo.rows.ingest(rows, tmp_path / "store", progressbar=False)
    assert isinstance(place_rows(store).result(), dict)
    monkeypatch.setattr(iterations, "SMALL_STORE", store.nbytes - 1)
    assert place_rows(store).result() is store
    assert isinstance(place_rows(rows).result(), dict)
    assert isinstance(place_rows(store, store.nbytes).result(), dict)  # the user's limit counts

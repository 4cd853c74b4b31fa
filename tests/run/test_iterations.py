"""Where rows are while chains run; records are packed, copied to the host, and unpacked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from modicum.run import iterations, place_rows

pytestmark = pytest.mark.usefixtures("x64")


def some_record(slots, chains=3):
    rng = np.random.default_rng(1)
    return {
        ("position",): rng.normal(size=(chains, slots, 2)),
        ("n_steps", "rows"): rng.integers(0, 9, (chains, slots, 2)),
    }


@pytest.mark.parametrize("count", [0, 3, 60, 64])
@pytest.mark.parametrize("left", [iterations.MOST_PINNED, 0])
def test_the_beginning_of_a_record_arrives(count, left):
    record, pages = some_record(64), iterations.PinnedPages(left)
    here = pages.arrived(pages.send(jax.tree.map(jnp.asarray, record)), count)
    for names, values in record.items():
        np.testing.assert_array_equal(here[names], values[:, :count])
        assert here[names].dtype == values.dtype
        # neither few slots nor a run that has used its share keep many pages
        assert here[names].flags.owndata == (left == 0 or count <= 32)
    assert (left - pages.left > 0) == (left > 0 and count > 32)


def test_pages_are_reserved_and_given_back(monkeypatch):
    sent = []
    monkeypatch.setattr(iterations, "RESERVED", 1000)
    pages = iterations.PinnedPages(left=4_500)
    monkeypatch.setattr(pages, "send", lambda piece: sent.append(piece) or piece)
    pages.reserve(2_500)
    assert [piece["piece",].nbytes for piece in sent] == [1000] * 3
    pages.reserve(10**9)  # no more than a run may use
    assert len(sent) == 3 + 5
    assert pages.left == 4_500


def test_numbers_are_packed_by_type_and_unpacked_by_name():
    draw = {
        "position": jnp.arange(3.0),
        "lp": jnp.asarray(-1.5),
        "n_steps": jnp.asarray(4),
        "energy": jnp.asarray(2.5),
        "diverging": jnp.asarray(True),
    }
    whole = {names: np.asarray(v)[None, None] for names, v in iterations.packed(draw).items()}
    assert set(whole) == {("position",), ("energy", "lp"), ("n_steps",), ("diverging",)}
    apart = iterations.unpacked(whole)
    assert set(apart) == set(draw)
    for name, values in draw.items():
        np.testing.assert_array_equal(apart[name][0, 0], values)
        assert apart[name].dtype == values.dtype


@pytest.fixture
def rows():
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    return mo.Rows(x=x, y=np.zeros(20, np.float32), dtype="float32")


def test_rows_that_fit_are_put_on_the_device(rows):
    for limit in (None, rows.nbytes):
        placed = place_rows(rows, limit)
        np.testing.assert_array_equal(placed["x"], np.arange(40).reshape(20, 2))
    assert place_rows(rows, rows.nbytes - 1) is rows
    assert place_rows(rows, 0) is rows


def test_stores_have_a_limit_of_their_own(rows, tmp_path, monkeypatch):
    store = mo.rows.ingest(rows, tmp_path / "store", progressbar=False)
    assert isinstance(place_rows(store), dict)
    monkeypatch.setattr(iterations, "SMALL_STORE", store.nbytes - 1)
    assert place_rows(store) is store
    assert isinstance(place_rows(rows), dict)
    assert isinstance(place_rows(store, store.nbytes), dict)  # the user's limit counts


@pytest.mark.parametrize("method", [mo.HMCECS, mo.SignedHMCECS, mo.SGLD, mo.FlyMC, mo.NUTS])
def test_limits_that_are_not_a_number_of_bytes_are_refused(method):
    assert method(memory_limit=0).memory_limit == 0
    for limit in ("1 GB", -1, float("nan"), True):
        with pytest.raises(mo.SettingError, match="memory_limit must be a number of bytes"):
            method(memory_limit=limit)

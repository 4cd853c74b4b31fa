"""Categorical columns as codes: made, described, stored, read back."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import modicum as mo
from helpers.coded import crossed, densely, pair
from helpers.refusals import refused
from modicum.rows import ingest

GASES = ["neon", "argon", "neon", "xenon"]


def test_levels_are_found_and_coded():
    rows = mo.Rows(
        x=np.arange(4.0)[:, None], y=[0, 1, 1, 0], codes={"gas": GASES, "n": [7, 5, 5, 7]}
    )
    assert rows.levels == {"gas": ("argon", "neon", "xenon"), "n": (5, 7)}
    assert rows.columns == ("x0", "gas[neon]", "gas[xenon]", "n[7]")
    assert rows.fields == {"x": (1,), "y": (), "gas": (), "n": ()}
    assert rows.dtype == np.float64
    assert rows.dtypes["gas"] == np.uint8
    assert rows.row_bytes == 8 + 8 + 1 + 1
    batch = rows.take([[3], [0]])
    assert batch["gas"].tolist() == [[2], [1]]
    assert [len(c["n"]) for c in rows.chunks(3)] == [3, 1]
    assert densely(rows).slice(0, 4)["x"].tolist() == [
        [0, 1, 0, 1],
        [1, 0, 0, 0],
        [2, 1, 0, 0],
        [3, 0, 1, 1],
    ]


@pytest.mark.parametrize(
    "make", [list, np.array, pd.Series, pl.Series, pa.array, lambda v: np.array(v, dtype=object)]
)
def test_text_may_come_from_anywhere(make):
    rows = mo.Rows(codes={"gas": make(GASES)})
    assert rows.levels["gas"] == ("argon", "neon", "xenon")
    assert rows.slice(0, 4)["gas"].tolist() == [1, 0, 1, 2]


def test_categories_keep_their_order_and_those_that_do_not_occur_are_left_out():
    order = ["xenon", "radon", "neon", "argon"]
    for values in (
        pd.Categorical(GASES, order),
        pd.Series(pd.Categorical(GASES, order)),
        pa.chunked_array([pd.Categorical(GASES, order)]),
    ):
        rows = mo.Rows(codes={"gas": values})
        assert rows.levels["gas"] == ("xenon", "neon", "argon")
        assert rows.slice(0, 4)["gas"].tolist() == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ({"gas": ["neon", None, "argon", "neon"]}, "'gas' holds a missing value in row 1"),
        ({"gas": ["neon", 1, "argon", 2]}, "'gas' mixes types of values"),
        ({"gas": np.zeros((4, 2))}, "'gas' must hold one level per row"),
        ({"gas": "neon"}, "must be one level per row"),
        ({"y": GASES}, "'y' has the name of a field"),
        ({3: GASES}, "field names must be text"),
        (GASES, "codes must map"),
    ],
)
def test_what_is_not_a_factor_is_refused(codes, said):
    refused(mo.ModicumError, said, mo.Rows, y=np.arange(4.0), codes=codes)


def test_subsets_and_pickles_keep_levels_and_coding():
    rows = pair(40).coded
    few = rows.subset(np.flatnonzero(rows.slice(0, 40)["gas"] == 1)[:3])
    for made in (few, pickle.loads(pickle.dumps(rows))):
        assert made.schema == rows.schema
        assert made.dtypes == rows.dtypes
    assert few.slice(0, 3)["gas"].tolist() == [1, 1, 1]
    assert pickle.loads(pickle.dumps(rows)).fingerprint() == rows.fingerprint()


@pytest.mark.parametrize("shard_rows", [None, 7])
@pytest.mark.parametrize("make", [lambda: pair(40), lambda: crossed(40)])
def test_a_store_holds_the_same(tmp_path, make, shard_rows):
    rows = make().coded
    made = ingest(rows, tmp_path / "s", dtype=None, shard_rows=shard_rows, progressbar=False)
    store = mo.Rows.open(tmp_path / "s", verify=True)
    assert store.schema == rows.schema
    assert store.dtypes == rows.dtypes
    assert store.row_bytes == rows.row_bytes
    assert store.fingerprint() == rows.fingerprint() == made.fingerprint()
    store._fingerprint = None  # do not use the stored one
    assert store.fingerprint() == rows.fingerprint()
    ids = np.array([[39, 0], [13, 13]])
    for name, part in rows.take(ids).items():
        assert np.array_equal(store.take(ids)[name], part)
        assert np.array_equal(store.slice(5, 22)[name], rows.slice(5, 22)[name])
    assert pickle.loads(pickle.dumps(store)).schema == rows.schema
    narrow = ingest(store, tmp_path / "narrow", progressbar=False)
    assert narrow.dtype == np.float32
    assert narrow.dtypes["gas"] == np.uint8


def test_codes_that_stand_for_no_level_are_refused():
    rows = pair(40).coded
    codes = rows._backend._arrays["gas"].copy()
    codes[17] = 9
    rows._backend._arrays["gas"] = codes
    refused(mo.DataError, "'gas' holds the code 9 in row 17", mo.models.Logistic().check, rows)

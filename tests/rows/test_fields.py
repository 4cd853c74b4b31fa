"""What `Rows` accepts, numbers and codes, what it refuses, and its error messages."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.coded import crossed, densely, pair
from helpers.refusals import refused
from modicum.errors import DataError, SettingError
from modicum.rows import Rows, ingest

X = np.arange(12.0).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 1, 0])


def refuse(message, error=DataError, **fields):
    refused(error, message, Rows, **fields)


def test_kinds_of_input_agree():
    import jax.numpy as jnp

    expected = Rows(x=X, y=Y).fingerprint()
    assert Rows(x=X.tolist(), y=Y.tolist()).fingerprint() == expected
    assert Rows(x=pd.DataFrame(X), y=pd.Series(Y)).fingerprint() == expected
    assert Rows(x=pl.DataFrame(X), y=pl.Series(Y)).fingerprint() == expected
    assert Rows(x=pa.table({"a": X[:, 0], "b": X[:, 1]}), y=pa.array(Y)).fingerprint() == expected
    assert Rows(x=X, y=Y.astype(bool)).fingerprint() == expected
    assert Rows(x=X, y=Y, offset=None, weight=None).fields == {"x": (2,), "y": ()}
    single = Rows(x=X.astype(np.float32), y=Y)
    of_jax = Rows(x=jnp.asarray(X, jnp.float32), y=jnp.asarray(Y))
    assert of_jax.fingerprint() == single.fingerprint()
    assert Rows(x=jnp.asarray(X, jnp.bfloat16), y=Y).dtype == np.float32


def test_dtype_rule():
    half, single, double = (X.astype(t) for t in (np.float16, np.float32, np.float64))
    assert Rows(x=single, y=Y).dtype == np.float32
    assert Rows(x=half).dtype == np.float32
    assert Rows(x=single, offset=X[:, 0]).dtype == np.float64
    assert Rows(x=Y).dtype == np.float64
    assert Rows(x=double, dtype=np.float32).dtype == np.float32
    assert Rows(x=single, dtype="float64").dtype == np.float64
    assert Rows(x=pd.DataFrame(single)).dtype == np.float32
    for bad in ("float16", int, "text", object()):
        refused(SettingError, "dtype must be float32, float64, uint8 or None", Rows, x=X, dtype=bad)


def test_names():
    assert Rows(x=X).columns == ("x0", "x1")
    assert Rows(x=X, columns=["a", "b"]).columns == ("a", "b")
    frame = pd.DataFrame(X, columns=["age", "dose"])
    rows = Rows(x=frame, y=pd.Series(Y, name="well"))
    assert rows.columns == ("age", "dose")
    assert rows.outcome == "well"
    assert Rows(x=X, y=Y).outcome is None
    assert Rows(c=X).columns == ()
    assert Rows(x=X[:, 0]).fields == {"x": ()}
    for columns, message in [(["a"], "1 names and x has 2"), (["a", "a"], "same name twice")]:
        refused(SettingError, message, Rows, x=X, columns=columns)
    refused(SettingError, "there is no such x", Rows, c=X, columns=["a", "b"])


def test_column_vectors():
    rows = Rows(x=X, y=Y[:, None], weight=pd.DataFrame({"w": np.ones(6)}))
    assert rows.fields == {"x": (2,), "y": (), "weight": ()}
    assert rows.slice(0, 6)["y"].tolist() == Y.tolist()
    refuse(r"field 'offset' has shape \(6, 2, 2\): it must hold one n", offset=np.ones((6, 2, 2)))
    refuse(r"field 'weight' has shape \(6, 2\)", x=X, weight=pd.DataFrame(X))


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_not_finite(value, word, tmp_path):
    x = np.zeros((300_000, 2))
    x[271_828, 1] = value
    for fields in ({"x": x}, {"x": np.asfortranarray(x)}, {"x": x.astype(np.float32)}):
        refuse(rf"column 'b' holds {word} in row 271828", columns=["a", "b"], **fields)
    refuse(rf"column 'y' holds {word} in row 271828", y=x[:, 1])
    refuse(rf"column 'c\[1\]' holds {word} in row 271828", c=x)
    with pytest.raises(DataError, match=rf"column 'x1' holds {word} in row 271828"):
        ingest({"x": x}, tmp_path / "s", progressbar=False)
    assert list(tmp_path.iterdir()) == []


def test_first_offender_is_named():
    x = X.copy()
    x[4, 0] = x[3, 1] = np.nan
    refuse(r"column 'x1' holds NaN in row 3", x=x)
    with pytest.raises(DataError, match="column 'dose' holds a missing value in row 3"):
        Rows(x=pd.DataFrame(x, columns=["age", "dose"])[["dose"]])


def test_too_large_for_the_type():
    x = [[0, 1], [0, 1], [0, 1e200]]
    refuse("column 'x1' holds 1e[+]?200 in row 2, too large for float32", x=x, dtype="float32")
    frame = pd.DataFrame({"a": [0.0, 1e200]})
    refuse("column 'a' holds 1e[+]?200 in row 1, too large for float32", x=frame, dtype="float32")


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, np.uint64])
def test_integers_must_be_exact(kind):
    exact = np.array([0, 2**24, 2**24 + 2, 2**30, 3 << 26], kind)
    assert Rows(y=exact, dtype="float32").slice(0, 5)["y"].tolist() == exact.tolist()
    x = np.zeros((4, 2), kind)
    x[2, 1] = 2**24 + 1
    refuse(r"column 'x1' holds the integer 16777217 in row 2.*float64", x=x, dtype=np.float32)
    frame = pd.DataFrame(x, columns=["a", "b"])
    refuse(r"column 'b' holds the integer 16777217 in row 2", x=frame, dtype=np.float32)
    assert Rows(x=x).slice(2, 3)["x"].tolist() == [[0, 16777217]]


def test_integers_at_the_ends():
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert Rows(y=np.array([low, 1])).slice(0, 1)["y"] == [-(2.0**63)]
    refuse(f"integer {high} in row 1, which float64", y=np.array([low, high]))
    refuse(f"integer {2**64 - 1} in row 0", y=np.array([2**64 - 1], np.uint64))


def test_lengths_and_emptiness():
    refuse("field 'x' has no rows", x=np.zeros((0, 2)))
    refuse("field 'x' has no rows", x=pd.DataFrame({"a": []}, dtype=float))
    refuse(r"field 'x' has shape \(3, 0\): it has no columns", x=np.zeros((3, 0)))
    refuse("there are no fields", SettingError)
    refuse("there are no fields", SettingError, x=None)
    refuse("field 'x' is a path", SettingError, x="data.parquet")


def test_things_that_are_not_numbers_are_refused():
    refuse(r"column 'y' holds a missing value \(None\) in row 2", y=[1, 0, None])
    refuse(r"column 'y' holds numbers as text or objects", y=["1", "2"])
    refuse(r"column 'y' holds complex numbers", y=np.array([1j]))
    refuse(r"column 'y' holds dates or times", y=np.array(["2020-01-01"], "datetime64[D]"))
    refuse(r"'y' holds a masked value in row 1", y=np.ma.array([1.0, 2.0], mask=[False, True]))
    days = pd.DataFrame({"day": pd.date_range("2020", periods=2)})
    refuse(r"column 'day' holds values of type timestamp", x=days)
    refuse(r"column 'a' holds a missing value in row 1", x=pl.DataFrame({"a": [1, None]}))
    mixed = pd.DataFrame({"a": [1, "u", 2.5]}, dtype=object)
    refuse(r"column 'a' mixes types of values \('u' in row 1\)", x=mixed)
    refuse("field 'x' is a sparse matrix", x=pytest.importorskip("scipy.sparse").eye(3))
    refuse("LazyFrame has no rows yet", SettingError, x=pl.DataFrame({"a": [1]}).lazy())


def test_weights(tmp_path):
    weight = np.ones(6)
    weight[4] = -0.5
    refuse(r"column 'weight' holds the negative weight -0.5 in row 4", x=X, weight=weight)
    refuse(r"column 'weight' is zero in every row", x=X, weight=np.zeros(6))
    with pytest.raises(DataError, match=r"negative weight -0.5 in row 4"):
        ingest({"x": X, "weight": weight}, tmp_path / "s", progressbar=False)
    with pytest.raises(DataError, match="zero in every row"):
        ingest({"x": X, "weight": 0 * weight}, tmp_path / "s", progressbar=False)
    table = pd.DataFrame(X, columns=["a", "y"]).assign(w=weight)
    with pytest.raises(DataError, match=r"column 'w' holds the negative weight -0.5 in row 4"):
        Rows.from_table(table, weight="w")


def test_bytes_are_held_as_bytes_and_nothing_else_fits(tmp_path):
    pixels = np.arange(24).reshape(3, 8)
    rows = Rows(x=pixels.astype(float), y=[0, 1, 255], dtype="uint8")
    assert rows.dtype == np.uint8
    assert rows.nbytes == 3 * 9
    assert np.array_equal(rows.take([2])["x"][0], pixels[2])
    assert Rows(x=pixels.astype(np.uint8)).dtype == np.float64  # bytes only on request
    for bad in (256, -1, 0.5, np.nan):
        with pytest.raises(DataError, match=r"column 'x1' holds .* in row 2.*whole numbers"):
            Rows(x=np.where(np.arange(24).reshape(3, 8) == 17, bad, pixels), dtype="uint8")
    stored = ingest(rows, tmp_path / "bytes", dtype=None, progressbar=False)
    assert stored.dtype == np.uint8
    assert stored.fingerprint() == rows.fingerprint()
    assert ingest(rows, tmp_path / "floats", progressbar=False).dtype == np.float32
    with pytest.raises(DataError, match="whole numbers"):
        ingest(Rows(x=pixels / 2), tmp_path / "bad", dtype="uint8", progressbar=False)


# Categorical columns as codes: made, described, stored, read back ----------------------------


GASES = ["neon", "argon", "neon", "xenon"]


def test_levels_are_found_and_coded():
    rows = mo.Rows(x=[[0], [1], [2], [3]], y=[0, 1, 1, 0], codes={"gas": GASES, "n": [7, 5, 5, 7]})
    assert rows.levels == {"gas": ("argon", "neon", "xenon"), "n": (5, 7)}
    assert rows.columns == ("x0", "gas[neon]", "gas[xenon]", "n[7]")
    assert rows.fields == {"x": (1,), "y": (), "gas": (), "n": ()}
    assert rows.dtype == np.float64
    assert rows.dtypes["gas"] == np.uint8
    assert rows.row_bytes == 8 + 8 + 1 + 1
    batch = rows.take([[3], [0]])
    assert batch["gas"].tolist() == [[2], [1]]
    assert [len(c["n"]) for c in rows.chunks(3)] == [3, 1]
    dense = densely(rows).slice(0, 4)["x"].tolist()
    assert dense == [[0, 1, 0, 1], [1, 0, 0, 0], [2, 1, 0, 0], [3, 0, 1, 1]]


@cases("make", list, np.array, pd.Series, pl.Series, pa.array, lambda v: np.array(v, dtype=object))
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


@cases(
    "codes said",
    ({"gas": ["neon", None, "argon", "neon"]}, "'gas' holds a missing value in row 1"),
    ({"gas": ["neon", 1, "argon", 2]}, "'gas' mixes types of values"),
    ({"gas": np.zeros((4, 2))}, "'gas' must hold one level per row"),
    ({"gas": "neon"}, "must be one level per row"),
    ({"y": GASES}, "'y' has the name of a field"),
    ({3: GASES}, "field names must be text"),
    (GASES, "codes must map"),
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

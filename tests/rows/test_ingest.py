"""Every kind of source ends in the same store."""

import gzip

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from helpers.frames import frame_of
from helpers.refusals import refused
from modicum.errors import DataError, SettingError
from modicum.rows import Rows, ingest
from modicum.rows import csv as csv_module

N = 5000
SETTINGS = {"outcome": "y", "categorical": ["g"], "progressbar": False}


@pytest.fixture(scope="module")
def table():
    return pa.Table.from_pandas(frame_of(N)[["a", "g", "k", "y"]], preserve_index=False)


class OfSomeLibrary:
    """A table of a library that offers Arrow's stream, as duckdb, ibis and narwhals do."""

    def __init__(self, table):
        self.columns, self.__arrow_c_stream__ = table.column_names, table.__arrow_c_stream__


@pytest.fixture
def sources(table, tmp_path):
    """Return the same rows in every form."""
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=700)
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    pq.write_table(table.slice(0, 1234), tmp_path / "folder" / "a.parquet")
    pq.write_table(table.slice(1234), tmp_path / "folder" / "deep" / "b.parquet")
    (tmp_path / "folder" / "_SUCCESS").write_text("")
    pa.feather.write_feather(table, tmp_path / "one.feather", chunksize=999)
    frame = table.to_pandas()
    frame.to_csv(tmp_path / "one.csv", index=False)
    for i, start in enumerate(range(0, N, 1700)):
        frame[start : start + 1700].to_csv(tmp_path / f"part-{i}.csv", index=False)
    frame.to_csv(tmp_path / "one.tsv", index=False, sep="\t")
    with gzip.open(tmp_path / "one.csv.gz", "wt") as file:
        frame.to_csv(file, index=False)
    return {
        "parquet": tmp_path / "one.parquet",
        "folder": str(tmp_path / "folder"),
        "glob": tmp_path / "folder" / "**" / "*.parquet",
        "feather": tmp_path / "one.feather",
        "csv": tmp_path / "one.csv",
        "csv-glob": str(tmp_path / "part-*.csv"),
        "tsv": tmp_path / "one.tsv",
        "gz": tmp_path / "one.csv.gz",
        "arrow": table,
        "pandas": frame,
        "polars": pl.from_arrow(table),
        "any library": OfSomeLibrary(table),
        "lazy": pl.from_arrow(table).lazy().filter(pl.col("a") > -100),
        "iterator": (frame[i : i + 700] for i in range(0, N, 700)),
        "list": [table.slice(0, 300), pl.from_arrow(table.slice(300))],
        "reader": table.to_reader(max_chunksize=500),
    }


def test_all_sources_agree(table, sources, tmp_path):
    expected = Rows.from_table(table, categorical=["g"], dtype="float32")
    for name, source in sources.items():
        store = ingest(source, tmp_path / "stores" / name, shard_rows=1999, **SETTINGS)
        assert store.columns == ("a", "g[v]", "g[w]", "k"), name
        assert store.outcome == "y"
        assert store.dtype == np.float32
        one, other = expected.slice(0, N), store.slice(0, N)
        assert all(one[f].tobytes() == other[f].tobytes() for f in one), name
        assert one.keys() == {"x", "g", "y"}
        assert store.fingerprint() == expected.fingerprint()


def test_arrays_and_rows(tmp_path):
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((N, 3)), rng.integers(0, 2, N)
    store = ingest({"x": x, "y": y}, tmp_path / "a", dtype="float64", progressbar=False)
    assert store.fingerprint() == Rows(x=x, y=y).fingerprint()
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    framed = ingest({"x": frame, "y": pd.Series(y)}, tmp_path / "f", dtype=None, progressbar=False)
    assert framed.fingerprint() == store.fingerprint()
    assert framed.columns == ("a", "b", "c")
    again = ingest(framed, tmp_path / "b", shard_rows=77, dtype="float64", progressbar=False)
    assert again.fingerprint() == store.fingerprint()
    assert again.columns == ("a", "b", "c")
    narrow = ingest(tmp_path / "b", tmp_path / "c", progressbar=False)  # the path of a store
    assert narrow.fingerprint() == Rows(x=x, y=y, dtype="float32").fingerprint()
    with pytest.raises(SettingError, match="the source already has fields"):
        ingest({"x": x, "y": y}, tmp_path / "d", categorical=["x"])
    with pytest.raises(SettingError, match="field names must be text, not 3"):
        ingest({"x": x, 3: y}, tmp_path / "d", progressbar=False)
    huge, words = Rows(x=[[1.0], [1e300]]), "holds 1e[+]?300 in row 1, too large"
    refused(DataError, words, ingest, huge, tmp_path / "e", progressbar=False)


def test_levels_survive(table, tmp_path):
    store = ingest(table, tmp_path / "s", **{**SETTINGS, "categorical": {"g": "w"}})
    assert Rows.open(tmp_path / "s").levels == {"g": ("w", "u", "v")} == store.levels
    assert ingest(store, tmp_path / "t", progressbar=False).levels == store.levels


def write(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_csv_types_widen(tmp_path, monkeypatch):
    """A column that starts with integers may later have fractions or text."""
    monkeypatch.setattr(csv_module, "BLOCK_BYTES", 2000)
    lines = ["a,b,g,y"] + [f"{i % 7},1,{i % 2},0" for i in range(3000)] + ["1.5,2,other,1"]
    store = ingest(write(tmp_path / "d.csv", lines), tmp_path / "s", **SETTINGS)
    assert len(store) == 3001
    assert store.take(3000)["x"].tolist() == [1.5, 2]
    assert store.take(3000)["g"] == 2
    assert store.columns == ("a", "b", "g[1]", "g[other]")
    lines.append("1.5,oops,other,1")
    with pytest.raises(DataError, match=r"column 'b' holds text \('oops' in row 3001\)"):
        ingest(write(tmp_path / "e.csv", lines), tmp_path / "t", **SETTINGS)
    assert not (tmp_path / "t").exists()
    late = ["a,b,y"] + ["true,,0"] * 1000 + ["true,2.5,1"]
    with pytest.raises(DataError, match="column 'b' holds a missing value in row 0"):
        ingest(write(tmp_path / "l.csv", late), tmp_path / "t", **(SETTINGS | {"categorical": ()}))
    late.append("maybe,1,1")
    with pytest.raises(DataError, match=r"column 'a' holds text \('maybe' in row 1001\) among"):
        ingest(write(tmp_path / "l.csv", late), tmp_path / "t", "y", ["a"], progressbar=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1.5,u,1,NaN", "column 'y' holds a missing value in row 2"),
        ("1.5,u,16777217,0", "column 'k' holds the integer 16777217 in row 2"),
        ("1.5,u,1", "is not well-formed CSV|cannot be read as CSV"),
    ],
)
def test_csv_refusals(tmp_path, line, message):
    path = write(tmp_path / "d.csv", ["a,g,k,y", "1.5,u,1,0", "2.5,v,2,1", line])
    refused(DataError, message, ingest, path, tmp_path / "s", **SETTINGS)
    assert [p.name for p in tmp_path.iterdir()] == ["d.csv"]


def test_row_numbers_run_through_files(tmp_path):
    for i, value in enumerate([0.0, 1.0, float("nan")]):
        pq.write_table(pa.table({"a": [2.0, value], "y": [0, 1]}), tmp_path / f"{i}.parquet")
    with pytest.raises(DataError, match="column 'a' holds NaN in row 5"):
        ingest(tmp_path / "*.parquet", tmp_path / "s", progressbar=False)


def test_things_that_are_not_sources_are_refused(tmp_path):
    def refuse(source, message, error=SettingError):
        refused(error, message, ingest, source, tmp_path / "s", progressbar=False)

    refuse(3, "a int cannot be read as a table")
    refuse(write(tmp_path / "a.parquet", ["x"]), "cannot be read as a Parquet file", DataError)
    refuse(write(tmp_path / "a.feather", ["x"]), "read as an Arrow .Feather. file", DataError)
    refuse(write(tmp_path / "empty.csv", [""]), "cannot be read as CSV", DataError)
    (tmp_path / "hive" / "year=2013").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1], "y": [0]}), tmp_path / "hive" / "year=2013" / "0.parquet")
    (tmp_path / "hive" / "year=2014").mkdir()
    write(tmp_path / "hive" / "year=2014" / "0.csv", ["a,y", "1,0"])
    refuse(tmp_path / "hive", "must all be Parquet")
    for shard_rows in (0, 2.5):
        with pytest.raises(SettingError, match="shard_rows must be"):
            ingest({"x": [[1.0]]}, tmp_path / "s", shard_rows=shard_rows)
    assert not (tmp_path / "s").exists()


def test_progress_bar_counts_rows(table, tmp_path, capsys):
    heard = []
    ingest(table, tmp_path / "s", **(SETTINGS | {"progressbar": heard.append}))
    assert (heard[-1].done, heard[-1].total) == (N, N)
    ingest(table, tmp_path / "u", **(SETTINGS | {"progressbar": True}))
    assert capsys.readouterr().err == f"modicum: ingest u, {N:,} rows\n"  # the line for a log file
    ingest(table, tmp_path / "t", **SETTINGS)
    assert capsys.readouterr().err == ""

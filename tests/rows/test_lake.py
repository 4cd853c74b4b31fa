"""Lakes: partitions, mixed and empty files, lazy frames, iterators, resuming after a kill."""

import datetime
import itertools
import os
import signal
import textwrap

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.frames import frame_of
from helpers.refusals import refused
from helpers.scripts import Script
from modicum.rows import Rows, ingest
from modicum.rows.reading import read_formula
from modicum.rows.tables import FileSource, open_table

N = 3000
QUIET = {"outcome": "y", "progressbar": False}


@pytest.fixture(scope="module")
def frame():
    return frame_of()


@pytest.fixture
def hive(frame, tmp_path):
    """Write one giant file among small ones of one row and of none."""
    folder = tmp_path / "hive"
    for year, part in frame.groupby("year"):
        inside = folder / f"year={year}"
        inside.mkdir(parents=True)
        cuts = [0, 1, len(part)] if year != 2021 else [0, 0, 3, len(part)]
        for i, (first, last) in enumerate(itertools.pairwise(cuts)):
            table = pa.Table.from_pandas(part.iloc[first:last].drop(columns="year"))
            pq.write_table(table, inside / f"part-{i}.parquet")
    (folder / "_SUCCESS").write_text("")
    return folder


def same(rows, frame, columns=("a", "k", "g", "year")):
    expected = Rows.from_table(frame, "y", columns, dtype="float32")
    assert rows.columns == expected.columns
    assert rows.fingerprint() == expected.fingerprint()


def test_folders_that_hold_columns(frame, hive, tmp_path):
    chosen = QUIET | {"predictors": ["a", "k", "g", "year"]}
    same(ingest(hive, tmp_path / "s", shard_rows=777, **chosen), frame)
    same(ingest(f"file://{hive}", tmp_path / "u", **chosen), frame)
    same(ingest([hive / "year=2020", hive / "year=2021", hive / "year=2022"], tmp_path / "l",
                **(chosen | {"predictors": ["a", "g"]})), frame, ("a", "g"))  # fmt: skip
    glob = ingest(f"file://{hive}/year=2021/*.parquet", tmp_path / "g", **chosen)
    assert len(glob) == (frame["year"] == 2021).sum()
    filtered = ds.dataset(hive, partitioning="hive").filter(ds.field("year") > 2020)
    some = ingest(filtered, tmp_path / "f", **chosen)
    same(some, frame[frame["year"] > 2020].reset_index(drop=True))


def test_csv_files_by_uri(frame, hive, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    frame[:1000].to_csv(folder / "0.csv", index=False, sep=";")
    frame[1000:].to_csv(folder / "1.csv.gz", index=False)
    chosen = QUIET | {"predictors": ["a", "k", "g", "year"], "categorical": ["g"]}
    same(ingest(folder.as_uri(), tmp_path / "s", **chosen), frame)
    same(ingest(f"{folder.as_uri()}/*.csv*", tmp_path / "t", **chosen), frame)
    frame.to_csv(hive / "year=2020" / "0.csv", index=False)
    with pytest.raises(mo.SettingError, match="write CSV as Parquet"):
        ingest(f"{hive.as_uri()}/year=2020/0.csv", tmp_path / "u", **chosen)


def test_formulas_of_lakes(frame, hive):
    formula = "y ~ a + g + C(year)"
    lazy = pl.from_pandas(frame).lazy()
    frame.to_feather(hive.parent / "a.feather")
    files = (hive, str(hive.parent / "*.feather"), ds.dataset(hive, partitioning="hive"))
    sources = (frame, *files, lazy, pa.Table.from_pandas(frame), iter([frame]))
    made = [read_formula(formula, data, progressbar=False) for data in sources]
    assert len({rows.fingerprint() for rows in made}) == 1
    stored = read_formula(formula, hive, store=hive.parent / "s", progressbar=False)
    assert stored.is_store
    assert (stored.fingerprint(), stored.schema) == (made[0].fingerprint(), made[0].schema)
    assert made[1].columns == ("a", "g[v]", "g[w]", "C(year)[2021]", "C(year)[2022]")


def test_mixed_schemas_are_right_or_refused(tmp_path):
    folder = tmp_path / "mixed" / "part=1"
    folder.mkdir(parents=True)

    def write(name, **columns):
        pq.write_table(pa.table(columns), folder / name)

    write("a.parquet", a=[1, 2], y=[0, 1])
    write("b.parquet", a=[0.5, 1.5], y=[1, 0])  # floats after integers
    write("c.parquet", y=pa.array([], pa.null()), a=pa.array([], pa.null()))  # an empty table
    rows = ingest(tmp_path / "mixed", tmp_path / "s", predictors=["a"], **QUIET)
    np.testing.assert_array_equal(rows.slice(0, 4)["x"][:, 0], [1, 2, 0.5, 1.5])
    write("d.parquet", b=[1.0], y=[0])
    with pytest.raises(mo.DataError, match=r"column 'a' is not in .*d.parquet"):
        ingest(tmp_path / "mixed", tmp_path / "t", predictors=["a"], **QUIET)
    write("d.parquet", a=["text"], y=[0])
    with pytest.raises(mo.DataError, match="do not hold the same types of values"):
        ingest(tmp_path / "mixed", tmp_path / "t", predictors=["a"], **QUIET)
    (folder / "d.parquet").write_bytes(b"")
    with pytest.raises(mo.DataError, match=r"cannot be read"):
        ingest(tmp_path / "mixed", tmp_path / "t", predictors=["a"], **QUIET)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("kind", ["parquet", "hive", "feather", "csv", "tables"])
@pytest.mark.parametrize("formula", ["y ~ a", "a ~ y"])
def test_booleans_and_numbers_in_one_column_are_refused(kind, formula, tmp_path):
    def read(*outcomes):
        frames = [pd.DataFrame({"y": y, "a": [0.5, 1.5]}) for y in outcomes]
        folder = tmp_path / "p=1" if kind == "hive" else tmp_path
        folder.mkdir(exist_ok=True)
        for i, frame in enumerate(frames):
            if kind == "csv":
                frame.to_csv(folder / f"{i}.csv", index=False)
            elif kind == "feather":
                frame.to_feather(folder / f"{i}.feather", compression="uncompressed")
            else:
                frame.to_parquet(folder / f"{i}.parquet")
        return read_formula(formula, frames if kind == "tables" else tmp_path, progressbar=False)

    booleans, numbers = [False, True], [0, 1]
    for outcomes, where in (((booleans, numbers), (0, 1)), ((numbers, booleans), (1, 0))):
        sentence = r"'y' holds booleans in .*{}(\..*)? and numbers in .*{}(\..*)?, ".format(*where)
        refused(mo.DataError, sentence, read, *outcomes)
    assert len(read(booleans, booleans)) == 4
    assert len(read(numbers, numbers)) == len(read(numbers, [1.0, 0.0])) == 4


@cases(
    "folder same unlike",
    ("2024", [2024, 2024], [2024, 2023]),
    ("2024", [2024.0, 2024.0], [2024.0, 2024.5]),
    ("2024", [2024, 2024], [2024, None]),
    ("01", ["01", "01"], ["01", "1"]),
    ("a%20b", ["a b", "a b"], ["a b", "b"]),
    ("True", [True, True], [True, False]),
    ("2024-01-05", [datetime.date(2024, 1, 5)] * 2, [datetime.date(2024, 1, 6)] * 2),
    ("__HIVE_DEFAULT_PARTITION__", pa.array([None, None], "int32"), [None, 2024]),
    ("word", ["word", "word"], [3, 3]),
)
@pytest.mark.parametrize("categories", [False, True])
def test_a_column_in_folder_and_file_agrees_or_is_refused(
    folder, same, unlike, categories, tmp_path
):
    def lake(values):
        column = pa.array(values)
        column = column.dictionary_encode() if categories else column
        table = pa.table({"c": column, "y": [0, 1]})
        for name, part in (("c=0", table[:0]), (f"c={folder}", table)):
            (tmp_path / name).mkdir(exist_ok=True)
            pq.write_table(part, tmp_path / name / "part.parquet")
        return open_table(tmp_path)

    read = pa.Table.from_batches(lake(same).batches(["c", "y"]))
    assert read["c"].to_pylist() == pa.array(same).to_pylist()
    source = lake(unlike)
    assert pa.Table.from_batches(source.batches(["y"])).num_rows == 2  # c is not used
    with pytest.raises(mo.DataError, match=r"part.parquet holds .* in column 'c', and .* folder"):
        list(source.batches(["c"]))


@cases(
    "source sentence",
    ("s3://", "names no file or folder"),
    ([3, 4], "entry 0 is a int"),
    (iter(()), "there are no rows"),
    (iter([pd.DataFrame({"y": [1]}), pd.DataFrame({"z": [1]})]), "'y' is not in table 1"),
    (iter([pd.DataFrame({"y": [1]}), pd.DataFrame({"y": ["b"]})]), "table 1 holds other types"),
    (pl.DataFrame({"a": [1], "y": [0]}).lazy().select(pl.col("nope")), "cannot be computed"),
)
def test_what_cannot_be_read_is_a_clear_error(source, sentence, tmp_path):
    refused(mo.ModicumError, sentence, ingest, source, tmp_path / "s", **QUIET)
    assert not (tmp_path / "s").exists()


# Resuming ----------------------------------------------------------------------------------


def test_a_killed_ingest_resumes_where_it_was(frame, tmp_path, monkeypatch):
    folder = tmp_path / "parts"
    folder.mkdir()
    for i in range(6):
        table = pa.Table.from_pandas(frame.iloc[i * 500 : (i + 1) * 500])
        pq.write_table(table, folder / f"{i}.parquet")
    script = textwrap.dedent(f"""
        import os, modicum.rows.writing as writing
        from modicum.rows import ingest
        record = writing.ShardWriter.record
        def killed(self, identity):
            record(self, identity)
            if len(self.shards) == 9:
                os.kill(os.getpid(), 9)
        writing.ShardWriter.record = killed
        ingest({str(folder)!r}, {str(tmp_path / "s")!r}, outcome="y", shard_rows=200,
               progressbar=False)
    """)
    with Script(script) as child:
        assert child.wait() == -signal.SIGKILL, child.stderr.read()
    assert not (tmp_path / "s").exists()
    read = []
    original = FileSource._scan

    def watched(self, fragment, schema):
        if "a" in schema.names:  # not only the levels of g
            read.append(os.path.basename(fragment.path))
        return original(self, fragment, schema)

    monkeypatch.setattr(FileSource, "_scan", watched)
    rows = ingest(folder, tmp_path / "s", shard_rows=200, **QUIET)
    same(rows, frame, ("a", "k", "g", "year"))
    assert read == ["3.parquet", "4.parquet", "5.parquet"]  # 8 shards of 200 rows were complete
    assert sorted(os.listdir(tmp_path)) == ["parts", "s"]
    whole = [*(f"rows-{i:05d}.npy" for i in range(15)), "rows.json"]
    assert sorted(os.listdir(tmp_path / "s")) == whole
    Rows.open(tmp_path / "s", verify=True)


def test_what_changed_since_is_read_anew(frame, tmp_path, monkeypatch):
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "one.parquet")

    class Stopped(KeyboardInterrupt):
        pass

    record = mo.rows.writing.ShardWriter.record

    def stopped(self, identity):
        record(self, identity)
        if len(self.shards) == 5:
            raise Stopped

    monkeypatch.setattr(mo.rows.writing.ShardWriter, "record", stopped)
    with pytest.raises(Stopped):
        ingest(tmp_path / "one.parquet", tmp_path / "s", shard_rows=300, **QUIET)
    unfinished, _ = sorted(tmp_path.glob(".s.ingest-*"))  # and its lock
    monkeypatch.setattr(mo.rows.writing.ShardWriter, "record", record)
    other = frame_of(seed=2)
    pq.write_table(pa.Table.from_pandas(other), tmp_path / "one.parquet")
    same(ingest(tmp_path / "one.parquet", tmp_path / "s", shard_rows=300, **QUIET), other)
    assert not unfinished.exists()
    assert not list(tmp_path.glob(".s.ingest-*"))

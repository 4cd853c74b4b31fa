"""What careless and hostile users do to rows gives a clear error or the right answer."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from typer.testing import CliRunner

import modicum as mo
from helpers.cases import cases
from helpers.disks import small_disk
from helpers.refusals import refused
from modicum.cli import app
from modicum.errors import DataError, ModicumError, ResourceError, SettingError, as_options
from modicum.files import place_name
from modicum.rows import Rows, first_not_finite, lake, object_storage
from modicum.rows.reading import TableFiles, read_formula, source_of
from modicum.rows.rows import doubtful_weights

ingest = partial(mo.rows.ingest, progressbar=False)
FIELDS = {"x": np.arange(600.0).reshape(200, 3), "y": np.arange(200) % 2}


@pytest.fixture
def store(tmp_path):
    ingest(FIELDS, tmp_path / "s", shard_rows=120)
    return tmp_path / "s"


def write_csv(path, *lines, encoding="utf-8"):
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return path


# The fingerprint


def test_every_number_enters_the_fingerprint(tmp_path):
    """A run once resumed old draws although 92 % of the outcomes had changed."""
    n = 100_000
    x, y = np.ones((n, 2), np.float32), np.zeros(n, np.float32)
    first = Rows(x=x, y=y).fingerprint()
    for change in (1, 12_345, n - 2):
        other = y.copy()
        other[change] = 1
        assert Rows(x=x, y=other).fingerprint() != first
        stored = ingest({"x": x, "y": other}, tmp_path / f"{change}")
        assert stored.fingerprint() == Rows(x=x, y=other).fingerprint()
    swapped = x.copy()
    swapped[70_000, 1] = -1
    again = x.copy()
    again[70_000, 0] = -1
    assert Rows(x=swapped, y=y).fingerprint() != Rows(x=again, y=y).fingerprint()
    negated = x.copy()
    negated[[5, 6]] *= -1  # an even number of signs cancels in simple checksums
    assert Rows(x=negated, y=y).fingerprint() != first
    order = np.arange(n, dtype=np.float32)
    assert Rows(y=order).fingerprint() != Rows(y=order[::-1]).fingerprint()


def test_fingerprints_of_blocks_do_not_depend_on_how_rows_came(tmp_path, monkeypatch):
    monkeypatch.setattr("modicum.rows.description.BLOCK_BYTES", 160)  # ten rows per block
    memory = Rows(**FIELDS, dtype="float32")
    for shard_rows in (7, 10, 200):
        store = ingest(FIELDS, tmp_path / f"{shard_rows}", shard_rows=shard_rows)
        assert store.fingerprint() == memory.fingerprint()
    assert Rows(**FIELDS).fingerprint() != memory.fingerprint()


def test_store_keeps_its_fingerprint_and_older_stores_compute_it(store):
    path = store / "rows.json"
    about = json.loads(path.read_text())
    assert about["fingerprint"] == Rows(**FIELDS, dtype="float32").fingerprint()
    del about["fingerprint"], about["levels"]
    path.write_text(json.dumps(about))
    old = Rows.open(store)
    assert old.fingerprint() == Rows(**FIELDS, dtype="float32").fingerprint()
    assert old.schema.levels == {}


def test_stores_with_the_checksums_of_before_can_be_verified(store):
    import hashlib

    path = store / "rows.json"
    about = json.loads(path.read_text())
    for shard in about["shards"]:
        data = np.load(store / shard["file"]).tobytes()
        shard["checksum"] = hashlib.blake2b(data, digest_size=16).hexdigest()
    path.write_text(json.dumps(about))
    assert len(Rows.open(store, verify=True)) == 200
    about["shards"][0]["checksum"] = "0" * 32
    path.write_text(json.dumps(about))
    refused(DataError, r"rows-00000\.npy of .* was altered", Rows.open, store, verify=True)


# Levels


ZIPS = ["01234", "1234", "90210", "01234"]


def test_zip_codes_keep_their_zeros(tmp_path):
    path = write_csv(tmp_path / "z.csv", "zip,y", *(f"{z},{i % 2}" for i, z in enumerate(ZIPS)))
    table = pa.table({"zip": ZIPS, "y": [0, 1, 0, 1]})
    pq.write_table(table, tmp_path / "z.parquet")
    for name, source in {
        "csv": path,
        "parquet": tmp_path / "z.parquet",
        "pandas": table.to_pandas(),
        "category": table.to_pandas().astype({"zip": "category"}),
        "polars": pl.from_arrow(table),
    }.items():
        rows = ingest(source, tmp_path / name, categorical=["zip"])
        assert rows.levels == {"zip": ("01234", "1234", "90210")}, name
        assert rows.columns == ("zip[1234]", "zip[90210]")
        assert rows.slice(0, 4)["zip"].tolist() == [0, 1, 2, 0]
    other = ingest(path, tmp_path / "r", categorical={"zip": "1234"})
    assert other.schema.reference == {"zip": "1234"}


def test_numbers_as_levels_have_one_order_whatever_the_file(tmp_path):
    hours = [10, 9, 0, 23, 9]
    frame = pd.DataFrame({"hour": hours, "y": [0, 1, 0, 1, 1]})
    frame.to_csv(tmp_path / "h.csv", index=False)
    frame.to_parquet(tmp_path / "h.parquet")
    settings = {"categorical": ["hour"]}
    text = ingest(tmp_path / "h.csv", tmp_path / "a", **settings)
    number = ingest(tmp_path / "h.parquet", tmp_path / "b", **settings)
    assert text.columns == number.columns == ("hour[9]", "hour[10]", "hour[23]")
    assert text.schema == number.schema
    assert text.fingerprint() == number.fingerprint()
    for i, nine in enumerate([9, 9.0, "9"]):
        settings["categorical"] = {"hour": nine}
        for name in ("h.csv", "h.parquet"):
            rows = ingest(tmp_path / name, tmp_path / f"{name}{i}", **settings)
            assert rows.schema.reference == {"hour": "9"}


def test_a_level_and_a_column_of_one_name():
    frame = pd.DataFrame({"g": ["u", "v"], "g[v]": [1.0, 2.0], "y": [0, 1]})
    with pytest.raises(DataError, match=r"two columns of x would be named 'g\[v\]'.*rename"):
        Rows.from_table(frame, categorical=["g"])


@cases(
    "settings message",
    ({"categorical": 5}, "categorical must be a sequence of names, not int"),
    ({"categorical": None}, "categorical must be a sequence of names, not NoneType"),
    ({"categorical": [["g"]]}, "categorical must be the name of a column, not list"),
    ({"categorical": {"g": np.ones(2)}}, "reference level of column 'g' must be text"),
    ({"predictors": np.array(5)}, "predictors must be a sequence of names, not ndarray"),
    ({"predictors": 5}, "predictors must be a sequence of names, not int"),
    ({"dtype": "f4,("}, "dtype must be float32"),
)
def test_settings_of_other_types(tmp_path, settings, message):
    frame = pd.DataFrame({"g": ["u", "v"], "y": [0, 1]})
    frame.to_csv(tmp_path / "d.csv", index=False)
    refused(SettingError, message, Rows.from_table, frame, **settings)
    refused(SettingError, message, ingest, tmp_path / "d.csv", tmp_path / "s", **settings)
    assert not (tmp_path / "s").exists()


def test_text_is_answered_by_what_can_be_done():
    with pytest.raises(DataError, match=r"'y' holds text \('no' in row 0\): convert it to numbers"):
        Rows(x=[[1.0], [2.0]], y=pd.Series(["no", "yes"]))
    with pytest.raises(DataError, match=r"use Rows\.from_table with categorical=\['g'\]"):
        Rows(x=pd.DataFrame({"g": ["u", "v"]}))
    with pytest.raises(DataError, match=r"\('v' in row 1\) among numbers.*categorical=\['g'\]"):
        Rows.from_table(pd.DataFrame({"g": ["3", "v"], "y": [0, 1]}))
    many = pd.DataFrame({"g": [f"u{i}" for i in range(600)], "y": 0.0})
    refused(DataError, r"holds text with 600 levels.*a group in mo\.fit", Rows.from_table, many)


def test_fields_of_other_types():
    x = [[1.0], [2.0]]
    with pytest.raises(DataError, match=r"'y' holds 10+ in row 0: every value must be a number"):
        Rows(x=x, y=[10**400, 1])
    refused(DataError, r"convert it with numpy.asarray\(y, dtype=float\)", Rows, x=x, y=[2**70, 1])
    refused(DataError, "field 'y' is a single Int64Scalar", Rows, x=x, y=pa.scalar(3))
    refused(SettingError, "columns must be a sequence of names, not int", Rows, x=x, columns=3)
    refused(SettingError, "a slice takes two row numbers", Rows(x=x).slice, None, 2)
    refused(SettingError, "row numbers must be an array of integers", Rows(x=x).take, [[0], [0, 1]])


# Stores from elsewhere


ABSENT = object()
LEVELS = {"reference": "w", "levels": ["u", "v"]}  # of which the reference is none
ODD = {  # entries of rows.json, by place
    ("rows",): [ABSENT, "200", True, -200, 200.5, 10**30],
    ("dtype",): [ABSENT, "object", ["float32"]],
    ("fields",): [ABSENT, 3, [], ["x", "y"]],
    ("fields", 0, "name"): [None],
    ("fields", 1, "name"): ["x"],  # that of another
    ("fields", 0, "shape"): [[-3], [1] * 70 + [3], "3"],
    ("fields", 0, "span"): [[0, 2], "03"],
    ("columns",): [ABSENT, [1, 2, 3], ["x0"]],
    ("outcome",): [3],
    ("levels",): [["u"], {"g": {"reference": "u", "levels": [["u"], "v"]}}, {"g": LEVELS}],
    ("fingerprint",): [3],
    ("shards",): [ABSENT, 7, [], [None]],
    ("shards", 0, "rows"): [0, -5, 10**25],
    ("shards", 0, "bytes"): ["many"],
    ("shards", 0, "file"): [0, "../rows-00000.npy", "/etc/passwd", "deep/rows-00000.npy", ".", ""],
}
ODD["shards", 0, "file"] += ["rows-00000.npy\0.txt", "rows-00001.npy"]  # that of another
MUTATIONS = [{place: odd} for place, values in ODD.items() for odd in values]
MUTATIONS += [{("rows",): 0, ("shards",): []}]
MUTATIONS += [{("fields", 0, "shape"): [10**15] * 2, ("fields", 0, "span"): [0, 10**30]}]


@pytest.mark.parametrize("changes", MUTATIONS)
def test_odd_descriptions(store, changes):
    path = store / "rows.json"
    about = json.loads(path.read_text())
    for (*places, last), odd in changes.items():
        entry = about
        for place in places:
            entry = entry[place]
        entry[last] = odd
        if odd is ABSENT:
            del entry[last]
    path.write_text(json.dumps(about))
    refused(DataError, r"rows\.json is damaged \(.+\): ingest the source again", Rows.open, store)


def test_shards_outside_are_not_even_opened(store, tmp_path):
    shutil.move(store / "rows-00000.npy", tmp_path / "rows-00000.npy")
    about = json.loads((store / "rows.json").read_text())
    for place in ("../rows-00000.npy", str(tmp_path / "rows-00000.npy")):
        about["shards"][0]["file"] = place
        (store / "rows.json").write_text(json.dumps(about))
        refused(DataError, "is not the name of a shard", Rows.open, store)


@cases(
    "content reason",
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"\xff\xfe\x00{", "not UTF-8 text"),
    (b"[" * 200_000, "nested too deeply"),
    (b'{"format": "modicum-rows", "levels":' + b'{"a":' * 200_000, "nested too deeply"),
    (b"null", "does not say that its format"),
    (b"[1, 2]", "does not say that its format"),
    (b'{"format": "other"}', "does not say that its format"),
    (b'{"rows": ' + b"9" * 10_000 + b"}", "is damaged"),
    ids=["empty", "cut", "binary", "nested", "nested-objects", "null", "list", "other", "digits"],
)
def test_files_that_are_not_descriptions_are_refused(store, content, reason):
    (store / "rows.json").write_bytes(content)
    refused(DataError, reason, Rows.open, store)
    refused(SettingError, "exists and is not a row store", ingest, FIELDS, store, overwrite=True)


def test_descriptions_that_cannot_be_read(store, monkeypatch):
    path = store / "rows.json"
    monkeypatch.setattr("modicum.rows.store.MOST_DESCRIPTION_BYTES", 10)
    refused(DataError, "not a file of a sensible size", Rows.open, store)
    monkeypatch.undo()
    path.unlink()
    os.mkfifo(path)
    refused(DataError, "not a file of a sensible size", Rows.open, store)
    path.unlink()
    path.mkdir()
    refused(DataError, "not a file of a sensible size", Rows.open, store)
    for wrong in (3, None, b"s"):
        refused(SettingError, r"Rows\.open takes the folder of a store", Rows.open, wrong)


def header(text):
    body = text.encode("latin-1").ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


HEADERS = {
    "80 TB": header("{'descr': '<f4', 'fortran_order': False, 'shape': (5000000000000, 4), }"),
    "too wide": header("{'descr': '<f4', 'fortran_order': False, 'shape': (120, 400000000), }"),
    "negative": header("{'descr': '<f4', 'fortran_order': False, 'shape': (-120, 4), }"),
    "three axes": header("{'descr': '<f4', 'fortran_order': False, 'shape': (120, 2, 2), }"),
    "float64": header("{'descr': '<f8', 'fortran_order': False, 'shape': (120, 4), }"),
    "integers": header("{'descr': '<i4', 'fortran_order': False, 'shape': (120, 4), }"),
    "big-endian": header("{'descr': '>f4', 'fortran_order': False, 'shape': (120, 4), }"),
    "objects": header("{'descr': '|O', 'fortran_order': False, 'shape': (120, 4), }"),
    "records": header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (120, 4), }"),
    "by columns": header("{'descr': '<f4', 'fortran_order': True, 'shape': (120, 4), }"),
    "no shape": header("{'descr': '<f4', 'fortran_order': False, }"),
    "no dictionary": header("[1, 2]"),
    "code": header("__import__('os').abort()"),
    "nested": header("(" * 116),
    "version 2": b"\x93NUMPY\x02\x00"
    + header("{'descr': '<f4', 'fortran_order': False, 'shape': (120, 4), }")[8:],
    "no magic": b"MUZZY" + header("{}")[5:],
    "pickle": b"cos\nabort\n(tR.".ljust(128),
}


@pytest.mark.parametrize("head", HEADERS.values(), ids=HEADERS)
def test_odd_headers_of_shards(store, head):
    path = store / "rows-00000.npy"
    whole = path.read_bytes()
    assert len(head) == 128
    path.write_bytes(head + whole[128:])
    refused(DataError, r"rows-00000\.npy of .* was altered: ingest the source", Rows.open, store)
    path.write_bytes(whole)
    assert len(Rows.open(store)) == 200


def test_descriptions_and_headers_that_agree_on_80_tb(store):
    about = json.loads((store / "rows.json").read_text())
    about["rows"] = 5 * 10**12 + 80
    about["shards"][0]["rows"] = 5 * 10**12
    (store / "rows.json").write_text(json.dumps(about))
    path = store / "rows-00000.npy"
    path.write_bytes(HEADERS["80 TB"] + path.read_bytes()[128:])
    refused(DataError, "was altered", Rows.open, store)
    about["shards"][0]["bytes"] = 80 * 10**12 + 128
    (store / "rows.json").write_text(json.dumps(about))
    refused(DataError, "is truncated", Rows.open, store)


def test_a_shard_that_is_a_pipe(store):
    (store / "rows-00001.npy").unlink()
    os.mkfifo(store / "rows-00001.npy")
    refused(DataError, r"rows-00001\.npy of .* is not a file", Rows.open, store)


@cases(
    "code remedy",
    (errno.EMFILE, r"limit on open files \(ulimit -n\)"),
    (errno.ENOMEM, r"limit on address space \(ulimit -v\)"),
    (errno.EACCES, "check its permissions"),
    (errno.EIO, "check its permissions and its disk"),
)
def test_remedies_fit_the_failure(store, monkeypatch, code, remedy):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("modicum.rows.store.mmap.mmap", refuse)
    refused(DataError, rf"rows-00000.npy of .* cannot be read .*: .*{remedy}", Rows.open, store)


# Numbers damaged after they were checked


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_damage_inside_a_store_is_named(tmp_path, value, word):
    folder = tmp_path / "s"
    n = 40_000
    fields = {"x": np.ones((n, 2)), "y": np.zeros(n), "c": np.ones((n, 2, 2))}
    assert first_not_finite(ingest(fields, folder, shard_rows=15_000)) is None
    shard = np.lib.format.open_memmap(folder / "rows-00001.npy", mode="r+")
    shard[9_000, 5] = value
    shard[9_001, 0] = value
    shard.flush()
    rows = Rows.open(folder)  # its ends are intact: only verify=True would notice
    bad = first_not_finite(rows)
    assert bad[:2] == ("c[1, 0]", 24_000)
    assert str(bad.error()) == (
        f"column 'c[1, 0]' holds {word} in row 24000 in {folder}, where it held a number when "
        "the rows were made: the data have changed since, so make the rows again from their source."
    )
    assert isinstance(bad.error(), DataError)
    refused(DataError, "was altered", Rows.open, folder, verify=True)
    with pytest.raises(DataError, match=rf"column 'c\[1, 0\]' holds {word} in row 24000"):
        ingest(rows, tmp_path / "t")


def test_damage_in_memory_is_named():
    y = np.zeros(10)
    rows = Rows(y=y)
    y[7] = np.inf
    assert first_not_finite(rows) == ("y", 7, np.inf, "in memory")
    assert first_not_finite(Rows(x=np.zeros((3, 2)), dtype="uint8")) is None
    assert first_not_finite(Rows(x=np.full((100, 2), 3e38, np.float32))) is None


# Encodings


def test_latin_1_is_named_as_such(tmp_path):
    names = {
        "header": ("größe,y", "1,0", "2,1"),
        "level": ("size,g,y", "1,u,0", "2,für,1"),
        "number": ("size,y", "1,0", "2°,1"),
    }
    for name, lines in names.items():
        path = write_csv(tmp_path / f"{name}.csv", *lines, encoding="latin-1")
        number = 1 if name == "header" else 3
        categorical = ["g"] if name == "level" else []
        with pytest.raises(
            DataError,
            match=rf"{name}\.csv is not utf-8 text \(byte 0x\w\w in line {number}\): it is "
            "probably Latin-1 .*encoding='latin-1'.*iconv",
        ):
            ingest(path, tmp_path / "s", categorical=categorical)
        with gzip.open(tmp_path / f"{name}.csv.gz", "wb") as file:
            file.write(path.read_bytes())
        with pytest.raises(DataError, match=rf"is not utf-8 text .* in line {number}\)"):
            ingest(tmp_path / f"{name}.csv.gz", tmp_path / "s", categorical=categorical)
        with pytest.raises(DataError, match=r"is not utf-8 text .*encoding='latin-1'"):
            read_formula("y ~ g" if name == "level" else "y ~ size", path)
    assert len(read_formula("y ~ size", tmp_path / "level.csv")) == 2  # negative control: no g
    rows = ingest(tmp_path / "level.csv", tmp_path / "s", categorical=["g"], encoding="latin-1")
    assert rows.columns == ("size", "g[u]")
    assert rows.levels == {"g": ("für", "u")}
    rows = ingest(tmp_path / "header.csv", tmp_path / "t", encoding="latin-1")
    assert rows.columns == ("größe",)
    with pytest.raises(DataError, match=r"column 'size' holds text \('2°' in row 1\)"):
        ingest(tmp_path / "number.csv", tmp_path / "u", encoding="latin-1")


def test_latin_1_in_a_column_that_is_not_used(tmp_path):
    path = write_csv(tmp_path / "d.csv", "a,note,y", "1,für,0", "2,u,1", encoding="latin-1")
    rows = ingest(path, tmp_path / "s", predictors=["a"])
    assert rows.columns == ("a",)


def test_other_encodings(tmp_path):
    wide = write_csv(tmp_path / "w.csv", "a,y", "1,0", "2,1", encoding="utf-16")
    refused(DataError, "it is UTF-16; pass encoding='utf-16'", ingest, wide, tmp_path / "s")
    with as_options(), pytest.raises(DataError, match="pass --encoding utf-16, or"):
        ingest(wide, tmp_path / "s")
    assert len(ingest(wide, tmp_path / "s", encoding="utf-16")) == 2
    marked = write_csv(tmp_path / "m.csv", "a,y", "1,0", "2,1", encoding="utf-8-sig")
    assert ingest(marked, tmp_path / "t").columns == ("a",)
    (tmp_path / "b.csv").write_bytes(b"PK\x03\x04\x00\x00\xff\xee" * 20)
    refused(DataError, "does not look like text at all", ingest, tmp_path / "b.csv", tmp_path / "u")
    for wrong in ("latin-99", "hex", "utf-8\0", 3):
        with pytest.raises(SettingError, match="encoding must be one that Python knows"):
            ingest(wide, tmp_path / "u", encoding=wrong)


def test_endings_in_capitals(tmp_path):
    path = write_csv(tmp_path / "D.TSV", "a\ty", "1\t0", "2\t1")
    assert ingest(path, tmp_path / "s").columns == ("a",)


def test_damaged_feather_does_not_end_the_process(tmp_path):
    """Arrow maps these files unchecked: offsets out of bounds caused a segmentation fault."""
    table = pa.table({"g": pa.array(["u", "v", "w", "u"], pa.string()), "y": [0, 1, 0, 1]})
    pa.feather.write_feather(table, tmp_path / "d.feather", compression="uncompressed")
    content = (tmp_path / "d.feather").read_bytes()
    offsets = np.arange(5, dtype=np.int32).tobytes()
    assert content.count(offsets) == 1
    wild = np.array([0, 1, 2**30, 3, 4], np.int32).tobytes()
    (tmp_path / "d.feather").write_bytes(content.replace(offsets, wild))
    with pytest.raises(DataError, match=r"d\.feather is damaged \(.*offset.*\): write it again"):
        ingest(tmp_path / "d.feather", tmp_path / "s", categorical=["g"])


# Where stores are written


def test_nothing_else_is_replaced(store, tmp_path):
    (store / "notes.txt").write_text("mine")
    with pytest.raises(SettingError, match=r"also holds notes\.txt, which is not part of a row"):
        ingest(FIELDS, store, overwrite=True)
    assert (store / "notes.txt").read_text() == "mine"
    assert len(Rows.open(store, verify=True)) == 200
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "rows.json").write_text('{"rows": ["of another program"]}')
    with pytest.raises(SettingError, match="exists and is not a row store"):
        ingest(FIELDS, tmp_path / "theirs", overwrite=True)
    assert "another program" in (tmp_path / "theirs" / "rows.json").read_text()
    refused(SettingError, "the store must be a path, not a int", ingest, FIELDS, 3)


def test_a_link_to_a_store_stays_a_link(store, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(store)
    assert len(ingest({"x": [[1.0]]}, link, overwrite=True)) == 1
    assert link.is_symlink()
    assert len(Rows.open(store)) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "s"]


@pytest.mark.parametrize("moment", ["write", "finish", "description", "rename"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_full_disk(tmp_path, monkeypatch, moment, code):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    place = {
        "write": "modicum.rows.writing.ShardWriter.write",
        "finish": "modicum.rows.store.os.fsync",
        "description": "modicum.rows.store.Folder.finish",
        "rename": "modicum.rows.writing.os.rename",
    }[moment]
    monkeypatch.setattr(place, refuse)
    remedy = "choose another place" if code == errno.EROFS else "free some space, or choose"
    with pytest.raises(
        ModicumError, match=rf"{tmp_path}/s cannot be written \({os.strerror(code)}\): {remedy}"
    ):
        ingest(FIELDS, tmp_path / "s")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    refused(DataError, "is not a row store", Rows.open, tmp_path / "s")


def test_full_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    frames = [pd.DataFrame({"x": np.ones(9000), "y": np.ones(9000)})] * 3
    with (
        small_disk(10_000),
        pytest.raises(ResourceError, match="temporary folder, or name another"),
    ):
        ingest(iter(frames), tmp_path / "s")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    refused(ResourceError, "environment variable TMPDIR", ingest, iter(frames), tmp_path / "s")
    assert os.listdir(tmp_path) == []

    def broken():
        yield frames[0]
        raise OSError("the user's own")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    refused(OSError, "the user's own", ingest, broken(), tmp_path / "s")


def test_full_disk_keeps_the_old_store(store, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("modicum.rows.writing.ShardWriter.write", refuse)
    refused(SettingError, "cannot be written", ingest, {"x": [[1.0]]}, store, overwrite=True)
    assert len(Rows.open(store, verify=True)) == 200


def test_rows_that_no_memory_holds():
    ones = np.broadcast_to(np.float32(1), (2**57, 2))  # four bytes, but far more as float64
    with pytest.raises(DataError, match=r"rows of float64 take .* GB, which is more memory"):
        Rows(x=ones, dtype="float64")


@cases(
    "weights words",
    (np.full(200, 1e9), "sum to about 2e+11, and a weight is"),
    (350 + np.linspace(0, 1, 200), "of 7.01e+04 independent rows, 18.7 times as narrow"),
    (np.linspace(0.5, 1.5, 200) / 200, "of 1 independent rows, 14.1 times as wide"),
)
def test_weights_that_are_no_numbers_of_rows(weights, words):
    (doubt,) = doubtful_weights(mo.Rows(x=np.ones((200, 1)), y=np.ones(200), weight=weights))
    assert doubt.code == "weights-sum"
    assert words in doubt.sentence


@pytest.mark.parametrize("weights", [np.arange(200.0), np.linspace(0, 2, 200), np.full(200, 1e5)])
def test_weights_that_may_be_meant(weights):
    assert doubtful_weights(mo.Rows(x=np.ones((200, 1)), y=np.ones(200), weight=weights)) == []


def test_a_run_says_so():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(200, 1)), 1.0 * (rng.random(200) < 0.4)
    rows = mo.Rows(x=x, y=y, weight=np.linspace(200, 500.5, 200))
    with pytest.warns(mo.ModicumWarning, match="sampling weights"):
        post = mo.sample(
            mo.models.Logistic(), rows, draws=50, random_seed=1, progressbar=False, method="laplace"
        )
    assert "weights-sum" in [doubt.code for doubt in post.warnings]


# Credentials


@pytest.mark.parametrize("credentials", ["KEY:SECRET@", "KEY@", "KEY:SEC/RET@", "KEY:SEC@RET@", ""])
def test_names_of_places_hold_no_credentials(credentials):
    assert place_name(f"s3://{credentials}bucket/a@b?region=x") == "s3://bucket/a@b"
    assert place_name(f"./{credentials}x?.csv") == f"./{credentials}x?.csv"  # not a URI


def test_credentials_in_a_uri_are_shown_nowhere(tmp_path, monkeypatch):
    bucket, cache, run = (tmp_path / name for name in ("bucket", "cache", "run"))
    system = fs.SubTreeFileSystem(str(bucket), fs.LocalFileSystem())
    for module in (lake, object_storage):
        monkeypatch.setattr(module, "file_system", lambda uri: (system, uri.partition("@")[2]))
    monkeypatch.setattr(lake, "ATTEMPTS", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (bucket / "made").mkdir(parents=True)  # real buckets need no folders
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"x": rng.normal(size=200), "y": rng.integers(0, 2, 200)})
    table.to_parquet(bucket / "trips.parquet")
    (bucket / "bad.parquet").write_text("not Parquet")
    place, said = "s3://KEY:SECRET@trips.parquet", []
    quiet = {"method": "laplace", "draws": 20, "random_seed": 1}
    post = mo.fit("y ~ x", place, progressbar=lambda event: said.append(event.phase), **quiet)
    assert source_of(post.table).names == ("x", "y")  # it can still be read
    said += map(repr, (post, post.table, TableFiles.of([place, place]), post.rows))

    commands = {
        f"fit {place} y~x --out {run} --method laplace --tune 0 --draws 20": 0,
        f"fit {place} y~x --out {run} --method laplace --tune 0 --draws 20 --prob 0.8": 1,
        f"fit s3://KEY:SECRET@none.parquet y~x --out {run}/a": 1,
        f"ingest {place} s3://KEY:SECRET@made --outcome y": 0,
        f"predict {run} {place} --out {run}/p.csv": 0,
    }
    for command, code in commands.items():
        result = CliRunner().invoke(app, command.split())
        assert result.exit_code == code, result.output
        said += [result.output, result.stderr]
    for wrong in ("none.parquet", "bad.parquet"):
        with pytest.raises(ModicumError) as error:
            ingest(place.replace("trips.parquet", wrong), run / "b")
        said.append(str(error.value))
    files = [path for path in (*cache.rglob("*"), *run.rglob("*")) if path.is_file()]
    said += [path.read_bytes().decode(errors="replace") for path in files]
    assert len(Rows.open(bucket / "made")) == 200
    assert len(said) > 20
    assert any("trips.parquet" in text for text in said)
    assert not any("SECRET" in text or "KEY" in text for text in said)
    (store,) = cache.rglob("lake/*/rows.json")
    assert store.parents[1].stat().st_mode & 0o077 == 0  # of the folder, so of all that is in it


@cases("uri", "s3://KEY:SEC/RET@b/x", "s3://KEY:SEC RET@b/x", "foo://K:SECRET@b/x")
def test_a_uri_that_cannot_be_read_is_quoted_without_credentials(uri, tmp_path):
    with pytest.raises(SettingError, match="cannot be read") as error:
        ingest(uri, tmp_path / "s")
    assert "SEC" not in str(error.value)


def test_results_and_checkpoints_do_not_make_a_folder_called_s3(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = {"x": np.arange(40.0), "y": np.arange(40) % 2}
    quiet = {"method": "laplace", "draws": 20, "random_seed": 1, "progressbar": False}
    post = mo.fit("y ~ x", table, **quiet)
    table_file = tmp_path / "t.csv"
    pd.DataFrame(table).to_csv(table_file, index=False)
    for uri in ("s3://KEY:SECRET@bucket/run", "file:///run", "gs://bucket/run"):
        for use in (
            post.save,
            post.report,
            post.to_netcdf,
            mo.Posterior.load,
            lambda place: mo.fit("y ~ x", table, checkpoint=place, **quiet),
            lambda place: mo.fit("y ~ x", Path(place)),
            lambda place: Rows.open(Path(place)),
        ):
            with pytest.raises(SettingError, match=r"/run' is a URI, but .*: (name|pass)") as error:
                use(uri)
            assert "SECRET" not in str(error.value)
        result = CliRunner().invoke(app, ["fit", str(table_file), "y ~ x", "--out", uri])
        assert result.exit_code == 1
        assert "is a URI" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]

"""Object storage: tables are read from it; stores are written to it and sampled from it.

It is a folder of this machine that stands in for a bucket; connections break on purpose.
"""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

import modicum as mo
from helpers.frames import frame_of
from helpers.refusals import refused
from helpers.targets import quick, same_draws
from modicum.rows import ingest, lake, object_storage, tables
from modicum.rows.reading import read_formula

N = 4000


@pytest.fixture(scope="module")
def table():
    return frame_of(N)[["a", "k", "g", "y"]]


@pytest.fixture(scope="module")
def uri(table, tmp_path_factory):
    """Return the URI of a key, in a folder that stands in for a bucket."""
    here = tmp_path_factory.mktemp("bucket")
    names = ("whole", "grown", "replaced", "damaged", "formula", "x")
    for key in (*(f"months/month={i}" for i in range(4)), "texts", *(f"stores/{n}" for n in names)):
        (here / "trips" / key).mkdir(parents=True)  # real buckets need no folders
    system = fs.SubTreeFileSystem(str(here), fs.LocalFileSystem())
    for i in range(4):
        part, file = pa.Table.from_pandas(table[i * 1000 :][:1000]), f"month={i}/0.parquet"
        pq.write_table(part, f"trips/months/{file}", filesystem=system, row_group_size=250)
    with pytest.MonkeyPatch.context() as patch:
        for module in (lake, object_storage):
            patch.setattr(module, "file_system", lambda uri: (system, uri.removeprefix("s3://")))
        yield lambda key="months": f"s3://trips/{key}"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(lake, "FIRST_PAUSE", 0.01)


CHOICE = {"outcome": "y", "predictors": ["a", "k", "g", "month"], "progressbar": False}


def expected(table):
    whole = table.assign(month=np.repeat(np.arange(4), 1000))
    return mo.Rows.from_table(whole, "y", CHOICE["predictors"], dtype="float32")


def test_a_bucket_is_read_as_a_table(uri, table, tmp_path):
    rows = ingest(uri(), tmp_path / "s", **CHOICE)
    assert rows.fingerprint() == expected(table).fingerprint()
    some = ingest(uri("months/month=2/*.parquet"), tmp_path / "g", **CHOICE)
    assert len(some) == 1000


def test_csv_files_in_a_bucket_and_what_tells_that_they_changed(uri, table, tmp_path):
    system, path = lake.file_system(uri("texts/0.csv"))

    def write(part):
        with system.open_output_stream(path) as stream:
            stream.write(part.to_csv(index=False).encode())
        return lake.Listing.of([uri("texts")]).identity

    columns = {"predictors": ["a", "g"], "categorical": ["g"], "progressbar": False}
    first = write(table[:1000])
    rows = ingest(uri("texts"), tmp_path / "s", **columns)
    local = mo.Rows.from_table(table[:1000], "y", ["a", "g"], categorical=["g"], dtype="float32")
    assert rows.fingerprint() == local.fingerprint()
    assert lake.Listing.of([uri("texts")]).identity == first
    assert write(table[:900]) != first


def broken_scan(scan, times):
    """Return a scan of a file that breaks after the first batch of month 3, `times` times."""
    left = [times]

    def scanned(self, fragment, schema):
        for batch in scan(self, fragment, schema):
            yield batch.slice(0, 100)
            if "month=3" in fragment.path and len(schema) > 1 and left[0]:
                left[0] -= 1
                raise OSError("AWS Error NETWORK_CONNECTION: curlCode: 7, Couldn't connect")
            yield batch.slice(100)

    return scanned


def test_a_broken_connection_is_read_on_and_an_unreachable_server_is_a_clear_error(
    uri, table, tmp_path, monkeypatch
):
    scan = tables.FileSource._scan
    monkeypatch.setattr(tables.FileSource, "_scan", broken_scan(scan, 1))
    read_on = ingest(uri(), tmp_path / "t", shard_rows=300, **CHOICE)
    assert read_on.fingerprint() == expected(table).fingerprint()
    monkeypatch.setattr(tables.FileSource, "_scan", broken_scan(scan, 99))
    with pytest.raises(mo.DataError, match=r"month=3/0.parquet cannot be read .*NETWORK"):
        ingest(uri(), tmp_path / "s", shard_rows=300, **CHOICE)
    assert list(tmp_path.glob(".s.ingest-*"))
    read = []
    monkeypatch.setattr(tables.FileSource, "_scan", lambda *a: read.append(a[1].path) or scan(*a))
    rows = ingest(uri(), tmp_path / "s", shard_rows=300, **CHOICE)
    assert rows.fingerprint() == expected(table).fingerprint()
    assert not list(tmp_path.glob(".s.ingest-*"))
    assert sum("month=0" in path for path in read) == 1  # its levels, not its rows


def test_a_missing_key_and_a_missing_bucket_are_clear_errors(uri, tmp_path):
    with pytest.raises(mo.DataError, match="there is no file at"):
        ingest(uri("nothing/here"), tmp_path / "s", **CHOICE)
    with pytest.raises(mo.ModicumError, match=r"there is no file at|cannot be read"):
        ingest(uri().replace("trips", "no-such-bucket"), tmp_path / "s", **CHOICE)
    assert os.listdir(tmp_path) == []


def test_fits_keep_rows_in_the_cache_and_say_so(uri, table, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    heard = []
    made = read_formula("y ~ a + g", uri(), progressbar=heard.append)
    assert made.is_store
    assert any("caching the rows" in event.phase for event in heard)
    heard.clear()
    again = read_formula("y ~ a + g", uri(), progressbar=heard.append)
    assert again.fingerprint() == made.fingerprint()
    assert any("from the cache" in event.phase for event in heard)
    assert not any("ingest" in event.phase for event in heard)
    local = read_formula("y ~ a + g", table, progressbar=False)
    assert local.fingerprint() == made.fingerprint()


# Stores on object storage ------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(uri, table):
    """Write a store of several shards to the server."""
    place = uri("stores/whole")
    local = expected(table)
    ingest(local, place, dtype=None, shard_rows=1100, progressbar=False)
    return place


def keys(uri, name):
    system, path = lake.file_system(uri(f"stores/{name}"))
    return sorted(f.base_name for f in system.get_file_info(fs.FileSelector(path)) if f.is_file)


def test_a_store_is_written_and_read_there(uri, store, table):
    rows, local = mo.Rows.open(store, verify=True), expected(table)
    assert keys(uri, "whole") == [*(f"rows-0000{i}.npy" for i in range(4)), "rows.json"]
    assert rows.is_store
    assert repr(rows).endswith("in s3://trips/stores/whole)")  # no options, no keys
    assert rows.fingerprint() == local.fingerprint()
    ids = np.random.default_rng(1).integers(0, N, (30, 7))
    for name, values in rows.take(ids).items():
        np.testing.assert_array_equal(values, local.take(ids)[name])
    for name, values in rows.slice(1000, 3500).items():
        np.testing.assert_array_equal(values, local.slice(1000, 3500)[name])
    joined = np.concatenate([chunk["y"] for chunk in rows.chunks(900)])
    np.testing.assert_array_equal(joined, local.slice(0, N)["y"])
    assert rows.take([])["y"].shape == (0,)


@pytest.mark.slow
def test_its_draws_match_the_rows_in_memory(store, table, monkeypatch):
    monkeypatch.setattr("modicum.run.iterations.SMALL_STORE", 0)  # chains fetch from the server
    remote, local = (
        quick(mo.models.Logistic(), rows, method="hmc-ecs")
        for rows in (mo.Rows.open(store), expected(table))
    )
    assert same_draws(remote, local)


class Flaky:
    """A file system whose every other read fails."""

    def __init__(self, system, reads=None):
        self.system, self.reads = system, [] if reads is None else reads

    def __getattr__(self, name):
        return getattr(self.system, name)

    def open_input_file(self, path):
        return Flaky(self.system.open_input_file(path), self.reads)

    def __enter__(self):
        return self.system

    def __exit__(self, *_):
        self.system.close()

    def read_at(self, *where):
        self.reads.append(where)
        if len(self.reads) % 2:
            raise OSError("Connection reset by peer")
        return self.system.read_at(*where)


def test_stores_are_read_on_after_failures(store, table, monkeypatch):
    system, path = lake.file_system(store)
    flaky = Flaky(system)
    monkeypatch.setattr(object_storage, "file_system", lambda uri: (flaky, path))
    read, local = mo.Rows.open(store).slice(0, N), expected(table).slice(0, N)
    assert flaky.reads
    for name, values in read.items():
        np.testing.assert_array_equal(values, local[name])


def test_a_table_there_becomes_a_store_there_and_a_killed_ingest_resumes(uri, table, monkeypatch):
    place, send, sent = uri("stores/grown"), object_storage.Bucket._put, []

    def breaks(self, name, *rest):
        if name == "rows-00005.npy":
            raise lake.LakeError("the connection is gone.")
        sent.append(name)
        return send(self, name, *rest)

    monkeypatch.setattr(object_storage.Bucket, "_put", breaks)
    refused(mo.DataError, "the connection is gone", ingest, uri(), place, shard_rows=300, **CHOICE)
    refused(mo.DataError, "is not a row store", mo.Rows.open, place)  # unfinished
    assert sent.count("progress.json") == 4  # of the first shard, the first two, three and four
    monkeypatch.setattr(
        object_storage.Bucket, "_put", lambda self, *a: sent.append(a[0]) or send(self, *a)
    )
    sent.clear()
    rows = ingest(uri(), place, shard_rows=300, **CHOICE)
    assert rows.fingerprint() == expected(table).fingerprint()
    shards = [name for name in sent if name.startswith("rows-")]
    assert len(shards) == 10  # of 14; the last of the five complete shards is written again
    assert len(keys(uri, "grown")) == 14 + 1
    mo.Rows.open(place, verify=True)


def test_a_store_there_is_replaced_when_the_new_one_is_complete(uri, table):
    place = uri("stores/replaced")
    old = ingest(expected(table), place, dtype=None, progressbar=False)
    with pytest.raises(mo.SettingError, match=r"exists: open it with Rows.open"):
        ingest({"y": [1.0, 2.0]}, place, progressbar=False)
    with pytest.raises(mo.DataError, match="holds NaN"):
        ingest({"y": [1.0, np.nan]}, place, progressbar=False, overwrite=True)
    assert mo.Rows.open(place).fingerprint() == old.fingerprint()
    new = ingest({"y": [1.0, 2.0]}, place, progressbar=False, overwrite=True)
    assert (len(new), keys(uri, "replaced")) == (2, ["rows-00001.npy", "rows.json"])
    if "endpoint" in place:  # a file that is open here stays readable after its removal
        refused(mo.DataError, "reopen the store if it was replaced", old.slice, 0, N)


def test_a_missing_shard_a_damaged_one_and_other_files_are_clear_errors(uri, table):
    place = uri("stores/damaged")
    ingest(expected(table), place, dtype=None, shard_rows=1100, progressbar=False)
    system, path = lake.file_system(place)
    with system.open_output_stream(f"{path}/rows-00002.npy") as stream:
        stream.write(b"short")
    with pytest.raises(mo.DataError, match=r"rows-00002.npy of s3://trips/stores/damaged is trunc"):
        mo.Rows.open(place)
    system.delete_file(f"{path}/rows-00001.npy")
    refused(mo.DataError, r"damaged/rows-00001.npy does not exist", mo.Rows.open, place)
    with pytest.raises(mo.SettingError, match="not part of a row store: choose another"):
        ingest(expected(table), uri("months/month=1"), dtype=None, progressbar=False)
    with pytest.raises(mo.DataError, match=r"is not a row store .it has no rows.json"):
        mo.Rows.open(uri("stores/nowhere"))
    with pytest.raises(mo.ModicumError, match=r"cannot be (read|written)"):
        ingest({"y": [1.0]}, uri("stores/x").replace("trips", "no-such"), progressbar=False)


def test_a_formula_keeps_its_rows_there_and_takes_them_from_there(uri, table):
    place = uri("stores/formula")
    made = read_formula("y ~ a + g", table, store=place, progressbar=False)
    assert made.is_store
    again = read_formula("y ~ a + g", place, progressbar=False)
    local = read_formula("y ~ a + g", table, progressbar=False)
    assert made.fingerprint() == local.fingerprint()
    assert again.columns == local.columns

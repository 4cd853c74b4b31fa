"""A store is complete or absent, and reports damage."""

import errno
import json
import signal

import numpy as np
import pytest

from helpers.refusals import refused
from helpers.scripts import Script
from modicum.errors import DataError, SettingError
from modicum.rows import Rows, ingest
from modicum.rows.writing import ShardWriter

FIELDS = {"x": np.arange(40_000.0).reshape(10_000, 4), "y": np.arange(10_000) % 2}


@pytest.fixture
def store(tmp_path):
    ingest(FIELDS, tmp_path / "s", shard_rows=6000, progressbar=False)
    return tmp_path / "s"


def test_another_version_and_no_store(store):
    path = store / "rows.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
    refused(DataError, r"store version 99.*upgrade", Rows.open, store)
    path.unlink()
    for place in (store, store / "nowhere"):
        refused(DataError, "is not a row store", Rows.open, place)


def test_overwrite(store):
    before = Rows.open(store)
    kept = before.slice(0, 10)["x"].copy()
    with pytest.raises(SettingError, match="in ingest, pass overwrite=True to replace it"):
        ingest({"x": np.ones((3, 2))}, store, progressbar=False)
    with pytest.raises(DataError, match="NaN in row 1"):
        ingest({"x": [[1.0], [np.nan]]}, store, overwrite=True, progressbar=False)
    assert Rows.open(store, verify=True).fingerprint() == before.fingerprint()
    after = ingest({"x": np.ones((3, 2))}, store, overwrite=True, progressbar=False)
    assert len(after) == len(Rows.open(store, verify=True)) == 3
    assert [p.name for p in store.parent.iterdir()] == ["s"]
    # Rows opened earlier still read the old store.
    assert np.array_equal(before.slice(0, 10)["x"], kept)
    # A store may even be made from itself.
    again = ingest(after, store, overwrite=True, dtype="float64", progressbar=False)
    assert again.dtype == np.float64


def test_overwrite_where_names_cannot_be_swapped(store, monkeypatch):
    monkeypatch.setattr("modicum.rows.store._exchange", lambda *_: False)
    assert len(ingest({"x": [[1.0]]}, store, overwrite=True, progressbar=False)) == 1
    assert [p.name for p in store.parent.iterdir()] == ["s"]


def test_other_peoples_folders_are_safe(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("miaow")
    (tmp_path / "file").write_text("text")
    for name in ("photos", "file"):
        with pytest.raises(SettingError, match="exists and is not a row store"):
            ingest({"x": [[1.0]]}, tmp_path / name, overwrite=True, progressbar=False)
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "miaow"
    with pytest.raises(SettingError, match="cannot be written"):
        ingest({"x": [[1.0]]}, tmp_path / "file" / "s", progressbar=False)
    (tmp_path / "empty").mkdir()
    assert len(ingest({"x": [[1.0]]}, tmp_path / "empty", progressbar=False)) == 1
    assert len(ingest({"x": [[1.0]]}, tmp_path / "new" / "deep", progressbar=False)) == 1


CHILD = """
import sys, time
import numpy as np
from modicum.rows import ingest
from modicum.rows.writing import ShardWriter

write = ShardWriter.write
def slow(self, block):
    write(self, block)
    print(len(self.shards), flush=True)
    time.sleep(0.05)
ShardWriter.write = slow
ingest({"x": np.ones((4_000_000, 4))}, sys.argv[1], shard_rows=100_000, progressbar=False)
"""


def test_killed_ingest_leaves_nothing_that_opens(tmp_path):
    store = tmp_path / "s"
    with Script(CHILD, store) as child:
        while int(child.stdout.readline() or 99) < 2:
            pass
        left = sorted(tmp_path.iterdir())
        assert left[0].name.startswith(".s.ingest-")
        assert left[1:] == [left[0].with_name(f"{left[0].name}.lock")]
        # While it works, another ingest of the same store leaves its folder alone.
        assert len(ingest({"x": [[1.0]]}, tmp_path / "other", progressbar=False)) == 1
        assert len(ingest({"x": [[1.0]]}, store, progressbar=False)) == 1
        assert left[0].exists()
        for file in store.iterdir():
            file.unlink()
        store.rmdir()
        child.kill()
        assert child.wait() == -signal.SIGKILL
    assert (left[0] / "rows-00001.npy").exists()  # it was still working
    for folder in (store, left[0]):
        refused(DataError, "is not a row store", Rows.open, folder)
    rows = ingest(FIELDS, store, progressbar=False)
    assert len(rows) == 10_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "s"]


def test_without_file_locks_the_folder_of_another_ingest_stays(tmp_path, monkeypatch):
    """Nobody can know there whether it is still at work; with locks it is known, and removed."""
    left = tmp_path / ".s.ingest-0123abcd"
    left.mkdir()
    left.with_name(f"{left.name}.lock").write_text("4711 elsewhere\n")

    def without_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr("fcntl.flock", without_locks)
        assert len(ingest(FIELDS, tmp_path / "s", progressbar=False)) == 10_000
    assert left.is_dir()
    ingest(FIELDS, tmp_path / "s", progressbar=False, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_interrupted_overwrite_keeps_the_old_store(store, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    before = Rows.open(store).fingerprint()
    monkeypatch.setattr(ShardWriter, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ingest(FIELDS, store, overwrite=True, progressbar=False)
    assert [p.name for p in store.parent.iterdir()] == ["s"]
    assert Rows.open(store, verify=True).fingerprint() == before

"""Checkpoints that are damaged, shared or out of space: nothing lost, one clear sentence."""

import errno
import io
import json
import os
import zipfile

import numpy as np
import pytest

import modicum as mo
from helpers import toy
from helpers.cases import cases
from helpers.interrupted import planned
from helpers.refusals import refused
from helpers.scripts import Script
from helpers.targets import gaussian_rows, quick
from modicum.methods.pilot import short_chains
from modicum.run import checkpoint as module
from modicum.run.checkpoint import Checkpoint

IDENTITY = {"seed": 1, "model": "a model"}
MODEL = mo.models.Gaussian(scale=0.7)


@pytest.fixture
def saved(tmp_path):
    """Return the folder of a checkpoint with two parts."""
    folder = tmp_path / "saved"
    with Checkpoint(folder, IDENTITY) as checkpoint:
        for made in (2, 5):
            checkpoint.append(made, {"position": np.zeros((1, 2, 3))}, [np.zeros(3)])
    return folder


def tampered(folder, change):
    """Rewrite run.json with `change`, which gets its contents."""
    path = folder / "run.json"
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["../precious.txt", "/etc/passwd", "precious.txt", "run.json", ""])
@pytest.mark.parametrize("entry", ["state", "parts"])
def test_names_outside_the_folder_are_refused_and_nothing_is_deleted(saved, entry, name):
    precious = [saved.parent / "precious.txt", saved / "precious.txt"]
    for path in precious:
        path.write_text("years of work")
    tampered(saved, lambda index: index.update({entry: name if entry == "state" else [name]}))
    refused(mo.DataError, "not the record of a Modicum checkpoint", Checkpoint, saved, IDENTITY)
    assert all(path.read_text() == "years of work" for path in precious)


ODD = [None, True, -1, 2.5, "5", [], {}, [[]], "x" * 10_000, 10**300]


@pytest.mark.parametrize("entry", ["format", "identity", "iterations", "parts", "state"])
def test_missing_and_odd_entries_are_a_clear_error(saved, entry):
    whole = json.loads((saved / "run.json").read_text())
    for odd in (..., *ODD):
        index = {name: value for name, value in whole.items() if name != entry}
        if odd is not ...:
            index[entry] = odd
        (saved / "run.json").write_text(json.dumps(index))
        with pytest.raises((mo.DataError, mo.SettingError)) as caught:
            Checkpoint(saved, IDENTITY)
        assert len(str(caught.value)) < 600


def test_numbers_that_contradict_each_other_are_refused(saved):
    for change in (
        {"iterations": 4},
        {"iterations": 0},
        {"state": "state-00000002.npz"},
        {"parts": ["part-00000005.npz", "part-00000002.npz"]},
        {"parts": ["part-00000002.npz"]},
        {"parts": []},
    ):
        before = (saved / "run.json").read_text()
        tampered(saved, lambda index, change=change: index.update(change))
        refused(mo.DataError, "not the record", Checkpoint, saved, IDENTITY)
        (saved / "run.json").write_text(before)
    Checkpoint(saved, IDENTITY).close()  # unchanged, it opens


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[" * 200_000, b'{"a":' * 100_000, b"\xff\xfe", b"\0" * 100, b"1e999"],
    ids=["empty", "cut", "null", "nested", "nested-objects", "no-utf8", "zeros", "infinite"],
)
def test_what_is_not_an_index_is_refused(saved, content):
    (saved / "run.json").write_bytes(content)
    refused(mo.DataError, "not the record of a Modicum checkpoint", Checkpoint, saved, IDENTITY)
    assert Checkpoint.saved_identity(saved) == {}


def test_a_folder_in_place_of_the_index(tmp_path):
    (tmp_path / "run.json").mkdir()
    with pytest.raises(mo.ModicumError):
        Checkpoint(tmp_path, IDENTITY)


@pytest.mark.parametrize("seed", ["abc", -1, 2.5, None, 10**40, True, [1]])
def test_an_odd_seed_in_the_index_is_another_run(tmp_path, seed):
    rows = gaussian_rows(60)
    identity = {"seed": seed}
    Checkpoint(tmp_path, identity).close()
    with pytest.raises(mo.SettingError, match="belongs to another run"):
        mo.sample(MODEL, rows, draws=5, tune=5, progressbar=False, checkpoint=tmp_path)


# What a plan remembers ---------------------------------------------------------------------


@pytest.fixture
def short_chains_once(monkeypatch):
    """Run the pilot's short chains only in the first plan; the others reuse them."""
    first, run = {}, short_chains._chains

    def once(*arguments):
        kind = (arguments[2], float(arguments[8]))  # number of chains, and their start
        if kind not in first:
            first[kind] = run(*arguments)
        return first[kind]

    monkeypatch.setattr(short_chains, "_chains", once)


def without(arrays, name):
    return {other: values for other, values in arrays.items() if other != name}


@cases(
    "method files",
    (mo.HMCECS(), {"anchor", "levels", "design-weighted"}),
    (
        mo.HMCECS(anchor=toy.poor_anchor(), **toy.POOR),
        {"anchor", "levels", "design-weighted", "design-again-weighted"},
    ),
    (mo.FlyMC(), {"anchor", "bound"}),
    ids=["hmc-ecs", "anchor by hand", "flymc"],
)
@pytest.mark.usefixtures("short_chains_once")
def test_remembered_files_without_one_of_their_names_are_a_clear_error(tmp_path, method, files):
    some = mo.Rows(x=toy.X[:1_000], y=toy.Y[:1_000])
    with Checkpoint(tmp_path, IDENTITY) as checkpoint:
        _, whole = planned(toy.MODEL, some, method, checkpoint=checkpoint)
        _, again = planned(toy.MODEL, some, method, checkpoint=checkpoint)
        assert again.to_dict() == whole.to_dict()  # the ledger is remembered too
        assert {path.stem for path in tmp_path.glob("*.npz")} == files
        for path in tmp_path.glob("*.npz"):
            before = path.read_bytes()
            with np.load(path) as file:
                arrays = dict(file)
            assert "ledger" in arrays
            for name in arrays:
                np.savez(path, **without(arrays, name))
                with pytest.raises(mo.DataError, match="missing or damaged; delete the folder"):
                    planned(toy.MODEL, some, method, checkpoint=checkpoint)
            np.savez(path, **arrays | {"ledger": np.array("[" * 5)})
            with pytest.raises(mo.DataError, match="missing or damaged"):
                planned(toy.MODEL, some, method, checkpoint=checkpoint)
            path.write_bytes(before)


# Arrays ------------------------------------------------------------------------------------


def npy(header, data=b""):
    """Return a file in NumPy's format with the given header."""
    text = repr(header).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def header(shape, descr="<f8"):
    return {"descr": descr, "fortran_order": False, "shape": shape}


def pickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    return buffer.getvalue()


@cases(
    "content",
    npy(header((10**13,)), b"\0" * 24),  # 80 TB
    npy(header((2**62, 4)), b"\0" * 32),  # overflows
    npy(header((-3,)), b"\0" * 24),
    npy(header((3,)), b"\0" * 16),  # too short
    npy(header((3,)), b"\0" * 32),  # too long
    npy(header((1,), "|O"), b"\x80\x04N."),
    pickled(),
    b"\x93NUMPY\x09\x09",
    b"",
    b"cos\nsystem\n",
    ids=["80TB", "overflow", "negative", "short", "long", "object", "pickle", "v9", "empty", "raw"],
)
def test_arrays_that_are_not_what_they_say_are_refused_unread(saved, content):
    with zipfile.ZipFile(saved / "state-00000005.npz", "w") as archive:
        archive.writestr("leaf0.npy", content)
    with (
        Checkpoint(saved, IDENTITY) as checkpoint,
        pytest.raises(mo.DataError, match="missing or damaged"),
    ):
        checkpoint.restore()


def test_a_compressed_bomb_is_refused(saved):
    with zipfile.ZipFile(saved / "state-00000005.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("leaf0.npy", npy(header((2**20,)), b"\0" * 2**23))
    with (
        Checkpoint(saved, IDENTITY) as checkpoint,
        pytest.raises(mo.DataError, match="missing or damaged"),
    ):
        checkpoint.restore()


@pytest.mark.parametrize("harm", ["chains", "state", "names", "length"])
def test_arrays_of_another_run_are_a_clear_error(tmp_path, harm):
    rows = gaussian_rows(150)
    quick(MODEL, rows, checkpoint=tmp_path)
    which = "state" if harm == "state" else "part"
    path = sorted(tmp_path.glob(f"{which}*.npz"))[-1]
    with np.load(path) as file:
        arrays = dict(file)
    if harm == "names":
        arrays.pop("position")
    else:
        cut = {"chains": np.s_[:1], "state": np.s_[:1], "length": np.s_[:, :-1]}[harm]
        arrays = {name: values[cut] for name, values in arrays.items()}
    np.savez(path, **arrays)
    refused(mo.DataError, "start anew", quick, MODEL, rows, checkpoint=tmp_path)


# Two processes -----------------------------------------------------------------------------

HOLDER = """
import sys, time
from modicum.run.checkpoint import Checkpoint
held = Checkpoint(sys.argv[1], {"seed": 1, "model": "a model"})
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_process_is_told_who_has_the_folder(tmp_path):
    pytest.importorskip("fcntl")
    with Script(HOLDER, tmp_path) as other:  # is killed in the end: the system releases the lock
        assert other.stdout.readline() == "held\n"
        with pytest.raises(mo.SettingError, match=f"in use by process {other.pid};") as caught:
            Checkpoint(tmp_path, IDENTITY)
        assert str(tmp_path) in str(caught.value)
    Checkpoint(tmp_path, IDENTITY).close()


def test_two_runs_of_one_process_keep_apart(tmp_path):
    pytest.importorskip("fcntl")
    with (
        Checkpoint(tmp_path, IDENTITY),
        pytest.raises(mo.SettingError, match=f"in use by process {os.getpid()}"),
    ):
        Checkpoint(tmp_path, IDENTITY)
    Checkpoint(tmp_path, IDENTITY).close()


def test_a_failed_run_lets_go_of_its_folder(tmp_path, monkeypatch):
    def fails(*arguments, **settings):
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "remember", fails)
        with pytest.raises(RuntimeError, match="on purpose") as caught:
            quick(MODEL, gaussian_rows(150), checkpoint=tmp_path)
    assert caught.value is not None  # its traceback holds every object of the run
    quick(MODEL, gaussian_rows(150), checkpoint=tmp_path)


# No room -----------------------------------------------------------------------------------


def test_a_full_disk_is_a_clear_error_and_the_draws_are_kept(tmp_path, monkeypatch):
    rows = gaussian_rows(150)
    whole = quick(MODEL, rows)
    real, calls = np.savez, 0

    def full_after_a_while(file, **arrays):
        nonlocal calls
        calls += 1
        if calls > 4:  # the anchor, a chunk (two files), and half of the next one
            file.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file, **arrays)

    with monkeypatch.context() as patch:
        patch.setattr(module.np, "savez", full_after_a_while)
        with pytest.raises(mo.ResourceError, match=r"disk of the checkpoint .* is full") as caught:
            quick(MODEL, rows, checkpoint=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "iterations are safe there" in str(caught.value)
    assert not list(tmp_path.glob("*.tmp"))  # the space is freed
    with Checkpoint(tmp_path, Checkpoint.saved_identity(tmp_path)) as checkpoint:
        assert checkpoint.iterations > 0
    again = quick(MODEL, rows, checkpoint=tmp_path)
    np.testing.assert_array_equal(again["beta"], whole["beta"])


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    refused(mo.SettingError, "cannot be written", Checkpoint, tmp_path / "file" / "below", IDENTITY)


def test_deleting_a_checkpoint_leaves_what_is_not_its_own(saved):
    (saved / "thesis.tex").write_text("years of work")
    Checkpoint.delete(saved)
    assert os.listdir(saved) == ["thesis.tex"]

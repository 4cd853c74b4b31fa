"""Killed, interrupted, resumed: the same draws, and no half-written file is read."""

import os
import shutil
import signal
import sys
import time
import warnings

import numpy as np
import pytest

import modicum as mo
from helpers.interrupted import Crash, saved_iterations
from helpers.refusals import refused
from helpers.scripts import Script
from helpers.slow import slowly
from helpers.targets import gaussian_rows, quick, same_draws
from modicum.files import plain, restored
from modicum.kernels.designs import weight_tables
from modicum.kernels.whitening import Curves
from modicum.linalg.arrow import ArrowMatrix
from modicum.methods.ecs.composition import BurnIn
from modicum.methods.without_mode import AtMean
from modicum.passes import Anchor, ModeRecord, Modes
from modicum.run import runner
from modicum.run.checkpoint import Checkpoint

MODEL = mo.models.Gaussian(scale=0.7)
TUNE, DRAWS = 100, 40


@pytest.fixture(scope="module")
def rows():
    return gaussian_rows(150)


@pytest.fixture(scope="module")
def whole(rows):
    return quick(MODEL, rows)


@pytest.fixture(scope="module")
def finished(rows, tmp_path_factory):
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    quick(MODEL, rows, checkpoint=folder)
    return folder


@pytest.fixture
def saved(finished, tmp_path):
    """Return a copy of that folder."""
    return shutil.copytree(finished, tmp_path / "saved")


def same_run(a, b):
    return same_draws(a, b) and a.ledger.counts == b.ledger.counts


def test_a_finished_checkpoint_returns_at_once(rows, whole, saved, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a finished run must not compute again")

    monkeypatch.setattr(mo.run.chains.Chains, "advance", never)
    monkeypatch.setattr("modicum.methods.method.anchor_at_mode", never)
    again = quick(MODEL, rows, checkpoint=saved)
    assert same_run(again, whole)
    assert again.ledger.sweeps == whole.ledger.sweeps
    for name, values in whole.stats.items():
        np.testing.assert_array_equal(again.stats[name], values)


def test_without_a_seed_the_checkpoints_seed_is_used(rows, tmp_path):
    a = quick(MODEL, rows, checkpoint=tmp_path, random_seed=None)
    assert same_run(a, quick(MODEL, rows, checkpoint=tmp_path, random_seed=None))


@pytest.mark.parametrize("chunk", [0.0, *slowly(0.002), 1e9])
def test_chunks_do_not_change_draws(rows, whole, monkeypatch, chunk):
    monkeypatch.setattr(runner, "CHUNK_SECONDS", chunk)  # from one iteration at a time to all
    assert same_draws(quick(MODEL, rows), whole)


def test_capacity_does_not_change_draws(rows, whole, monkeypatch):
    # via sys.modules, because modicum.sample is the function
    monkeypatch.setattr(sys.modules["modicum.sample"], "capacity_for", lambda *_: 7)
    assert same_draws(quick(MODEL, rows), whole)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"random_seed": 6}, "seed"),
        ({"draws": 41}, "draws"),
        ({"method": mo.HMC(trajectory=1.0)}, "method"),
        ({"rows": gaussian_rows(150, seed=99)}, "rows is"),
        ({"model": mo.models.Gaussian(scale=0.8)}, "model is"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(rows, finished, changes, word):
    with pytest.raises(mo.SettingError, match=f"belongs to another run.*{word}") as caught:
        quick(**{"model": MODEL, "rows": rows, "checkpoint": finished} | changes)
    assert str(caught.value).endswith("choose another.")


def test_a_folder_of_something_else_is_left_alone(rows, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    refused(mo.SettingError, "other files", quick, MODEL, rows, checkpoint=tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    refused(mo.SettingError, "is a file", quick, MODEL, rows, checkpoint=tmp_path / "thesis.tex")


@pytest.mark.parametrize("which", ["part", "state", "anchor"])
@pytest.mark.parametrize("harm", ["truncated", "removed", "emptied"])
def test_a_damaged_part_is_refused(rows, whole, saved, which, harm):
    path = next(iter(sorted(saved.glob(f"{which}*.npz"))))
    if harm == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if harm == "emptied" else -100])
    if (which, harm) == ("anchor", "removed"):  # it can be computed again, to the same point
        assert same_draws(quick(MODEL, rows, checkpoint=saved), whole)
        return
    refused(mo.DataError, "missing or damaged", quick, MODEL, rows, checkpoint=saved)


# Crashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [*slowly("before"), "after"])
def test_a_crash_at_any_write_loses_nothing(rows, whole, tmp_path, monkeypatch, moment):
    monkeypatch.setattr(runner, "CHUNK_SECONDS", 1e9)  # few chunks, so few writes
    real, writes = os.replace, 0
    for crash_at in range(1, 30):
        writes = 0

        def replace(source, destination, crash_at=crash_at):
            nonlocal writes
            writes += 1
            if writes == crash_at and moment == "before":
                raise Crash
            real(source, destination)
            if writes == crash_at:
                raise Crash

        folder = tmp_path / str(crash_at)
        monkeypatch.setattr(os, "replace", replace)
        try:
            quick(MODEL, rows, checkpoint=folder)
        except Crash:
            monkeypatch.setattr(os, "replace", real)
            assert same_run(quick(MODEL, rows, checkpoint=folder), whole)
        else:
            break
    assert writes >= 8  # the index, the anchor, and three files per chunk: all were tried
    assert crash_at == writes + 1


CHILD = """
import sys
from helpers.targets import gaussian_rows, quick
from modicum.models import Gaussian
from modicum.run import runner
runner.CHUNK_SECONDS = 0.0  # a checkpoint every iteration
quick(Gaussian(scale=0.7), gaussian_rows(150), checkpoint=sys.argv[1])
"""


def test_a_killed_process_resumes_to_the_same_draws(rows, whole, tmp_path):
    with Script(CHILD, tmp_path) as process:
        while saved_iterations(tmp_path) < TUNE:
            assert process.returncode is None, "the child ended before it could be killed"
            time.sleep(0.002)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert TUNE <= saved_iterations(tmp_path) < TUNE + DRAWS
    assert same_run(quick(MODEL, rows, checkpoint=tmp_path), whole)


# Ctrl-C ------------------------------------------------------------------------------------


def press_ctrl_c(monkeypatch, after):
    """Send this process SIGINT once `after` iterations are done."""
    real = runner.Monitor.update

    def update(self, done, record, rows_touched):
        real(self, done, record, rows_touched)
        if done >= after:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)  # the handler runs between two bytecodes

    monkeypatch.setattr(runner, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr(runner.Monitor, "update", update)


def test_ctrl_c_returns_the_draws_so_far(rows, whole, tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGINT)  # a background job's differs from a terminal's
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, TUNE + 11)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            some = mo.sample(
                MODEL, rows, method="hmc", draws=DRAWS, tune=TUNE, chains=2, random_seed=5,
                progressbar=False, checkpoint=tmp_path,
            )  # fmt: skip
    count = some.num_draws
    assert 11 <= count < DRAWS
    assert f"stopped after {count} of {DRAWS} draws" in str(heard[0].message)
    assert not some.settings["complete"]
    np.testing.assert_array_equal(some["beta"], whole["beta"][:, :count])
    assert signal.getsignal(signal.SIGINT) is before
    # and the run can be completed
    assert same_run(quick(MODEL, rows, checkpoint=tmp_path), whole)


def test_ctrl_c_during_warm_up_is_an_interrupt(rows, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    press_ctrl_c(monkeypatch, 20)
    refused(KeyboardInterrupt, "before the first draw", quick, MODEL, rows)
    assert signal.getsignal(signal.SIGINT) is before


# Stages -----------------------------------------------------------------------------------

ARROW = ArrowMatrix.of_diagonal(-np.arange(1.0, 6.0), np.array([[0], [1], [2]]), np.array([3, 4]))
ANCHOR = Anchor(
    *(np.arange(5.0), -7.5, np.ones(5), ARROW, np.eye(5)),
    record=ModeRecord(3, float("nan"), True, 20),
    notes=[mo.ModicumWarning("not-concave", "it is not", "look", ratio=0.1)],
    modes=Modes(np.ones((1, 5)), np.ones(1), np.eye(5)[None]),
)
SIZES = {"subsample": 30}
STAGES = {
    "anchor": (Anchor, ANCHOR),
    "mean": (AtMean, AtMean(ANCHOR, "of short chains")),
    "burn-in": (BurnIn, BurnIn(ANCHOR, SIZES, {"blocks": "as in the paper"}, {"v": [0.5]})),
    "tables": (type(weight_tables(np.ones(3))), weight_tables(np.arange(3.0))),
    "no curves": (Curves | None, None),
    "curves": (Curves | None, Curves(np.eye(2), np.ones((2, 96, 4)))),
    "pace": (tuple[float, float], (1e-9, 1 / 3)),
}


def remembered(folder, kind, value, calls):
    def compute():
        calls.append(1)
        return {"found": plain(value)}

    with Checkpoint(folder, {}) as checkpoint:
        return checkpoint.remember("stage", compute, lambda parts: restored(kind, parts["found"]))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_is_read_back_as_it_was(tmp_path, name):
    kind, value = STAGES[name]
    calls = []
    for _ in range(2):
        again = remembered(tmp_path, kind, value, calls)
        assert type(again) is type(value)
        assert repr(again) == repr(value)  # arrays have few entries, shown in full
    assert len(calls) == 1


@pytest.mark.parametrize(("kind", "value"), [(Anchor, ARROW), (AtMean, ANCHOR), (Curves, [1.0])])
def test_a_stage_of_another_kind_is_refused(tmp_path, kind, value):
    remembered(tmp_path, type(value), value, [])
    refused(mo.DataError, "missing or damaged", remembered, tmp_path, kind, value, [])

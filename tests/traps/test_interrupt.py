"""Signals at any moment: the command ends in one line, and its checkpoint can be resumed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import modicum as mo
from helpers.scripts import Script
from helpers.slow import slowly
from helpers.targets import gaussian_rows, quick
from modicum.run.chains import Chains
from modicum.run.checkpoint import Checkpoint
from modicum.run.interrupt import stoppable

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
MODEL = mo.models.Gaussian(scale=0.7)
LIMIT = 60  # seconds: far more than the two it takes, so that a busy machine does not matter


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "rows.csv"
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 2))
    y = (rng.random(2000) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    lines = [f"{a:.4f},{b:.4f},{c}" for (a, b), c in zip(x, y, strict=True)]
    path.write_text("\n".join(["a,b,y", *lines]))
    return path


class Command:
    """`modicum fit` in a child process whose standard error is read line by line."""

    def __init__(self, csv, out, *options):
        self.out = out
        self.lines: list[str] = []
        command = ["fit", str(csv), "--outcome", "y", "--out", str(out), "--method", "hmc"]
        command += ["--draws", "200000", "--tune", "200", "--chains", "2", "--seed", "1", *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "modicum_command", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, condition, seconds=240):
        until = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < until, self.lines
            time.sleep(0.01)

    def wait_for_phase(self, name):
        self.wait_for(lambda: any(line.startswith(f"modicum: {name}") for line in self.lines))

    def wait_for_watch(self):
        """Wait until SIGTERM is caught: the imports have just begun."""
        status = Path(f"/proc/{self.process.pid}/status")
        if not status.exists():
            pytest.skip("this system does not show which signals a process catches")
        caught = re.compile(r"SigCgt:\s*([0-9a-f]+)")
        self.wait_for(
            lambda: int(caught.search(status.read_text())[1], 16) >> (signal.SIGTERM - 1) & 1
        )

    def stopped_by(self, number):
        """Send the signal and check how the command ends."""
        self.process.send_signal(number)
        try:
            code = self.process.wait(LIMIT)
        finally:
            self.process.kill()
        self.reader.join(LIMIT)
        said = [line for line in self.lines if not line.startswith("modicum: ")]
        assert code == 128 + number, self.lines
        assert len(said) == 1, self.lines
        assert said[0].startswith("Stopped by SIGTERM:" if number == signal.SIGTERM else "Stopped:")
        folder = self.out / "checkpoint"
        if (folder / "run.json").exists():
            with Checkpoint(folder, Checkpoint.saved_identity(folder)) as checkpoint:
                if checkpoint.iterations:
                    parts, _ = checkpoint.restore()
                    made = sum(part["position"].shape[1] for part in parts)
                    assert made == checkpoint.iterations
        return said[0]


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("import", signal.SIGINT),
        ("compile", signal.SIGTERM),
        *slowly(("import", signal.SIGTERM), ("compile", signal.SIGINT)),
    ],
)
def test_a_signal_ends_the_command_in_one_line(csv, tmp_path, moment, number):
    command = Command(csv, tmp_path / "out")
    if moment == "import":
        command.wait_for_watch()
        said = command.stopped_by(number)
        assert command.lines == [said]  # nothing before there is something to say
    else:
        command.wait_for_phase(moment)
        assert "run the same command again" in command.stopped_by(number)


def test_a_stopped_fit_resumes_where_it_was(csv, tmp_path):
    out = tmp_path / "out"
    command = Command(csv, out)
    command.wait_for_phase("sampling")
    folder = out / "checkpoint"
    kept = Checkpoint.saved_identity(folder)
    assert kept["draws"] == 200000
    command.stopped_by(signal.SIGTERM)
    with Checkpoint(folder, kept) as checkpoint:
        made = checkpoint.iterations
    assert made > 0
    again = Command(csv, out)
    again.wait_for_phase("sampling")
    again.wait_for(lambda: Checkpoint.saved_identity(folder) == kept and _made(folder, kept) > made)
    again.stopped_by(signal.SIGINT)


def _made(folder, identity):
    """Return iterations on disk; the command holds the lock, so read the index directly."""
    import json

    index = json.loads((folder / "run.json").read_text())
    assert index["identity"] == identity
    return index["iterations"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_at_many_moments(csv, tmp_path, number):
    rng = np.random.default_rng()  # any moment will do, so try others each time
    for k, delay in enumerate(rng.uniform(0, 12, size=20)):
        command = Command(csv, tmp_path / str(k))
        command.wait_for(lambda command=command: command.lines)  # Python itself has started
        time.sleep(delay)
        command.stopped_by(number)


# In Python ---------------------------------------------------------------------------------


def _wait_after(action):
    action()
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        time.sleep(0.01)


def test_an_interrupt_swallowed_by_a_finaliser_comes_again():
    class Victim:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):  # the handler runs between two of these, and raises
                pass

    with pytest.raises(KeyboardInterrupt), stoppable():
        _wait_after(Victim)  # created, and dropped at once


def test_an_interrupt_swallowed_by_a_gc_callback_comes_again():
    fired = []

    def callback(phase, info):
        if not fired:
            fired.append(phase)
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass

    gc.callbacks.append(callback)
    try:
        with pytest.raises(KeyboardInterrupt), stoppable():
            _wait_after(gc.collect)
    finally:
        gc.callbacks.remove(callback)
    assert fired


def test_a_handler_of_the_users_own_stays():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("mine"))
    try:
        with stoppable() as stop:
            signal.raise_signal(signal.SIGINT)
        assert heard == ["mine"]
        assert not stop.requested
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_before_the_chains_run_is_raised(monkeypatch):
    def interrupted(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Chains, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quick(MODEL, gaussian_rows(150))
    assert signal.getsignal(signal.SIGINT) is before


TERMINATED = """
import sys
import modicum as mo
from helpers.targets import gaussian_rows
from modicum.run import runner
runner.CHUNK_SECONDS = 0.01
mo.sample(mo.models.Gaussian(scale=0.7), gaussian_rows(150), method="hmc", draws=10**6, tune=10,
          chains=2, random_seed=5, checkpoint=sys.argv[1])
"""


def test_sigterm_in_a_script_saves_says_how_to_resume_and_ends(tmp_path):
    heard = []
    with Script(TERMINATED, tmp_path) as process:
        for line in process.stderr:
            heard.append(line)
            if "sampling" in line:
                process.terminate()
        assert process.wait(LIMIT) == -signal.SIGTERM
    assert "stopped by SIGTERM" in heard[-1]
    assert str(tmp_path) in heard[-1]
    identity = Checkpoint.saved_identity(tmp_path)
    with Checkpoint(tmp_path, identity) as checkpoint:
        assert checkpoint.iterations > 10


# Forked processes --------------------------------------------------------------------------


def _sample_in_child(queue):
    try:
        quick(MODEL, gaussian_rows(150), method="hmc-ecs")  # with threads of its own
        queue.put("sampled")
    except mo.SettingError as error:
        queue.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_fork_after_a_fit_is_a_clear_error_instead_of_a_hang():
    quick(MODEL, gaussian_rows(150))
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    child = fork.Process(target=_sample_in_child, args=(queue,), daemon=True)
    child.start()
    try:
        answer = queue.get(timeout=LIMIT)
        child.join(LIMIT)
        ended = child.exitcode  # None if a thread still waits for JAX
    finally:
        child.kill()
        child.join()
    assert ended == 0
    assert "forked" in answer
    assert "spawn" in answer

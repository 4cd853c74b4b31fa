"""The suite: the plan, the command line, separate processes; and a tiny benchmark."""

import json
import resource
import signal
import sys
import time

import pytest
from typer.testing import CliRunner

from modicum.cli import app
from modicum.errors import SettingError
from modicum_lab.bench import suite
from modicum_lab.bench.contenders import CONTENDERS
from modicum_lab.bench.contenders.base import Contender
from modicum_lab.bench.process import ChildError, Peak, in_process
from modicum_lab.bench.suite import FULL, HUGE, QUICK, plan, run_suite


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_the_list_names_problems_and_samplers():
    told = run("--list")
    assert told.exit_code == 0
    for name in ("higgs-1m", "covertype", "claims", "numpyro-ecs-200", "statsmodels"):
        assert name in told.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--peer", "numpyro-nut"], "did you mean 'numpyro-nuts'?"),
        (["--problem", "covertyp"], "did you mean 'covertype'?"),
        (["--seconds", "0"], "positive"),
        (["--repeats", "0"], "at least 1"),
    ],
)
def test_a_mistake_is_one_sentence(given, said):
    told = run("--quick", *given)
    assert told.exit_code == 1
    assert said in told.stderr
    assert told.stderr.count("\n") == 1


def test_the_page_of_the_docs_is_written_in_a_checkout_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = run("--quick", "--docs")
    assert told.exit_code == 1
    assert "there is no folder docs here" in told.stderr


def test_every_contest_is_of_known_problems_and_contenders():
    for contests in (FULL, QUICK, HUGE):
        chosen = plan(problems=list(contests)).contests
        assert set(chosen) == set(contests)
        assert all(name in CONTENDERS for group in contests.values() for name in group)


def test_a_peer_is_compared_with_modicum():
    assert plan(quick=True, problems=["higgs-20k"], peers=["laplace"]).contests == {
        "higgs-20k": ("modicum", "laplace")
    }
    huge = plan(problems=["plain-100m"], peers=["laplace"]).contests
    assert huge == {"plain-100m": ("modicum-store",)}  # it exists only on disk
    with pytest.raises(SettingError, match="there is no peer"):
        plan(peers=["stan"])


def test_ctrl_c_keeps_the_problems_that_are_done(monkeypatch):
    def problem(todo, name, here, results, say):
        results.problems[name] = {"rows": 1}
        if len(results.problems) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(suite, "_problem", problem)
    said = []
    results = run_suite(plan(quick=True, peers=["laplace"]), said.append)
    assert list(results.problems) == ["higgs-20k"]
    assert results.notes[-1] == said[-1] == "Stopped by hand: 1 of 4 problems were run."


def test_a_package_that_is_not_there_is_a_sentence():
    absent = Contender("other", "Other sampler", lambda *_: None, ("numpy", "no_such_package"), 1.0)
    assert absent.missing().startswith("Other sampler: not installed: no_such_package (")
    assert CONTENDERS["modicum"].missing() is None
    assert "GB" in absent.too_large(10**9, 100, 10**9)
    assert absent.too_large(100, 10, 10**9) is None


def test_a_child_that_fails_says_why():
    with pytest.raises(ChildError, match="ValueError"):
        in_process("math", "sqrt", -1)
    with pytest.raises(ChildError, match="stopped after"):
        in_process("time", "sleep", 30, timeout=0.5)
    with pytest.raises(ChildError, match="memory runs out"):
        in_process("signal", "raise_signal", int(signal.SIGKILL))


def test_memory_that_was_given_back_is_remembered():
    with Peak() as before:
        pass
    with Peak() as peak:
        held = bytearray(300_000_000)
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(0.1)
        del held
    assert peak.bytes > before.bytes + 250_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="others count what a process itself held")
def test_memory_of_whoever_starts_a_process_is_not_its_own():
    held = bytearray(300_000_000)
    held[::4096] = b"x" * len(held[::4096])
    ours = in_process("modicum_lab.bench.process", "peak_memory")
    of_both = in_process("resource", "getrusage", resource.RUSAGE_SELF)[2] * 1024  # the control
    assert 5_000_000 < ours < 200_000_000 < len(held) < of_both


@pytest.mark.slow
def test_a_tiny_bench_runs_from_end_to_end(tmp_path):
    told = run(
        *("--quick", "--problem", "higgs-20k", "--peer", "laplace", "--peer", "modicum-store"),
        *("--seconds", "1", "--out", tmp_path),
    )
    assert told.exit_code == 0, told.output
    kept = json.loads((tmp_path / "bench.json").read_text())
    assert {m["contender"] for m in kept["measured"]} == {"modicum", "modicum-store", "laplace"}
    assert all(m["runs"] for m in kept["measured"])
    page = (tmp_path / "bench.md").read_text()
    line = next(row for row in page.splitlines() if row.startswith("| Modicum HMC-ECS, defaults"))
    assert "| wrong |" not in line

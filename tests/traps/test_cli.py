"""Careless commands end in one sentence and replace no file of the user."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.command import done, failed, run
from modicum.cli import commands
from modicum.cli.commands import main
from modicum.cli.output import describe_rows
from modicum.files import Lock
from modicum.rows import ingest
from modicum.rows.reading import read_formula

SHORT = ["--draws", "20", "--tune", "20", "--chains", "1", "--seed", "1", "--method", "hmc"]
DRAWN = [*SHORT, "--method", "laplace", "--tune", "0"]  # no chains: nothing is compiled
GOOD = "dose,ward,well\n" + "".join(
    f"{value:.3f},{'ABC'[i % 3]},{i % 2}\n"
    for i, value in enumerate(np.random.default_rng(1).normal(size=60))
)


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(GOOD)
    return path


BAD_FILES = {
    "empty.csv": (b"", "cannot be read"),
    "header.csv": (b"dose,well\n", "no rows"),
    "twice.csv": (b"dose,dose,well\n1,2,0\n2,3,1\n", "more than once"),
    "text.csv": (b"dose,well\n1,yes\n2,no\n", "holds text"),
    "missing.csv": (b"dose,well\n1,\n2,1\n", "missing value"),
    "infinite.csv": (b"dose,well\n1e400,0\n2,1\n", "holds inf"),
    "ragged.csv": (b"dose,well\n1,0,5\n2\n", "cannot be read"),
    "quote.csv": (b'dose,well\n"1,0\n2,1\n', "cannot be read"),
    "noise.csv": (bytes(range(256)) * 10, ""),
    "zeros.csv": (b"dose,well\n1,\x000\n", "holds text"),
    "no.parquet": (b"junk" * 100, "Parquet"),
    "no.feather": (b"", "cannot be read"),
    "no.csv.gz": (b"junk", "cannot be read"),
    "table.txt": (b"dose,well\n1,0\n", "known file type"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_that_are_not_tables_are_refused(tmp_path, name):
    content, said = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    text = failed("fit", tmp_path / name, "--outcome", "well", "--out", tmp_path / "run")
    assert said in text


def test_paths_that_lead_nowhere(csv, tmp_path):
    (tmp_path / "folder").mkdir()
    rest = ["--outcome", "well", "--out", tmp_path / "run"]
    for data in (tmp_path / "folder", tmp_path / "none*.csv", "/dev/null", csv / "below.csv"):
        failed("fit", data, *rest)
    assert "is not a path" in failed("fit", "", *rest)
    failed("fit", "x" * 5000, *rest)


ODD_OPTIONS = (
    *("--draws -3", "--tune -1", "--chains 0", "--seed -1", f"--seed {10**30}", "--prob 2"),
    *("--prob nan", "--prior-scale nan", "--prior-scale inf", "--family student-t --df 0"),
    *("--family gaussian --scale -1", "--family ''", "--method x", "--method ''", "--dtype int3"),
    *("--outcome ''", "--predictors nothing", "--predictors well", "--offset nothing"),
    *("--weight nothing", "--categorical ward=Z"),
)


@pytest.mark.parametrize("options", ODD_OPTIONS)
def test_odd_options(csv, tmp_path, options):
    usual = ["--outcome", "well", "--categorical", "ward", "--out", tmp_path / "run"]
    failed("fit", csv, *usual, *SHORT, *shlex.split(options))
    assert not (tmp_path / "run" / "posterior").exists()


def test_a_wrong_probability_is_refused_before_anything_is_done(csv, tmp_path):
    command = ("fit", csv, "--outcome", "well", "--out", tmp_path / "run", "--prob", "90")
    assert "--prob" in failed(*command)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [("--draws 0", "draws"), ("--tune -3", "tune"), ("--chains 0", "chain"), ("--seed -1", "seed")],
)
def test_the_length_of_a_run_is_refused_before_anything_is_read(csv, tmp_path, option, words):
    out = tmp_path / "run"
    sentence = failed("fit", csv, "--outcome", "well", "--out", out, *option.split())
    assert words in sentence
    assert not out.exists()


def test_groups_are_compared_with_no_level_and_come_last(tmp_path):
    """Group effects once took all 60 lines of a truncated table."""
    table = pd.DataFrame({"y": [0.0, 1.0] * 4, "ward": list("aabb") * 2, "site": list("uvwx") * 2})
    rows = read_formula("y ~ ward + (1 | site)", table, progressbar=False)
    said = describe_rows(rows, "file")
    assert "ward: 2 levels, compared with a" in said
    assert said.endswith("site: 4 groups")
    draws = {"1|site": np.zeros((1, 9, 4)), "beta": np.zeros((1, 9, 1)), "scale": np.ones((1, 9))}
    post = mo.Posterior(draws, {}, mo.Ledger(rows=8))
    assert list(post.summary().index[:2]) == ["beta[0]", "scale"]
    assert list(post.summary(["1|site", "beta"]).index[:1]) == ["1|site[0]"]


@pytest.mark.parametrize("place", ["file", "below", "nowhere"])
def test_an_out_that_cannot_be(csv, tmp_path, place):
    out = {"file": csv, "below": csv / "run", "nowhere": "/proc/nowhere/run"}[place]
    assert "--out" in failed("fit", csv, "--outcome", "well", "--out", out)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_an_out_and_a_file_without_permission(csv, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "--out" in failed("fit", csv, "--outcome", "well", "--out", tmp_path / "locked" / "run")
    csv.chmod(0)
    failed("fit", csv, "--outcome", "well", "--out", tmp_path / "run")


def test_a_folder_in_place_of_a_result(csv, tmp_path):
    (tmp_path / "run" / "posterior").mkdir(parents=True)
    out = ["--out", tmp_path / "run", "--overwrite"]
    assert "is a folder" in failed("fit", csv, "--outcome", "well", *out)


def test_names_that_are_not_text_are_refused(csv, tmp_path):
    name = os.fsdecode(b"run-\xff\xfe")
    try:
        (tmp_path / name).mkdir()
    except OSError:
        pytest.skip("this file system has no such names")
    usual = ["--outcome", "well", "--predictors", "dose", *DRAWN, "--quiet"]
    done("fit", csv, *usual, "--out", tmp_path / name)
    assert (tmp_path / name / "posterior").is_file()


# Files of the user are never replaced unasked -----------------------------------------------


def test_a_finished_fit_is_not_replaced_unasked(csv, tmp_path):
    out = tmp_path / "run"
    command = ["fit", csv, "--outcome", "well", "--predictors", "dose", "--out", out, *DRAWN]
    done(*command)
    before = (out / "posterior").read_bytes()
    assert "--overwrite" in failed(*command, "--seed", "2")
    assert (out / "posterior").read_bytes() == before
    done(*command, "--seed", "2", "--overwrite")
    assert (out / "posterior").read_bytes() != before


def test_a_store_of_the_users_own_is_not_replaced_unasked(csv, tmp_path):
    mine = ingest({"x": np.eye(3), "y": [0, 1, 1]}, tmp_path / "run" / "rows", progressbar=False)
    usual = ["--outcome", "well", "--predictors", "dose", "--out", tmp_path / "run", *DRAWN]
    assert "--overwrite" in failed("fit", csv, *usual)
    assert len(mo.Rows.open(tmp_path / "run" / "rows")) == len(mine)
    done("fit", csv, *usual, "--overwrite")
    assert len(mo.Rows.open(tmp_path / "run" / "rows")) == 60


def test_a_store_put_in_the_place_of_ours_is_not_replaced_unasked(csv, tmp_path):
    out = tmp_path / "run"
    usual = ["--outcome", "well", "--predictors", "dose", "--out", out, *DRAWN]
    done("fit", csv, *usual)
    (out / "posterior").unlink()
    (out / "summary.csv").unlink()
    ingest({"x": np.eye(3), "y": [0, 1, 1]}, out / "rows", overwrite=True, progressbar=False)
    assert "--overwrite" in failed("fit", csv, *usual)
    assert len(mo.Rows.open(out / "rows")) == 3


def test_a_killed_ingest_resumes_without_overwrite(csv, tmp_path, monkeypatch):
    from modicum.cli import fitting

    class Killed(BaseException):
        """Simulates the death of the process."""

    def dies_after(*arguments, real=fitting.ingest, **settings):
        real(*arguments, **settings)
        raise Killed

    usual = ["--outcome", "well", "--predictors", "dose", "--out", tmp_path / "run", *DRAWN]
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "ingest", dies_after)
        with pytest.raises(Killed):
            run("fit", csv, *usual)
    done("fit", csv, *usual)


def test_the_files_of_a_uri_are_those_that_are_fitted(tmp_path):
    def write(name, slope):
        rng = np.random.default_rng(1)
        x, noise = rng.normal(size=400), rng.logistic(size=400)
        table = pd.DataFrame({"dose": x, "well": (slope * x + noise > 0).astype(int)})
        getattr(table, f"to_{name.partition('.')[2]}")(tmp_path / name, index=False)

    def slope(name):
        uri, out = f"{tmp_path.as_uri()}/{name}", tmp_path / "run"
        done("fit", uri, "well ~ dose", "--out", out, *DRAWN, "--overwrite")
        return pd.read_csv(out / "summary.csv", index_col="parameter").loc["beta[dose]", "mean"]

    write("y2023.parquet", 1.0)
    write("y2024.csv", -1.0)
    assert slope("y2023.parquet") == pytest.approx(1, abs=0.6)  # 4 posterior standard deviations
    store = tmp_path / "run" / "rows" / "rows.json"
    first = store.stat().st_mtime_ns
    assert slope("y2023.parquet") == pytest.approx(1, abs=0.6)
    assert store.stat().st_mtime_ns == first  # files that did not change are not read again
    assert slope("y2024.csv") == pytest.approx(-1, abs=0.6)
    write("y2023.parquet", -1.0)
    assert slope("y2023.parquet") == pytest.approx(-1, abs=0.6)


@pytest.mark.parametrize("moment", ["summary", "report", "delete"])
def test_a_fit_killed_while_it_writes_results_goes_on(csv, tmp_path, monkeypatch, moment):
    class Killed(BaseException):
        """Simulates the death of the process."""

    out = tmp_path / "run"
    command = ["fit", csv, "--outcome", "well", "--predictors", "dose", "--out", out, *DRAWN]
    command += ["--report"]
    place = {"report": (mo.Posterior, "report"), "delete": (commands.Checkpoint, "delete")}
    with monkeypatch.context() as patch:
        patch.setattr(*place.get(moment, (pd.DataFrame, "to_csv")), mock.Mock(side_effect=Killed))
        with pytest.raises(Killed):
            run(*command)
        assert (out / "posterior").is_file()
        with pytest.raises(Killed):  # and once more
            run(*command)
    before = mo.Posterior.load(out / "posterior")
    assert "another run" in failed(*command, "--draws", "30")
    monkeypatch.setattr(mo.Posterior, "report", lambda self, path, **_: path.write_text("page"))
    done(*command)
    after = mo.Posterior.load(out / "posterior")
    np.testing.assert_array_equal(after["beta"], before["beta"])
    assert {path.name for path in out.iterdir()} == {
        "posterior", "summary.csv", "report.html", "rows", "rows-source.json"
    }  # fmt: skip
    assert "holds the results of an earlier fit" in failed(*command)


def test_a_fit_that_fails_before_it_writes_does_not_expose_earlier_results(csv, tmp_path):
    out = tmp_path / "run"
    command = ["fit", csv, "--outcome", "well", "--out", out, *DRAWN]
    done(*command, "--predictors", "dose")
    assert "none" in failed(*command, "--predictors", "none", "--overwrite")
    assert "holds the results of an earlier fit" in failed(*command, "--predictors", "dose")
    assert not (out / "fit.lock").exists()


def test_a_second_fit_of_one_folder_is_refused_before_it_replaces_anything(csv, tmp_path):
    pytest.importorskip("fcntl")
    out = tmp_path / "run"
    command = ["fit", csv, "--outcome", "well", "--predictors", "dose", "--out", out, *DRAWN]
    done(*command)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    first = Lock(out / "fit.lock", "the folder")
    said = failed(*command, "--predictors", "dose,ward", "--categorical", "ward", "--overwrite")
    assert f"in use by process {os.getpid()}" in said
    first.remove()
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.parametrize("content", ["", "[]", "{", '{"store": 3}', "[" * 100_000])
def test_a_damaged_note_is_ignored(csv, tmp_path, content):
    out = tmp_path / "run"
    usual = ["--outcome", "well", "--predictors", "dose", "--out", out, *DRAWN]
    out.mkdir()
    (out / "rows-source.json").write_text(content)
    done("fit", csv, *usual)
    assert "origin" in json.loads((out / "rows-source.json").read_text())


# Unexpected failures ------------------------------------------------------------------------


def ended(monkeypatch, *arguments):
    """Return the exit code with which `main` would end the process."""

    class Ended(BaseException):
        """Raised instead of ending the process."""

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(sys, "argv", ["modicum", *map(str, arguments)])
    monkeypatch.setattr(commands, "watch", lambda: None)
    monkeypatch.setattr(os, "_exit", end)
    try:
        main()
    except Ended as code:
        return code.args[0]
    return 0


def test_what_nobody_expected_is_one_line_and_code_2(csv, tmp_path, monkeypatch, capfd):
    def fails(*arguments):
        raise ZeroDivisionError("of all things\nthis one")

    monkeypatch.setattr(commands, "read_rows", fails)
    command = ["fit", csv, "--outcome", "well", "--out", tmp_path / "run"]
    assert ended(monkeypatch, *command) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "internal error" in said
    assert "ZeroDivisionError: of all things this one; run with --debug" in said
    with pytest.raises(ZeroDivisionError):
        ended(monkeypatch, *command, "--debug")
    commands.debugging(False)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_a_machine_that_has_no_more_is_named(csv, tmp_path, monkeypatch, number):
    def fails(*arguments):
        raise OSError(number, os.strerror(number), str(tmp_path / "file"))

    monkeypatch.setattr(commands, "read_rows", fails)
    text = failed("fit", csv, "--outcome", "well", "--out", tmp_path / "run")
    assert ("memory" if number == errno.ENOMEM else str(tmp_path / "file")) in text


def test_memory_that_runs_out_in_python_is_a_resource_error(monkeypatch):
    from helpers.targets import gaussian_rows, quick

    def fails(self):
        raise MemoryError

    monkeypatch.setattr("modicum.run.chains.Chains.begin", fails)
    with pytest.raises(mo.ResourceError, match="memory"):
        quick(mo.models.Gaussian(scale=0.7), gaussian_rows(50))


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="limits of Linux")
def test_too_little_address_space_is_named_before_anything_aborts(csv, tmp_path):
    command = [sys.executable, "-m", "modicum_command", "fit", csv, "--outcome", "well"]
    result = subprocess.run(
        ["sh", "-c", 'ulimit -v 1048576; exec "$@"', "sh", *command, "--out", tmp_path / "run"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "1,048,576 kB of address space (ulimit -v)" in result.stderr


def test_a_reader_that_leaves_is_not_an_error(csv, tmp_path):
    out = tmp_path / "run"
    command = ["fit", csv, "--outcome", "well", "--predictors", "dose", "--out", out, *DRAWN]
    process = subprocess.Popen(
        [sys.executable, "-m", "modicum_command", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()  # as `| head -0` does
    said = process.stderr.read()
    process.wait()
    assert "Traceback" not in said
    assert "Exception" not in said

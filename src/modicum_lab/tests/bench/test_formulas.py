"""Contenders that take a table and a formula, against references that use nothing of Modicum."""

import os
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from modicum.errors import DataError
from modicum_lab.bench.accuracy import judge
from modicum_lab.bench.contenders import CONTENDERS
from modicum_lab.bench.contenders.base import Contender, R
from modicum_lab.bench.problems import PROBLEMS, ProblemData
from modicum_lab.bench.runs import Budget, Infeasible
from modicum_lab.bench.suite import FULL, plan
from modicum_lab.bench.tables_with_formulas import TABLES, by_quadrature, simulated

BUDGET = Budget(seconds=5.0, chains=2)
TINY = {"x": [0.5, 1.0, -1.0], "late": [0, 1, 1], "g": ["a", "b", "b"]}
OUTPUT = "a startup message\n\n2.5e8\n12.5\n.7\n-.5\n.5\n.01\n.02\nNA\n"


@pytest.fixture
def tiny(tmp_path):
    """A problem of three rows, with its files."""
    problem = replace(
        PROBLEMS["groups-100"],
        build=lambda: pd.DataFrame(TINY),
        reference=lambda table: len(table),
    )
    assert problem.write(tmp_path) == 3
    return ProblemData(tmp_path)


def fake_r(folder, text, code=0):
    """Put an Rscript on the path that prints this and keeps its script."""
    program = folder / "bin" / "Rscript"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        f"shutil.copy(sys.argv[1], {str(folder / 'it.R')!r})\n"
        f"print({text!r}, end='')\nsys.exit({code})\n"
    )
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def test_estimates_of_r_are_read(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fake_r(tmp_path, OUTPUT))
    run = CONTENDERS["lme4"].run(tiny, BUDGET)
    assert (run.before, run.mean, run.sd[:2]) == (12.5, [0.7, -0.5, 0.5], [0.01, 0.02])
    assert np.isnan(run.sd[2])  # lme4 gives none
    assert run.known_moments
    assert run.memory == 250_000_000
    assert "glmer(late ~ x + (1 | g)" in (tmp_path / "it.R").read_text()


def test_a_script_that_fails_is_a_sentence(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fake_r(tmp_path, "", code=1))
    with pytest.raises(Infeasible, match="R said"):
        CONTENDERS["glmmtmb"].run(tiny, BUDGET)


def test_packages_of_r_that_are_not_there_are_a_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "")
    absent = Contender("other", "Other", lambda *_: None, (f"{R}noSuchPackage",), 1.0)
    assert "apt-get install r-cran-nosuchpackage" in absent.missing()


def test_problems_are_given_to_those_who_take_them():
    for problem in TABLES:
        chosen = plan(problems=[problem.name]).contests[problem.name]
        assert chosen == FULL[problem.name]
        assert all(problem.kind in CONTENDERS[name].kinds for name in chosen)
        one = plan(problems=[problem.name], peers=["lme4", "laplace"]).contests[problem.name]
        assert "modicum-fit" in one
        assert ("lme4" in one) == (problem.kind == "groups")
        assert "laplace" not in one


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    problem = replace(PROBLEMS["groups-100"], build=lambda: simulated(60))
    reference = problem.write(folder)
    table = ProblemData(folder).table
    shuffled = table.assign(g=np.random.default_rng(1).permutation(table["g"]))
    return ProblemData(folder), reference, by_quadrature(shuffled)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modicum-fit", "gpboost", "lme4", "glmmtmb", "bambi-groups"])
def test_groups_are_found(name, groups):
    data, reference, of_others = groups
    each = CONTENDERS[name]
    if each.absent:
        pytest.skip(each.missing())
    run = each.run(data, BUDGET)
    found = judge(run, reference)
    allowed = 0.5 if run.known_moments else 0.25  # a most probable sd is below the mean of the sd
    assert found.mean < allowed
    assert found.sd < 0.2
    assert judge(run, of_others).mean > 2  # negative control: other groups


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modicum-fit", "bam"])
def test_smooths_are_found(name, tmp_path):
    try:
        reference = PROBLEMS["smooths-20k"].write(tmp_path)
    except DataError as fault:
        pytest.skip(str(fault))
    each = CONTENDERS[name]
    if each.absent:
        pytest.skip(each.missing())
    run = each.run(ProblemData(tmp_path), BUDGET)
    found = judge(run, reference)
    assert found.mean < 0.4  # bam takes the most probable smoothness
    others = replace(reference, mean=np.roll(reference.mean, 5).tolist())
    assert judge(run, others).mean > 2

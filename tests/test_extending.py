"""One new part of each kind, by the code of CONTRIBUTING.md: a class, and a line in a registry."""

import json
import re
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats
from typer.testing import CliRunner

import modicum as mo
from helpers.compiling import optimised_chains
from helpers.interrupted import planned
from helpers.refusals import refused
from helpers.targets import (
    all_of,
    disagreements,
    exact_draws,
    flat_draws,
    logistic_rows,
    quick,
    same_draws,
    softplus,
)
from modicum.cli import app
from modicum.kernels import likelihood_estimates
from modicum.kernels.designs import DESIGNS, Design, Drawn
from modicum.kernels.integrators import INTEGRATORS, Langevin
from modicum.kernels.moves import HMCMove
from modicum.methods import METHODS, list_methods
from modicum.methods.full_data import HMC
from modicum.models import FAMILIES
from modicum.models.priors import distributions
from modicum.passes import engine
from modicum.rows import sources
from modicum.sklearn import Regressor
from modicum_lab.datasets.dataset import Dataset, Recipe
from modicum_lab.datasets.source import Source as PublicFile

PARTS = (mo.models, distributions, engine, sources, likelihood_estimates)


def page():
    """Return what the Python of CONTRIBUTING.md defines, with the names of the parts it extends."""
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    names = {name: value for part in PARTS for name, value in vars(part).items()}
    names |= {"np": np, "jnp": jnp, "pa": pa, "json": json, "islice": islice}
    names |= {"dataclass": dataclass, "__name__": __name__}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    return SimpleNamespace(**names)


PAGE = page()
RUN = {"draws": 600, "tune": 300, "chains": 2, "random_seed": 3, "progressbar": False}


@cache
def some_rows():
    return logistic_rows(4_000)


def log_likelihood(points):
    """Return the log-likelihood of the logistic rows below at points (beta, intercept)."""
    x, y = all_of(some_rows()).values()
    eta = points[:, :3] @ x.T + points[:, 3:]
    return eta @ y - softplus(eta).sum(axis=1)


@pytest.fixture(scope="module")
def truth():
    """Return rows and exact posterior draws; with so many rows the default prior is flat."""
    return some_rows(), exact_draws(log_likelihood, np.zeros(4), count=1_000)


def everything_by_file(post, rows, folder):
    """Return what a posterior is asked for most; saved and loaded, it gives the same answers."""
    post.save(folder / "post")
    both = []
    for one in (post, mo.Posterior.load(folder / "post")):
        check = one.ppc(rows, random_seed=1)
        drawn = [one.predictive(rows, draws=40, prior=prior, random_seed=1) for prior in (0, 1)]
        assert np.isfinite(one.loo(rows).elpd)
        both.append((one.predict(rows).mean, *drawn, check.table.to_numpy()))
    for ours, theirs in zip(*both, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return both[0]


@pytest.fixture
def waiting(monkeypatch):
    monkeypatch.setitem(FAMILIES, "waiting-times", PAGE.WaitingTimes)
    rng = np.random.default_rng(1)
    x = rng.normal(size=4_000)
    return pd.DataFrame({"y": rng.exponential(np.exp(-0.3 - 0.5 * x)), "x": x})


def test_a_family(waiting, tmp_path):
    post = mo.fit("y ~ x", waiting, family="waiting-times", method="hmc-ecs", **RUN)
    x, y = waiting["x"].to_numpy(), waiting["y"].to_numpy()

    def log_density(points):
        eta = points[:, :1] * x + points[:, 1:]
        return eta.sum(axis=1) - np.exp(eta) @ y

    assert disagreements(flat_draws(post), exact_draws(log_density, np.zeros(2), count=1_000)) == []
    assert post.summary().index.tolist() == ["beta[x]", "intercept"]
    assert abs(post.mean("beta")[0] - 0.5) < 0.1
    expected, drawn, before, _ = everything_by_file(post, waiting, tmp_path)
    assert abs(np.log(expected).mean() + 0.3) < 0.1
    assert stats.kstest(drawn.ravel()[::40], y).pvalue > 1e-3
    assert np.ptp(np.log(before)) > 2 * np.ptp(np.log(drawn))  # the prior is wide


def test_a_family_from_the_command_line_and_scikit_learn(waiting, tmp_path):
    waiting.to_csv(tmp_path / "times.csv", index=False)
    options = ["--family", "waiting-times", "--method", "laplace", "--draws", "200"]
    run = ["fit", str(tmp_path / "times.csv"), "y ~ x", *options]
    result = CliRunner().invoke(app, [*run, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "beta[x]" in result.output
    wrong = waiting.assign(y=-1.0)
    refused(mo.DataError, "positive times", mo.fit, "y ~ x", wrong, family="waiting-times", **RUN)
    regressor = Regressor("waiting-times", method="laplace").fit(waiting[["x"]], waiting["y"])
    assert abs(np.log(regressor.predict(waiting[["x"]])).mean() + 0.3) < 0.1


def test_a_prior(monkeypatch, truth, tmp_path):
    monkeypatch.setitem(distributions.DISTRIBUTIONS, "LogisticPrior", PAGE.LogisticPrior)
    rows, without = truth
    model = mo.models.Logistic(priors={"common": PAGE.LogisticPrior(0, 0.02)})
    post = mo.sample(model, rows, method="hmc-ecs", **RUN)

    def with_prior(points):
        z = points[:, :3] / 0.02
        return log_likelihood(points) - (z + 2 * np.log1p(np.exp(-z))).sum(axis=1)

    assert disagreements(flat_draws(post), exact_draws(with_prior, np.zeros(4), count=1_000)) == []
    assert disagreements(flat_draws(post), without) != []
    everything_by_file(post, rows, tmp_path)
    r = np.array([0.01, 0.05])
    automatic = PAGE.LogisticPrior(0, 0.02).precision(r**2)
    np.testing.assert_allclose(automatic, np.tanh(r / 0.04) / (0.02 * r), rtol=1e-5)


def test_a_source(tmp_path):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=300), "g": rng.choice(["a", "b", "c"], 300)})
    frame["y"] = 1.0 * (rng.random(300) < 1 / (1 + np.exp(-frame["x"])))
    frame.to_json(tmp_path / "rows.jsonl", orient="records", lines=True, double_precision=15)
    source = PAGE.JsonLines(tmp_path / "rows.jsonl")
    settings = RUN | {"method": "laplace", "draws": 100}
    ours, theirs = (mo.fit("y ~ x + g", data, **settings) for data in (source, frame))
    np.testing.assert_allclose(ours["beta"], theirs["beta"], rtol=1e-9)
    np.testing.assert_allclose(ours.predict(source).mean, theirs.predict(frame).mean, rtol=1e-9)
    assert ours.score(source).log_density == pytest.approx(theirs.score(frame).log_density)
    roles = {"outcome": "y", "progressbar": False}
    stored = [mo.rows.ingest(d, tmp_path / k, **roles) for k, d in (("a", source), ("b", frame))]
    assert stored[0].fingerprint() == stored[1].fingerprint()
    with pytest.raises(mo.SettingError, match="column 'z' of the formula is not in the data"):
        mo.fit("y ~ z", source, **settings)


def test_an_engine():
    rows = logistic_rows(70_000)  # more than one chunk
    ours, theirs = (
        quick(mo.models.Logistic(), rows, method="laplace", engine=engine)
        for engine in (PAGE.OneAfterTheOther(), mo.engines.Local())
    )
    assert same_draws(ours, theirs)


class HalvesTables(NamedTuple):
    n: jax.Array


@dataclass(frozen=True)
class Halves(Design[HalvesTables]):
    """Three of four draws come from the first half of the rows."""

    description: ClassVar[str] = "the first half of the rows thrice as often as the second"
    layout: ClassVar[type] = HalvesTables

    def tables(self, facts):
        return HalvesTables(facts.n)

    def draw(self, key, count, tables):
        half, place = jax.random.uniform(key, (2, count))
        size = tables.n // 2
        first = half < 0.75
        row_ids = jnp.where(first, place * size, size + place * (tables.n - size)).astype(int)
        return Drawn(row_ids, jnp.where(first, 0.75 / size, 0.25 / (tables.n - size)))

    def probability_of(self, drawn, tables):
        size = int(tables.n) // 2
        first = np.asarray(drawn.row_ids) < size
        return np.where(first, 0.75 / size, 0.25 / (int(tables.n) - size))


@pytest.fixture(scope="module")
def composed(truth):
    """A run with a new design and a new estimator, and a plan for stochastic gradients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DESIGNS, "halves", Halves)
        patch.setitem(likelihood_estimates.LIKELIHOODS, "plain", PAGE.Plain())
        method = mo.HMCECS(design="halves", subsample=200, expert=mo.ECSExpert(estimator="plain"))
        post = mo.sample(mo.models.Logistic(), truth[0], method=method, **RUN)
        plans = [
            planned(mo.models.Logistic(), truth[0], method)[0],
            planned(mo.models.Logistic(), truth[0], mo.SGLDCV(design="halves"))[0],
        ]
        refused(mo.SettingError, "perturbed, paper, plain", mo.ECSExpert, estimator="plane")
    return post, plans


def test_a_design(composed, truth):
    post, plans = composed
    assert disagreements(flat_draws(post), truth[1]) == []
    assert post.tuning["design"]["value"] == "halves"
    assert [plan.kernel.design for plan in plans] == [Halves(), Halves()]


def test_a_likelihood_estimator(composed, truth):
    post, (plan, _) = composed
    assert disagreements(flat_draws(post), truth[1]) == []
    assert plan.kernel.estimator == PAGE.Plain(1)


@dataclass(frozen=True)
class MALA(HMC):
    """The Metropolis-adjusted Langevin algorithm on all rows, whitened at the mode."""

    name: ClassVar[str] = "mala"
    summary: ClassVar[str] = "the Metropolis-adjusted Langevin algorithm on all rows"

    def move(self):
        return HMCMove(max_steps=1)


def test_a_method(monkeypatch, truth):
    monkeypatch.setitem(METHODS, "mala", MALA)
    rows, by_all = truth
    settings = RUN | {"draws": 4_000, "tune": 500}
    method = MALA(target_accept=0.6)
    with optimised_chains():
        post = mo.sample(mo.models.Logistic(), rows, method=method, **settings)
    assert disagreements(flat_draws(post), by_all) == []
    assert "Metropolis-adjusted" in list_methods()
    refused(mo.SettingError, "mala", mo.sample, mo.models.Logistic(), rows, method="malla", **RUN)


@dataclass(frozen=True)
class HalfStep(Langevin):
    """Langevin dynamics that makes half the given step."""

    def response(self, h):
        return super().response(h / 2)


def test_an_integrator(monkeypatch, truth):
    monkeypatch.setitem(INTEGRATORS, "half-step", HalfStep)
    rows, _ = truth
    one, two = (
        quick(
            mo.models.Logistic(),
            rows,
            method=mo.StochasticGradient(integrator=name, estimator="taylor", step_size=h),
        )
        for name, h in (("langevin", 0.1), ("half-step", 0.2))
    )
    np.testing.assert_allclose(one["beta"], two["beta"], rtol=1e-6)


def test_a_data_set(tmp_path):
    (tmp_path / "toy").mkdir()
    np.savetxt(tmp_path / "toy" / "toy.csv", np.c_[np.arange(8.0), np.arange(8) % 2], delimiter=",")
    source = PublicFile(
        name="toy", folder="toy", files=("toy.csv",), url="https://example.org/toy.csv",
        saved="toy.csv", digest="sha256:" + "0" * 64,
    )  # fmt: skip

    def read(path):
        table = np.loadtxt(path, delimiter=",")
        return {"x": table[:, :1], "y": table[:, 1]}

    def build(arrays):
        rows = mo.Rows(**arrays, columns=["number"])
        return Dataset("toy", rows, mo.models.Logistic(), "odd or even", "https://example.org")

    data = Recipe(source, read, build).load(tmp_path, download=False, progressbar=False)
    assert (len(data.rows), data.columns) == (8, ("number",))
    with pytest.raises(mo.DataError, match="toy"):
        Recipe(source, read, build).load(tmp_path / "nowhere", download=False, progressbar=False)

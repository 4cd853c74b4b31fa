"""Golden draws: small problems through every door and method, compared with recorded ones.

A change that should move no draw is checked here, a change that should move some says which.
`make golden` prints, for each problem, whether its draws have the recorded bits and how far its
means are from the recorded ones; `make golden WRITE=1` records them.

Where machine and versions are those of the record, means agree to 1e-6 posterior standard
deviations; a changed order of a sum moves them by less. Elsewhere, rounding may turn an accepted
proposal into a rejected one, so that only coarse agreement can be asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import modicum as mo
from helpers.refusals import unwarned
from helpers.slow import slowly
from modicum.cli import app
from modicum.methods import METHODS

RECORD = Path(__file__).with_suffix(".json")
CHAINS = mo.Auto(laplace=False)
RUN = {"draws": 25, "tune": 25, "chains": 2, "random_seed": 1, "progressbar": False}
N = 1200
WRITE = bool(os.environ.get("WRITE"))
QUICK = {  # methods that share no kernel, and doors that are not compared with another elsewhere
    *("formula", "explicit", "integrate", "digest"),
    *("hmc-ecs", "hmc-ecs-signed", "nuts", "laplace", "ewsg"),
}
SAME, ELSEWHERE = 1e-6, 1.0  # allowed differences of means, in standard deviations of the draws

Draws = dict[str, np.ndarray]


def environment() -> dict[str, str]:
    """Return what the last digits of draws depend on."""
    packages = {name: version(name) for name in ("jaxlib", "numpy", "scipy", "blackjax")}
    return {"machine": platform.machine(), "python": platform.python_version()} | packages


def trips() -> pd.DataFrame:
    """Return a table with numbers, a factor, groups, counts and an outcome for each family."""
    rng = np.random.default_rng(5)
    made = pd.DataFrame(
        {
            "hour": rng.integers(5, 23, N),
            "dist": rng.normal(size=N),
            "carrier": rng.choice(["AA", "DL", "UA"], N),
            "ward": rng.integers(0, 12, N),
            "street": rng.integers(0, 300, N),
            "weight": rng.integers(1, 4, N),
        }
    )
    wards = rng.normal(size=12) / 2
    eta = 0.4 * made["dist"] + (made["carrier"] == "UA") + wards[made["ward"]] - 0.5
    made["late"] = rng.random(N) < 1 / (1 + np.exp(-eta))
    made["delay"] = eta + rng.normal(size=N)
    made["calls"] = rng.poisson(np.exp(eta / 2))
    made["grade"] = pd.cut(made["delay"], [-9, -1, 0.5, 9], labels=["a", "b", "c"]).astype(str)
    return made


def arrays() -> mo.Rows:
    table = trips()
    x = table[["hour", "dist", "weight"]].to_numpy(float)
    return mo.Rows(x=(x - x.mean(0)) / x.std(0), y=table["late"].to_numpy(float))


def fitted(formula: str, family: str = "logistic", **settings: object) -> Callable[[], Draws]:
    return lambda: mo.fit(formula, trips(), family, **({"method": CHAINS} | RUN | settings)).draws


def sampled(method: type[mo.methods.Method]) -> Callable[[], Draws]:
    made = method(step_size=1e-3) if method is mo.PSGLD else method()
    made = CHAINS if made == mo.Auto() else made
    return lambda: mo.sample(mo.models.Logistic(), arrays(), method=made, **RUN).draws


def from_store() -> Draws:
    with tempfile.TemporaryDirectory() as folder:
        columns = {"outcome": "late", "predictors": ["hour", "dist"]}
        rows = mo.rows.ingest(trips(), f"{folder}/store", **columns, progressbar=False)
        return mo.sample(mo.models.Logistic(), rows, method=CHAINS, **RUN).draws


def from_digest() -> Draws:
    formula = "late ~ dist + carrier"
    post = mo.fit(formula, trips(), method="laplace", **RUN)
    digest = mo.digest(post, trips(), size=400, random_seed=1, progressbar=False)
    return mo.fit(formula, digest, method=CHAINS, **RUN).draws


def from_sklearn() -> Draws:
    from modicum.sklearn import Regressor

    settings = {"draws": 25, "tune": 25, "chains": 2, "random_state": 1}
    table = trips()
    made = Regressor("poisson", method=CHAINS, **settings)
    fit = made.fit(table[["hour", "dist"]], table["calls"])
    return fit.posterior_.draws


def from_command_line() -> Draws:
    with tempfile.TemporaryDirectory() as folder:
        trips().to_parquet(f"{folder}/trips.parquet")
        command = ["fit", f"{folder}/trips.parquet", "late ~ dist + carrier", "--set=laplace=False"]
        options = {"out": f"{folder}/run", "draws": "25", "tune": "25", "chains": "2", "seed": "1"}
        result = CliRunner().invoke(app, [*command, *(f"--{k}={v}" for k, v in options.items())])
        assert result.exit_code == 0, result.output
        return mo.Posterior.load(f"{folder}/run/posterior").draws


def own_model() -> Draws:
    def log_likelihood(theta, batch):
        return -0.5 * (batch["y"] - batch["x"] @ theta["beta"]) ** 2

    model = mo.Model(
        lambda theta: -0.5 * jnp.sum(theta["beta"] ** 2), log_likelihood, {"beta": np.zeros(3)}
    )
    return mo.sample(model, arrays(), method="hmc-ecs", **RUN).draws


PROBLEMS: dict[str, Callable[[], Draws]] = {
    "formula": fitted("late ~ carrier + bs(hour, df=4) + dist:carrier", weights="weight"),
    "gaussian": fitted("delay ~ scale(dist) + carrier", "gaussian"),
    "ordinal": fitted("C(grade, levels=['a', 'b', 'c']) ~ dist", "ordinal"),
    "negative-binomial": fitted("calls ~ dist", "negative-binomial"),
    "horseshoe": fitted("late ~ dist + hour", priors={"common": mo.priors.Horseshoe()}),
    "explicit": fitted("late ~ dist + (1 | ward)", groups="explicit", method="hmc-ecs"),
    "integrate": fitted("late ~ dist + (1 | street)", groups="integrate", method="hmc"),
    "slopes": fitted("delay ~ dist + (1 + dist | ward)", "gaussian"),
    "store": from_store,
    "digest": from_digest,
    "sklearn": from_sklearn,
    "command line": from_command_line,
    "own model": own_model,
} | {name: sampled(method) for name, method in METHODS.items()}


def drawn(name: str) -> dict[str, object]:
    """Return what is recorded of a problem: a hash of its draws, their means and deviations."""
    with unwarned():  # of so few draws
        draws = PROBLEMS[name]()
    values = {key: np.asarray(draws[key], np.float64) for key in sorted(draws)}
    flat = {key: value.reshape(-1, *value.shape[2:]) for key, value in values.items()}
    return {
        "hash": hashlib.sha256(b"".join(v.tobytes() for v in values.values())).hexdigest()[:16],
        "mean": {key: value.mean(0).tolist() for key, value in flat.items()},
        "sd": {key: value.std(0).tolist() for key, value in flat.items()},
    }


def difference(ours: dict, golden: dict) -> float:
    """Return the largest difference of means, in standard deviations; inf where names differ."""
    if {k: np.shape(v) for k, v in ours["mean"].items()} != {
        k: np.shape(v) for k, v in golden["mean"].items()
    }:
        return np.inf
    return max(
        float(np.max(np.abs(np.subtract(ours["mean"][k], golden["mean"][k])) / golden["sd"][k]))
        for k in golden["mean"]
    )


@pytest.fixture(scope="module")
def record() -> Iterator[dict]:
    """Yield the record; a run that writes it replaces what it has drawn."""
    kept = json.loads(RECORD.read_text()) if RECORD.exists() else {"problems": {}}
    yield kept
    if WRITE:
        kept["environment"] = environment()
        RECORD.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize("name", [*sorted(QUICK), *slowly(*sorted(PROBLEMS.keys() - QUICK))])
def test_draws_are_those_recorded(record: dict, name: str) -> None:
    ours = drawn(name)
    if WRITE:
        record["problems"][name] = ours
    golden = record["problems"][name]
    bits = "same bits" if ours["hash"] == golden["hash"] else "other bits"
    print(f"{name}: {bits}, means off by {difference(ours, golden):.1e} sd")
    allowed = SAME if record["environment"] == environment() else ELSEWHERE
    assert difference(ours, golden) < allowed


def test_other_draws_are_noticed(record: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RUN, "random_seed", 2)
    ours, golden = drawn("laplace"), record["problems"]["laplace"]
    assert ours["hash"] != golden["hash"]
    assert difference(ours, golden) > 1e3 * SAME
    assert difference(ours, record["problems"]["formula"]) == np.inf  # other names

"""EWSG paper, Table 1 and Figure 2: Bayesian logistic regression on Covertype, one data pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from modicum.datasets import covertype
from modicum.datasets.encoding import standardised
from modicum.ledger import Ledger
from modicum.methods import NUTS, FlyMC, Method
from modicum.methods.sgmcmc.named import EWSG, PSGLD, SGHMC, SGLD
from modicum.models import BaseModel, Target
from modicum.passes import LocalEngine, Sums
from modicum.passes.mode import find_mode
from modicum.posterior import Posterior
from modicum.posterior.score import Score
from modicum.rows import Rows
from modicum.runtime import in_double_precision
from modicum_lab.papers.ewsg.covertype_scores import draw, table
from modicum_lab.papers.ewsg.running import label_of, realisations, states
from modicum_lab.papers.experiment import Figure, Result, Scale, experiment

__all__ = ["Split", "table_1"]

BATCH, FRICTION = 50, 50.0
REALISATIONS = {"smoke": 20, "laptop": 200, "paper": 200}
ROWS = {"smoke": 10_000, "laptop": None, "paper": None}  # the first so many; None: all
POINTS = {"smoke": 4, "laptop": 12, "paper": 40}  # of the learning curves
SCORED = {"smoke": 2_000, "laptop": 20_000, "paper": 200_000}  # test rows of the curves, at most
EXACT = {
    "smoke": {"chains": 2, "draws": 50, "tune": 150},
    "laptop": {"chains": 2, "draws": 100, "tune": 300},
    "paper": {"chains": 4, "draws": 500, "tune": 1_000},
}
MODE = "mode of all rows"


@dataclass(frozen=True)
class Split:
    """Rows to fit and rows to score."""

    model: BaseModel
    fit: Rows
    test: Rows

    @classmethod
    def drawn(cls, rows: int | None, seed: int) -> Split:
        """80 % of Covertype at random, and the rest; all columns standardised."""
        data = covertype(progressbar=False)
        rng = np.random.default_rng([seed, 2])
        order = rng.permutation(len(data.rows))[:rows]
        held = data.rows.take(order)
        moving = held["x"].std(axis=0) > 0  # a rare soil may be missing from a part of the rows
        x, y = standardised(held["x"][:, moving]), held["y"]
        cut = round(0.8 * len(y))
        parts = (Rows(x=x[part], y=y[part]) for part in (slice(cut), slice(cut, None)))
        return cls(data.model, *parts)


def _methods(n: int) -> dict[str, Method]:
    given: dict[str, Any] = {
        "batch": BATCH,
        "whiten": False,
        "start": "zero",
        "precision": "float32",
    }
    return {
        "sgld": SGLD(step_size=2 * 2e-5, **given),
        "psgld": PSGLD(step_size=2 * 5e-3, **given),
        "psgld, h / n": PSGLD(step_size=2 * 5e-3 / n, **given),
        "sghmc": SGHMC(step_size=1e-3, friction=FRICTION, **given),
        "ewsg": EWSG(step_size=3e-3, friction=FRICTION, **given),
    }


@experiment("ewsg", "table-1", "Covertype: accuracy and log-likelihood after one data pass")
def table_1(scale: Scale, seed: int) -> Result:
    """SGLD, pSGLD, SGHMC and EWSG; FlyMC, which is the posterior of all rows; its mode."""
    split = Split.drawn(ROWS[scale], seed)
    chains = REALISATIONS[scale]
    chosen = _methods(len(split.fit))
    result = Result(settings=_settings(split, chosen, chains))
    scores, curves = {}, {}
    for name, method in chosen.items():
        thin = max(1, method.iterations(1, len(split.fit)) // POINTS[scale])
        every: dict[str, Any] = {"chains": chains, "passes": 1, "thin": thin, "random_seed": seed}
        post = realisations(result, name, split.model, split.fit, method, **every)
        scores[name] = _last(post).score(split.test, draws=chains)
        curves[name] = _curve(post, split, scale)
    exact = _exact(result, split, scale, seed)
    scores |= {name: _scored(post, split.test) for name, post in exact.items()}
    scores[MODE] = _mode(result, split, exact["flymc"], seed)
    result.tables.append(table(scores, len(split.fit)))
    caption = (
        "Above: the prediction averaged over realisations; below: single realisations, on average; "
        f"{SCORED[scale]:,} test rows at most. Dashed: the posterior of all rows, by "
        f"{label_of(next(reversed(exact)))}."
    )
    truth = _scored(next(reversed(exact.values())), _some(split, scale))
    result.figures.append(Figure("figure-2", partial(draw, curves, truth), caption))
    result.notes.append("Table 1 and Figure 2 are of the same runs.")
    return result


def _settings(split: Split, chosen: dict[str, Method], chains: int) -> dict[str, Any]:
    return {
        "data": "Covertype, lodgepole pine (class 2) against the rest, 80/20 split at random",
        "rows": f"{len(split.fit):,} to fit, {len(split.test):,} to score",
        "columns": "all standardised, an intercept added; prior N(0, 10) on every coefficient",
        "potential": "V is the sum over all rows",
        "realisations": chains,
        "passes": 1,
        "methods": {name: repr(method) for name, method in chosen.items()},
    }


def _last(post: Posterior) -> Posterior:
    """The last state of every realisation."""
    return states(post, {name: x[:, -1] for name, x in post.draws.items()})


def _some(split: Split, scale: Scale) -> Any:
    """The test rows that curves are scored on."""
    return split.test.slice(0, min(len(split.test), SCORED[scale]))


def _curve(post: Posterior, split: Split, scale: Scale) -> Any:
    """Scores against data passes, on some test rows."""
    some = _some(split, scale)

    def scored(now: dict[str, np.ndarray]) -> dict[str, float]:
        found = states(post, now).score(some, draws=post.chains)
        return {
            "accuracy": found.accuracy,
            "log_density": found.log_density,
            "single_accuracy": found.single_accuracy,
            "single_log_density": found.single_log_density,
        }

    return post.learning_curve(scored)


def _exact(result: Result, split: Split, scale: Scale, seed: int) -> dict[str, Posterior]:
    """FlyMC; and at the paper's scale, where a GPU is assumed, NUTS on all rows.

    Not HMC-ECS: some soils are so rare that it refuses its control variates on this table. Full-
    data NUTS is slow for the same reason, since such coefficients are far from normal.
    """
    chosen: dict[str, Method] = {"flymc": FlyMC()}
    if scale == "paper":
        chosen["posterior, NUTS on all rows"] = NUTS()
    found = {}
    for name, method in chosen.items():
        given = EXACT[scale] | {"random_seed": seed}
        post = realisations(result, name, split.model, split.fit, method, **given)
        found[name] = post
        worst = post.summary()["r_hat"].astype(float)
        result.notes.append(
            f"{label_of(name)}: R-hat is {worst.median():.2f} for the median coefficient and "
            f"{worst.max():.2f} for the worst, {worst.idxmax()}, after {EXACT[scale]['tune']} "
            f"iterations of warm-up and {post.num_draws} draws in each of {post.chains} chains."
        )
    return found


def _scored(post: Posterior, rows: Any) -> Score:
    """What all draws score."""
    return post.score(rows, draws=post.chains * post.num_draws)


@in_double_precision
def _mode(result: Result, split: Split, post: Posterior, seed: int) -> Score:
    """What the single most probable point scores, by all rows."""
    target, start = Target.of(split.model, split.fit)
    ledger = Ledger(rows=len(split.fit))
    sums = Sums(target, split.fit, LocalEngine(progressbar=False), ledger)
    point = find_mode(sums, start, seed)[0].point
    result.ledger[MODE] = ledger.evaluations
    named = {name: np.asarray(x)[None] for name, x in target.report(jnp.asarray(point)).items()}
    return states(post, named).score(split.test, draws=1)

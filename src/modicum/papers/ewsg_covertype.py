"""EWSG paper, Table 1 and Figure 2: Bayesian logistic regression on Covertype, one data pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from modicum.datasets import covertype
from modicum.datasets.encoding import standardised
from modicum.methods import HMC, FlyMC, Method
from modicum.methods.sg_named import EWSG, PSGLD, SGHMC, SGLD
from modicum.models import BaseModel
from modicum.papers.ewsg_covertype_scores import draw, table
from modicum.papers.ewsg_running import realisations, states
from modicum.papers.experiment import Figure, Result, Scale, experiment
from modicum.posterior import Posterior
from modicum.posterior.score import Score
from modicum.rows import Rows

__all__ = ["Split", "table_1"]

BATCH, FRICTION = 50, 50.0
REALISATIONS = {"smoke": 20, "laptop": 200, "paper": 200}
ROWS = {"smoke": 10_000, "laptop": None, "paper": None}  # the first so many; None: all
POINTS = {"smoke": 4, "laptop": 12, "paper": 40}  # of the learning curves
SCORED = {"smoke": 2_000, "laptop": 20_000, "paper": 200_000}  # test rows of the curves, at most
FLYMC = {
    "smoke": {"chains": 2, "draws": 20, "tune": 100},
    "laptop": {"chains": 2, "draws": 50, "tune": 100},
    "paper": {"chains": 200, "draws": 1, "tune": 200},
}
HMC_ALL = {
    "smoke": {"chains": 2, "draws": 50, "tune": 100},
    "laptop": {"chains": 2, "draws": 50, "tune": 60},
    "paper": {"chains": 4, "draws": 500, "tune": 500},
}


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
    """SGLD, pSGLD, SGHMC, EWSG and FlyMC, with the posterior of all rows beside them."""
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
    scores["flymc"] = _flymc(result, split, scale, seed)
    scores |= _posterior(result, split, scale, seed)
    result.tables.append(table(scores, len(split.fit)))
    caption = (
        "Above: the prediction averaged over realisations; below: single realisations, on average. "
        "The posterior of all rows is dashed."
    )
    truth = next(reversed(scores.values()))
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


def _curve(post: Posterior, split: Split, scale: Scale) -> Any:
    """Scores against data passes, on some test rows."""
    some = split.test.slice(0, min(len(split.test), SCORED[scale]))

    def scored(now: dict[str, np.ndarray]) -> dict[str, float]:
        found = states(post, now).score(some, draws=post.chains)
        return {
            "accuracy": found.accuracy,
            "log_density": found.log_density,
            "single_accuracy": found.single_accuracy,
            "single_log_density": found.single_log_density,
        }

    return post.learning_curve(scored)


def _flymc(result: Result, split: Split, scale: Scale, seed: int) -> Score:
    """As many draws as realisations at the paper's scale; below it fewer, of longer chains."""
    post = realisations(
        *(result, "flymc", split.model, split.fit, FlyMC()), **FLYMC[scale], random_seed=seed
    )
    return post.score(split.test, draws=post.chains * post.num_draws)


def _posterior(result: Result, split: Split, scale: Scale, seed: int) -> dict[str, Score]:
    """The posterior, by all rows in every step.

    Not by HMC-ECS: some soils are so rare that it refuses its control variates on this table, and
    it would fall back on all rows anyway.
    """
    post = realisations(
        *(result, "posterior", split.model, split.fit, HMC()), **HMC_ALL[scale], random_seed=seed
    )
    scored = post.score(split.test, draws=post.chains * post.num_draws)
    return {"posterior (HMC, all rows)": scored}

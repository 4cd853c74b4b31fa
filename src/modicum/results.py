"""Turn a finished run into a `Posterior`: named draws, warnings, and the cost of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple

import jax
import numpy as np

from modicum.errors import ModicumWarning, warn
from modicum.linalg.arrow import Factor, in_two
from modicum.methods import Method
from modicum.methods.method import Plan, Task, Tuning
from modicum.methods.whole_groups import quadrature_doubts
from modicum.models import Target
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import FitRows, Posterior, Warnings, convergence_warnings
from modicum.posterior.doubts import open_ended
from modicum.posterior.smooth_curves import stiff_smooths
from modicum.rows import Rows
from modicum.run.chains import Layout
from modicum.run.runner import History
from modicum.runtime import backend, in_blocks


class Origin(NamedTuple):
    """What a fit knows of its formula and table, and its posterior records."""

    settings: Mapping[str, object]
    tuning: Tuning
    doubts: Sequence[ModicumWarning]
    table: object


WITHOUT_TABLE = Origin({}, {}, (), None)


class Finished(NamedTuple):
    """A finished run: how it sampled, what came out, and its duration."""

    method: Method
    plan: Plan
    history: History
    layout: Layout
    thin: int
    seconds: float


def posterior_of(
    task: Task,
    fit_rows: FitRows,
    held: Rows | None,
    run: Finished,
    doubts: list[ModicumWarning],
    origin: Origin,
) -> Posterior:
    """Assemble the posterior of a finished run, and issue the warnings that follow from it.

    Parameters
    ----------
    task
        What was sampled, as the method saw it.
    fit_rows, held
        What the posterior remembers of the rows that the user passed, and the rows; None of a
        digest.
    run
        How it was sampled, and what came out.
    doubts
        Warnings already issued before the chains ran.
    origin
        What a fit adds.
    """
    plan, history = run.plan, run.history
    if plan.start_rows:
        task.ledger.add("start", task.chains * plan.start_rows, "gradient")
    for purpose, stats in (("warm-up", history.warmup), ("sampling", history.stats)):
        if "rows_touched" in stats:
            task.ledger.add(purpose, _rows_touched(stats), "gradient")
    outcome = plan.finish(task, plan, history)
    draws = _named_draws(task.target, plan.anchor.point, plan.anchor.factor, history.position)
    labels = task.target.model.labels(task.rows)
    apart = any(doubt.code == "modes-apart" for doubt in outcome.warnings)
    convergence = convergence_warnings(
        draws,
        history.stats,
        outcome.weights,
        labels,
        outcome.target_accept,
        apart,
        run.layout.superchains,
        mixing=not outcome.independent,
    )
    integrals = []
    if task.rows.unit == "group":
        z = history.position.reshape(-1, history.position.shape[-1])
        t = _to_parameters(plan.anchor.point, plan.anchor.factor, z)
        integrals = quadrature_doubts(task.sums, t, task.seed)
    found = [*history.notes, *outcome.warnings, *integrals, *convergence]
    doubts += [warn(doubt) for doubt in found]
    run.method.withdraw_claims(plan, doubts)
    record = plan.anchor.record
    mode: Tuning = {}
    if record is not None:
        found_in = f"found in {record.passes} passes"
        if record.subset < task.ledger.rows:
            found_in += f" from a subset of {record.subset:,} rows"
        mode = {"mode": f"{found_in}; whitened gradient norm {record.gradient_norm:.1e}"}
    priors = task.target.model.describe_priors(task.rows)
    doubts += [warn(doubt) for doubt in origin.doubts]
    number = task.ledger.rows if held is None else len(held)
    post = Posterior(
        draws=draws,
        stats=history.stats,
        ledger=task.ledger,
        labels=labels,
        weights=outcome.weights,
        warnings=Warnings(doubts),
        tuning=origin.tuning | mode | plan.tuning | ({"priors": priors} if priors else {}),
        settings=_settings(task, number, run) | dict(origin.settings),
        predictor=ModelPredictor(task.target.model),
        fit_rows=fit_rows,
        rows=held,
        table=origin.table,
    )
    post.warnings.extend(warn(doubt) for doubt in (*stiff_smooths(post), *open_ended(post)))
    return post


def _settings(task: Task, n: int, run: Finished) -> dict[str, object]:
    """Return the settings that the posterior records about its run."""
    collapsed = task.ledger.collapsed
    settings: dict[str, object] = {
        "method": run.method.name,
        "settings": repr(run.method),
        "model": task.target.identity,
        "rows": n,
        **({} if collapsed is None else {"distinct_rows": collapsed[0]}),
        **({} if run.plan.history is None else {"independent": True}),
        "tune": task.tune,
        "thin": run.thin,
        "warmup_rows": _rows_touched(run.history.warmup) // task.chains,  # per chain
        "seed": task.seed,
        "complete": run.history.complete,
        "seconds": round(run.seconds, 3),
        "sampling_seconds": round(run.history.seconds["sampling"], 6),
        "modicum": version("modicum"),
        "jax": jax.__version__,
        "backend": backend(),
    }
    if run.layout.superchains is not None:
        settings["superchains"] = run.layout.superchains
    return settings


def _rows_touched(stats: dict[str, np.ndarray]) -> int:
    return int(stats["rows_touched"].sum()) if "rows_touched" in stats else 0


def _named_draws(
    target: Target, point: np.ndarray, factor: Factor, position: np.ndarray
) -> dict[str, np.ndarray]:
    """Map whitened coordinates (chain, draw, d) to named parameters, a few chains at a time."""
    chains, draws, size = position.shape
    point = point.astype(position.dtype)
    plain, arrow = in_two(factor)
    factor = plain.astype(position.dtype) if arrow is None else arrow

    def named(some: slice) -> dict[str, np.ndarray]:
        t = _to_parameters(point, factor, position[some].reshape(-1, size))
        return {k: x.reshape(-1, draws, *x.shape[1:]) for k, x in target.reports(t).items()}

    return in_blocks(named, chains, 2**20 // (draws * size), by_threads=target.reports_on_numpy)


def _to_parameters(point: np.ndarray, factor: Factor, z: np.ndarray) -> np.ndarray:
    """Return t = t* + L z for each row of z; a diagonal L may be given as a vector."""
    plain, arrow = in_two(factor)
    if arrow is not None:
        return point + (arrow @ z.T).T
    return point + (z @ plain.T if plain.ndim == 2 else z * plain)

"""Checks of a stochastic-gradient run, before it begins and after it ends."""

from __future__ import annotations

import numpy as np

from modicum.errors import ModicumWarning
from modicum.estimators.gradients import BaseGradientEstimator, SnapshotEstimator
from modicum.kernels.selectors import Plain
from modicum.kernels.stochastic_gradient import StochasticGradientKernel
from modicum.methods.base import Plan, Task
from modicum.methods.sgmcmc.step_size import gradient_noise
from modicum.random import Stream, key
from modicum.rows import Rows
from modicum.run import History

NOISE_LIMIT = 0.25  # gradient noise over injected noise, which makes variances a quarter too large
NOISE_CHAINS = 4  # chains at whose last positions the noise is measured


def look_ahead(batch: int, n: int) -> list[ModicumWarning]:
    """Check the size of a batch before the run."""
    if batch <= n:
        return []
    return [
        ModicumWarning(
            "batch-exceeds-rows",
            f"a batch of {batch:,} is larger than the data set of {n:,} rows, so that a step "
            "costs more than one on all rows, which would be exact",
            f"use method='nuts' on all rows, or a batch below {n:,}",
            batch=batch,
            rows=n,
        )
    ]


def look_back(task: Task, plan: Plan, history: History) -> list[ModicumWarning]:
    """Check the run at its last positions; record the measurements in `plan.tuning`."""
    stats, position = history.stats, history.position
    h = float(stats["step_size"][0, -1])
    if "acceptance_rate_index" in stats:
        plan.tuning["index_acceptance"] = float(stats["acceptance_rate_index"].mean())
    finite = np.isfinite(position).all(axis=2)
    if not finite.all():
        chain = int(np.argmin(finite.all(axis=1)))
        diverged = int((~finite.all(axis=1)).sum())
        return [
            ModicumWarning(
                "chains-diverged",
                f"{diverged} of {len(finite)} chains diverged to infinity (chain {chain} at draw "
                f"{int(np.argmin(finite[chain]))}, and the draws before it are kept)",
                f"use a smaller step_size (it was {h:.3g})",
                chains=diverged,
                step_size=h,
            )
        ]
    ratio = _noise_ratio(task, plan, position, h)
    plan.tuning["gradient_noise"] = {
        "value": ratio,
        "why": "variance of the gradient's noise over that of the injected noise, in the worst "
        f"coordinate, at the last positions of up to {NOISE_CHAINS} chains",
    }
    if ratio <= NOISE_LIMIT:
        return []
    kernel, estimator = _parts(plan)
    effect = (
        f"so that variances come out about {1 + ratio:.3g} times too large"
        if isinstance(kernel.selector, Plain)
        else "which is more than exponential weights make up for"
    )
    remedies = [
        f"use a smaller step_size (now {h:.3g}, and {0.4 * NOISE_LIMIT / ratio * h:.1g} would do)"
    ]
    if 2 * kernel.batch <= len(task.rows):
        remedies.append("a larger batch")
    if not estimator.small_gradients and not kernel.integrator.needs_raw_gradients:
        remedies.append("control variates")
    return [
        ModicumWarning(
            "gradient-noise",
            f"the noise of the stochastic gradient is {ratio:.2g} times the noise of the dynamics, "
            f"{effect}: these are not draws of the posterior",
            _either(remedies),
            ratio=ratio,
            step_size=h,
        )
    ]


def _either(remedies: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(remedies[:-1]), remedies[-1]]))


def _parts(plan: Plan) -> tuple[StochasticGradientKernel, BaseGradientEstimator]:
    assert isinstance(plan.kernel, StochasticGradientKernel)
    assert isinstance(plan.kernel.estimator, BaseGradientEstimator)
    return plan.kernel, plan.kernel.estimator


def _noise_ratio(task: Task, plan: Plan, position: np.ndarray, h: float) -> float:
    kernel, estimator = _parts(plan)
    points = position[:NOISE_CHAINS, -1]
    # A snapshot is half a period old on average; the last but one draw represents it.
    back = min(position.shape[1], 2) if isinstance(estimator, SnapshotEstimator) else 1
    noise = gradient_noise(
        kernel,
        plan.context,
        plan.rows if isinstance(plan.rows, Rows) else task.rows,
        points,
        position[:NOISE_CHAINS, -back],
        key(task.seed, Stream.NOISE_ROWS_AFTER),
    )
    task.ledger.add("pilot", noise.evaluations, "gradient")
    ratio = kernel.integrator.noise_ratio(h, noise.mean, noise.variance, plan.context)
    return float(np.max(ratio))

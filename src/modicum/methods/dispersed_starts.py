"""Starting points and a first step size for chains on all rows, when the mode is of no use.

Laplace's approximation is a bad guide if the posterior has a funnel, a kink or no mode at all.
Chains then start as in Stan: at dispersed points, in the parameters themselves, with a step size
at which one leapfrog step is accepted; warm-up learns the scales. The unit of a family's parameter
is the standard deviation of its prior, since coefficients have the units of their columns.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from modicum.errors import ConvergenceError
from modicum.kernels.full_data import ModeStarts
from modicum.methods.base import Task
from modicum.models.base import DENSE_LIMIT
from modicum.passes import Anchor
from modicum.passes.prior import expanded_prior, prior_slope
from modicum.random import Stream, generator, words_at_start
from modicum.runtime import to_device

RADIUS = 2.0  # distance from the model's start, in units of the parameters, as in Stan
TRIES = 12  # attempts to find a start, each at half the distance of the one before
DRAWS = 24  # draws at which the normal approximation is compared with the posterior
SPREAD, SPREAD_EACH = 3.0, 0.1  # largest spread of the log-ratio there: constant, per parameter
ACCEPTED = np.log(0.8)  # log acceptance probability that the first step size aims at
DOUBLINGS = 30  # most doublings or halvings of the step


class Dispersed(NamedTuple):
    """A point for each chain, the units of parameters, and a step size to begin with."""

    points: np.ndarray  # (chains, d)
    scale: np.ndarray  # (d,), or () if it is 1 for all
    step_size: float

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Dispersed:
        """Restore from the arrays of a checkpoint."""
        return cls(arrays["points"], arrays["scale"], float(arrays["step_size"]))


def far_from_normal(task: Task, anchor: Anchor) -> bool:
    """Whether the normal approximation at the mode is a bad guide to the posterior's scales.

    The test is how much log-posterior minus log-approximation varies among draws of the latter. A
    mode in the neck of a funnel, or at a spike, gives scales that are wrong by orders of magnitude.
    """
    d = task.target.size
    z = generator(task.seed, Stream.NORMALITY).standard_normal((DRAWS, d))
    points = anchor.point + z @ anchor.dense_factor.T
    values = task.sums.values(points, "start") + task.target.log_priors(points)
    ratios = values + 0.5 * np.sum(z**2, axis=1)
    if not np.all(np.isfinite(ratios)):
        return True
    low, high = np.quantile(ratios, [0.25, 0.75])
    return bool(high - low > SPREAD + SPREAD_EACH * d)


def disperse(task: Task) -> Dispersed:
    """Draw a point for each chain about the model's or the user's starts, and a step size."""

    def compute() -> dict[str, np.ndarray]:
        offsets, kicks = (generator(task.seed, s) for s in (Stream.DISPERSED, Stream.FIRST_STEP))
        scale = _scale(task)
        points = np.stack([_near(task, chain, scale, offsets) for chain in range(task.chains)])
        step = np.median([_first_step(task, point, scale, kicks) for point in points])
        return {"points": points, "scale": scale, "step_size": np.asarray(step)}

    return task.remember("dispersed", compute, Dispersed.from_arrays)


def dispersed_starts(begin: Dispersed, origin: np.ndarray, keys: np.ndarray) -> ModeStarts:
    """Return the points in coordinates about `origin`, for kernels; `keys` are of the chains."""
    return ModeStarts(
        keys=to_device(words_at_start(keys)[:, 1]),
        mode=jnp.arange(len(begin.points)),
        centre=to_device((begin.points - origin) / begin.scale),
        spread=None,
    )


def _scale(task: Task) -> np.ndarray:
    """Return the units of the parameters: a family's prior sds at the start, else 1."""
    target = task.target
    if target.model.users_functions or target.size > DENSE_LIMIT:
        return np.ones(())
    precision = -np.diag(expanded_prior(target, task.start)[2])
    with np.errstate(all="ignore"):
        sd = 1 / np.sqrt(precision)
    return np.where(np.isfinite(sd), sd, 1.0)


def _near(task: Task, chain: int, scale: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a point of finite density about a start, closer to it at every attempt."""
    bases = (task.start, *(task.starts.points if task.starts else ()))
    base = bases[chain % len(bases)]
    radius = RADIUS
    for _ in range(TRIES):
        point = base + scale * rng.uniform(-radius, radius, len(base))
        value, gradient = _log_posterior(task, point)
        if np.isfinite(value) and np.all(np.isfinite(gradient)):
            return np.asarray(point)
        radius /= 2
    value, gradient = _log_posterior(task, base)
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
        raise ConvergenceError(
            "the log-posterior or its gradient is not finite at the points where chains would "
            "start; start elsewhere (`init`), or check the model's functions there."
        )
    return np.asarray(base)


def _first_step(
    task: Task, point: np.ndarray, scale: np.ndarray, rng: np.random.Generator
) -> float:
    """Double or halve the step until one leapfrog step is just accepted."""
    momentum = rng.standard_normal(len(point))
    value, gradient = _log_posterior(task, point)

    def gain(step: float) -> float:
        half = momentum + step / 2 * scale * gradient
        height, slope = _log_posterior(task, point + step * scale * half)
        end = half + step / 2 * scale * slope
        with np.errstate(all="ignore"):
            change = height - value - 0.5 * float(end @ end - momentum @ momentum)
        return change if np.isfinite(change) else -np.inf

    step = len(point) ** -0.25
    accepted = gain(step) > ACCEPTED
    factor = 2.0 if accepted else 0.5
    for _ in range(DOUBLINGS):
        if (gain(step * factor) > ACCEPTED) != accepted:
            break
        step *= factor
    return step


def _log_posterior(task: Task, point: np.ndarray) -> tuple[float, np.ndarray]:
    value, gradient = task.sums.gradient(point, "start")
    prior, prior_gradient = prior_slope(task.target, point)
    return value + prior, gradient + prior_gradient

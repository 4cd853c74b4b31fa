"""Where chains on all rows start when the mode is no use: dispersed points, a first step size.

Laplace's approximation is a bad guide where the posterior has a funnel, a kink or no mode at all.
Chains then start as in Stan: apart, in the parameters themselves, with a step size that one
leapfrog step survives; warm-up learns the scales.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from modicum.errors import ConvergenceError
from modicum.kernels.full_data import ModeStarts
from modicum.methods.base import Task
from modicum.passes import Anchor
from modicum.passes.prior import prior_slope
from modicum.random import Stream, generator
from modicum.run import first_keys
from modicum.runtime import to_device

__all__ = ["Dispersed", "disperse", "dispersed_starts", "far_from_normal"]

RADIUS = 2.0  # about the model's own start, in unconstrained parameters, as in Stan
TRIES = 12  # each at half the distance of the one before
DRAWS = 24  # of the normal approximation, at which it is compared with the posterior
SPREAD = 3.0  # of the log-ratio over these draws, and so much more per parameter:
SPREAD_EACH = 0.1
ACCEPTED = np.log(0.8)  # energy error of the first leapfrog step
DOUBLINGS = 30


class Dispersed(NamedTuple):
    """A point for each chain, and a step size to begin with."""

    points: np.ndarray  # (chains, d)
    step_size: float

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Dispersed:
        """Read what a checkpoint has kept."""
        return cls(arrays["points"], float(arrays["step_size"]))


def far_from_normal(task: Task, anchor: Anchor) -> bool:
    """Whether the normal approximation at the mode is no guide to the posterior's scales.

    Draws of it are looked at: how much the log-posterior over its quadratic varies among them. A
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
    """Points about the model's start, or the user's own, and a step size for them."""

    def compute() -> dict[str, np.ndarray]:
        offsets, kicks = (generator(task.seed, s) for s in (Stream.DISPERSED, Stream.FIRST_STEP))
        points = np.stack([_near(task, chain, offsets) for chain in range(task.chains)])
        step = np.median([_first_step(task, point, kicks) for point in points])
        return {"points": points, "step_size": np.asarray(step)}

    return task.remember("dispersed", compute, Dispersed.from_arrays)


def dispersed_starts(begin: Dispersed, origin: np.ndarray, keys: np.ndarray) -> ModeStarts:
    """The points as kernels read them, counted from `origin`; `keys` are those of the chains."""
    return ModeStarts(
        keys=first_keys(keys),
        mode=jnp.arange(len(begin.points)),
        centre=to_device(begin.points - origin),
        spread=None,
    )


def _near(task: Task, chain: int, rng: np.random.Generator) -> np.ndarray:
    """A point of finite density about a start; nearer to it at every try."""
    bases = (task.start, *(task.starts.points if task.starts else ()))
    base = bases[chain % len(bases)]
    radius = RADIUS
    for _ in range(TRIES):
        point = base + rng.uniform(-radius, radius, len(base))
        value, gradient = _log_posterior(task, point)
        if np.isfinite(value) and np.all(np.isfinite(gradient)):
            return np.asarray(point)
        radius /= 2
    value, gradient = _log_posterior(task, base)
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
        raise ConvergenceError(
            "the log-posterior, or its gradient, is not finite at the points chains would start "
            "from; start elsewhere (`init`), or check the model's functions there."
        )
    return np.asarray(base)


def _first_step(task: Task, point: np.ndarray, rng: np.random.Generator) -> float:
    """Double or halve the step until one leapfrog step is just about accepted."""
    momentum = rng.standard_normal(len(point))
    value, gradient = _log_posterior(task, point)

    def gain(step: float) -> float:
        half = momentum + step / 2 * gradient
        height, slope = _log_posterior(task, point + step * half)
        end = half + step / 2 * slope
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

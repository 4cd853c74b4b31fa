"""Step sizes of stochastic-gradient methods, and the gradient noise that limits them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from modicum.designs import Drawn
from modicum.errors import SettingError, is_number
from modicum.estimators.gradients import Snapshot
from modicum.kernels.base import StochasticGradientContext
from modicum.kernels.integrators import Integrator
from modicum.kernels.stochastic_gradient import StochasticGradientKernel
from modicum.models.base import Batch
from modicum.rows import Rows
from modicum.runtime import jit

Moments = tuple[jax.Array, jax.Array, jax.Array]  # count, mean, sum of squares about it
BATCHES = 32  # per point, from which the gradient's variance is estimated


@dataclass(frozen=True)
class Decay:
    """Decaying step sizes, first (1 + k / delay)^-power at iteration k (Welling and Teh 2011).

    Parameters
    ----------
    first
        The first step size.
    power
        How fast they shrink; between 1/3 and 1.
    delay
        Iterations before they shrink much.

    Examples
    --------
    >>> import modicum as mo
    >>> schedule = mo.Decay(first=0.1, power=0.5, delay=100)
    >>> schedule(0), schedule(300)
    (0.1, 0.05)
    """

    first: float
    power: float = 1 / 3
    delay: float = 1000.0

    def __post_init__(self) -> None:
        for name in ("first", "power", "delay"):
            if not is_number(getattr(self, name)) or not getattr(self, name) > 0:
                raise SettingError(f"{name} must be a positive number.")

    def __call__(self, k: int) -> float:
        """Return the step size of iteration `k`."""
        return float(self.first * (1 + k / self.delay) ** -self.power)


def step_sizes(step_size: float | Callable[[int], float], total: int) -> np.ndarray:
    """Return one step size per iteration."""
    if not callable(step_size):
        return np.full(total, float(step_size))
    sizes = np.array([step_size(k) for k in range(total)], np.float64)
    if sizes.shape != (total,) or not np.all(np.isfinite(sizes) & (sizes > 0)):
        raise SettingError("step_size must return a positive number for every iteration.")
    return sizes


def largest_step(integrator: Integrator, noise: float, bias: float) -> float:
    """Return the largest step, up to 1, whose stationary variance is off by at most `bias`.

    In whitened coordinates the posterior has unit curvature, so the variance follows from the step
    and the variance `noise` of the gradient.
    """

    def error(h: float) -> float:
        step = integrator.response(h)
        assert step is not None
        return abs(step.variance(1.0, noise) / integrator.temperature - 1)

    sizes = np.geomspace(1.0, 1e-12, 1200)  # 2.3 % from one to the next
    for h in sizes:
        if error(float(h)) <= bias:
            return float(h)
    raise SettingError(
        f"no step is small enough for a bias of {bias:g} here; use a larger batch, control "
        "variates, or set step_size by hand."
    )


@dataclass(frozen=True)
class GradientNoise:
    """Mean and variance over batches of the gradient of U, one number per coordinate."""

    mean: np.ndarray
    variance: np.ndarray
    evaluations: int  # row gradients that the estimate cost


def gradient_noise(
    kernel: StochasticGradientKernel,
    context: StochasticGradientContext,
    rows: Rows,
    points: np.ndarray,
    references: np.ndarray,
    key: jax.Array,
) -> GradientNoise:
    """Estimate mean and variance of a batch's gradient, averaged over `points`.

    If the estimator uses a snapshot, it is taken at the reference of each point.
    """
    keys = jax.random.split(key, len(points))
    totals = []
    for draw_key, point, reference in zip(keys, points, references, strict=True):
        drawn = _draw(kernel, draw_key, context)
        batch = rows.take(np.asarray(drawn.row_ids)) | {"probability": drawn.probability}
        at = jnp.asarray(point), jnp.asarray(reference)
        totals.append(_moments(kernel, *at, batch, context))
    mean, variance = (np.mean(np.asarray(part), axis=0) for part in zip(*totals, strict=True))
    cost = len(points) * BATCHES * kernel.batch * kernel.estimator.evaluations
    return GradientNoise(mean, variance, cost)


@jit(static=0)
def _draw(
    kernel: StochasticGradientKernel, key: jax.Array, context: StochasticGradientContext
) -> Drawn:
    keys = jax.random.split(key, BATCHES)
    return jax.vmap(lambda k: kernel.design.draw(k, kernel.batch, context.design))(keys)


@jit(static=0)
def _moments(
    kernel: StochasticGradientKernel,
    point: jax.Array,
    reference: jax.Array,
    batches: Batch,
    context: StochasticGradientContext,
) -> tuple[jax.Array, jax.Array]:
    """Return mean and unbiased variance over batches, one batch at a time (Welford)."""
    estimator = kernel.estimator
    memory = estimator.start(point, context)
    if isinstance(memory, Snapshot):
        memory = memory._replace(z=reference)

    def add(carry: Moments, batch: Batch) -> tuple[Moments, None]:
        count, mean, squares = carry
        g = estimator.gradient(point, estimator.prepare(batch, context), memory, context)
        g = g.astype(jnp.float64)
        away = g - mean
        mean = mean + away / (count + 1)
        return (count + 1, mean, squares + away * (g - mean)), None

    zero = jnp.zeros(point.shape, jnp.float64)
    (_, mean, squares), _ = jax.lax.scan(add, (jnp.zeros(()), zero, zero), batches)
    return mean, squares / (BATCHES - 1)

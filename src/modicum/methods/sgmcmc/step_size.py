"""Step sizes of stochastic-gradient methods, and the gradient noise that limits them.

The noise is measured at a few points before a run, to choose the step, and at the last positions
after it, to check it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import Positive, check_settings
from modicum.errors import ModicumWarning, SettingError, listed
from modicum.kernels.designs import Drawn
from modicum.kernels.integrators import Integrator
from modicum.kernels.protocols import StochasticGradientContext
from modicum.kernels.stochastic_gradient import StochasticGradientKernel
from modicum.methods.method import Outcome, Plan, Task
from modicum.models.model import Batch
from modicum.random import Stream, key
from modicum.rows import Rows
from modicum.run.runner import History
from modicum.runtime import in_double_precision, jit

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

    first: Positive
    power: Positive = 1 / 3
    delay: Positive = 1000.0

    def __post_init__(self) -> None:
        check_settings(self)

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


def gradient_noise(
    task: Task,
    kernel: StochasticGradientKernel,
    context: StochasticGradientContext,
    rows: Batch | Rows | None,
    points: np.ndarray,
    references: np.ndarray,
    stream: Stream,
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate mean and variance of a batch's gradient of U, averaged over `points`.

    If the estimator uses a snapshot, it is taken at the reference of each point. Rows are read as
    chains read them, or from the task if those are on the device.
    """
    source = rows if isinstance(rows, Rows) else task.rows
    keys = jax.random.split(key(task.seed, stream), len(points))
    moments = []
    for draw_key, point, reference in zip(keys, points, references, strict=True):
        drawn = _draw(kernel, draw_key, context)
        batch = source.take(np.asarray(drawn.row_ids)) | {"probability": drawn.probability}
        at = jnp.asarray(point), jnp.asarray(reference)
        moments.append(_moments(kernel, *at, batch, context))
    cost = len(points) * BATCHES * kernel.batch * kernel.estimator.evaluations
    task.ledger.add("pilot", cost, "gradient")
    mean, variance = (np.mean(np.asarray(part), axis=0) for part in zip(*moments, strict=True))
    return mean, variance


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
    """Return mean and unbiased variance over batches."""
    estimator = kernel.estimator
    memory = estimator.start(reference, context)

    def gradient(batch: Batch) -> jax.Array:
        prepared = estimator.prepare(batch, context)
        return estimator.gradient(point, prepared, memory, context).astype(jnp.float64)

    gradients = jax.lax.map(gradient, batches)
    return gradients.mean(axis=0), gradients.var(axis=0, ddof=1)


NOISE_LIMIT = 0.25  # gradient noise over injected noise, which makes variances a quarter too large
NOISE_CHAINS = 4  # chains at whose last positions the noise is measured


@listed
def look_ahead(batch: int, n: int) -> Iterator[ModicumWarning]:
    """Check the size of a batch before the run."""
    if batch <= n:
        return
    yield ModicumWarning(
        "batch-exceeds-rows",
        f"a batch of {batch:,} is larger than the data set of {n:,} rows, so that a step "
        "costs more than one on all rows, which would be exact",
        f"use method='nuts' on all rows, or a batch below {n:,}",
        batch=batch,
        rows=n,
    )


@in_double_precision
def look_back(
    kernel: StochasticGradientKernel, task: Task, plan: Plan, history: History
) -> Outcome:
    """Check the run at its last positions; record the measurements in `plan.tuning`."""
    return Outcome(warnings=_doubts(kernel, task, plan, history))


@listed
def _doubts(
    kernel: StochasticGradientKernel, task: Task, plan: Plan, history: History
) -> Iterator[ModicumWarning]:
    stats, position = history.stats, history.position
    h = float(stats["step_size"][0, -1])
    if "acceptance_rate_index" in stats:
        plan.tuning["index_acceptance"] = float(stats["acceptance_rate_index"].mean())
    finite = np.isfinite(position).all(axis=2)
    if not finite.all():
        chain = int(np.argmin(finite.all(axis=1)))
        diverged = int((~finite.all(axis=1)).sum())
        yield ModicumWarning(
            "chains-diverged",
            f"{diverged} of {len(finite)} chains diverged to infinity (chain {chain} at draw "
            f"{int(np.argmin(finite[chain]))}, and the draws before it are kept)",
            f"use a smaller step_size (it was {h:.3g})",
            chains=diverged,
            step_size=h,
        )
        return
    ratio = _noise_ratio(kernel, task, plan, position, h)
    plan.tuning["gradient_noise"] = {
        "value": ratio,
        "why": "variance of the gradient's noise over that of the injected noise, in the worst "
        f"coordinate, at the last positions of up to {NOISE_CHAINS} chains",
    }
    if ratio <= NOISE_LIMIT:
        return
    effect = (
        f"so that variances come out about {1 + ratio:.3g} times too large"
        if kernel.batches == 1
        else "which is more than exponential weights make up for"
    )
    remedies = [
        f"use a smaller step_size (now {h:.3g}, and {0.4 * NOISE_LIMIT / ratio * h:.1g} would do)"
    ]
    if 2 * kernel.batch <= len(task.rows):
        remedies.append("a larger batch")
    if not kernel.estimator.order and not kernel.integrator.needs_raw_gradients:
        remedies.append("control variates")
    yield ModicumWarning(
        "gradient-noise",
        f"the noise of the stochastic gradient is {ratio:.2g} times the noise of the dynamics, "
        f"{effect}: these are not draws of the posterior",
        " or ".join(filter(None, [", ".join(remedies[:-1]), remedies[-1]])),
        ratio=ratio,
        step_size=h,
    )


def _noise_ratio(
    kernel: StochasticGradientKernel, task: Task, plan: Plan, position: np.ndarray, h: float
) -> float:
    points = position[:NOISE_CHAINS, -1]
    # A snapshot is half a period old on average; the last but one draw represents it.
    renewed = kernel.estimator.period(len(task.rows), kernel.batch) is not None
    back = min(position.shape[1], 2) if renewed else 1
    references = position[:NOISE_CHAINS, -back]
    where = (plan.context, plan.rows, points, references, Stream.NOISE_ROWS_AFTER)
    noise = gradient_noise(task, kernel, *where)
    return float(np.max(kernel.integrator.noise_ratio(h, *noise, plan.context)))

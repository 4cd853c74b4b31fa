"""Where chains start and control variates are expanded when the mode is of no use.

Laplace's approximation is a bad guide if the posterior has a funnel, a kink, the spike of a mixture
or no mode at all. There are two ways out.

Chains on all rows start as in Stan: at dispersed points, in the parameters themselves, with a step
size at which one leapfrog step is accepted; warm-up learns the scales. The unit of a family's
parameter is the standard deviation of its prior, since coefficients have the units of their
columns.

The posterior's mean exists where a mode does not. NUTS runs on a few thousand rows, weighted to
represent all: the covariance V of its draws is about that of the posterior p, and their mean is off
by the sampling error of the subset. Passes over all rows then look for the shift s of a few of
these draws t_i for which

    mean of grad log p(t_i + s) = mean of grad log p_subset(t_i):

each gradient has expectation zero under its own posterior, and the difference of two means over the
same draws is free of most of their noise, whatever the posterior's shape. If both log-posteriors
are quadratic, s = V (mean of grad log p - grad log p_subset) is the difference of their means;
otherwise Broyden's method iterates from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.diagnostics import r_hat
from modicum.errors import ConvergenceError
from modicum.kernels.all_rows import FullDataContext, FullDataKernel, ModeStarts
from modicum.kernels.moves import NUTSMove, schedule
from modicum.kernels.whitening import Whitening
from modicum.methods.method import Parameters, Plan, Task, run_on_some_rows
from modicum.models import Target
from modicum.models.model import DENSE_LIMIT
from modicum.passes import Anchor
from modicum.passes.curvature import expanded_prior, posterior_slope, prior_slope
from modicum.passes.sums import Streamed, hold, log_likelihood
from modicum.random import Stream, chain_keys, generator, words_at_start
from modicum.runtime import Pytree, in_double_precision, to_device


@dataclass(frozen=True)
class FullLogPosterior:
    """The log-posterior of all rows as a hashable function of t and the rows' chunks."""

    target: Target
    source: Streamed | None
    has_rest: bool = False  # whether a quadratic represents the rows that are absent
    times: float = 1.0  # weight of every row, if the rows are a subset that represents all

    @classmethod
    def of(
        cls, task: Task, limit: int | None, times: float = 1.0
    ) -> tuple[FullLogPosterior, Pytree]:
        """Return the function of a task and its data, in memory if within `limit` bytes."""
        source, chunks = hold(task.rows, limit)
        rest = task.sums.rest
        if rest is None:
            return cls(task.target, source, False, times), chunks
        numbers = to_device((rest.point, rest.C, rest.A, rest.B))
        return cls(task.target, source, True, times), (chunks, numbers)

    def __call__(self, t: jax.Array, data: Pytree) -> jax.Array:
        """Return the log-posterior at `t` of the rows in `data`."""
        chunks, rest = data if self.has_rest else (data, None)
        likelihood = log_likelihood(self.target, self.source, t, chunks)
        if self.times != 1:
            likelihood = self.times * likelihood
        log_posterior = likelihood + self.target.log_prior(t)
        if rest is None:
            return log_posterior
        point, C, A, B = rest
        dt = t[: point.shape[0]] - point
        return log_posterior + C + dt @ (A + B @ dt / 2)


RADIUS = 2.0  # distance from the model's start, in units of the parameters, as in Stan
TRIES = 12  # attempts to find a start, each at half the distance of the one before
NORMAL_DRAWS = 24  # draws at which the normal approximation is compared with the posterior
SPREAD, SPREAD_EACH = 3.0, 0.1  # largest spread of the log-ratio there: constant, per parameter
ACCEPTED = np.log(0.8)  # log acceptance probability that the first step size aims at
DOUBLINGS = 30  # most doublings or halvings of the step


class Dispersed(NamedTuple):
    """A point for each chain, the units of parameters, and a step size to begin with."""

    points: np.ndarray  # (chains, d)
    scale: np.ndarray  # (d,), or () if it is 1 for all
    step_size: np.ndarray  # ()


def far_from_normal(task: Task, anchor: Anchor) -> bool:
    """Whether the normal approximation at the mode is a bad guide to the posterior's scales.

    The test is how much log-posterior minus log-approximation varies among draws of the latter. A
    mode in the neck of a funnel, or at a spike, gives scales that are wrong by orders of magnitude.
    """
    d = task.target.size
    z = generator(task.seed, Stream.NORMALITY).standard_normal((NORMAL_DRAWS, d))
    points = anchor.point + z @ anchor.dense_factor.T
    values = task.sums.values(points, "start") + task.target.log_priors(points)
    ratios = values + 0.5 * np.sum(z**2, axis=1)
    if not np.all(np.isfinite(ratios)):
        return True
    low, high = np.quantile(ratios, [0.25, 0.75])
    return bool(high - low > SPREAD + SPREAD_EACH * d)


def disperse(task: Task) -> Dispersed:
    """Draw a point for each chain about the model's or the user's starts, and a step size."""

    def draw() -> Dispersed:
        offsets, kicks = (generator(task.seed, s) for s in (Stream.DISPERSED, Stream.FIRST_STEP))
        scale = _scale(task)
        points = np.stack([_near(task, chain, scale, offsets) for chain in range(task.chains)])
        step = np.median([_first_step(task, point, scale, kicks) for point in points])
        return Dispersed(points, scale, np.asarray(step))

    return task.remember("dispersed", Dispersed, draw)


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
        value, gradient = posterior_slope(task.sums, point, "start")
        if np.isfinite(value) and np.all(np.isfinite(gradient)):
            return np.asarray(point)
        radius /= 2
    value, gradient = posterior_slope(task.sums, base, "start")
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
    value, gradient = posterior_slope(task.sums, point, "start")

    def gain(step: float) -> float:
        half = momentum + step / 2 * scale * gradient
        height, slope = posterior_slope(task.sums, point + step * scale * half, "start")
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


ROWS, ROWS_EACH = 2_000, 20  # fewest rows of the subset: in all, and per parameter
FEWEST = 5  # all rows must be this many times the subset, or NUTS on all of them is as good
CHAINS, TUNE, DRAWS, DEPTH = 4, 300, 200, 8
STAGE = 90  # stage of the chains' random keys
APART = 1.3  # R-hat above which the chains disagree
DENSE = 50  # most parameters for which V is a full matrix, not a diagonal
POINTS = 16  # draws at which gradients of all rows are averaged
MOST_STEPS = 12  # most passes that move the mean
NEAR, FAR = 0.1, 0.5  # last step, in posterior sds: converged below NEAR, failed above FAR
LONGEST = 10.0  # longest step, in posterior sds of each parameter


class NoMeanError(ConvergenceError):
    """Short chains on a subset, or the passes after them, found no mean."""


class AtMean(NamedTuple):
    """An anchor at the mean, and how it was found in words."""

    anchor: Anchor
    text: str


def may_have_mean(task: Task) -> bool:
    """Whether to look for a mean: for a user's model, and rows enough that a subset is cheap."""
    own = task.target.model.users_functions and task.target.model.has_mode
    all_rows = task.sums.rest is None and not task.grouped
    return own and all_rows and len(task.rows) >= FEWEST * _subset_size(task)


def anchor_at_mean(task: Task) -> AtMean:
    """Find the mean and expand there; done once per run.

    Raises
    ------
    NoMeanError
        If chains on the subset do not agree, or no mean of all rows was reached.
    """
    return task.once(_anchor_at_mean)


@in_double_precision
def _anchor_at_mean(task: Task) -> AtMean:
    def find() -> AtMean:
        draws, small = _short_chains(task)
        mean, factor, passes = _moved(task, small, draws)
        C, A, B = task.sums.hessian(mean, "anchor")
        if not all(np.all(np.isfinite(part)) for part in (C, A, B)):
            raise NoMeanError(
                "a derivative of the log-likelihood is not finite at the mean of short chains; "
                "write it with smooth functions, or use method='nuts'."
            )
        text = (
            f"the mean of {CHAINS} short chains on {len(small.rows):,} rows, moved by {passes} "
            "passes over all rows"
        )
        return AtMean(Anchor(mean, C, A, B, factor), text)

    return task.remember("mean", AtMean, find)


def _subset_size(task: Task) -> int:
    return max(ROWS, ROWS_EACH * task.target.size)


def _short_chains(task: Task) -> tuple[np.ndarray, Task]:
    """Return draws (chain, draw, d) of NUTS on a weighted subset, and the subset's task."""
    size = _subset_size(task)
    small = task.of_some_rows(Stream.MEAN_SUBSET, size, CHAINS, TUNE, DRAWS)
    begin, times = disperse(small), len(task.rows) / size
    log_posterior, chunks = FullLogPosterior.of(small, None, times)
    keys = chain_keys(task.seed, CHAINS, STAGE)
    plan = Plan(
        FullDataKernel(
            log_posterior,
            NUTSMove(DEPTH),
            first_step=float(begin.step_size / times**0.5),
            dense=task.target.size <= DENSE,
        ),
        FullDataContext(
            Whitening.about(task.start, np.ones(())),
            n=jnp.asarray(size),
            data=chunks,
            starts=dispersed_starts(begin, task.start, keys),
        ),
        schedule(TUNE, DRAWS, adapt_mass=True, whitened=False),
        Parameters(task.start),
    )
    draws = task.start + run_on_some_rows(small, plan, keys).position
    worst = float(np.max(r_hat(draws)))
    if not worst < APART:  # NaN if no chain moved
        raise NoMeanError(
            f"short chains on {size:,} rows disagree about where the posterior is (R-hat "
            f"{worst:.2f}), so that there is no mean to expand about; use method='nuts'."
        )
    return draws, small


def _moments(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of draws, and a factor of their covariance (diagonal if d is large)."""
    flat = draws.reshape(-1, draws.shape[2])
    count, d = flat.shape
    variance = flat.var(axis=0)
    if d > DENSE:
        return flat.mean(axis=0), np.diag(np.sqrt(variance))
    share = d / (d + count)  # shrink towards the diagonal, more so with fewer draws
    cov = (1 - share) * np.cov(flat, rowvar=False).reshape(d, d) + share * np.diag(variance)
    return flat.mean(axis=0), np.linalg.cholesky(cov)


def _moved(task: Task, small: Task, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Move the mean from the subset's to that of all rows; return it, the factor and the passes."""
    flat = draws.reshape(-1, draws.shape[2])
    draw_ids = generator(task.seed, Stream.MEAN_POINTS).choice(len(flat), POINTS, replace=False)
    points, (mean, factor), d = flat[draw_ids], _moments(draws), flat.shape[1]
    times = len(task.rows) / len(small.rows)
    of_subset = times * small.sums.gradients(points, "subset") + _prior_slopes(task, points)
    origin = mean

    def slope(at: np.ndarray) -> np.ndarray:
        """The step to the mean if all is quadratic, in posterior standard deviations."""
        moved = points + (at - origin)
        gradients = task.sums.gradients(moved, "anchor") + _prior_slopes(task, moved)
        return np.asarray(factor.T @ (gradients - of_subset).mean(axis=0))

    inverse = np.eye(d)  # of minus the derivative of the slope
    gradient, passes = slope(mean), 1
    while passes <= MOST_STEPS:
        step = inverse @ gradient
        step *= min(1.0, LONGEST * d**0.5 / max(float(np.linalg.norm(step)), 1e-300))
        if not np.all(np.isfinite(step)) or np.abs(step).max() < NEAR:
            break
        mean, before = mean + factor @ step, gradient
        gradient, passes = slope(mean), passes + 1
        change = before - gradient
        across = inverse.T @ step
        if abs(across @ change) > 1e-3 * float(step @ step):  # Broyden's update of an inverse
            inverse = inverse + np.outer(step - inverse @ change, across) / (across @ change)
    away = float(np.abs(inverse @ gradient).max())
    if not away < FAR:
        raise NoMeanError(
            f"the mean of short chains on a subset is still {away:.1f} posterior sd from that of "
            f"all rows after {passes} passes; use method='nuts'."
        )
    return mean, factor, passes


def _prior_slopes(task: Task, points: np.ndarray) -> np.ndarray:
    return np.stack([prior_slope(task.target, point)[1] for point in points])

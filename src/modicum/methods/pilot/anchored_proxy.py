"""The first stage of a pilot study: control variates about an anchor, and where the posterior is.

Methods that subsample rows, and those that weight draws by a pool of rows, start from these: the
control variate, the sum of its proxies over all rows, and approximate draws of the posterior in
whitened coordinates.

Scales and dispersions are sampled on the log scale. If the posterior is wide there, the
log-likelihood of a row may be far from quadratic on the log scale, and nearly quadratic in the
parameter itself, its square or its reciprocal: the coordinate in which to expand is chosen by the
resulting residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either
from modicum.errors import CrudeControlVariateError, SettingError, suggestion
from modicum.kernels.control_variates import (
    AutodiffTaylor,
    LinearTaylor,
    control_variate,
    curve_sum,
    proxy,
)
from modicum.kernels.expansion import POWERS, bend, group_proxy, variance_unit
from modicum.kernels.protocols import Bend, ControlVariate, Proxy
from modicum.kernels.residuals import RowResiduals
from modicum.kernels.whitening import Whitening
from modicum.linalg.arrow import ArrowFactor
from modicum.methods.method import Chosen, Task, Tuning
from modicum.models import Target
from modicum.models.model import DENSE_LIMIT, Batch
from modicum.passes import Anchor
from modicum.passes.curvature import folded_prior, prior_slope
from modicum.random import Stream, generator
from modicum.rows.grouped_rows import as_groups
from modicum.runtime import FASTEST_COMPILE, Array, Pytree, in_equal_blocks, jit

WIDE = 0.1  # posterior sd of a logarithm below which coordinates do not matter
TOGETHER = 32  # draws that are evaluated at once if a factor has many levels
GAIN = 0.5  # largest variance, relative to the current one, of a coordinate worth changing to


def with_coordinates(
    task: Task,
    control_variate: ControlVariate[Pytree],
    anchor: Anchor,
    proxy: Proxy,
    draws: np.ndarray,
) -> tuple[Proxy, Tuning]:
    """Add to a proxy the coordinate of expansion of each parameter sampled on the log scale.

    Unless the user's model fixed it, parameters are handled one after another, by the sum over rows
    of the root mean square residual at `draws`, whose square is the variance of an estimate from
    one weighted row. Return the reason too.
    """
    target, settings = task.target, task.target.model.expansions()
    if not settings or not isinstance(control_variate, AutodiffTaylor) or control_variate.order < 2:
        return proxy, {}
    if proxy.where.arrow is not None:  # that many rows leave no posterior wide
        return proxy, {}
    entries = [(name, place) for name in settings for place in target.places[name]]
    power = np.array([POWERS[_coordinate(settings[name])] for name, _ in entries])
    where, why = np.array([place for _, place in entries]), "set by hand"
    wide = [k for k, (name, _) in enumerate(entries) if settings[name] is None]
    wide = [k for k in wide if anchor.sd[where[k]] > WIDE]
    if wide:
        batch = _sampled_rows(task)
        evaluations = len(batch["probability"]) * len(draws) * len(POWERS) * len(wide)
        task.ledger.add("pilot", evaluations, "density")
        power, ratio = _descend(control_variate, batch, anchor, proxy, draws, where, power, wide)
        why = f"residuals have {ratio:,.3g} times less variance than in the logarithm"
    bent = np.flatnonzero(power)
    if not len(bent):
        return proxy, {}
    called = {value: name for name, value in POWERS.items()}
    chosen = {entries[k][0]: called[power[k]] for k in bent}
    value = ", ".join(f"{name}: {coordinate}" for name, coordinate in chosen.items())
    with_bend = proxy._replace(bend=bend(target, anchor, where[bent], power[bent]))
    return with_bend, {"coordinates": Chosen(value=value, why=why)}


def _sampled_rows(task: Task) -> Batch:
    rows, seed = task.rows, task.seed if task.grouped else SHARED
    rng = generator(seed, Stream.COORDINATE_ROWS)
    row_ids = np.sort(rng.choice(len(rows), min(len(rows), COORDINATE_ROWS), replace=False))
    return rows.take(row_ids) | {"probability": np.full(len(row_ids), 1 / len(rows))}


def _descend(
    control_variate: AutodiffTaylor,
    batch: Batch,
    anchor: Anchor,
    proxy: Proxy,
    draws: np.ndarray,
    where: np.ndarray,
    power: np.ndarray,
    wide: list[int],
) -> tuple[np.ndarray, float]:
    """Choose powers entry by entry; return them, and the variance before over that after."""
    path, choices, target = [], np.array(list(POWERS.values())), control_variate.target
    for k in wide:
        tried = np.tile(power, (len(choices), 1))
        tried[:, k] = choices
        form = bend(target, anchor, where, power)
        variances = np.asarray(_variances(control_variate, batch, proxy, form, tried, draws))
        now = float(variances[choices == power[k]][0])
        path.append(now)
        variances = np.where(np.isfinite(variances), variances, np.inf)
        best = int(np.argmin(variances))
        if variances[best] <= GAIN * now or not np.isfinite(now):
            power, now = tried[best], float(variances[best])
    return power, path[0] / now if now > 0 else np.inf


@jit(static=0, options=FASTEST_COMPILE)
def _variances(
    cv: AutodiffTaylor, batch: Batch, proxy: Proxy, form: Bend, powers: Array, draws: Array
) -> jax.Array:
    """Square the sum over rows of the root mean square residual, for each row of `powers`."""

    def variance(power: jax.Array) -> jax.Array:
        bent = proxy._replace(bend=form._replace(power=power))
        cached = cv.cache(batch, bent)
        values = jax.lax.map(lambda z: cv.values(cached, z, bent), draws)
        return jnp.mean(jnp.sqrt(jnp.mean(values**2, axis=0))) ** 2

    return jax.lax.map(variance, powers)


def _coordinate(name: str | None) -> str:
    if name is None:
        return "log"
    if name not in POWERS:
        raise SettingError(
            f"there is no coordinate {name!r}{suggestion(name, POWERS)}; the coordinates of a "
            f"positive parameter are {', '.join(POWERS)}."
        )
    return name


SHARED = 0  # seed of everything that all runs share
DRAWS = 256
OTHER_DRAWS = 128  # for models without a linear predictor, whose rows cost more
CANDIDATES, RESAMPLED = 2_048, 32  # for integrated effects
EXPLICIT_CANDIDATES = 4_096  # for explicit effects
AT_ONCE = 512  # draws at which a proxy is evaluated
MOST_NUMBERS = 2**23  # most floats in all candidates, which limits their number with many effects
DESIGN_DRAWS, DESIGN_DRAWS_OF_GROUPS = 8, 4  # draws at which rows are weighted
# Most draws lie on one side of a row's kink, so that with eight of them all may, and the row looks
# harmless: for a quantile regression with 500 of 20,000 rows, the bound on the bias is 2 posterior
# sds with eight draws, and 0.1 with 64.
DESIGN_DRAWS_AT_KINKS = 64


class StudyDraws(NamedTuple):
    """Draws at which residuals are studied.

    Attributes
    ----------
    points
        The draws, (draws, d).
    proxy_ratios
        Log ratio of proxy to normal approximation there; None if the draws come from the normal
        approximation itself.
    """

    points: np.ndarray
    proxy_ratios: np.ndarray | None = None


class PilotDraws(NamedTuple):
    """Approximate posterior draws in whitened coordinates.

    Attributes
    ----------
    weighing
        Draws at which rows are weighted, (draws, d).
    study
        Makes the draws at which residuals are studied, since weighted draws need none.
    """

    weighing: np.ndarray
    study: Callable[[], StudyDraws]


def pilot_draws(
    control_variate: ControlVariate[Pytree],
    proxy: Proxy,
    centre: np.ndarray,
    seed: int,
    has_kinks: bool,
) -> PilotDraws:
    """Draw from the normal approximation about `centre`, or from the posterior the proxy implies.

    Parameters
    ----------
    seed
        Seed of the run, on which only draws for groups depend.
    has_kinks
        Whether rows' log-likelihoods have a kink, which only a few draws in 100 may cross.
    """
    if control_variate.target.model.integrated_group is not None:
        rng = generator(seed, Stream.PILOT_DRAWS)
        draws = _resampled(control_variate, proxy, centre, rng, CANDIDATES, RESAMPLED, least=0)
        assert draws is not None
        return PilotDraws(draws.points[:DESIGN_DRAWS_OF_GROUPS], lambda: draws)
    size, linear = len(centre), control_variate.target.in_one_predictor
    number = DRAWS if linear else OTHER_DRAWS
    weighing = centre[None]
    if not linear or proxy.where.warp is not None:  # otherwise leverages give the spread
        count = DESIGN_DRAWS_AT_KINKS if has_kinks else DESIGN_DRAWS
        rng = generator(SHARED, Stream.PILOT_DRAWS)
        weighing = weighing + rng.standard_normal((count, size))

    def study() -> StudyDraws:
        rng, draws = generator(SHARED, Stream.STUDY_DRAWS), None
        if proxy.where.warp is not None:
            draws = _resampled(
                control_variate, proxy, centre, rng, EXPLICIT_CANDIDATES, number, least=number
            )
        return draws or StudyDraws(centre + rng.standard_normal((number, size)))

    return PilotDraws(weighing, study)


def _resampled(
    control_variate: ControlVariate[Pytree],
    proxy: Proxy,
    centre: np.ndarray,
    rng: np.random.Generator,
    candidates: int,
    count: int,
    least: int,
) -> StudyDraws | None:
    """Draw from the posterior that the proxy implies, by importance resampling.

    None if the effective number of candidates is below `least`.
    """
    candidates = min(candidates, MOST_NUMBERS // len(centre))
    draws = centre + rng.standard_normal((candidates, len(centre)))
    away = 0.5 * np.sum((draws - centre) ** 2, axis=1)
    ratios = log_proxies(control_variate, proxy, draws) + away
    weights = np.exp(ratios - np.max(ratios))
    weights /= weights.sum()
    if 1 / np.sum(weights**2) < least:
        return None
    chosen = rng.choice(candidates, count, p=weights)
    return StudyDraws(draws[chosen], ratios[chosen])


def log_proxies(cv: ControlVariate[Pytree], proxy: Proxy, draws: np.ndarray) -> np.ndarray:
    """Return the log-posterior at `draws`, up to a constant, with the proxy for the likelihood.

    No row is read.
    """

    def evaluate(some: np.ndarray) -> np.ndarray:
        return np.asarray(_log_proxies(cv, proxy, some))

    return in_equal_blocks(evaluate, draws, AT_ONCE)


@jit(static=0)
def _log_proxies(cv: ControlVariate[Pytree], proxy: Proxy, draws: Array) -> jax.Array:
    def log_proxy(z: jax.Array) -> jax.Array:
        s, growth = proxy.where.straighten(z)
        return cv.log_proxy(s, proxy) + growth

    return _at_draws(log_proxy, proxy, draws)


@jit(options=FASTEST_COMPILE)
def straightened(proxy: Proxy, draws: Array) -> jax.Array:
    """Straighten `draws`, in whose coordinates effects are relative to their scales."""
    return _at_draws(lambda z: proxy.where.straighten(z)[0], proxy, draws)


def _at_draws(function: Callable[[jax.Array], jax.Array], proxy: Proxy, draws: Array) -> jax.Array:
    if proxy.where.arrow is not None:  # all draws at once would need much memory
        return jax.lax.map(function, jnp.asarray(draws), batch_size=TOGETHER)
    return jax.vmap(function)(jnp.asarray(draws))


COORDINATE_ROWS = 2_048  # for choosing the coordinates of dispersions


@dataclass(frozen=True)
class StudySettings:
    """What a pilot study depends on besides the rows and the anchor.

    Attributes
    ----------
    order, precision
        Order of the control variates, and the type of their rows and residuals; see `HMCECS`.
    design
        How rows are drawn.
    anchor
        "mode", "mean", or "anchor" for any other point.
    levels
        Whether rare levels may have control variates of their own.
    by_spread
        Whether rows are weighted by the spread of pilot chains if the posterior is not normal.
    scheduled
        Whether it is part of the paper's schedule: its anchor moves, and its chains are straight.
    """

    order: int = 2
    precision: str = "float64"
    design: str = "weighted"
    anchor: str = "mode"
    levels: bool = True
    by_spread: bool = True
    scheduled: bool = False


@dataclass(frozen=True, eq=False)
class AnchoredProxy:
    """Control variates about an anchor, and the sum of their proxies.

    Attributes
    ----------
    control_variate, proxy
        The residuals of rows about their expansions, and the expansions' sum over all rows.
    centre
        Mean of the normal approximation, in whitened coordinates.
    draws
        Approximate draws of the posterior.
    folded_prior
        The part of the log-prior at the anchor that the proxy includes.
    tuning
        The coordinates of the expansion, where there is a choice.
    """

    settings: StudySettings
    task: Task
    anchor: Anchor
    control_variate: ControlVariate[Pytree]
    proxy: Proxy
    centre: np.ndarray
    draws: PilotDraws
    folded_prior: float
    tuning: Tuning

    @property
    def linear(self) -> LinearTaylor | None:
        """The control variate, if rows enter through a single linear predictor."""
        form = self.control_variate
        return form if isinstance(form, LinearTaylor) else None

    def whitened(self, residuals: RowResiduals) -> Iterator[np.ndarray]:
        """Yield the columns of rows, whitened, some at a time; none without a linear predictor."""
        if self.linear is not None:
            for block, size in zip(residuals.blocks, np.diff(residuals.ends), strict=True):
                yield self.linear.whitened(block, self.proxy)[:size]

    @property
    def arrow(self) -> bool:
        """Whether the effects of one factor are too many for dense matrices."""
        return self.proxy.where.arrow is not None

    def straight(self, draws: np.ndarray) -> np.ndarray:
        """Return draws as control variates need them, with effects in absolute units."""
        if self.proxy.where.warp is None and not self.arrow:
            return draws
        if self.arrow:
            return np.asarray(straightened(self.proxy, draws))
        where: Whitening = jax.tree.map(np.asarray, self.proxy.where)
        return np.asarray(where.straighten(as_either(draws))[0])

    def log_ratio(self, z: np.ndarray) -> np.ndarray:
        """Return the log ratio of proxy to normal approximation at whitened points."""
        return self.log_proxy(z) + np.sum((z - self.centre) ** 2, axis=1) / 2

    def log_proxy(self, z: np.ndarray) -> np.ndarray:
        """Return the log of proxy times prior at whitened points, up to a constant."""
        proxy, prior = self.proxy, self._rest_of_prior(z)
        if prior is None:
            return log_proxies(self.control_variate, proxy, z)
        curved = -z if proxy.B is None else z @ np.asarray(proxy.B)
        quadratic = np.sum(z * (np.asarray(proxy.a) + curved / 2), axis=1)
        if proxy.levels is not None:
            levels = jax.tree.map(np.asarray, proxy.levels)
            quadratic += np.asarray(curve_sum(as_either(z), levels))
        return np.asarray(quadratic + prior)

    def _rest_of_prior(self, z: np.ndarray) -> np.ndarray | float | None:
        """Return the log-prior that the quadratic lacks; None if that is not all it lacks."""
        proxy, target = self.proxy, self.task.target
        if proxy.where.warp is not None or proxy.bend is not None or self.task.grouped:
            return None
        if proxy.prior is None and target.model.has_predictors:
            return 0.0
        if target.exact_prior is None or self.arrow:
            return None
        points = self.anchor.point + z @ self.anchor.dense_factor.T
        return target.exact_prior.log_densities(points)


def check_task(task: Task) -> None:
    """Refuse rows and models that cannot be expanded with any setting."""
    task.check_fields("HMC-ECS")
    if task.target.size > DENSE_LIMIT and task.target.arrow is None:
        besides = " besides the effects of one factor" if task.target.model.has_groups else ""
        raise CrudeControlVariateError(
            f"HMC-ECS needs the Hessian of all {task.target.size:,} parameters, and the limit is "
            f"{DENSE_LIMIT:,}{besides}",
            "use method='nuts' on all rows",
        )


def expand(settings: StudySettings, task: Task, anchor: Anchor) -> AnchoredProxy:
    """Expand the rows about an anchor, in coordinates chosen by the residuals of some of them."""
    target, model = task.target, task.target.model
    form = control_variate(target, settings.order, settings.precision)
    about = _proxy(task, anchor, settings.order)
    # The posterior lies one Newton step from t*: pilot draws about t* itself would flatter the
    # control variates, whose residuals vanish there. The mean is its centre already.
    centre = anchor.factor.T @ (anchor.A + _prior_slope(target, anchor))
    if settings.anchor == "mean":
        centre = np.zeros_like(centre)
    # A kink may be the very reason why a user's model has no mode.
    no_mode = model.has_predictors and not model.has_mode
    draws = pilot_draws(form, about, centre, task.seed, settings.anchor == "mean" or no_mode)

    about, coordinates = with_coordinates(task, form, anchor, about, draws.weighing)
    # Normal priors are folded into the proxy's quadratic, without its constant; the proxy of groups
    # evaluates the whole prior itself.
    folded = 0.0 if task.grouped else folded_prior(target, anchor.point)[0]
    return AnchoredProxy(settings, task, anchor, form, about, centre, draws, folded, coordinates)


def _proxy(task: Task, anchor: Anchor, order: int) -> Proxy:
    """Return the anchor's sums; for groups, in the coordinates that suit their information."""
    if not task.grouped:
        return proxy(anchor, task.target, order)
    unit = variance_unit(task.target.likelihood, anchor.point, as_groups(task.rows))
    return group_proxy(anchor, task.target, order, unit)


def _prior_slope(target: Target, anchor: Anchor) -> np.ndarray:
    """Return the gradient at t* of the log-prior, or of its normal approximation."""
    point, L = anchor.point, anchor.factor
    if target.exact_prior is None:
        return prior_slope(target, point)[1]
    V = ArrowFactor.of(L).covariance
    mean, precision = target.exact_prior.normal_approximation(point, V)
    return np.asarray(folded_prior(target, point, smooth=True)[1] - precision @ (point - mean))

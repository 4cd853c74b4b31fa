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

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either
from modicum.errors import CrudeControlVariateError, SettingError, suggestion
from modicum.kernels.control_variates import (
    MANY,
    AutodiffTaylor,
    LinearTaylor,
    control_variate,
    curve_sum,
    proxy,
    row_factor,
    share_of_work,
)
from modicum.kernels.expansion import POWERS, bend, group_proxy, variance_unit
from modicum.kernels.protocols import Bend, ControlVariate, Proxy
from modicum.linalg.arrow import ArrowFactor
from modicum.methods.method import Chosen, Task, Tuning
from modicum.methods.pilot.pilot_draws import (
    SHARED,
    PilotDraws,
    log_proxies,
    pilot_draws,
    straightened,
)
from modicum.models import LinearPredictorModel, Target
from modicum.models.model import DENSE_LIMIT, Batch
from modicum.passes import Anchor
from modicum.passes.curvature import folded_prior, prior_slope
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.grouped_rows import as_groups
from modicum.runtime import FASTEST_COMPILE, Array, Pytree, jit

WIDE = 0.1  # posterior sd of a logarithm below which coordinates do not matter
GAIN = 0.5  # largest variance, relative to the current one, of a coordinate worth changing to


class Expansion(NamedTuple):
    """The chosen coordinates.

    Attributes
    ----------
    bend
        The change of coordinates for the proxy; None: expand in the sampled coordinates.
    tuning
        An explanation of the choice.
    evaluations
        Row evaluations that the choice took.
    """

    bend: Bend | None
    tuning: Tuning
    evaluations: int


def choose_coordinates(
    target: Target,
    control_variate: ControlVariate[Pytree],
    anchor: Anchor,
    proxy: Proxy,
    draws: np.ndarray,
    some_rows: Callable[[], Batch],
) -> Expansion:
    """Choose the coordinate of expansion of each parameter that is sampled on the log scale.

    Parameters are handled one after another, by the sum over rows of the root mean square residual,
    whose square is the variance of an estimate from one weighted row.

    Parameters
    ----------
    target
        The target, whose model names the parameters and the coordinates that the user fixed.
    control_variate, anchor, proxy
        The expansion on the log scale.
    draws
        Posterior draws in whitened coordinates, (draws, d).
    some_rows
        Function that reads sampled rows with their `probability`, if there is a choice.
    """
    settings = target.model.expansions()
    if not settings or not isinstance(control_variate, AutodiffTaylor) or control_variate.order < 2:
        return Expansion(None, {}, 0)
    if proxy.arrow is not None:  # that many rows leave no posterior wide
        return Expansion(None, {}, 0)
    entries = [(name, place) for name in settings for place in target.places[name]]
    sd = anchor.sd
    power = np.array([POWERS[_coordinate(settings[name])] for name, _ in entries])
    open_ = [
        i for i, (name, place) in enumerate(entries) if settings[name] is None and sd[place] > WIDE
    ]
    where = np.array([place for _, place in entries])
    variance, evaluations = (np.nan, np.nan), 0
    if open_:
        batch = some_rows()
        power, variance = _descend(
            control_variate, batch, anchor, proxy, draws, where, power, open_
        )
        rows = len(batch["probability"])
        evaluations = rows * len(draws) * len(POWERS) * len(open_)
    if not np.any(power):
        return Expansion(None, {}, evaluations)
    bent = np.flatnonzero(power)
    tuning = _explain([entries[i][0] for i in bent], power[bent], variance)
    return Expansion(bend(anchor, where[bent], power[bent]), tuning, evaluations)


def _descend(
    control_variate: AutodiffTaylor,
    batch: Batch,
    anchor: Anchor,
    proxy: Proxy,
    draws: np.ndarray,
    where: np.ndarray,
    power: np.ndarray,
    open_: list[int],
) -> tuple[np.ndarray, tuple[float, float]]:
    """Choose powers entry by entry; return them, and the variance before and after."""
    first = last = np.nan
    choices = np.array(list(POWERS.values()))
    for i in open_:
        tried = np.tile(power, (len(choices), 1))
        tried[:, i] = choices
        form = bend(anchor, where, power)
        variances = np.asarray(_variances(control_variate, batch, proxy, form, tried, draws))
        now = float(variances[choices == power[i]][0])
        first = now if np.isnan(first) else first
        variances = np.where(np.isfinite(variances), variances, np.inf)
        best = int(np.argmin(variances))
        if variances[best] <= GAIN * now or not np.isfinite(now):
            power = tried[best]
            now = float(variances[best])
        last = now
    return power, (first, last)


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


def _explain(names: list[str], power: np.ndarray, variance: tuple[float, float]) -> Tuning:
    called = {value: name for name, value in POWERS.items()}
    value = ", ".join(f"{n}: {called[p]}" for n, p in dict(zip(names, power, strict=True)).items())
    why = "set by hand"
    if not np.isnan(variance[0]):
        ratio = variance[0] / variance[1] if variance[1] > 0 else np.inf
        why = f"residuals have {ratio:,.3g} times less variance than in the logarithm"
    return {"coordinates": {"value": value, "why": why}}


FACTOR_ROWS = 256  # rows on which the error of whitening in float32 is measured
COORDINATE_ROWS = 2_048  # for choosing the coordinates of dispersions


@dataclass(frozen=True)
class StudySettings:
    """What a pilot study depends on besides the rows and the anchor.

    Attributes
    ----------
    order, precision, whitening
        Order of the control variates, the type of their rows and residuals, and how fresh rows are
        whitened; see `HMCECS`.
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
    whitening: str = "auto"
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
        The coordinates of the expansion, and how fresh rows are whitened, where there is a choice.
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
    def linear(self) -> bool:
        """Whether rows enter through a single linear predictor."""
        return isinstance(self.control_variate, LinearTaylor)

    @property
    def arrow(self) -> bool:
        """Whether the effects of one factor are too many for dense matrices."""
        return self.proxy.arrow is not None

    def straight(self, draws: np.ndarray) -> np.ndarray:
        """Return draws as control variates need them, with effects in absolute units."""
        if self.proxy.warp is None and not self.arrow:
            return draws
        return np.asarray(straightened(self.proxy, draws))

    def log_ratio(self, z: np.ndarray) -> np.ndarray:
        """Return the log ratio of proxy to normal approximation at whitened points."""
        away = (z - self.centre) ** 2 / 2
        terms = self._quadratic_terms(z)
        if terms is None:
            return np.asarray(self.log_proxy(z) + np.sum(away, axis=1))
        return np.asarray(np.sum(terms + away, axis=1) + self._curve_sum(z))

    def log_proxy(self, z: np.ndarray) -> np.ndarray:
        """Return the log of proxy times prior at whitened points, up to a constant."""
        terms, pooled = self._quadratic_terms(z), self._pooled_prior(z)
        if terms is not None:
            return np.asarray(np.sum(terms, axis=1) + self._curve_sum(z))
        if pooled is not None:
            return np.asarray(np.sum(self._quadratic(z), axis=1) + self._curve_sum(z) + pooled)
        return np.asarray(log_proxies(self.control_variate, self.proxy, z))

    def _pooled_prior(self, z: np.ndarray) -> np.ndarray | None:
        """Return the log-prior of pooled effects; None if it is bent, or there are other terms."""
        exact, proxy = self.task.target.exact_prior, self.proxy
        if exact is None or proxy.warp is not None or proxy.bend is not None or self.arrow:
            return None
        t = self.anchor.point + z @ self.anchor.dense_factor.T
        return exact[0].log_densities(t, exact[1])

    def _curve_sum(self, z: np.ndarray) -> np.ndarray | float:
        """Return what the curves of rare levels add to the quadratic."""
        if self.proxy.levels is None:
            return 0.0
        levels = jax.tree.map(np.asarray, self.proxy.levels)
        return np.asarray(curve_sum(as_either(z), levels))

    def _quadratic_terms(self, z: np.ndarray) -> np.ndarray | None:
        """Return what each coordinate adds to `log_proxy`; None if that is not quadratic."""
        proxy = self.proxy
        bent = proxy.warp is not None or proxy.bend is not None
        # The proxy of a user's model excludes the prior.
        own_prior = not isinstance(self.task.target.model, LinearPredictorModel)
        if bent or proxy.prior is not None or own_prior:
            return None
        return self._quadratic(z)

    def _quadratic(self, z: np.ndarray) -> np.ndarray:
        """Return what each coordinate adds to the quadratic."""
        curved = -z if self.proxy.B is None else z @ np.asarray(self.proxy.B)
        return np.asarray(z * (np.asarray(self.proxy.a) + curved / 2))

    @property
    def fresh(self) -> float:
        """Cost of a fresh row, in evaluations of a row."""
        cost, factor = self.control_variate.fresh_cost, self.proxy.row_factor
        return cost if factor is None else 1 + (cost - 1) * share_of_work(factor)


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
    about, whitening = with_row_factor(settings, form, about, task.rows)
    # The posterior lies one Newton step from t*: pilot draws about t* itself would flatter the
    # control variates, whose residuals vanish there. The mean is its centre already.
    centre = anchor.factor.T @ (anchor.A + _prior_slope(target, anchor))
    if settings.anchor == "mean":
        centre = np.zeros_like(centre)
    # A kink may be the very reason why a user's model has no mode.
    no_mode = isinstance(model, LinearPredictorModel) and not model.has_mode
    draws = pilot_draws(form, about, centre, task.seed, settings.anchor == "mean" or no_mode)

    def sampled_rows() -> Batch:
        rows, seed = task.rows, task.seed if task.grouped else SHARED
        rng = generator(seed, Stream.COORDINATE_ROWS)
        row_ids = np.sort(rng.choice(len(rows), min(len(rows), COORDINATE_ROWS), replace=False))
        return rows.take(row_ids) | {"probability": np.full(len(row_ids), 1 / len(rows))}

    expansion = choose_coordinates(target, form, anchor, about, draws.weighing, sampled_rows)
    if expansion.evaluations:
        task.ledger.add("pilot", expansion.evaluations, "density")
    if expansion.bend is not None:
        about = about._replace(bend=expansion.bend)
    # Normal priors are folded into the proxy's quadratic, without its constant; the proxy of groups
    # evaluates the whole prior itself.
    folded = 0.0 if task.grouped else folded_prior(target, anchor.point)[0]
    tuning = expansion.tuning | whitening
    return AnchoredProxy(settings, task, anchor, form, about, centre, draws, folded, tuning)


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
    exact, numbers = target.exact_prior
    mean, precision = exact.normal_approximation(point, V, numbers)
    return np.asarray(folded_prior(target, point, smooth=True)[1] - precision @ (point - mean))


def with_row_factor(
    settings: StudySettings, form: ControlVariate[Pytree], proxy: Proxy, rows: Rows
) -> tuple[Proxy, Tuning]:
    """Add a factor that whitens rows of many columns faster to the proxy; say how accurate."""
    if not isinstance(form, LinearTaylor) or form.target.coding is not None:
        return proxy, {}
    if form.target.size < MANY or settings.whitening != "auto":
        return proxy, {}
    at = np.unique(np.linspace(0, len(rows) - 1, FACTOR_ROWS).astype(int))
    some_rows = np.asarray(form.matrix(rows.take(at)).densely())
    factor, error = row_factor(np.asarray(proxy.factor)[: form.target.size], some_rows)
    why = f"in float32, whitened rows are off by {error:.1g} of their length"
    chosen: Chosen = {"value": str(factor.blocks[0].dtype), "why": why}
    return proxy._replace(row_factor=factor), {"whitening": chosen}

"""The control variates of a run, expanded about its anchor, and the normal approximation there.

The pilot study and the weighting of rows in an HMC-ECS run start from these: the control variate,
the sum of its proxies over all rows, and where the posterior lies in whitened coordinates.

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
from modicum.errors import SettingError, suggestion
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
from modicum.methods.ecs.pilot_draws import log_proxies, straightened
from modicum.methods.ecs.settings import EnergyConserving
from modicum.methods.method import Chosen, Task, Tuning
from modicum.models import LinearPredictorModel, Target
from modicum.models.model import Batch
from modicum.passes import Anchor
from modicum.passes.curvature import folded_prior, prior_slope
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
    if isinstance(anchor.factor, ArrowFactor):  # that many rows leave no posterior wide
        return Expansion(None, {}, 0)
    entries = [(name, place) for name in settings for place in target.places[name]]
    sd = np.sqrt(np.sum(anchor.factor**2, axis=1))
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


@dataclass
class AnchoredProxy:
    """Control variates about an anchor, and the sum of their proxies.

    Attributes
    ----------
    control_variate, proxy
        The residuals of rows about their expansions, and the expansions' sum over all rows.
    folded_prior
        The part of the log-prior at the anchor that the proxy includes.
    whitening
        How fresh rows are whitened, and why, if there is a choice.
    centre
        Mean of the normal approximation, in whitened coordinates.
    """

    method: EnergyConserving
    task: Task
    anchor: Anchor

    def __post_init__(self) -> None:
        task, anchor = self.task, self.anchor
        self.control_variate = control_variate(
            task.target, self.method.order, self.method.precision
        )
        # Normal priors are folded into the proxy's quadratic, without its constant; the proxy of
        # groups evaluates the whole prior itself.
        self.folded_prior = 0.0
        if not task.grouped:
            self.folded_prior = folded_prior(task.target, anchor.point)[0]
        self._some_rows: np.ndarray | None = None
        self.proxy, self.whitening = self.with_row_factor(self._proxy())
        # The posterior lies one Newton step from t*: pilot draws about t* itself would flatter the
        # control variates, whose residuals vanish there. The mean is its centre already.
        self.centre = anchor.factor.T @ (anchor.A + self._prior_slope())
        if self.method.at_mean:
            self.centre = np.zeros_like(self.centre)

    def _proxy(self) -> Proxy:
        """Return the anchor's sums; for groups, in the coordinates that suit their information."""
        target, anchor, order = self.task.target, self.anchor, self.method.order
        if not self.task.grouped:
            return proxy(anchor, target, order)
        unit = variance_unit(target.likelihood, anchor.point, as_groups(self.task.rows))
        return group_proxy(anchor, target, order, unit)

    def _prior_slope(self) -> np.ndarray:
        """Return the gradient at t* of the log-prior, or of its normal approximation."""
        target, point = self.task.target, self.anchor.point
        if target.exact_prior is None:
            return prior_slope(target, point)[1]
        L = self.anchor.factor
        V = L.covariance if isinstance(L, ArrowFactor) else L @ L.T
        exact, numbers = target.exact_prior
        mean, precision = exact.normal_approximation(point, V, numbers)
        return np.asarray(folded_prior(target, point, smooth=True)[1] - precision @ (point - mean))

    @property
    def linear(self) -> bool:
        """Whether rows enter through a single linear predictor."""
        return isinstance(self.control_variate, LinearTaylor)

    @property
    def arrow(self) -> bool:
        """Whether the effects of one factor are too many for dense matrices."""
        return isinstance(self.anchor.factor, ArrowFactor)

    def with_row_factor(self, proxy: Proxy) -> tuple[Proxy, Tuning]:
        """Add a factor that whitens rows of many columns faster to the proxy; say how accurate."""
        form, rows = self.control_variate, self.task.rows
        if not isinstance(form, LinearTaylor) or form.target.coding is not None:
            return proxy, {}
        if form.target.size < MANY or self.method.whitening != "auto":
            return proxy, {}
        if self._some_rows is None:
            at = np.unique(np.linspace(0, len(rows) - 1, FACTOR_ROWS).astype(int))
            self._some_rows = np.asarray(form.matrix(rows.take(at)).densely())
        factor, error = row_factor(np.asarray(proxy.factor)[: form.target.size], self._some_rows)
        why = f"in float32, whitened rows are off by {error:.1g} of their length"
        chosen: Chosen = {"value": str(factor.blocks[0].dtype), "why": why}
        return proxy._replace(row_factor=factor), {"whitening": chosen}

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

    def log_proxy(self, z: np.ndarray, proxy: Proxy | None = None) -> np.ndarray:
        """Return the log of proxy times prior at whitened points, up to a constant.

        `proxy` replaces the study's own.
        """
        terms = self._quadratic_terms(z)
        if terms is None:
            return np.asarray(log_proxies(self.control_variate, proxy or self.proxy, z))
        return np.asarray(np.sum(terms, axis=1) + self._curve_sum(z))

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
        if bent or proxy.prior is not None or self._has_own_prior():
            return None
        curved = -z if proxy.B is None else z @ np.asarray(proxy.B)
        return np.asarray(z * (np.asarray(proxy.a) + curved / 2))

    def _has_own_prior(self) -> bool:
        """Whether the proxy's quadratic excludes the prior, as for a user's model."""
        return not isinstance(self.task.target.model, LinearPredictorModel)

    @property
    def fresh(self) -> float:
        """Cost of a fresh row, in evaluations of a row."""
        cost, factor = self.control_variate.fresh_cost, self.proxy.row_factor
        return cost if factor is None else 1 + (cost - 1) * share_of_work(factor)

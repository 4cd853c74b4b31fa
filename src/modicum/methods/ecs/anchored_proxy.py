"""The control variates of a run, expanded about its anchor, and the normal approximation there.

The pilot study and the weighting of rows in an HMC-ECS run start from these: the control variate,
the sum of its proxies over all rows, and where the posterior lies in whitened coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from modicum.arrays import as_either
from modicum.estimators import (
    LinearTaylor,
    control_variate,
    group_proxy,
    proxy,
    variance_unit,
)
from modicum.estimators.levels import curve_sum
from modicum.estimators.row_factor import MANY, row_factor, share_of_work
from modicum.kernels.base import Proxy
from modicum.methods.base import Chosen, Task, Tuning
from modicum.methods.ecs.base import EnergyConserving
from modicum.methods.ecs.tuning import log_proxies, straightened
from modicum.models import LinearPredictorModel
from modicum.models.arrow import ArrowFactor
from modicum.passes import Anchor
from modicum.passes.prior import folded_prior, prior_slope
from modicum.rows.groups import GroupedRows

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
        if not isinstance(task.rows, GroupedRows):
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
        if not isinstance(self.task.rows, GroupedRows):
            return proxy(anchor, target, order)
        unit = variance_unit(target.likelihood, anchor.point, self.task.rows)
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

    def log_proxy(self, z: np.ndarray) -> np.ndarray:
        """Return the log of proxy times prior at whitened points, up to a constant."""
        terms = self._quadratic_terms(z)
        if terms is None:
            return np.asarray(log_proxies(self.control_variate, self.proxy, z))
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

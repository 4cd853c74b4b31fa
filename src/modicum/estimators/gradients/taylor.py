"""Gradients with Taylor control variates about the anchor (HMC-ECS paper, eq. 4.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError
from modicum.estimators.gradients.base import GradientEstimator
from modicum.estimators.taylor import ControlVariate, control_variate, proxy
from modicum.models import Target
from modicum.passes import Anchor
from modicum.passes.mode import prior_hessian, prior_slope

__all__ = ["Taylor"]


@dataclass(frozen=True)
class Taylor(GradientEstimator):
    """A + B (t - t*) exactly, and the rest, (1/b) sum_i (grad l_i - grad q_i) / w_i, from rows.

    Parameters
    ----------
    order
        Order of the control variates q: 1 or 2.
    """

    order: int = 2  # type: ignore[misc]  # a setting, where other estimators have a constant
    needs_anchor: ClassVar[bool] = True
    small_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.order not in (1, 2):
            raise SettingError(f"order must be 1 or 2, not {self.order!r}.")

    @property
    def control_variate(self) -> ControlVariate:
        """Residuals of rows about the anchor."""
        return control_variate(_bound(self.target), self.order, self.precision)

    def arrays(self, anchor: Anchor | None) -> dict[str, Any]:
        """The anchor in the chain's coordinates."""
        assert anchor is not None
        target = _bound(self.target)
        prior = prior_slope(target, anchor.point)[1], prior_hessian(target, anchor.point)
        if anchor.factor.ndim < 2:
            raise SettingError("control variates need the anchor's factor as a matrix.")
        return proxy(anchor, target, self.order, prior)

    def prepare(self, batch: Any, context: Any) -> Any:
        """Whiten and expand the rows."""
        return self.control_variate.cache(batch, context["estimator"])

    def gradient(self, z: jax.Array, batch: Any, memory: Any, context: Any) -> jax.Array:
        """Differentiate sum q + mean D + log prior, in float64 whatever the state is."""
        del memory
        arrays, cv = context["estimator"], self.control_variate

        def log_posterior(z: jax.Array) -> jax.Array:
            return cv.log_proxy(z, arrays) + jnp.mean(cv.values(batch, z, arrays))

        return -jax.grad(log_posterior)(z.astype(np.float64)).astype(z.dtype)


def _bound(target: Target | None) -> Target:
    assert target is not None, "`bound` comes first"
    return target

"""Rows seen through lower bounds: dark ones by their bound, bright ones by what it leaves out.

L_k = B_k + (L_k - B_k), and FlyMC says of each row which term it stands for. The bounds of *all*
rows together are a quadratic found in one pass; a bright row adds log r_k = log((L_k - B_k) / B_k)
(Maclaurin and Adams 2014, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.compiling import jit
from modicum.models import LinearPredictorModel, Target
from modicum.models.bounds import Bound
from modicum.passes import Anchor, Sums
from modicum.passes.linear import assemble

__all__ = ["BoundedRows", "bound_context", "collapse"]

Cached = dict[str, Any]  # arrays with one entry a row
SMALLEST_GAP = 1e-300  # log r of a row whose bound is tight to the last bit


@dataclass(frozen=True)
class BoundedRows:
    """What a chain over bright and dark rows needs of them. Hashable.

    Parameters
    ----------
    target
        The model and its layout.
    bound
        Its lower bound.
    tuned
        Whether each row's bound is tight at the anchor, or the same for all rows.
    """

    target: Target
    bound: Bound
    tuned: bool = True

    @property
    def model(self) -> LinearPredictorModel:
        """The family."""
        model = self.target.model
        assert isinstance(model, LinearPredictorModel)
        return model

    def cache(self, batch: Any, context: Any) -> Cached:
        """Keep the rows as they are, and where their bounds are tight."""
        names = ("x", "y", "offset", "weight")
        rows = {k: jnp.asarray(batch[k], jnp.float64) for k in names if k in batch}
        predictors = self._predictors(rows, context["point"])
        place = self.bound.tight_at if self.tuned else self.bound.untuned
        return rows | {"tight": place(predictors, rows["y"])}

    def _predictors(self, rows: Cached, t: jax.Array) -> jax.Array:
        return self.model.predictor_vector(self.target.unravel(t), rows)

    def gap(self, rows: Cached, t: jax.Array) -> jax.Array:
        """The log of L_k / B_k of each row at t, times its frequency weight."""
        gap = self.bound.gap(self._predictors(rows, t), rows["y"], rows["tight"])
        return rows.get("weight", 1.0) * gap

    def log_ratio(self, rows: Cached, z: jax.Array, context: Any) -> jax.Array:
        """Log-odds of a row to be bright, log r_k = log(e^gap - 1), at whitened coordinates z."""
        gap = self.gap(rows, context["point"] + context["factor"] @ z)
        gap = jnp.maximum(gap, SMALLEST_GAP)
        # Factored, since e^gap overflows far from where the bound is tight. 1 - e^-gap costs a
        # tenth of expm1 and is off by less than one part in 10^11.
        series = gap * (1 - gap / 2 * (1 - gap / 3))
        return gap + jnp.log(jnp.where(gap < 1e-4, series, 1 - jnp.exp(-gap)))

    def log_base(self, z: jax.Array, context: Any) -> jax.Array:
        """sum_k log B_k over all rows plus the log-prior, at whitened coordinates z."""
        t = context["point"] + context["factor"] @ z
        quadratic = context["value"] + z @ (context["slope"] + 0.5 * (context["curvature"] @ z))
        extras = t[self.target.size - len(self.model.extras) :]
        total = self.bound.collapse(context["constant"], context["weight"], quadratic, extras)
        return total + self.target.log_prior(t)


def collapse(sums: Sums, bounded: BoundedRows, anchor: Anchor) -> dict[str, np.ndarray]:
    """Sums over all rows from which `log_base` is made, about the anchor, by one pass."""
    sums.ledger.add("bound", len(sums.rows), "hessian", passes=1)
    parts: dict[str, np.ndarray] = sums.engine.map_reduce(
        partial(_collapse_chunk, bounded), {"point": anchor.point}, sums.rows, "bound"
    )
    return parts


@jit(static=0)
def _collapse_chunk(bounded: BoundedRows, context: Any, batch: Any, present: Any) -> Any:
    rows = bounded.cache(batch, context)
    predictors = bounded._predictors(rows, context["point"])
    at = bounded.bound.expand(predictors, rows["y"], rows["tight"])
    weight = jnp.where(present, rows.get("weight", 1.0), 0.0)
    slope, curvature = weight[:, None] * at.slope, weight[:, None, None] * at.curvature
    # float64 products whatever the rows' own precision: the collapsed sum is to be exact
    a, b = assemble(bounded.model, rows["x"], slope, curvature, slope.shape[1])
    return {
        "constant": jnp.sum(weight * at.constant),
        "weight": jnp.sum(weight),
        "value": jnp.sum(weight * at.value),
        "slope": a,
        "curvature": b,
    }


def bound_context(anchor: Anchor, collapsed: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """The anchor and the collapsed sums in whitened coordinates: all that `BoundedRows` reads."""
    L = anchor.factor[: len(collapsed["slope"])]  # coefficients come first in the flat vector
    curvature = L.T @ collapsed["curvature"] @ L
    whitened = {
        "point": anchor.point,
        "factor": anchor.factor,
        "slope": L.T @ collapsed["slope"],
        "curvature": (curvature + curvature.T) / 2,
    }
    scalars = {name: collapsed[name] for name in ("constant", "weight", "value")}
    return {name: jnp.asarray(values) for name, values in (whitened | scalars).items()}

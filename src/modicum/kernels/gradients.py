"""Three estimators of the gradient of U = -log posterior from one batch of rows.

They are the plain minibatch gradient, gradients with Taylor control variates about the anchor
(HMC-ECS paper, eq. 4.7), and gradients about a snapshot that full passes renew (SVRG, Dubey et al.
2016). To add an estimator, write a class here and add it to ESTIMATORS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import Count, among, check_settings
from modicum.kernels.control_variates import cached_rows, control_variate, proxy
from modicum.kernels.protocols import (
    ControlVariate,
    Proxy,
    StochasticGradientContext,
    number_of_rows,
)
from modicum.kernels.whitening import scaled
from modicum.models import Target
from modicum.models.model import Batch
from modicum.passes import Anchor, Sums
from modicum.runtime import Pytree, jit


@dataclass(frozen=True)
class BaseGradientEstimator(ABC):
    """An unbiased estimate of the gradient of U in a chain's coordinates; the prior is exact.

    Users create one with its settings; a method binds it to a model. It is hashable and holds no
    arrays: these come in the context, and those of a chain as `memory`.

    Parameters
    ----------
    target
        The model; set by `bind`.
    precision
        Precision of the rows and gradients; set by `bind`.
    """

    target: Target | None = None
    precision: str = "float64"

    needs_anchor: ClassVar[bool] = False
    evaluations: ClassVar[int] = 1  # gradient evaluations per row of a batch
    # Order of the Taylor proxy with residuals of comparable size. From 1 on, control variates make
    # gradients small near the mode.
    order: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def fresh_cost(self) -> float | None:
        """Cost of a fresh row in evaluations of a cached one; None: there are no residuals."""
        return None

    def period(self, rows: int, batch: int) -> int | None:
        """Return the steps between renewals of the memory by a pass; None: it is never renewed."""
        return None

    def renewed(
        self, sums: Sums, z: jax.Array | np.ndarray, context: StochasticGradientContext
    ) -> Pytree:
        """Return the memories of all chains at the positions (chain, d), by one pass."""
        return ()

    def bind(self, target: Target, precision: str) -> Self:
        """Return this estimator bound to a model."""
        return replace(self, target=target, precision=precision)

    def arrays(self, anchor: Anchor | None, certain: Batch | None = None) -> Pytree:
        """Compute once the arrays that every step reads, as `context.estimator`.

        `certain` holds the certainty rows, with a `probability` of one; None if there are none.
        """
        assert certain is None, "only control variates leave rows out of the draws"
        return ()

    def prepare(self, batch: Batch, context: StochasticGradientContext) -> Pytree:
        """Do the work on a batch (with its `probability`) that does not depend on the state."""
        # Codes stay integers and bytes stay bytes: networks scale pixels by their type.
        return {
            name: field if field.dtype.kind == "u" else jnp.asarray(field, self.precision)
            for name, field in batch.items()
        }

    def certain_rows(self, context: StochasticGradientContext) -> int:
        """The number of certainty rows, which every step reads."""
        return 0

    def start(self, z: jax.Array, context: StochasticGradientContext) -> Pytree:
        """Return a chain's initial memory, before its first renewal; () for none."""
        return ()

    @abstractmethod
    def gradient(
        self, z: jax.Array, batch: Pytree, memory: Pytree, context: StochasticGradientContext
    ) -> jax.Array:
        """Estimate the gradient of U at z from one prepared batch."""


def _bound_target(target: Target | None) -> Target:
    assert target is not None, "`bind` comes first"
    return target


@dataclass(frozen=True)
class Minibatch(BaseGradientEstimator):
    """-grad log p(t) - (1/b) sum_i grad l_i(t) / w_i, with w_i = 1/n for uniform rows."""

    def gradient(
        self, z: jax.Array, batch: Batch, memory: Pytree, context: StochasticGradientContext
    ) -> jax.Array:
        """Differentiate the minibatch log-posterior in reverse mode."""
        target = _bound_target(self.target)

        def log_posterior(z: jax.Array) -> jax.Array:
            t = context.where.unwhiten(z)
            rows = {name: field for name, field in batch.items() if name != "probability"}
            values = target.log_likelihood(t, rows)
            return target.log_prior(t) + jnp.mean(values / batch["probability"])

        return -jax.grad(log_posterior)(z)


class TaylorTables(NamedTuple):
    """The tables of gradients with control variates."""

    proxy: Proxy
    certain: Pytree = None  # cached rows that every step reads; None if there are none


@dataclass(frozen=True)
class Taylor(BaseGradientEstimator):
    """A + B (t - t*) exactly, plus (1/b) sum_i (grad l_i - grad q_i) / w_i from the drawn rows.

    The residuals of certainty rows, which are not drawn, are added exactly.

    Parameters
    ----------
    order
        Order of the control variates q: 1 or 2.
    """

    order: Annotated[int, among(1, 2)] = 2  # type: ignore[misc]  # others have a constant
    needs_anchor: ClassVar[bool] = True

    @property
    def control_variate(self) -> ControlVariate[Pytree]:
        """Residuals of rows about the anchor."""
        return control_variate(_bound_target(self.target), self.order, self.precision)

    @property
    def fresh_cost(self) -> float:
        """Cost of reading and caching a row, in evaluations of a cached row."""
        return self.control_variate.fresh_cost

    def arrays(self, anchor: Anchor | None, certain: Batch | None = None) -> TaylorTables:
        """Return the anchor's proxy in the chain's coordinates, and the certainty rows."""
        assert anchor is not None
        about = proxy(anchor, _bound_target(self.target), self.order)
        if certain is None:
            return TaylorTables(about)
        return TaylorTables(about, cached_rows(self.control_variate, certain, about))

    def prepare(self, batch: Batch, context: StochasticGradientContext) -> Pytree:
        """Whiten and expand the rows."""
        return self.control_variate.cache(batch, context.estimator.proxy)

    def certain_rows(self, context: StochasticGradientContext) -> int:
        """Number of certainty rows in the tables."""
        return number_of_rows(context.estimator.certain)

    def gradient(
        self, z: jax.Array, batch: Pytree, memory: Pytree, context: StochasticGradientContext
    ) -> jax.Array:
        """Differentiate sum q + mean D + log prior, in float64 whatever the state's type."""
        (expansion, certain), cv = context.estimator, self.control_variate

        def log_posterior(z: jax.Array) -> jax.Array:
            log = cv.log_proxy(z, expansion) + jnp.mean(cv.values(batch, z, expansion))
            return log if certain is None else log + jnp.sum(cv.values(certain, z, expansion))

        # Minus eq. 4.7, and minus the gradient of the log-prior.
        return -jax.grad(log_posterior)(z.astype(np.float64)).astype(z.dtype)


class Snapshot(NamedTuple):
    """The point of a chain's last full gradient, and that gradient."""

    z: jax.Array
    gradient: jax.Array


@dataclass(frozen=True)
class SVRG(Minibatch):
    """G_I(z) - G_I(snapshot) + G(snapshot), with G_I a batch's gradient and G the full gradient.

    Parameters
    ----------
    every
        Steps from one snapshot to the next; None for as many as read n rows.
    """

    every: Count | None = None
    evaluations: ClassVar[int] = 2
    order: ClassVar[int] = 1

    def period(self, rows: int, batch: int) -> int:
        """Return the number of steps from one snapshot to the next."""
        return ceil(rows / batch) if self.every is None else self.every

    def start(self, z: jax.Array, context: StochasticGradientContext) -> Snapshot:
        """Return a snapshot without its gradient, which is taken before the first step."""
        return Snapshot(z, jnp.zeros_like(z))

    def renewed(
        self, sums: Sums, z: jax.Array | np.ndarray, context: StochasticGradientContext
    ) -> Snapshot:
        """Take snapshots at the positions of all chains, (chain, d), by one pass."""
        z = jnp.asarray(z)
        points = jax.vmap(context.where.unwhiten)(z)
        slopes = jnp.asarray(sums.gradients(np.asarray(points), "snapshot"))
        gradient = _full_gradients(_bound_target(self.target), slopes, points, context)
        return Snapshot(z, gradient.astype(z.dtype))

    def gradient(
        self, z: jax.Array, batch: Batch, memory: Snapshot, context: StochasticGradientContext
    ) -> jax.Array:
        """Combine the batch's gradients at z and at the snapshot with the full gradient."""
        at_position = super().gradient(z, batch, memory, context)
        at_snapshot = super().gradient(memory.z, batch, memory, context)
        return at_position - at_snapshot + memory.gradient


@jit(static=0)
def _full_gradients(
    target: Target, slopes: jax.Array, points: jax.Array, context: StochasticGradientContext
) -> jax.Array:
    """Gradients of U in the chains' coordinates: -L'(sum_k grad l_k + grad log p)."""

    def of_chain(slope: jax.Array, t: jax.Array) -> jax.Array:
        return -scaled(context.where.factor.T, slope + jax.grad(target.log_prior)(t))

    return jax.vmap(of_chain)(slopes, points)


ESTIMATORS: dict[str, type[BaseGradientEstimator]] = {
    "minibatch": Minibatch,
    "taylor": Taylor,
    "svrg": SVRG,
}

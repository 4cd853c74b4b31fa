"""Control variates: the Taylor proxy q_k of a row about the anchor, and its residual.

There are two implementations. Where a row enters through one linear predictor, its whitened columns
and a few coefficients suffice: O(d) per evaluation. Any other model is expanded along the direction
t - t*: by the derivatives of a row in its few predictors, which are kept, or by nested forward-mode
differentiation; no Hessian of a row in all parameters is ever formed.

A rare level of a factor has few rows, so its coefficient varies a lot, and the quadratic expansions
of all its rows are poor at the same draws. But the predictors of these rows move together. Along
the direction in which they do, the remainder of a row's expansion is subtracted from its residual,
and the sum of these remainders over all rows, a function of one number per level, is added to the
proxy: `methods.pilot.level_curves` tabulates it. What is left to estimate is how the rows of a
level differ, some hundred times less. A row belongs to the column with the largest |x_j| s_j, with
s_j the sd of the coefficient given all others, unless that is small. The pass over all rows and the
kernels must agree on the column, for every row. So it depends on one product in float64 per entry,
which all compilers round alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import along, as_either, namespace
from modicum.kernels.expansion import (
    About,
    Pair,
    any_by_maximum,
    bend,
    bent_path,
    bent_sum,
    by_rise,
    coefficients,
    coefficients_away,
    group_proxy,
    remainder,
    remainder_and_slope,
    remainder_by_numpy,
)
from modicum.kernels.group_residuals import GroupTaylor
from modicum.kernels.protocols import ControlVariate, LevelCurves, Proxy
from modicum.kernels.whitening import Whitening, warp_of
from modicum.linalg.arrow import ArrowMatrix, Symmetric
from modicum.linalg.columns import ModelMatrix, below_zeros
from modicum.models import LinearPredictorModel, Target
from modicum.models.model import Batch
from modicum.passes import Anchor
from modicum.passes.curvature import folded_prior
from modicum.passes.hessians import weighted_derivatives
from modicum.runtime import FASTEST_COMPILE, Pytree, jit, to_device

BLOCK = 256  # rows that NumPy evaluates together
NEAR = 0.03  # |x_j| s_j up to which a row belongs to no level: its residual is negligible


def curve_of_rows(x: ModelMatrix, levels: LevelCurves) -> tuple[jax.Array, jax.Array]:
    """Return the curve of each row's level, and whether it belongs to a level at all."""
    column, entry = x.largest(levels.scale)
    xp = namespace(entry)
    has_level = xp.abs(entry) * xp.asarray(levels.scale)[column] > NEAR
    return xp.asarray(levels.place)[column], has_level


def rows_along_levels(x: ModelMatrix, levels: LevelCurves) -> tuple[jax.Array, jax.Array]:
    """Return the curve of each row's level, and the row's part along its direction; 0 if none."""
    curve, has_level = curve_of_rows(x, levels)
    along = x.times_own(levels.lines, curve)
    return curve, namespace(along).where(has_level, along, 0.0)


def along_levels(z: jax.Array, levels: LevelCurves) -> jax.Array:
    """Return how far z is from the anchor along each direction, up to the curves' ends.

    The last axis of z, whitened coordinates, becomes one for curves.
    """
    away = z @ levels.direction.T
    return namespace(away).clip(away, *levels.ends)


def curve_sum(z: jax.Array, levels: LevelCurves) -> jax.Array:
    """Return the sum over all rows of the remainders along the directions of their levels."""
    away = along_levels(z, levels)
    xp, (number, pieces, terms) = namespace(away), levels.table.shape
    place = (xp.arcsinh(away / levels.unit) / levels.half + 1) * (pieces / 2)
    piece = xp.clip(xp.floor(place), 0, pieces - 1).astype(np.intp if xp is np else jnp.int32)
    polynomials = xp.asarray(levels.table)[xp.arange(number), piece]
    within = place - piece
    value = polynomials[..., -1]
    for power in reversed(range(terms - 1)):
        value = value * within + polynomials[..., power]
    return xp.sum(value, axis=-1)


ROUNDING = 1e-9  # rounding error allowed in the whitened Hessian


def proxy(anchor: Anchor, target: Target, order: int) -> Proxy:
    """Return the anchor's sums in whitened coordinates: sum q = C + a'z + z'Bz/2 (eq. 4.4 summed).

    Normal priors of linear-predictor models are quadratic too, and are folded in. If all priors are
    normal, B = -I by the definition of whitening; it is then left out, which saves d^2 operations
    per evaluation.
    """
    if target.model.integrated_group is not None:
        return group_proxy(anchor, target, order)
    _, folded_gradient, folded_hessian = folded_prior(target, anchor.point)
    gradient = (anchor.A if order >= 1 else np.zeros_like(anchor.A)) + folded_gradient
    where = Whitening.about(anchor.point, anchor.factor, warp_of(anchor, target))
    hessian: Symmetric | None
    if where.arrow is not None:  # the sum is in t - t*
        hessian = anchor.B + folded_hessian if order >= 2 else folded_hessian
    else:
        L, dense = anchor.dense_factor, anchor.dense_hessian
        curved = L.T @ ((dense if order >= 2 else np.zeros_like(dense)) + folded_hessian) @ L
        gradient = L.T @ gradient
        is_plain = np.abs(curved + np.eye(len(L))).max() <= ROUNDING
        hessian = None if is_plain else (curved + curved.T) / 2
    made = Proxy(where, *to_device((gradient, hessian, target.exact_prior)))
    if target.model.constrained and order == 2 and where.arrow is None:
        return made._replace(bend=bend(target, anchor, [], np.zeros(0)))
    return made


def control_variate(
    target: Target, order: int, precision: str = "float64"
) -> ControlVariate[Pytree]:
    """Return the cheapest form of the control variate that fits the model."""
    if target.model.integrated_group is not None:
        # float64: residuals are differences of log-likelihoods of groups
        anywhere = replace(target.integrated, nodes_at=None)
        return GroupTaylor(replace(target, model=anywhere), order)
    target = target.likelihood  # the normal priors of families are part of the proxy
    if target.in_one_predictor:
        return LinearTaylor(target, order, precision)
    return AutodiffTaylor(target, order)


@jit(static=0, options=FASTEST_COMPILE)
def cached_rows(control_variate: ControlVariate[Pytree], batch: Batch, proxy: Proxy) -> Pytree:
    """Return what a control variate caches of the rows in `batch`, given their `probability`."""
    return control_variate.cache(batch, proxy)


def _quadratic(z: jax.Array, proxy: Proxy) -> jax.Array:
    if proxy.B is None:
        return z @ (proxy.a + 0.5 * -z)
    if proxy.where.arrow is not None:
        return _arrow_quadratic(z, proxy.a, proxy.B)
    return z @ (proxy.a + 0.5 * (proxy.B @ z))


@jax.custom_jvp
def _arrow_quadratic(s: jax.Array, a: jax.Array, B: jax.Array | ArrowMatrix) -> jax.Array:
    """a's + s'Bs/2; its gradient in s is a + Bs, which needs no further product with B."""
    return s @ (a + 0.5 * (B @ s))


@_arrow_quadratic.defjvp
def _arrow_slope(
    at: tuple[jax.Array, jax.Array, ArrowMatrix], tangents: tuple[jax.Array, object, object]
) -> tuple[jax.Array, jax.Array]:
    s, a, B = at
    curved = B @ s
    return s @ (a + 0.5 * curved), (a + curved) @ tangents[0]


def _with_exact(total: jax.Array, z: jax.Array, proxy: Proxy) -> jax.Array:
    """Add the log-density of priors that are not part of the quadratic."""
    if proxy.prior is None:
        return total
    return total + proxy.prior.log_density(proxy.where.unwhiten(z))


# A linear predictor -----------------------------------------------------------------------


class LinearRows(NamedTuple):
    """Cached rows with a linear predictor, one entry per row."""

    # Whitened columns x L; if L is an arrow factor, or very wide, the dense columns and codes of
    # the data, which take less memory.
    rows: jax.Array | Batch
    eta: jax.Array  # predictor at the anchor, offset included
    y: jax.Array
    taylor: jax.Array  # coefficients of f at eta, (rows, 7)
    scale: jax.Array  # frequency weight over probability
    # Of `Proxy.levels`: the curve of the row's level, and how far the row moves along its
    # direction; 0 if it belongs to no level.
    curve: jax.Array | None = None
    along: jax.Array | None = None


class Places(NamedTuple):
    """Draws, as cached rows take them."""

    z: jax.Array  # whitened; for rows that are kept as codes t - t*, in columns, below zeros
    by_level: jax.Array | None  # how far they are along the directions of `Proxy.levels`


WIDE = 16  # columns per number and code of a row, above which NumPy multiplies codes sooner


@dataclass(frozen=True)
class LinearTaylor:
    """Control variates of a model with one linear predictor and no other parameters.

    Parameters
    ----------
    target
        The model and its layout.
    order
        0, 1 or 2 (HMC-ECS paper, eq. 4.4; the lower orders in section 6.8).
    precision
        Precision of the cached rows and residuals, "float64" or "float32". Sums are float64.
    """

    target: Target
    order: int = 2
    precision: str = "float64"

    @property
    def model(self) -> LinearPredictorModel:
        """The family."""
        return self.target.linear

    @property
    def fresh_cost(self) -> float:
        """Cost of whitening and caching a row, in evaluations of a cached row.

        Whitening takes d^2 operations against 2 d, at about three times the speed. Rows with codes
        take d operations for each of p dense columns and k codes.
        """
        if self.target.coding is None:
            return 1 + self.target.size / 6
        return 1 + len(self.target.coding.dense) / 6 + len(self.target.coding.terms) / 2

    def matrix(self, batch: Batch) -> ModelMatrix:
        """Return the model matrix, with the intercept's column last, in float64."""
        return self.model.full_matrix(batch).in_double()

    @property
    def in_codes(self) -> bool:
        """Whether `blocks` keeps rows as numbers and codes, which NumPy multiplies sooner."""
        coding = self.target.coding
        if coding is None or not self.target.on_numpy:
            return False
        return self.target.size > WIDE * (len(coding.dense) + len(coding.terms))

    def cache(self, batch: Batch, proxy: Proxy, in_codes: bool = False) -> LinearRows:
        """Whiten the rows, unless they are kept as they are, and expand f at their eta*."""
        xp = namespace(proxy.where.point)
        x = self.matrix(batch)
        y = xp.asarray(self.model.outcome(batch), np.float64)
        own = slice(None, self.target.size)  # hyperparameters come after
        eta = x @ proxy.where.point[own] + batch.get("offset", 0.0)
        cached = LinearRows(
            rows=self._columns(batch)
            if in_codes or proxy.where.arrow is not None
            else x @ proxy.where.factor[own],
            eta=eta,
            y=y,
            taylor=coefficients(self.model, eta, y).T,
            scale=xp.asarray(batch.get("weight", 1.0) / batch["probability"]),
        )
        if proxy.levels is not None:
            curve, along = rows_along_levels(x, proxy.levels)
            cached = cached._replace(curve=curve, along=along)
        return jax.tree.map(self._rounded, cached)

    def _columns(self, batch: Batch) -> Batch:
        """Return the fields that define the columns: dense columns and codes."""
        assert self.target.coding is not None
        names = ("x", *self.target.coding.fields)
        return {name: as_either(batch[name]) for name in names if name in batch}

    def _rounded(self, values: jax.Array) -> jax.Array:
        """Round floats to the cache's precision; leave codes as they are."""
        is_code = jnp.issubdtype(values.dtype, jnp.integer)
        return values if is_code else values.astype(self.precision)

    def along(self, cached: LinearRows, z: jax.Array) -> jax.Array:
        """Distance of each row's predictor from eta*: x L z, with z as in `Places`."""
        rows = cached.rows
        if isinstance(rows, Mapping):
            return self.model.full_matrix(rows).of_padded(z).T
        z = z.astype(rows.dtype)
        return (rows @ z if z.ndim == 1 else z @ rows.T).astype(self.precision)

    def places(self, z: jax.Array, proxy: Proxy) -> Places:
        """Return draws as the rows of `blocks` take them."""
        # not z @ L.T, whose transpose has columns where `of_padded` gathers rows
        return self._places(z, proxy.where.factor @ z.T if self.in_codes else None, proxy)

    def values(self, cached: LinearRows, z: jax.Array, proxy: Proxy) -> jax.Array:
        """D of each row, (rows,) at one z and (draws, rows) at several: one product with z."""
        away = None if proxy.where.arrow is None else z.T
        return self.values_at(cached, self._places(z, away, proxy), proxy)

    def _places(self, z: jax.Array, away: jax.Array | None, proxy: Proxy) -> Places:
        by_level = None if proxy.levels is None else along_levels(z, proxy.levels)
        if away is None:
            return Places(z, by_level)
        return Places(below_zeros(away.astype(self.precision)[: self.target.size]), by_level)

    def values_at(self, cached: LinearRows, places: Places, proxy: Proxy) -> jax.Array:
        """`values` at draws as rows take them."""
        about = About(cached.eta, cached.y, cached.taylor.T)
        d, *of_level = (
            remainder(self.model, self.order, e, about) for e in self._distances(cached, places)
        )
        for along_level in of_level:
            d = d - along_level
        return (cached.scale * d).astype(np.float64)

    def _distances(self, cached: LinearRows, places: Places) -> Iterator[jax.Array]:
        """Yield how far predictors are from eta*, and how far along their level if they have one.

        D is the remainder at the first less that at the second.
        """
        yield self.along(cached, places.z)
        if places.by_level is not None:
            assert cached.along is not None
            yield (cached.along * places.by_level[..., cached.curve]).astype(self.precision)

    def covariances(self, cached: LinearRows, places: Places, units: Places) -> np.ndarray:
        """Covariance of D of each row with some combinations of normal z, (rows, combinations).

        Each part of D moves with one distance e alone, so that its covariance with any combination
        is that of e times its slope in e (Stein), which few draws tell.
        """
        about, total = About(cached.eta, cached.y, cached.taylor.T), 0.0
        pairs = zip(self._distances(cached, places), self._distances(cached, units), strict=True)
        for sign, (e, of_units) in zip((1, -1), pairs, strict=False):
            d = remainder(self.model, self.order, e, about)
            e, d = e - e.mean(axis=0), d - d.mean(axis=0)
            slope = (d * e).sum(axis=0) / np.maximum((e * e).sum(axis=0), 1e-300)
            total = (
                total + np.asarray(of_units).T * np.asarray(sign * cached.scale * slope)[:, None]
            )
        return np.asarray(total)

    def blocks(self, batch: Batch, proxy: Proxy) -> Iterator[LinearRows]:
        """Cache rows a few at a time, so that they stay in a core's cache over many operations."""
        for first in range(0, len(batch["probability"]), BLOCK):
            own = slice(first, first + BLOCK)
            part = {k: np.asarray(field)[own] for k, field in batch.items()}
            yield self.cache(part, proxy, self.in_codes)

    def whitened(self, cached: LinearRows, proxy: Proxy) -> np.ndarray:
        """Whitened columns of cached rows, (rows, d)."""
        rows, own = cached.rows, slice(None, self.target.size)
        if isinstance(rows, Mapping):
            factor = as_either(np.asarray(proxy.where.factor)[own])
            return np.asarray(self.model.full_matrix(rows) @ factor)
        return np.asarray(rows)

    def gradients(self, cached: LinearRows, z: np.ndarray, proxy: Proxy) -> np.ndarray:
        """Gradient of D of each row at z, (rows, d), in NumPy."""
        about, rows = About(cached.eta, cached.y, cached.taylor.T), self.whitened(cached, proxy)

        def slope(e: jax.Array) -> np.ndarray:
            return remainder_by_numpy(self.model, self.order, e, about)[1][:, None]

        gradients = slope(self.along(cached, self.places(as_either(z), proxy).z)) * rows
        if proxy.levels is not None:
            assert cached.along is not None
            away = np.asarray(along_levels(as_either(z), proxy.levels))
            line = np.where(away == proxy.levels.direction @ z, 1.0, 0.0)[:, None]  # 0 at an end
            line = (line * proxy.levels.direction)[cached.curve] * cached.along[:, None]
            gradients -= slope(as_either(cached.along * away[cached.curve])) * line
        return np.asarray(cached.scale[:, None] * gradients, np.float64)

    def residual(self, e: jax.Array, about: About) -> Pair:
        """Remainder of the expansion at eta + e, and its derivative in e, on an accelerator."""
        return remainder_and_slope(self.model, self.order, e, about, any_by_maximum, by_rise)

    def log_proxy(self, z: jax.Array, proxy: Proxy) -> jax.Array:
        """Return the quadratic, which includes normal priors, plus the other log-priors."""
        total = _quadratic(z, proxy)
        if proxy.levels is not None:
            total = total + curve_sum(z, proxy.levels)
        return _with_exact(total, z, proxy)


# Any other model --------------------------------------------------------------------------


class AutodiffRows(NamedTuple):
    """Cached rows of any other model."""

    rows: Batch
    scale: jax.Array  # one over probability
    # f, f' and f'' of each row in its predictors at the anchor; None for models without predictors
    taylor: Sequence[jax.Array] | None = None


@dataclass(frozen=True)
class AutodiffTaylor:
    """Control variates of any model, by automatic differentiation.

    Parameters
    ----------
    target
        The model and its layout.
    order
        0, 1 or 2.
    """

    target: Target
    order: int = 2

    @property
    def fresh_cost(self) -> float:
        """One: a row is kept as it is."""
        return 1.0

    def cache(self, batch: Batch, proxy: Proxy) -> AutodiffRows:
        """Keep the rows as they are, and expand f in their predictors."""
        fields = {k: jnp.asarray(v) for k, v in batch.items() if k != "probability"}
        cached = AutodiffRows(fields, 1.0 / jnp.asarray(batch["probability"]))
        if not self.target.model.has_predictors:
            return cached
        _, *taylor = weighted_derivatives(self.target, proxy.where.point, fields)
        return cached._replace(taylor=taylor)

    def values(self, cached: AutodiffRows, z: jax.Array, proxy: Proxy) -> jax.Array:
        """l_k(t) - q_k(t) over w_k, with q_k = phi(0) + phi'(0) + phi''(0)/2 along t - t*.

        The path from t* to t is straight in the coordinates of expansion.
        """
        target, point, away = self.target, proxy.where.point, proxy.where.away(z)
        if proxy.bend is not None and proxy.bend.inverse is not None:
            target, (point, away) = target.of_coefficients, coefficients_away(target, z, proxy)
        path = partial(bent_path, point=point, away=away, bend=proxy.bend)
        value = target.log_likelihood(path(jnp.ones(())), cached.rows)
        expansion = sum(_row_expansion(target, cached, path)[: self.order + 1])
        return (cached.scale * (value - expansion)).astype(jnp.float64)

    def log_proxy(self, z: jax.Array, proxy: Proxy) -> jax.Array:
        """Return the quadratic, plus the log-prior unless the quadratic includes it."""
        total = _quadratic(z, proxy)
        if proxy.bend is not None:
            total = total + bent_sum(self.target, z, proxy)
        if self.target.model.has_predictors:
            return _with_exact(total, z, proxy)
        return total + self.target.log_prior(proxy.where.unwhiten(z))


def _row_expansion(
    target: Target, cached: AutodiffRows, path: Callable[[jax.Array], jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """phi(0), phi'(0) and phi''(0) / 2 of each row along a path from the anchor."""
    rows = cached.rows
    if cached.taylor is None:
        f, f1, f2 = along(lambda s: target.log_likelihood(path(s), rows))
        return f, f1, f2 / 2
    f, slope, curve = cached.taylor
    _, e, bent = along(lambda s: target.linear.predictor_vector(target.unravel(path(s)), rows))
    second = jnp.einsum("ij,ijk,ik->i", e, curve, e) + jnp.sum(slope * bent, axis=1)
    return f, jnp.sum(slope * e, axis=1), second / 2

"""The expected size of each row's residual, which weighted designs draw rows by.

Rows with the largest expected residuals can be evaluated in every step. Their residuals are then
exact, and the rest has less variance, so that fewer rows need to be drawn; but each of these
certainty rows costs an evaluation every time. Their number is found by doubling it for as long as
that makes an effective draw cheaper.

For a linear predictor one pass suffices: with h = x' S x the posterior variance of a row's eta, the
residual is about f''' e^3 / 6 + f'''' e^4 / 24 with e ~ N(0, h). For other models the residual is
evaluated at a few posterior draws.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either, namespace, power
from modicum.errors import ConvergenceError, CrudeControlVariateError, ModicumError
from modicum.kernels.control_variates import LinearTaylor, along_levels, rows_along_levels
from modicum.kernels.designs import (
    Design,
    Drawn,
    RowFacts,
    Tables,
    WeightTables,
    certainty_rows,
    draw_on_host,
)
from modicum.kernels.expansion import About, coefficients, remainder
from modicum.kernels.group_residuals import GroupTaylor
from modicum.kernels.protocols import ControlVariate, LevelCurves, Proxy
from modicum.kernels.residuals import NumPyResiduals, needs_no_compiler
from modicum.linalg.arrow import ArrowLayout
from modicum.linalg.columns import ModelMatrix
from modicum.methods.method import Task
from modicum.methods.pilot.anchored_proxy import SHARED
from modicum.models.model import Batch
from modicum.passes import Sums
from modicum.passes.engine import of_numpy
from modicum.passes.hessians import map_by_numpy
from modicum.passes.mode import WIDE, describe_row
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.weight_classes import KeptNumbers, extent_of
from modicum.runtime import FASTEST_COMPILE, SCATTERS, Array, Pytree, jit

# Columns above which lengths of whitened rows, some thousand operations per number, are estimated
# from random projections: to an eighth, which hardly matters to the weights of rows.
PROBES = 128
FEW = 10_000  # rows for which optimising the code of a pass takes longer than it saves


def design_tables(
    task: Task, design: Design[Tables], facts: RowFacts, stage: str = "design"
) -> Tables:
    """Return the tables of a design; those that take a pass are checkpointed under `stage`.

    A study that weighs rows twice has two stages. Weights that workers keep are not checkpointed: a
    resumed run repeats the pass.
    """
    stays_there = design.needs == "expected" and task.sums.engine.keeps(task.rows)
    if design.needs == "nothing" or stays_there:
        return design.tables(facts)
    name = f"{stage}-{type(design).__name__.lower()}"
    return task.remember(name, design.layout, lambda: design.tables(facts))


def expected_residuals(
    sums: Sums,
    control_variate: ControlVariate[Pytree],
    proxy: Proxy,
    pilot: np.ndarray,
    by_draws: bool = False,
) -> np.ndarray | KeptNumbers:
    """Return the root mean square over the posterior of every row's residual, by one pass.

    Workers of a cluster keep the results for their own rows.

    Parameters
    ----------
    sums
        The rows, and what passes over them.
    control_variate, proxy
        The control variate whose residuals are wanted, and its expansion point.
    pilot
        Posterior draws in whitened coordinates, (draws, d); their mean is the posterior's centre.
        Where the proxy's factor is that of an arrow, they are t - t*.
    by_draws
        Of a linear predictor: whether residuals are those at these draws, and not to be expected of
        a normal posterior. Where the factor is that of an arrow: whether the spread of a row's
        predictor is that of these draws, not the proxy's.
    """
    if isinstance(control_variate, LinearTaylor):
        chunk_map, arguments = _linear_pass(sums, control_variate, proxy, pilot, by_draws)
        if by_draws and proxy.where.arrow is None:
            sums.enter("design", len(pilot), "density", passes=1)
        else:
            sums.enter("design", 1, "gradient", passes=1)
    else:
        of_chunk: Callable[..., Array] = _values_compiled
        if not sums.rows.grouped and len(sums.rows) <= FEW:
            of_chunk = _few_values_compiled
        elif sums.target.scatters:
            by_numpy = sums.by_numpy and needs_no_compiler(control_variate, proxy)
            of_chunk = _group_values_by_numpy if by_numpy else _group_values_compiled
        chunk_map, arguments = partial(of_chunk, control_variate), (proxy, pilot)
        sums.enter("design", len(pilot), "density", passes=1)
    expected = sums.engine.keep_rows(chunk_map, arguments, sums.rows, "design")
    bad = extent_of(expected).bad
    if bad >= 0:
        raise ends_near_the_mode(sums, describe_row(sums.rows, bad))
    return expected


def _linear_pass(
    sums: Sums, control_variate: LinearTaylor, proxy: Proxy, pilot: np.ndarray, by_draws: bool
) -> tuple[Callable[..., Array], Pytree]:
    """Return the function a pass maps over chunks of linear-predictor rows, and its arguments."""
    target = control_variate.target
    if proxy.where.arrow is not None:
        assert sums.target.arrow is not None
        levels = partial(_residuals_of_levels, control_variate, sums.target.arrow, by_draws)
        return levels, (proxy, jnp.asarray(pilot))
    pass_over = _by_numpy if target.on_numpy and sums.by_numpy else _compiled
    if by_draws:
        draws = _predictor_draws(control_variate, proxy, pilot)
        return partial(pass_over, _residuals_at_draws, control_variate), draws
    centre = pilot.mean(axis=0) if len(pilot) else np.zeros(len(proxy.a))
    posterior = _predictor_posterior(control_variate, proxy, centre)
    return partial(pass_over, _residuals_from_predictors, control_variate), posterior


def ends_near_the_mode(sums: Sums, row: str) -> ModicumError:
    """Return the error for a row, named by `describe_row`, that is not finite near the mode.

    A family's log-likelihood is finite everywhere but for overflow, so that chains turn back before
    they meet it; only expansions about the mode do not.
    """
    fault = (
        f"the log-likelihood {row} is not finite at points within a few posterior standard "
        "deviations of the mode"
    )
    if not sums.target.model.users_functions:
        return CrudeControlVariateError(
            f"{fault}, where no expansion about it can follow", "use method='nuts' on all rows"
        )
    return ConvergenceError(
        f"{fault}, so that chains would meet them; write parameters that must be positive as "
        "exponentials, or check the model's log_likelihood there."
    )


# E e^k for e ~ N(0, 1) of the squared terms: (order + 1)-th and (order + 2)-th of the expansion.
_EVEN_MOMENTS = {1: 1.0, 2: 3.0, 3: 15.0, 4: 105.0}


def _residual_size(order: int, h: jax.Array, taylor: jax.Array) -> jax.Array:
    """Return the root mean square of the two terms after `order`, with e ~ N(0, h)."""
    xp = namespace(h)
    total = xp.zeros_like(h)
    for j in (order + 1, order + 2):
        total += _EVEN_MOMENTS[j] * power(h, j) * taylor[j] ** 2  # of f^(j) / j!
    return xp.sqrt(total)


class PredictorPosterior(NamedTuple):
    """Normal approximation to the posterior of the coefficients, in raw units."""

    point: np.ndarray  # t*
    away: np.ndarray  # the posterior's centre, less t*
    factor: np.ndarray  # L, with L L' their covariance; of many columns, L times random probes
    covariance: np.ndarray
    levels: LevelCurves | None


def _predictor_posterior(
    control_variate: LinearTaylor, proxy: Proxy, centre: np.ndarray
) -> PredictorPosterior:
    size = control_variate.target.size  # parameters of priors come after
    L = np.asarray(proxy.where.factor)[:size]
    levels = jax.tree.map(np.asarray, proxy.levels)
    point = np.asarray(proxy.where.point)[:size]
    found = PredictorPosterior(point, L @ centre, L, L @ L.T, levels)
    if size <= WIDE or levels is not None:
        return found
    probes = generator(SHARED, Stream.LEVERAGES).standard_normal((L.shape[1], PROBES))
    return found._replace(factor=L @ probes / np.sqrt(PROBES))


OfRows = Callable[[LinearTaylor, Pytree, Batch], jax.Array]  # residual sizes, in NumPy or JAX


@jit(static=(0, 1))
def _compiled(
    of_rows: OfRows, cv: LinearTaylor, about: Pytree, batch: Batch, present: jax.Array
) -> jax.Array:
    return of_rows(cv, about, batch)


@of_numpy
def _by_numpy(
    of_rows: OfRows, cv: LinearTaylor, about: Pytree, batch: Batch, present: np.ndarray
) -> np.ndarray:
    return map_by_numpy(lambda block: np.asarray(of_rows(cv, about, block)), batch, present)


def expanded_rows(
    control_variate: LinearTaylor, point: Array, batch: Batch
) -> tuple[ModelMatrix, jax.Array, jax.Array, jax.Array]:
    """Return rows' columns, predictors at `point`, outcomes, and coefficients of expansions there.

    Arrays are of the library of `point`.
    """
    model, x = control_variate.model, control_variate.matrix(batch)
    eta = x @ as_either(point) + batch.get("offset", 0.0)
    y = namespace(point).asarray(model.outcome(batch), np.float64)
    return x, eta, y, coefficients(model, eta, y)


def _residuals_from_predictors(
    control_variate: LinearTaylor, posterior: PredictorPosterior, batch: Batch
) -> jax.Array:
    x, _, _, taylor = expanded_rows(control_variate, posterior.point, batch)
    away = x @ as_either(posterior.away)
    h = x.quadratic(posterior.covariance, posterior.factor) + away**2
    if posterior.levels is None:
        size = _residual_size(control_variate.order, h, taylor)
    else:
        size = _size_beside_level(x, h, away, taylor, posterior)
    return as_either(batch.get("weight", 1.0) * size)


def _size_beside_level(
    x: ModelMatrix,
    h: jax.Array,
    away: jax.Array,
    taylor: jax.Array,
    posterior: PredictorPosterior,
) -> jax.Array:
    """`_residual_size` of order 2, less the remainder along the direction of each row's level.

    With e and b, the distance along that direction alone, jointly normal with variances h and g and
    covariance c: the root mean square of f_3 (e^3 - b^3) / 6 + f_4 (e^4 - b^4) / 24.
    """
    levels, xp = posterior.levels, namespace(h)
    assert levels is not None
    curve, along = rows_along_levels(x, levels)
    S, probe = as_either(posterior.covariance), levels.probe
    spread = probe @ S  # covariances of the distance along each direction with all coefficients
    centre = (probe @ as_either(posterior.away))[curve] * along
    g = along**2 * xp.sum(spread * probe, axis=1)[curve] + centre**2
    c = along * x.times_own(spread, curve) + centre * away
    third = 15 * (power(h, 3) + power(g, 3)) - 2 * (9 * h * g * c + 6 * power(c, 3))
    fourth = 105 * (power(h, 4) + power(g, 4))
    fourth -= 2 * (9 * (h * g) ** 2 + 72 * h * g * c**2 + 24 * power(c, 4))
    total = third * taylor[3] ** 2 + fourth * taylor[4] ** 2
    return xp.sqrt(xp.maximum(total, 0.0))


class PredictorDraws(NamedTuple):
    """Posterior draws of the coefficients, in raw units."""

    point: np.ndarray  # t*
    away: np.ndarray  # draws less t*, (draws, d)
    levels: LevelCurves | None = None
    by_level: np.ndarray | None = None  # how far the draws are along them, (draws, curves)


def _predictor_draws(
    control_variate: LinearTaylor, proxy: Proxy, pilot: np.ndarray
) -> PredictorDraws:
    size = control_variate.target.size
    L = np.asarray(proxy.where.factor)[:size]
    draws = PredictorDraws(np.asarray(proxy.where.point)[:size], pilot @ L.T)
    if proxy.levels is None:
        return draws
    levels = jax.tree.map(np.asarray, proxy.levels)
    return draws._replace(
        levels=levels, by_level=np.asarray(along_levels(as_either(pilot), levels))
    )


def _residuals_at_draws(
    control_variate: LinearTaylor, draws: PredictorDraws, batch: Batch
) -> jax.Array:
    """Return the root mean square of each row's residual over the draws."""
    model, order, xp = control_variate.model, control_variate.order, namespace(draws.point)
    x, *expansion = expanded_rows(control_variate, draws.point, batch)
    about = About(*expansion)
    residual = remainder(model, order, (x @ as_either(draws.away.T)).T, about)
    if draws.levels is not None:
        assert draws.by_level is not None
        curve, along = rows_along_levels(x, draws.levels)
        by_level = along * as_either(draws.by_level)[:, curve]
        residual = residual - remainder(model, order, by_level, about)
    return as_either(batch.get("weight", 1.0) * xp.sqrt(xp.mean(residual**2, axis=0)))


@jit(static=(0, 1, 2), options=SCATTERS)
def _residuals_of_levels(
    control_variate: LinearTaylor,
    layout: ArrowLayout,
    by_draws: bool,
    arguments: tuple[Proxy, jax.Array],
    batch: Batch,
    present: jax.Array,
) -> jax.Array:
    """Expected residuals of rows that each have one level of a factor with many.

    A whitened row is its columns in the border times R^-T, less its level's line of G, and a few
    numbers in the place of its level.
    """
    proxy, draws = arguments
    factor, size = proxy.where.arrow, control_variate.target.size
    assert factor is not None
    x, _, _, taylor = expanded_rows(control_variate, proxy.where.point[:size], batch)
    if by_draws:
        h = jnp.mean((x @ draws[:, :size].T) ** 2, axis=-1)
    else:
        border = layout.border_matrix(dict(batch)).in_double()
        border = border.with_ones(control_variate.model.intercept)
        level, own = jnp.asarray(batch[layout.field]), layout.own_columns(dict(batch))
        across = border @ jnp.asarray(factor.corner)[: border.columns]
        across -= jnp.einsum("ic,icb->ib", own, jnp.asarray(factor.cross)[level])
        inside = jnp.einsum("ic,ick->ik", own, jnp.asarray(factor.blocks)[level])
        h = jnp.sum(across**2, axis=-1) + jnp.sum(inside**2, axis=-1)
        h += (x @ draws[:, :size].mean(axis=0)) ** 2
    return jnp.asarray(batch.get("weight", 1.0) * _residual_size(control_variate.order, h, taylor))


def _values_at_draws(
    control_variate: ControlVariate[Pytree], arguments: Pytree, batch: Batch, present: jax.Array
) -> jax.Array:
    proxy, pilot = arguments
    cached = control_variate.cache(dict(batch) | {"probability": jnp.ones(present.shape)}, proxy)
    values = jax.lax.map(lambda z: control_variate.values(cached, z, proxy), pilot)
    return jnp.sqrt(jnp.mean(values**2, axis=0))


_values_compiled = jit(static=0)(_values_at_draws)
_few_values_compiled = jit(static=0, options=FASTEST_COMPILE)(_values_at_draws)
_group_values_compiled = jit(static=0, options=SCATTERS)(_values_at_draws)


@of_numpy
def _group_values_by_numpy(
    control_variate: GroupTaylor, arguments: Pytree, batch: Batch, present: np.ndarray
) -> np.ndarray:
    """Like `_values_at_draws`, for groups and in NumPy."""
    proxy, pilot = arguments
    held = dict(batch) | {"probability": np.ones(present.shape)}
    values = NumPyResiduals(control_variate, held, proxy).values_in_turn(pilot)
    return np.sqrt(np.mean(values**2, axis=0))


# Rows that are read ------------------------------------------------------------------------


class SampledRows(NamedTuple):
    """Rows, or whole groups, drawn by their weights.

    Attributes
    ----------
    drawn
        Numbers of the rows, and their probabilities under the weighted design.
    batch
        The rows; their `probability` is the expected number of times each was drawn.
    certain
        How many of them, the first ones, are included with certainty.
    """

    drawn: Drawn
    batch: Batch
    certain: int

    @property
    def number(self) -> int:
        """Number of rows."""
        return len(self.drawn.row_ids)

    def thinned(self, count: int) -> Batch:
        """Return the rows included with certainty, and up to `count` of the others, reweighted."""
        others = self.number - self.certain
        first = slice(0, self.certain + min(count, others))
        batch = {name: values[first] for name, values in self.batch.items()}
        expected = np.array(batch["probability"])
        expected[self.certain :] *= min(count, others) / max(others, 1)
        return batch | {"probability": expected}

    def first(self, count: int, rows: Rows) -> Batch:
        """Read the first `count` again: as contiguous rows, if they are groups."""
        row_ids = np.asarray(self.drawn.row_ids[:count])
        return rows.take(row_ids) | {"probability": self.batch["probability"][:count]}


class SampledIds(NamedTuple):
    """Ids of certainty rows, followed by those of drawn rows.

    A sum over all rows is estimated by the sum of values / expected over these.
    """

    row_ids: np.ndarray
    probability: np.ndarray  # under the weighted design over all rows
    expected: np.ndarray  # expected number of times each was drawn: 1 for certainty rows
    certain: int  # number of certainty rows, which come first


def sample_on_host(rng: np.random.Generator, count: int, tables: WeightTables) -> SampledIds:
    """Sample `count` rows, taking rows that would be drawn repeatedly exactly once.

    A few rows may have nearly all of the weight, and `count` draws would be copies of these. If
    there are no more than `count` rows, all are taken.
    """
    assert tables.order is not None, "chains draw places, and nobody else does"
    n = len(tables.order)
    if n <= count:
        row_ids = np.asarray(tables.order).astype(np.int64)
        return SampledIds(row_ids, _probability_at(np.arange(n), tables), np.ones(n), n)
    number, rest = 0, tables
    for _ in range(8):  # the more rows are set apart, the more often the others are drawn
        size, chance = np.asarray(rest.size), np.asarray(rest.probability)
        often = min(count // 2, number + int(size[chance * (count - number) >= 1].sum()))
        if often == number:
            break
        number = often
        rest = certainty_rows(tables, number).rest
    drawn = draw_on_host(rng, count - number, rest)
    certain = certainty_rows(tables, number)
    among_rest = np.asarray(drawn.probability)
    before = (
        (among_rest - certain.even) / certain.slope
        if certain.slope
        else np.full(len(among_rest), 1 / n)
    )
    largest = np.arange(n - number, n)
    return SampledIds(
        np.r_[certain.row_ids, np.asarray(drawn.row_ids, np.int64)],
        np.r_[_probability_at(largest, tables), before],
        np.r_[np.ones(number), (count - number) * among_rest],
        number,
    )


def _probability_at(places: np.ndarray, tables: WeightTables) -> np.ndarray:
    """Probability of the rows at these places of `order`."""
    filled = np.flatnonzero(np.asarray(tables.size))
    kind = np.searchsorted(np.asarray(tables.start)[filled], places, side="right") - 1
    return np.asarray(tables.probability)[filled[kind]]


FIRST = 50  # certainty rows to try first
GAIN = 0.9  # cost relative to no certainty rows, above which they are not worth it


def cheapest_number(
    cost: Callable[[int], float], most: int, row_cost: float = 0.0, stop_ratio: float = 1.0
) -> tuple[int, float]:
    """Return the cheapest number of certainty rows, and its cost relative to having none.

    Parameters
    ----------
    cost
        Cost of an effective draw with a number of certainty rows, in any unit. They are taken only
        if they save a tenth of it.
    most
        The most certainty rows to consider.
    row_cost
        What a certainty row costs at least: numbers that cost more than having none are not tried.
    stop_ratio
        Cost relative to that of half as many, above which doubling stops.
    """
    none = best = cost(0)
    count, number = 0, FIRST
    while number <= most and number * row_cost < none:
        tried = cost(number)
        if tried >= (stop_ratio * best if count else best):
            break
        count, best, number = number, tried, 2 * number
    return (count, best / none) if best < GAIN * none else (0, 1.0)

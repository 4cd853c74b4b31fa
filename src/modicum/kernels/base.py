"""What a kernel is, and all that a kernel asks of the parts it is composed of.

A kernel is one Markov step as pure functions of arrays. Moves, estimators, control variates,
gradient estimators and bounded rows are protocols here, beside the kernels that consume them; what
implements them need not know about kernels. Whatever a kernel reads and never changes is a named
tuple of arrays, its context.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from modicum.kernels.curves import Curves, along_curves
from modicum.models.arrow import ArrowFactor, ArrowMatrix
from modicum.models.base import Batch
from modicum.runtime import Pytree

__all__ = [
    "Bend",
    "BoundSums",
    "ControlVariate",
    "Draw",
    "Estimate",
    "Estimator",
    "GradientEstimator",
    "Kernel",
    "LogDensity",
    "LogPosterior",
    "Move",
    "MoveInfo",
    "Point",
    "Proxy",
    "RowBounds",
    "RowFactor",
    "RowRequest",
    "Settled",
    "StochasticGradientContext",
    "Warp",
    "Warped",
    "Whitening",
    "carried_fields",
    "from_anchor",
    "is_straight",
    "recorded",
    "scaled",
    "straighten",
    "unwhiten",
]

Draw: TypeAlias = dict[str, jax.Array]  # "position", and one number per statistic
LogDensity: TypeAlias = Callable[[jax.Array], jax.Array]
LogPosterior: TypeAlias = Callable[[jax.Array, Pytree], jax.Array]  # of t and all rows

State = TypeVar("State")
Context = TypeVar("Context", contravariant=True)
Cached = TypeVar("Cached")
Tables = TypeVar("Tables")
Memory = TypeVar("Memory")


# Kernels ----------------------------------------------------------------------------------


class RowRequest(Protocol):
    """Rows to read, and arrays that come along under their own names: a named tuple.

    `modicum.designs.Drawn` is one: the probabilities of rows come along with them.
    """

    @property
    def row_ids(self) -> jax.Array:
        """The rows to read, by number."""
        ...

    def _asdict(self) -> dict[str, Pytree]: ...


class RowDesign(Protocol):
    """What names rows at random; `modicum.designs.Design` is one."""

    def draw(self, key: jax.Array, count: int, tables: Pytree) -> RowRequest:
        """Draw `count` rows, or units of them, as the design's tables say."""
        ...


def carried_fields(request: RowRequest) -> dict[str, Pytree]:
    """The arrays that come along with the rows of a request."""
    return {name: values for name, values in request._asdict().items() if name != "row_ids"}


class Kernel(Protocol[State, Context]):
    """One Markov chain, as pure functions of arrays.

    Kernels are hashable by value (frozen dataclasses): they are static arguments of the compiled
    runner, while `context` travels as an argument. The rows that a step reads depend on its key
    only, so a runner can fetch them ahead of time.
    """

    def initial_row_request(self, key: jax.Array, context: Context) -> RowRequest | None:
        """Return which rows `init` reads, or None if it reads none."""
        ...

    def prepare(self, batch: Batch, context: Context) -> Pytree:
        """Compute from the rows that were read all that does not depend on the state.

        The runner does this for many iterations at once.
        """
        ...

    def init(self, key: jax.Array, batch: Pytree, context: Context) -> State:
        """Return the first state; `batch` is what `prepare` returned."""
        ...

    def row_request(self, key: jax.Array, context: Context) -> RowRequest | None:
        """Return which rows the step with this key reads, or None if it reads none."""
        ...

    def step(
        self, key: jax.Array, state: State, flags: Pytree, batch: Pytree, context: Context
    ) -> tuple[State, Draw]:
        """Return the next state and what to record of it; `flags` are those of the iteration."""
        ...


class Settled(Protocol):
    """Many iterations of many chains at once, for a kernel whose warm-up is over. Hashable."""

    @property
    def plain(self) -> Kernel[Pytree, Pytree]:
        """The kernel whose iterations these are."""
        ...

    def numbers(self, size: int) -> tuple[int, int]:
        """Numbers held per chain with `size` parameters: in all, and for every iteration."""
        ...

    def table(self, rows: Batch, context: Pytree) -> jax.Array:
        """All rows, prepared once so that iterations need not prepare those that they request."""
        ...

    def of_table(self, table: jax.Array, request: RowRequest) -> jax.Array:
        """Requested rows as `advance` takes them, from a table of all rows."""
        ...

    def of_prepared(self, prepared: Pytree) -> jax.Array:
        """The same from what the plain kernel prepared."""
        ...

    def advance(
        self, keys: jax.Array, state: Pytree, fresh: jax.Array, count: jax.Array, context: Pytree
    ) -> tuple[Pytree, Draw]:
        """The first `count` iterations with these keys, (chains, iterations), and fresh rows.

        Return the states, and draws with leading axes for chains and iterations.
        """
        ...


# Coordinates ------------------------------------------------------------------------------


class Whitening(Protocol):
    """From the coordinates z a chain moves in to the parameters: t = t* + L z."""

    @property
    def point(self) -> jax.Array:
        """t*."""
        ...

    @property
    def factor(self) -> jax.Array | ArrowFactor:
        """L; a vector where it is diagonal, and a number where it is c times I."""
        ...


def scaled(factor: jax.Array | ArrowFactor, z: jax.Array) -> jax.Array:
    """L z, for a factor L of any of the forms that `Whitening` allows."""
    if isinstance(factor, ArrowFactor):
        return jnp.asarray(factor @ z)
    return factor @ z if factor.ndim == 2 else factor * z


def unwhiten(z: jax.Array, whitening: Whitening) -> jax.Array:
    """t = t* + L z."""
    return whitening.point + scaled(whitening.factor, z)


class Warp(NamedTuple):
    """Entries of t that move with their scale tau: effects, with their standard deviation.

    An effect u ~ N(0, tau^2) of which data say N(u; c, 1 / A) has the variance V = 1 / (A + tau^-2)
    and the mean V A c. So with r = t* + L z, a = r - t* and e^(2 g) = V(tau) / V(tau*), t is r but
    for these entries, t = t* e^(2 g) + a e^g, which then hardly depend on tau: towards small
    scales, and where data say little, they are relative to it (non-centred), and towards large ones
    they are themselves (centred).

    What all effects of a term have in common is another matter: data say nothing of it that the
    intercept, or the common slope, could not make up for. So of it, b = sum_l w_l a_l, the prior
    alone decides: it moves with tau wholly, and the common coefficient the other way.
    """

    where: jax.Array  # places of the entries
    term: jax.Array  # which term each is an effect of
    ratio: jax.Array  # A tau*^2 of each: what data say of it over what the scale says
    scale: jax.Array  # place of the log scale of each term
    shared: jax.Array  # w: (terms, entries); a line of zeros where there is no common coefficient
    # columns of the inverse of L, of the entries and of common coefficients; None: L is an arrow's
    into: jax.Array | None
    common: jax.Array | None = None  # places of the common coefficients


class Bend(NamedTuple):
    """Entries of t along which rows are expanded in a power of e^t (`estimators.coordinates`)."""

    where: jax.Array  # places of the entries
    power: jax.Array  # of each; 0: the entry itself
    slope: jax.Array  # gradient of the log-likelihood there, at t*
    curve: jax.Array  # lines of its Hessian, times L
    block: jax.Array  # its Hessian in these entries alone


class Warped(Whitening, Protocol):
    """A whitening in which some entries may move with a scale, or axes may be curved."""

    @property
    def warp(self) -> Warp | None:
        """Those entries; None: none do."""
        ...

    @property
    def curves(self) -> Curves | None:
        """The axes along which the posterior is skewed; None: chains move straight along all."""
        ...


def is_straight(whitening: Warped) -> bool:
    """Whether `straighten` leaves volumes as they are."""
    return whitening.warp is None and whitening.curves is None


def straighten(z: jax.Array, whitening: Warped) -> tuple[jax.Array, jax.Array]:
    """From what a chain moves in to whitened coordinates of t, and the log of the volume's growth.

    All that knows about rows takes the latter, s with t = t* + L s, and need not know the former.
    Where L is that of an arrow, with many levels in it, its product is formed once, here: s is then
    t - t* itself.
    """
    warp = whitening.warp
    if whitening.curves is not None:  # of a dense factor, and of no parameter with a scale
        return along_curves(z, whitening.curves)
    if isinstance(whitening.factor, ArrowFactor):
        return _straighten_arrow(jnp.asarray(whitening.factor @ z), whitening.point, warp)
    if warp is None:
        return z, jnp.zeros(())
    assert warp.into is not None
    log_scale = whitening.factor[warp.scale] @ z  # less its anchor
    away = whitening.factor[warp.where] @ z
    moved, together, growth = _moved(log_scale, away, whitening.point[warp.where], warp)
    return z + warp.into @ jnp.concatenate([moved, -together]), growth


def _straighten_arrow(
    away: jax.Array, point: jax.Array, warp: Warp | None
) -> tuple[jax.Array, jax.Array]:
    """The same from `away`, r - t*: entries of t are moved themselves."""
    if warp is None:
        return away, jnp.zeros(())
    assert warp.common is not None
    effects = away[warp.where]
    moved, together, growth = _moved(away[warp.scale], effects, point[warp.where], warp)
    return away.at[warp.where].add(moved).at[warp.common].add(-together), growth


def _moved(
    log_scale: jax.Array, away: jax.Array, point: jax.Array, warp: Warp
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """How entries move with their scales, what of it is common to a term, and the volume's growth.

    `log_scale` is less its anchor; `away` and `point` are r - t* and t* of the entries.
    """
    own_scale = log_scale[warp.term]
    tighter = jnp.logaddexp(jnp.log(warp.ratio), -2 * own_scale) - jnp.log1p(warp.ratio)
    growth = -0.5 * tighter
    common = warp.shared @ away
    moved = point * jnp.expm1(2 * growth)
    moved += (away - common[warp.term]) * jnp.expm1(growth)
    together = common * jnp.expm1(log_scale)
    # det(D + (e^x 1 - D 1) w') = det D sum_l w_l e^(x - g_l), with D = diag(e^g)
    beside = warp.shared @ jnp.expm1(own_scale - growth)
    return moved + together[warp.term], together, jnp.sum(growth) + jnp.sum(jnp.log1p(beside))


def from_anchor(s: jax.Array, whitening: Whitening) -> jax.Array:
    """t - t* of what `straighten` returns."""
    return s if isinstance(whitening.factor, ArrowFactor) else scaled(whitening.factor, s)


def recorded(s: jax.Array, whitening: Whitening) -> jax.Array:
    """Whitened coordinates of what `straighten` returns, for the record."""
    factor = whitening.factor
    return jnp.asarray(factor.whitened(s)) if isinstance(factor, ArrowFactor) else s


# Moves of the parameters ------------------------------------------------------------------


class Point(NamedTuple):
    """A position with its log-density and gradient, named as in BlackJAX."""

    position: jax.Array
    logdensity: jax.Array
    logdensity_grad: jax.Array


class MoveInfo(NamedTuple):
    """What a move reports about itself."""

    acceptance_rate: jax.Array
    diverging: jax.Array
    energy: jax.Array
    n_steps: jax.Array  # gradients it took
    reached_max_treedepth: jax.Array


class Move(Protocol):
    """Anything that leaves exp(logdensity) invariant. Hashable."""

    def __call__(
        self,
        key: jax.Array,
        point: Point,
        logdensity: LogDensity,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Point, MoveInfo]:
        """Return the next point."""
        ...


# A log-likelihood from a few rows ---------------------------------------------------------


class RowFactor(NamedTuple):
    """L by blocks of columns, for the product x L = (x - c) L + c L (`estimators.row_factor`)."""

    centre: jax.Array  # c
    shift: jax.Array  # c L
    blocks: tuple[jax.Array, ...]  # of as many leading lines as are not zero


class Proxy(NamedTuple):
    """The anchor in whitened coordinates: sum q = C + a'z + z'Bz/2, of which C is left out."""

    point: jax.Array  # t*
    factor: jax.Array | ArrowFactor  # L; of an arrow, the sum is one in s = t - t*, not in z
    a: jax.Array
    B: (
        jax.Array | ArrowMatrix | None
    )  # None: -I, which is what whitening with the prior makes of it
    prior: Pytree = None  # numbers of the priors that are not part of the quadratic
    warp: Warp | None = None  # entries that a chain moves with a scale
    bend: Bend | None = None  # entries along which rows are expanded in another coordinate
    unit: jax.Array | None = None  # of groups' variances (`estimators.groups.coordinates`)
    row_factor: RowFactor | None = None  # L in blocks; None: L itself
    curves: Curves | None = None  # along which a chain moves where the posterior is skewed


class ControlVariate(Protocol[Cached]):
    """Residuals of rows about the anchor. Hashable."""

    @property
    def fresh_cost(self) -> float:
        """Cost of reading and caching a row, in evaluations of a cached row."""
        ...

    def cache(self, batch: Batch, proxy: Proxy) -> Cached:
        """Keep what later evaluations need of fresh rows (with their `probability`)."""
        ...

    def values(self, cached: Cached, z: jax.Array, proxy: Proxy) -> jax.Array:
        """D_i = d_i / w_i of each cached row at whitened coordinates z."""
        ...

    def log_proxy(self, z: jax.Array, proxy: Proxy) -> jax.Array:
        """sum_k q_k(z) - sum_k l_k(t*) plus the log-prior (up to a constant)."""
        ...


class Estimate(NamedTuple):
    """An estimate of log-likelihood minus the sum of the control variates."""

    log: jax.Array  # its part of the target density: log |Lhat| - sum q
    difference: jax.Array  # dhat, an estimate of l - sum q (eq. 4.2)
    variance: jax.Array  # of `log`, estimated


class Estimator(Protocol[Tables]):
    """What turns the residuals of a subsample into a likelihood. Hashable.

    The subsample lies in blocks of equal size, and each block in equal parts. Parts may be absent:
    a Poisson number of them takes part, in arrays of fixed shape. What the estimator needs to know
    about the data is passed as `tables`.
    """

    @property
    def parts(self) -> int:
        """Parts per block."""
        ...

    def present(self, key: jax.Array, blocks: int) -> jax.Array:
        """Draw which parts of `blocks` fresh blocks take part: one truth value per part."""
        ...

    def pack(self, subsample: Pytree, present: jax.Array) -> tuple[Pytree, jax.Array]:
        """Return the parts that take part, packed, and which of the slots are filled."""
        ...

    def unpack(self, values: jax.Array, present: jax.Array) -> jax.Array:
        """Undo `pack` for one value per row."""
        ...

    def combine(self, values: jax.Array, present: jax.Array, tables: Tables) -> Estimate:
        """Estimate from the D of every row, packed or not."""
        ...

    def describe(self, values: jax.Array, present: jax.Array, tables: Tables) -> Draw:
        """Return what to record of the estimate, one number per name."""
        ...

    def about(self, tables: Tables, difference: jax.Array) -> Tables:
        """Tables where D is expected to exceed what they expect by `difference`."""
        ...


# A gradient from a few rows ---------------------------------------------------------------


class StochasticGradientContext(NamedTuple):
    """What a stochastic-gradient kernel, its integrator and its gradient estimator read."""

    point: jax.Array  # t*
    factor: jax.Array  # L
    start: jax.Array  # where chains begin, in the chain's coordinates
    spread: jax.Array  # times a standard normal vector: how chains are scattered about `start`
    n: jax.Array  # number of rows
    design: Pytree  # the design's tables
    estimator: Pytree  # what the gradient estimator knows of the data


class GradientEstimator(Protocol[Memory]):
    """The gradient of U = -log posterior, in a chain's coordinates, from one batch. Hashable."""

    @property
    def evaluations(self) -> int:
        """Gradients of each row of a batch that one estimate takes."""
        ...

    def prepare(self, batch: Batch, context: StochasticGradientContext) -> Pytree:
        """Prepare a batch (with its `probability`) as far as it does not depend on the state."""
        ...

    def certain_rows(self, context: StochasticGradientContext) -> int:
        """The number of certainty rows, which every step reads."""
        ...

    def start(self, z: jax.Array, context: StochasticGradientContext) -> Memory:
        """What a chain remembers, before it is first renewed; () for nothing."""
        ...

    def gradient(
        self, z: jax.Array, batch: Pytree, memory: Memory, context: StochasticGradientContext
    ) -> jax.Array:
        """Estimate the gradient of U at z from one prepared batch."""
        ...


# Rows seen through lower bounds -----------------------------------------------------------


class BoundSums(NamedTuple):
    """The lower bounds of all rows, summed about the anchor in whitened coordinates."""

    point: jax.Array  # t*
    factor: jax.Array  # L
    constant: jax.Array
    weight: jax.Array  # the sum of the rows' frequency weights
    value: jax.Array  # of the quadratic at t*, and its derivatives there
    slope: jax.Array
    curvature: jax.Array


class RowBounds(Protocol[Cached]):
    """Rows as FlyMC sees them: dark ones by their bound, bright ones by their ratio to it."""

    def cache(self, batch: Batch, point: jax.Array) -> Cached:
        """Keep what later evaluations about t* need of fresh rows."""
        ...

    def log_ratio(self, cached: Cached, z: jax.Array, sums: Whitening) -> jax.Array:
        """log r_k = log((L_k - B_k) / B_k) of each row at whitened coordinates z."""
        ...

    def log_base(self, z: jax.Array, sums: BoundSums) -> jax.Array:
        """sum_k log B_k over all rows plus the log-prior, at whitened coordinates z."""
        ...

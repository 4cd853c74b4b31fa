"""Protocols of kernels and of the parts that kernels are composed of.

A kernel is one Markov transition, as pure functions of arrays. Moves, estimators and control
variates are protocols; their implementations need not know about kernels. A kernel's constant
inputs form its context, a named tuple of arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import jax

from modicum.kernels.whitening import Whitening
from modicum.linalg.arrow import ArrowMatrix
from modicum.models import Target
from modicum.models.model import Batch
from modicum.models.priors.exact import ExactPrior
from modicum.runtime import Pytree

Draw: TypeAlias = dict[str, jax.Array]  # "position", and one number per statistic
LogDensity: TypeAlias = Callable[[jax.Array], jax.Array]
LogPosterior: TypeAlias = Callable[[jax.Array, Pytree], jax.Array]  # takes t and all rows

State = TypeVar("State")
Context = TypeVar("Context")
Cached = TypeVar("Cached")


# Kernels ----------------------------------------------------------------------------------


class RowRequest(Protocol):
    """A named tuple of the rows to read and of arrays to be passed on together with them.

    An example is `modicum.kernels.designs.Drawn`, whose extra array holds the rows' probabilities.
    """

    @property
    def row_ids(self) -> jax.Array:
        """Numbers of the rows to read."""

    def _asdict(self) -> dict[str, Pytree]: ...


class RowDesign(Protocol):
    """Draws rows at random, as a `Design` does."""

    def draw(self, key: jax.Array, count: int, tables: Pytree) -> RowRequest:
        """Draw `count` rows, or sampling units, with the probabilities in the design's tables."""


def carried_fields(request: RowRequest) -> dict[str, Pytree]:
    """Return the arrays that a request passes on together with its rows."""
    return {name: values for name, values in request._asdict().items() if name != "row_ids"}


class Kernel(ABC, Generic[State, Context]):
    """One Markov chain, as pure functions of arrays.

    Kernels are hashable by value (frozen dataclasses): they are static arguments of the compiled
    runner, while `context` is a traced one. The rows that a step reads and its random numbers
    depend on its keys only, so the runner can fetch and draw them ahead of time. Unless a kernel
    says otherwise, it requests no rows and a step draws its own random numbers.
    """

    def initial_row_request(self, key: jax.Array, context: Context) -> RowRequest | None:
        """Return the rows that `init` reads, or None if it reads none."""
        return None

    def row_request(self, key: jax.Array, context: Context) -> RowRequest | None:
        """Return the rows that the step with this key reads, or None if it reads none."""
        return None

    def prepare(self, batch: Batch, context: Context) -> Pytree:
        """Compute everything about the rows just read that does not depend on the state.

        The runner calls this for many iterations at once.
        """
        return None

    def chances(self, key: jax.Array, context: Context) -> Pytree:
        """Draw the random numbers of a step, or return the key for a step that draws its own.

        The runner calls this for many iterations at once, which is faster than drawing the numbers
        of each in its step.
        """
        return key

    @abstractmethod
    def init(self, key: jax.Array, batch: Pytree, context: Context) -> State:
        """Return the first state; `batch` is the result of `prepare`."""

    @abstractmethod
    def step(
        self, chances: Pytree, state: State, flags: Pytree, batch: Pytree, context: Context
    ) -> tuple[State, Draw]:
        """Return the next state and the draw to record; `flags` belong to this iteration."""


class Settled(Protocol):
    """Runs many iterations of many chains at once, after warm-up. Hashable."""

    @property
    def plain(self) -> Kernel[Pytree, Pytree]:
        """The kernel whose iterations are run."""

    def numbers(self, size: int) -> tuple[int, int]:
        """Floats held per chain with `size` parameters: the constant part, and per iteration."""

    def table(self, rows: Batch, context: Pytree) -> jax.Array:
        """Prepare all rows once, so that iterations need not prepare the rows they request."""

    def of_table(self, table: jax.Array, request: RowRequest) -> jax.Array:
        """Return the requested rows, in the form that `advance` takes, from a table of all rows."""

    def of_prepared(self, prepared: Pytree) -> jax.Array:
        """Convert rows prepared by the plain kernel to the form that `advance` takes."""

    def advance(
        self, keys: jax.Array, state: Pytree, fresh: jax.Array, count: jax.Array, context: Pytree
    ) -> tuple[Pytree, Draw]:
        """Run the first `count` iterations with these keys, (chains, iterations), and fresh rows.

        Return the states, and the draws with leading axes for chains and iterations.
        """


# Moves of the parameters ------------------------------------------------------------------


class Point(NamedTuple):
    """A position with its log-density and gradient, named as in BlackJAX."""

    position: jax.Array
    logdensity: jax.Array
    logdensity_grad: jax.Array
    by_product: Pytree = None  # what else its density computed there


class MoveInfo(NamedTuple):
    """Statistics of a move."""

    acceptance_rate: jax.Array
    diverging: jax.Array
    energy: jax.Array
    n_steps: jax.Array  # gradient evaluations
    reached_max_treedepth: jax.Array


class Move(Protocol):
    """A Markov transition that leaves exp(logdensity) invariant. Hashable."""

    def __call__(
        self,
        key: jax.Array,
        point: Point,
        logdensity: LogDensity,
        step_size: jax.Array,
        inverse_mass: jax.Array,
    ) -> tuple[Point, MoveInfo]:
        """Return the next point."""


# A log-likelihood from a few rows ---------------------------------------------------------


class Bend(NamedTuple):
    """Entries of t along which rows are expanded in a function of t (`expansion`).

    It is a power of e^t; or, for the last entries, the coefficients whose free values are in t.
    """

    where: jax.Array  # indices of the entries
    power: jax.Array  # the power of each of the first; 0: the entry itself
    slope: jax.Array  # gradient of the log-likelihood at t*, in these entries
    curve: jax.Array  # rows of its Hessian for these entries, times L
    block: jax.Array  # its Hessian in these entries alone
    inverse: jax.Array | None = None  # J^-1, with J = dc/dt of the coefficients; None without them
    curved: jax.Array | None = None  # the Hessian of A'c, where A is the gradient in c


class LevelCurves(NamedTuple):
    """Remainders of rows along the direction of their level (`control_variates`)."""

    # sd of each column's coefficient given the others, in eta's unit; 0: it has no curve
    scale: jax.Array
    place: jax.Array  # of each column's curve among the curves
    # How far chains and rows are along the directions, one of unit length per curve: z with
    # whitened coordinates, t - t* with coefficients, and the rows' columns.
    direction: jax.Array
    probe: jax.Array
    lines: jax.Array
    unit: jax.Array  # distance up to which a curve's pieces have about equal lengths
    half: jax.Array  # length of half a curve, in asinh(distance / unit)
    ends: jax.Array  # distances beyond which the curves are constant, (2, curves)
    table: jax.Array  # quintics of the sums over all rows, (curves, pieces, 6)


class Proxy(NamedTuple):
    """The anchor in whitened coordinates: sum q = C + a'z + z'Bz/2, without the constant C."""

    where: Whitening  # t* and L; with an arrow, the sum is in s = t - t*, not in z
    a: jax.Array
    B: jax.Array | ArrowMatrix | None  # None: -I, the result of whitening with the prior
    prior: ExactPrior | None = None  # what is not part of the quadratic
    bend: Bend | None = None  # entries along which rows are expanded in another coordinate
    unit: jax.Array | None = None  # unit of groups' variances (`expansion`)
    levels: LevelCurves | None = None  # of rare levels, and other columns of few rows

    def mapped(self, **maps: Pytree) -> Proxy:
        """Return the same expansion for a chain with other maps, such as `curves`."""
        return self._replace(where=self.where._replace(**maps))


class ControlVariate(Protocol[Cached]):
    """Residuals of rows about the anchor. Hashable."""

    @property
    def target(self) -> Target:
        """The model and its layout."""

    @property
    def fresh_cost(self) -> float:
        """Cost of reading and caching a row, in evaluations of a cached row."""

    def cache(self, batch: Batch, proxy: Proxy) -> Cached:
        """Cache what later evaluations need from fresh rows (with their `probability`)."""

    def values(self, cached: Cached, z: jax.Array, proxy: Proxy) -> jax.Array:
        """D_i = d_i / w_i of each cached row at whitened coordinates z."""

    def log_proxy(self, z: jax.Array, proxy: Proxy) -> jax.Array:
        """sum_k q_k(z) - sum_k l_k(t*) plus the log-prior (up to a constant)."""


def number_of_rows(cached: Pytree) -> int:
    """Return how many rows are cached; 0 for None."""
    leaves = jax.tree.leaves(cached)
    return leaves[0].shape[0] if leaves else 0


# A gradient from a few rows ---------------------------------------------------------------


class StochasticGradientContext(NamedTuple):
    """Constant inputs of a stochastic-gradient kernel, its integrator and gradient estimator."""

    where: Whitening
    start: jax.Array  # where chains begin, in the chain's coordinates
    spread: jax.Array  # chains start at `start` plus this times a standard normal vector
    n: jax.Array  # number of rows
    design: Pytree  # the design's tables
    estimator: Pytree  # what the gradient estimator knows about the data

"""Layout of a row, memory and sizes, shared by both programs of a chain.

Array sizes in a program are powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from modicum.kernels.remainder import TERMS

Ref: TypeAlias = Any  # a reference to memory; JAX has no public name for it
EXTRAS = 16  # room for a row's numbers after its columns: eta, y, scale and seven coefficients
ETA, OUTCOME, SCALE, TAYLOR = 0, 1, 2, 3
FIELDS = TAYLOR + TERMS  # extras in use
STATS = 8  # room for statistics per iteration, of which six are in use
PER_WARP = 2**11  # floats per warp in a program of few threads
PIECE = 32  # columns of a piece, of which a thread reads four at a time
FIELD = 5  # first line of the fields in the scratch memory
PART = FIELD + FIELDS  # first line of the partial sums of a gradient


class Memory(NamedTuple):
    """Inputs of the program of a chain, and its outputs, which are the last four."""

    count: Ref  # number of iterations to run
    pool: Ref
    certain: Ref
    which: Ref  # blocks to be proposed anew
    chance: Ref  # logs of the uniforms that accept these blocks
    momentum: Ref
    accept: Ref  # logs of the uniforms that accept trajectories
    steps: Ref
    drift: Ref  # half the step size, and the coefficients of z and p in a step
    start: Ref  # z
    slope: Ref  # a of the proxy
    positions: Ref
    stats: Ref
    last: Ref  # z
    places: Ref  # which row of the pool each place of the subsample holds

    def record(self, t: jax.Array, *stats: jax.Array) -> None:
        """Store the statistics of iteration t."""
        for k, value in enumerate(stats):
            self.stats[t, k] = value


def load(at: Ref, mask: jax.Array | None = None, other: jax.Array | float = 0) -> jax.Array:
    """Load from memory, and return `other` where the mask is false."""
    read: jax.Array = plgpu.load(at, mask=mask, other=None if mask is None else other)
    return read


def gain_of(before: jax.Array, after: jax.Array) -> jax.Array:
    """Return the energy lost along a trajectory; -inf for NaN, which is never accepted."""
    gain = before - after
    lost = ~(jnp.abs(after) < jnp.inf) | (gain != gain)
    return jnp.where(lost, -jnp.inf, gain)


# Sizes ------------------------------------------------------------------------------------


def at_least(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


def at_most(number: int) -> int:
    """Return the largest power of two that is at most `number`; at least 1."""
    return 1 << max(0, number.bit_length() - 1)


def pieces(size: int) -> tuple[int, ...]:
    """Split `size` columns into powers of two: one, or two if that wastes less.

    Examples
    --------
    >>> pieces(29), pieces(151), pieces(55), pieces(3)
    ((32,), (128, 32), (64,), (16,))
    """
    whole = max(16, at_least(size))
    first = whole // 2
    if size <= 32 or first + max(16, at_least(size - first)) >= whole:
        return (whole,)
    return first, max(16, at_least(size - first))


@dataclass(frozen=True)
class AnyShape:
    """Sizes of a program."""

    subsample: int  # m
    block: int  # rows of a block
    refreshes: int
    ddof: int

    def variance(self, squares: jax.Array) -> jax.Array:
        """sigma-hat^2, from the sum of squares of D about its mean."""
        return squares / (self.subsample * (self.subsample - self.ddof))


@dataclass(frozen=True)
class Shape(AnyShape):
    """Sizes of a program that holds a small subsample, or reads a large one tile by tile."""

    widths: tuple[int, ...]  # widths of the pieces of columns
    certain: int  # certainty rows, padded to whole tiles
    tile: int  # rows of the subsample that are read at a time
    certain_tile: int

    @property
    def width(self) -> int:
        """Columns of a row, including padding."""
        return sum(self.widths)

    @property
    def slices(self) -> list[Any]:  # of Pallas, which has no public type for them
        """Slices of a vector's pieces in memory."""
        return [pl.ds(sum(self.widths[:k]), width) for k, width in enumerate(self.widths)]

    @property
    def certain_places(self) -> int:
        """Certainty rows in memory."""
        return self.certain

    @property
    def scratch(self) -> tuple[int, ...]:
        """Shape of the scratch memory: there is none."""
        return ()

    @property
    def row_lines(self) -> tuple[int, ...]:
        """Shape of the memory for row numbers."""
        return (self.places,)

    @property
    def places(self) -> int:
        """Places of the subsample, a power of two."""
        return at_least(self.subsample)

    @property
    def tiles(self) -> int:
        """Tiles read per evaluation; with 1, the subsample is held in registers."""
        return -(-self.subsample // self.tile)

    @property
    def warps(self) -> int:
        """Warps of a program."""
        held = self.tile * self.width
        return min(8, at_least(-(-held // PER_WARP)))


@dataclass(frozen=True)
class PhasedShape(AnyShape):
    """Sizes of a program that assigns its threads anew in each phase."""

    pieces: int  # number of pieces of columns
    certain: int  # number of certainty rows
    warps: int

    @property
    def width(self) -> int:
        """Columns of a row, including padding."""
        return self.pieces * PIECE

    @property
    def group(self) -> int:
        """Rows whose pieces all threads together hold, one piece of each."""
        return 128 * self.warps // PIECE

    @property
    def places(self) -> int:
        """Places of the subsample; those beyond m are ignored."""
        return max(self.group, at_least(self.subsample))

    @property
    def certain_tile(self) -> int:
        """Certainty rows that are read at a time."""
        return min(4 * self.group, max(self.group, at_least(self.certain)))

    @property
    def certain_places(self) -> int:
        """Certainty rows in memory, including padding of the last tile."""
        return -(-self.certain // self.certain_tile) * self.certain_tile

    @property
    def fresh(self) -> int:
        """Fresh rows that an iteration proposes."""
        return self.refreshes * self.block

    @property
    def rows(self) -> int:
        """Rows of an evaluation: subsample, certainty rows, fresh rows, and padding."""
        return max(32 * self.warps, at_least(self.subsample + self.certain + self.fresh))

    @property
    def vector(self) -> int:
        """Length of a vector of parameters, including padding."""
        return max(32 * self.warps, at_least(self.width))

    @property
    def row_lines(self) -> tuple[int, ...]:
        """Shape of the memory for row numbers: the rows that places hold, and are to take."""
        return 2, self.rows

    @property
    def scratch(self) -> tuple[int, ...]:
        """Shape of the scratch memory: number of lines, and length of a line."""
        return PART + self.group, max(self.rows, self.vector)

"""What programs of a chain share: numbers kept of a row, memory that is read and written, sizes.

Arrays of a program have sizes that are powers of two.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

import jax

__all__ = [
    "ETA",
    "EXTRAS",
    "FIELD",
    "FIELDS",
    "OUTCOME",
    "PART",
    "PIECE",
    "SCALE",
    "STATS",
    "TAYLOR",
    "TERMS",
    "Memory",
    "PhasedShape",
    "Ref",
    "RowResidual",
    "Shape",
    "at_least",
    "at_most",
    "pieces",
]

Ref: TypeAlias = Any  # memory of a program; JAX has no public name for it
EXTRAS = 16  # numbers kept of a row beside its columns: eta, y, scale and seven coefficients
ETA, OUTCOME, SCALE, TAYLOR = 0, 1, 2, 3
TERMS = 7
FIELDS = TAYLOR + TERMS  # those that are in use
STATS = 8  # numbers stored per iteration, of which six are in use
PER_WARP = 2**11  # numbers that 32 threads hold
PIECE = 32  # columns of a piece, of which a thread reads four at a time
FIELD = 5  # lines of a scratch before those of fields
PART = FIELD + FIELDS  # and before parts of a gradient


class RowResidual(Protocol):
    """What a control variate leaves over of rows that enter through one linear predictor."""

    def residual(
        self, e: jax.Array, eta: jax.Array, y: jax.Array, taylor: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """The residual at eta + e and its slope in e, elementwise."""
        ...


class Memory(NamedTuple):
    """What the program of a chain reads, and the last four that it writes."""

    count: Ref  # iterations to be made
    pool: Ref
    certain: Ref
    which: Ref  # blocks to be proposed anew
    chance: Ref  # logs of the uniform numbers that decide about them
    momentum: Ref
    accept: Ref  # logs of the uniform numbers that decide about trajectories
    steps: Ref
    drift: Ref  # of a step: half its length, and the numbers by which z and p move
    start: Ref  # z
    slope: Ref  # a of the proxy
    positions: Ref
    stats: Ref
    last: Ref  # z
    places: Ref  # which row of the pool each place of the subsample holds


# Sizes ------------------------------------------------------------------------------------


def at_least(number: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


def at_most(number: int) -> int:
    """The largest power of two that is not larger, and 1 at least."""
    return 1 << max(0, number.bit_length() - 1)


def pieces(size: int) -> tuple[int, ...]:
    """Powers of two that hold `size` columns: one, or two where that wastes less.

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


class Shape(NamedTuple):
    """Sizes of a program that holds a small subsample, and reads a large one tile by tile."""

    subsample: int  # m
    block: int  # rows of a block
    refreshes: int
    ddof: int
    widths: tuple[int, ...]  # of the pieces of columns
    certain: int  # certain rows, padded to whole tiles
    tile: int  # rows of the subsample that are read at a time
    certain_tile: int

    @property
    def width(self) -> int:
        """Columns, with those that fill the pieces."""
        return sum(self.widths)

    @property
    def certain_places(self) -> int:
        """Certain rows in memory."""
        return self.certain

    @property
    def row_lines(self) -> tuple[int, ...]:
        """Of the memory for numbers of rows."""
        return (self.places,)

    @property
    def places(self) -> int:
        """Places of the subsample, a power of two."""
        return at_least(self.subsample)

    @property
    def tiles(self) -> int:
        """Times rows are read for one evaluation; 1: they are held."""
        return -(-self.subsample // self.tile)

    @property
    def warps(self) -> int:
        """Threads of a program, in units of 32."""
        held = self.tile * sum(self.widths)
        return min(8, at_least(-(-held // PER_WARP)))


class PhasedShape(NamedTuple):
    """Sizes of a program whose threads are dealt out anew from phase to phase."""

    subsample: int  # m
    block: int  # rows of a block
    refreshes: int
    ddof: int
    pieces: int  # of columns
    certain: int  # certain rows
    warps: int  # threads, in units of 32

    @property
    def width(self) -> int:
        """Columns, with those that fill the last piece."""
        return self.pieces * PIECE

    @property
    def group(self) -> int:
        """Rows of which all threads together hold one piece."""
        return 128 * self.warps // PIECE

    @property
    def places(self) -> int:
        """Places of the subsample, of which those beyond m count for nothing."""
        return max(self.group, at_least(self.subsample))

    @property
    def certain_tile(self) -> int:
        """Certain rows that are read at a time."""
        return min(4 * self.group, max(self.group, at_least(self.certain)))

    @property
    def certain_places(self) -> int:
        """Certain rows in memory, with those that fill the last tile."""
        return -(-self.certain // self.certain_tile) * self.certain_tile

    @property
    def fresh(self) -> int:
        """Rows that an iteration proposes."""
        return self.refreshes * self.block

    @property
    def rows(self) -> int:
        """Rows of an evaluation: those of the subsample, then certain ones, then fresh ones."""
        return max(32 * self.warps, at_least(self.subsample + self.certain + self.fresh))

    @property
    def vector(self) -> int:
        """Numbers of a vector of parameters."""
        return max(32 * self.warps, at_least(self.width))

    @property
    def row_lines(self) -> tuple[int, ...]:
        """Of the memory for numbers of rows: those of places, and the fresh ones that they take."""
        return 2, self.rows

    @property
    def scratch(self) -> tuple[int, int]:
        """Lines of what threads write for each other, and numbers of a line."""
        return PART + self.group, max(self.rows, self.vector)

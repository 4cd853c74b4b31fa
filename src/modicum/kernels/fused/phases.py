"""The phases of an evaluation, each with its own assignment of threads.

The phases are: predictors of rows (eight threads per row), residuals (one thread per row), the
gradient (as in the first phase), and vectors of parameters (one thread per parameter). Results pass
from one phase to the next through scratch memory, which stays in the cache. So nothing is held or
computed redundantly by many threads, and registers remain free for rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton as plgpu

from modicum.kernels.fused.sizes import (
    ETA,
    FIELD,
    FIELDS,
    OUTCOME,
    PART,
    PIECE,
    SCALE,
    TAYLOR,
    TERMS,
    Memory,
    PhasedShape,
    Ref,
    RowResidual,
    at_least,
)
from modicum.runtime import Pytree

Z, PREDICTOR, WEIGHT, VALUE, SLOPE = range(FIELD)  # the first lines of the scratch memory
Columns: TypeAlias = tuple[jax.Array, ...]  # columns of some rows, piece by piece
Number: TypeAlias = jax.Array | int
# processes a tile: its columns, its place in a line, its number of valid rows, and a carry
Body: TypeAlias = Callable[[Columns, Number, Number, Pytree], Pytree]


class Residuals(NamedTuple):
    """D of every row at some z, its slope in the predictor, and the mean over the subsample."""

    values: jax.Array
    slopes: jax.Array
    mean: jax.Array


class Sums(NamedTuple):
    """The sums in the log-density, without the proxy."""

    mean: jax.Array  # of D over the subsample
    squares: jax.Array  # sum of squares about the mean
    certain: jax.Array | None  # sum over the certainty rows, if there are any


def load(at: Ref, mask: jax.Array | None = None, other: Number | float = 0) -> jax.Array:
    """Load from memory, and return `other` where the mask is false."""
    read: jax.Array = plgpu.load(at, mask=mask, other=None if mask is None else other)
    return read


def numbered(ref: Ref, *at: Number) -> Ref:
    """Refer to part of a line by indices, since a slice must not reach beyond its end."""
    *lines, inside = at
    assert isinstance(inside, jax.Array)
    return ref.at[(*(jnp.full(inside.shape, line, jnp.int32) for line in lines), inside)]


def piece_of(ref: Ref, row_ids: jax.Array, j: int) -> Ref:
    """Refer to the j-th piece of some rows."""
    return ref.at[row_ids[:, None], j * PIECE + jnp.arange(PIECE, dtype=jnp.int32)[None, :]]


@dataclass(frozen=True)
class Phases:
    """The evaluations in the program of one chain.

    Parameters
    ----------
    residuals, shape
        The residual of a row, and the sizes of the program.
    memory, fields, scratch
        The memory to read and write; `fields` has one line per field (a row's numbers other than
        its columns), for the rows of the subsample and the certainty rows.
    zero
        The number 0, read from memory at the start of each loop. If the compiler knew its value, it
        would keep a hundred constant addresses in registers, which rows need.
    interpret
        Whether the program is interpreted, without threads.
    """

    residuals: RowResidual
    shape: PhasedShape
    memory: Memory
    fields: Ref
    scratch: Ref
    zero: Number
    interpret: bool

    # Memory -------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until all threads of the program have arrived here."""
        if not self.interpret:
            plgpu.debug_barrier()

    def line(self, number: int, inside: jax.Array) -> Ref:
        """Refer to part of a line of the scratch memory."""
        return numbered(self.scratch, number + self.zero, inside)

    def put(
        self, number: int, values: jax.Array, first: Number = 0, count: Number | None = None
    ) -> None:
        """Write part of a line, or only the first `count` values."""
        inside = jnp.arange(len(values), dtype=jnp.int32)
        mask = None if count is None else inside < count
        plgpu.store(self.line(number, first + inside), values, mask=mask)

    def get(
        self, number: int, size: int, first: Number = 0, count: Number | None = None
    ) -> jax.Array:
        """Read part of a line, with zeros from `count` on."""
        inside = jnp.arange(size, dtype=jnp.int32)
        mask = None if count is None else inside < count
        return load(self.line(number, first + inside), mask, 0.0)

    def vector(self, ref: Ref, *at: jax.Array) -> jax.Array:
        """Read a vector of parameters."""
        inside = jnp.arange(self.shape.vector, dtype=jnp.int32)
        return load(numbered(ref, *at, inside), inside < self.shape.width, 0.0)

    def write_vector(self, ref: Ref, values: jax.Array, *at: jax.Array) -> None:
        """Write a vector of parameters."""
        inside = jnp.arange(self.shape.vector, dtype=jnp.int32)
        plgpu.store(numbered(ref, *at, inside), values, mask=inside < self.shape.width)

    def copy_fields(
        self, source: Callable[[int], Ref], to: jax.Array, mask: jax.Array | None = None
    ) -> None:
        """Copy all fields of some rows to the scratch memory; `source` maps a field's number."""
        for k in range(FIELDS):
            plgpu.store(self.line(FIELD + k, to), load(source(k), mask, 0.0), mask=mask)

    def read(self, ref: Ref, row_ids: jax.Array) -> Columns:
        """Read the columns of the given rows."""
        return tuple(load(piece_of(ref, row_ids, j)) for j in range(self.shape.pieces))

    def row_ids(self, line: int) -> jax.Array:
        """Read the rows that the places hold (line 0), or are to take (line 1)."""
        inside = jnp.arange(self.shape.places, dtype=jnp.int32)
        at = jnp.minimum(inside, self.shape.subsample - 1)
        return load(numbered(self.memory.places, line + self.zero, at))

    # Tiles of rows ------------------------------------------------------------------------

    def through_tiles(self, columns: Columns, body: Body, carry: Pytree) -> Pytree:
        """Call `body` for the subsample, and then for each tile of certainty rows."""
        shape = self.shape

        def certain(k: Number, carry: Pytree) -> Pytree:
            first = k * shape.certain_tile
            row_ids = self.zero + first + jnp.arange(shape.certain_tile, dtype=jnp.int32)
            read = self.read(self.memory.certain, row_ids)
            return body(read, shape.subsample + first, shape.certain - first, carry)

        carry = body(columns, 0, shape.subsample, carry)
        tiles = shape.certain_places // shape.certain_tile
        if tiles <= 1:
            return certain(0, carry) if tiles else carry
        return jax.lax.fori_loop(jnp.int32(0), jnp.int32(tiles), certain, carry)

    def predict(self, z: jax.Array, columns: Columns, fresh: jax.Array, is_start: Number) -> None:
        """Write all predictors relative to the anchor, including those of fresh rows at a start."""
        shape = self.shape
        self.put(Z, z)
        self.wait()
        pieces = tuple(self.get(Z, PIECE, j * PIECE) for j in range(shape.pieces))

        def body(read: Columns, first: Number, count: Number, carry: Pytree) -> Pytree:
            products = [x * piece[None, :] for x, piece in zip(read, pieces, strict=True)]
            predictors = jnp.sum(sum(products[1:], start=products[0]), axis=1)
            self.put(PREDICTOR, predictors, first, count)
            return carry

        def of_fresh() -> Pytree:
            inside = jnp.arange(max(shape.group, at_least(shape.fresh)), dtype=jnp.int32)
            read = self.read(self.memory.pool, fresh + jnp.minimum(inside, shape.fresh - 1))
            return body(read, shape.subsample + shape.certain, shape.fresh, ())

        self.through_tiles(columns, body, ())
        jax.lax.cond(is_start, of_fresh, lambda: ())
        self.wait()

    def weighted_sum(self, columns: Columns) -> jax.Array:
        """Sum all rows times their weights, which are in the scratch memory."""
        shape = self.shape

        def body(read: Columns, first: Number, count: Number, total: Columns) -> Columns:
            weight = self.get(WEIGHT, len(read[0]), first, count)
            products = (x * weight[:, None] for x in read)
            # each thread sums over its own rows, so that nothing is exchanged
            sums = (jnp.sum(x.reshape(-1, shape.group, PIECE), axis=0) for x in products)
            return tuple(x + y for x, y in zip(total, sums, strict=True))

        nothing = (jnp.zeros((shape.group, PIECE), jnp.float32),) * shape.pieces
        lines = self.zero + PART + jnp.arange(shape.group, dtype=jnp.int32)[:, None]
        for j, part in enumerate(self.through_tiles(columns, body, nothing)):
            at = j * PIECE + jnp.arange(PIECE, dtype=jnp.int32)[None, :]
            plgpu.store(self.scratch.at[lines, at], part)
        self.wait()
        inside = jnp.arange(shape.vector, dtype=jnp.int32)[None, :]
        mask = jnp.broadcast_to(inside < shape.width, (shape.group, shape.vector))
        return jnp.sum(load(self.scratch.at[lines, inside], mask, 0.0), axis=0)

    # Residuals ----------------------------------------------------------------------------

    @property
    def inside(self) -> jax.Array:
        """Numbers of all rows of an evaluation."""
        return jnp.arange(self.shape.rows, dtype=jnp.int32)

    @property
    def sampled(self) -> jax.Array:
        """Which rows of an evaluation belong to the subsample."""
        return self.inside < self.shape.subsample

    def evaluate(
        self, z: jax.Array, columns: Columns, fresh: jax.Array, is_start: Number
    ) -> Residuals:
        """Evaluate all residuals at z, at a start including the rows that begin at `fresh`."""
        shape = self.shape
        self.predict(z, columns, fresh, is_start)
        e = self.get(PREDICTOR, shape.rows, 0, shape.subsample + shape.certain + shape.fresh)
        fields = [self.get(FIELD + k, shape.rows) for k in range(FIELDS)]
        taylor = tuple(fields[TAYLOR : TAYLOR + TERMS])
        value, slope = self.residuals.residual(e, fields[ETA], fields[OUTCOME], taylor)
        value, slope = fields[SCALE] * value, fields[SCALE] * slope
        mean = jnp.sum(jnp.where(self.sampled, value, 0.0)) / shape.subsample
        return Residuals(value, slope, mean)

    def sums(self, known: Residuals) -> Sums:
        """Return the sums in the log-density."""
        off = jnp.where(self.sampled, known.values - known.mean, 0.0)
        certain = None
        if self.shape.certain:
            end = self.shape.subsample + self.shape.certain
            is_certain = ~self.sampled & (self.inside < end)
            certain = jnp.sum(jnp.where(is_certain, known.values, 0.0))
        return Sums(known.mean, jnp.sum(off * off), certain)

    def variance(self, squares: jax.Array) -> jax.Array:
        """sigma-hat^2."""
        m = self.shape.subsample
        return squares / (m * (m - self.shape.ddof))

    def log_of(self, sums: Sums) -> jax.Array:
        """dhat - sigma-hat^2 / 2 (eqs. 4.2 and 4.3), plus the sum over the certainty rows."""
        log = sums.mean - 0.5 * self.variance(sums.squares)
        return log if sums.certain is None else log + sums.certain

    def slope_of(self, known: Residuals, columns: Columns) -> jax.Array:
        """Gradient of `log_of`."""
        m = self.shape.subsample
        share = (1 - (known.values - known.mean) / (m - self.shape.ddof)) / m
        self.put(WEIGHT, jnp.where(self.sampled, share * known.slopes, known.slopes))
        self.wait()
        return self.weighted_sum(columns)

"""One chain as a program of many threads, for a subsample that few threads cannot hold.

Rows lie in a pool as in `few_threads`. They stay in registers from one iteration to the next, and
an iteration reads only the rows that it replaces. All rows, including the fresh ones, are evaluated
anew at the start of a trajectory: that costs less than keeping residuals, and it leaves one place
in the code where rows are evaluated, which determines the compile time.

An evaluation has phases, each with its own assignment of threads: predictors of rows (eight threads
per row), residuals (one thread per row), the gradient (as in the first phase), and vectors of
parameters (one thread per parameter). Results pass from one phase to the next through scratch
memory, which stays in the cache. So nothing is held or computed redundantly by many threads, and
registers remain free for rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton as plgpu

from modicum.kernels.control_variates import LinearTaylor
from modicum.kernels.fused.sizes import (
    FIELD,
    FIELDS,
    PART,
    PIECE,
    Memory,
    PhasedShape,
    Ref,
    at_least,
    gain_of,
    load,
)
from modicum.kernels.remainder import About
from modicum.runtime import Pytree

Z, PREDICTOR, WEIGHT, VALUE, SLOPE = range(FIELD)  # the first lines of the scratch memory
Columns: TypeAlias = tuple[jax.Array, ...]  # columns of some rows, piece by piece
Number: TypeAlias = jax.Array | int
# processes a tile: its columns, its place in a line, its number of valid rows, and a carry
Body: TypeAlias = Callable[[Columns, Number, Number, Pytree], Pytree]


class Known(NamedTuple):
    """D of every row at some z, its slope in the predictor, and the mean over the subsample."""

    values: jax.Array
    slopes: jax.Array
    mean: jax.Array


class DensitySums(NamedTuple):
    """The sums in the log-density, without the proxy."""

    mean: jax.Array  # of D over the subsample
    squares: jax.Array  # sum of squares about the mean
    certain: jax.Array | None  # sum over the certainty rows, if there are any


class Travel(NamedTuple):
    """State of a trajectory."""

    z: jax.Array
    p: jax.Array
    columns: Columns
    start: DensitySums  # at the start of the trajectory, after the refresh
    here: Known
    accepted: jax.Array  # number of blocks


class Iteration(NamedTuple):
    """Constants of an iteration."""

    t: jax.Array  # its number
    fresh: jax.Array  # where its fresh rows begin in the pool
    steps: jax.Array
    a: jax.Array  # gradient of the proxy at the anchor
    drift: tuple[jax.Array, ...]  # half the step size, and the coefficients of z and p in a step


def numbered(ref: Ref, *at: Number) -> Ref:
    """Refer to part of a line by indices, since a slice must not reach beyond its end."""
    *lines, inside = at
    assert isinstance(inside, jax.Array)
    return ref.at[(*(jnp.full(inside.shape, line, jnp.int32) for line in lines), inside)]


def piece_of(ref: Ref, row_ids: jax.Array, j: int) -> Ref:
    """Refer to the j-th piece of some rows."""
    return ref.at[row_ids[:, None], j * PIECE + jnp.arange(PIECE, dtype=jnp.int32)[None, :]]


@dataclass(frozen=True)
class ManyThreads:
    """The program of one chain.

    Parameters
    ----------
    residuals, shape, split, interpret
        The residual of a row, the sizes, whether the integrator is split, and whether the program
        is interpreted, without threads.
    memory, fields, scratch
        The memory to read and write; `fields` has one line per field (a row's numbers other than
        its columns), for the rows of the subsample and the certainty rows.
    zero
        The number 0, read from memory at the start of each loop. If the compiler knew its value, it
        would keep a hundred constant addresses in registers, which rows need.
    """

    residuals: LinearTaylor
    shape: PhasedShape
    split: bool
    interpret: bool
    memory: Memory
    fields: Ref
    scratch: Ref
    zero: Number = 0

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

    def evaluate(self, z: jax.Array, columns: Columns, fresh: jax.Array, is_start: Number) -> Known:
        """Evaluate all residuals at z, at a start including the rows that begin at `fresh`."""
        shape = self.shape
        self.predict(z, columns, fresh, is_start)
        e = self.get(PREDICTOR, shape.rows, 0, shape.subsample + shape.certain + shape.fresh)
        eta, y, scale, *taylor = (self.get(FIELD + k, shape.rows) for k in range(FIELDS))
        value, slope = self.residuals.residual(e, About(eta, y, tuple(taylor)))
        value, slope = scale * value, scale * slope
        mean = jnp.sum(jnp.where(self.sampled, value, 0.0)) / shape.subsample
        return Known(value, slope, mean)

    def sums(self, known: Known) -> DensitySums:
        """Return the sums in the log-density."""
        off = jnp.where(self.sampled, known.values - known.mean, 0.0)
        certain = None
        if self.shape.certain:
            end = self.shape.subsample + self.shape.certain
            is_certain = ~self.sampled & (self.inside < end)
            certain = jnp.sum(jnp.where(is_certain, known.values, 0.0))
        return DensitySums(known.mean, jnp.sum(off * off), certain)

    def log_of(self, sums: DensitySums) -> jax.Array:
        """dhat - sigma-hat^2 / 2 (eqs. 4.2 and 4.3), plus the sum over the certainty rows."""
        log = sums.mean - 0.5 * self.shape.variance(sums.squares)
        return log if sums.certain is None else log + sums.certain

    def slope_of(self, known: Known, columns: Columns) -> jax.Array:
        """Gradient of `log_of`."""
        m = self.shape.subsample
        share = (1 - (known.values - known.mean) / (m - self.shape.ddof)) / m
        self.put(WEIGHT, jnp.where(self.sampled, share * known.slopes, known.slopes))
        self.wait()
        return self.weighted_sum(columns)

    def with_fresh_zero(self) -> ManyThreads:
        """Read `zero` from memory again, at the start of a loop body."""
        return replace(self, zero=self.memory.count[1])

    # The refresh --------------------------------------------------------------------------

    def refresh(
        self, now: Iteration, known: Known, columns: Columns
    ) -> tuple[Known, Columns, DensitySums, jax.Array]:
        """Propose K blocks one after the other, each accepted by eq. 3.5.

        Return the resulting residuals at z, columns and sums, and the number of blocks accepted.
        """
        memory, shape = self.memory, self.shape
        self.put(VALUE, known.values)
        self.put(SLOPE, known.slopes)
        self.wait()
        chosen, sums, accepted = self.choose(now.t, self.sums(known))
        to_take = numbered(memory.places, 1 + self.zero, self.inside)
        plgpu.store(to_take, chosen)
        self.wait()
        chosen = load(to_take)  # written by other threads
        new, at = chosen >= 0, shape.subsample + shape.certain + jnp.maximum(chosen, 0)
        values = load(self.line(VALUE, at), new, known.values)
        slopes = load(self.line(SLOPE, at), new, known.slopes)
        self.copy_fields(lambda k: self.line(FIELD + k, at), self.inside, new)
        holds = numbered(memory.places, self.zero, self.inside)
        plgpu.store(holds, now.fresh + chosen, mask=new)
        chosen = self.row_ids(1)
        new, row_ids = (chosen >= 0)[:, None], now.fresh + jnp.maximum(chosen, 0)
        columns = tuple(
            load(piece_of(memory.pool, row_ids, j), jnp.broadcast_to(new, old.shape), old)
            for j, old in enumerate(columns)
        )
        return Known(values, slopes, sums.mean), columns, sums, accepted

    def choose(self, t: jax.Array, now: DensitySums) -> tuple[jax.Array, DensitySums, jax.Array]:
        """Return which fresh row each place takes (-1: none), the new sums, and blocks accepted.

        A block changes the sums of D and of D squared, both about the old mean.
        """
        memory = self.memory
        m, b, K = self.shape.subsample, self.shape.block, self.shape.refreshes
        k = jnp.arange(at_least(K), dtype=jnp.int32)
        which = load(numbered(memory.which, t, k), k < K, -1)
        new = self.block_sums(m + self.shape.certain + k * b, k < K, now.mean)

        def log_of(first: jax.Array, second: jax.Array) -> jax.Array:
            return first / m - 0.5 * self.shape.variance(second - first * first / m)

        def propose(turn: jax.Array, carry: Pytree) -> Pytree:
            total, old, taken = carry
            here = k == turn
            came, went = ([jnp.sum(jnp.where(here, x, 0.0)) for x in xs] for xs in (new, old))
            then = tuple(x + y - z for x, y, z in zip(total, came, went, strict=True))
            accepted = memory.chance[t, turn] < log_of(*then) - log_of(*total)
            same = accepted & (which == memory.which[t, turn])  # a block may be proposed twice
            old = tuple(jnp.where(same, x, y) for x, y in zip(came, old, strict=True))
            total = tuple(jnp.where(accepted, x, y) for x, y in zip(then, total, strict=True))
            return total, old, jnp.where(here & accepted, 1, taken)

        old = self.block_sums(which * b, k < K, now.mean)
        start = (jnp.float32(0), now.squares), old, jnp.zeros(len(k), jnp.int32)
        total, _, taken = jax.lax.fori_loop(jnp.int32(0), jnp.int32(K), propose, start)
        first, second = total
        block, place = (f(self.inside, jnp.int32(b)) for f in (jax.lax.div, jax.lax.rem))
        hit = block[:, None] == jnp.where(taken > 0, which, -1)[None, :]
        latest = jnp.max(jnp.where(hit, k[None, :], -1), axis=1)  # the last acceptance wins
        chosen = jnp.where(latest >= 0, latest * b + place, -1)
        squares = jnp.maximum(second - first * first / m, 0.0)
        then = now._replace(mean=now.mean + first / m, squares=squares)
        return chosen, then, jnp.sum(taken, dtype=jnp.int32).astype(jnp.float32)

    def block_sums(
        self, first: jax.Array, live: jax.Array, mean: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Sum D and its squares, both about `mean`, over the blocks that begin at `first`."""
        b = self.shape.block
        inside = jnp.arange(at_least(b), dtype=jnp.int32)
        mask = live[:, None] & (inside < b)[None, :]
        values = load(self.line(VALUE, first[:, None] + inside[None, :]), mask, 0.0)
        off = jnp.where(mask, values - mean, 0.0)
        return jnp.sum(off, axis=1), jnp.sum(off * off, axis=1)

    # The trajectory -----------------------------------------------------------------------

    def step(self, s: jax.Array, now: Iteration, path: Travel) -> Travel:
        """Evaluate a point of the trajectory, refresh rows if it is the first, and move on."""
        known = self.evaluate(path.z, path.columns, now.fresh, s == 0)
        known, columns, start, accepted = jax.lax.cond(
            s == 0,
            lambda: self.refresh(now, known, path.columns),
            lambda: (known, path.columns, path.start, path.accepted),
        )
        force = self.slope_of(known, columns) + now.a
        if not self.split:
            force -= path.z
        half, keep, move, turn = now.drift
        p = path.p + half * force  # at the start the first half of a kick, later the second half
        kicked = p + jnp.where(s > 0, half, 0.0) * force
        z, q = keep * path.z + move * kicked, keep * kicked - turn * path.z
        is_end = s == now.steps
        z, q = jnp.where(is_end, path.z, z), jnp.where(is_end, p, q)
        return Travel(z, q, columns, start, known, accepted)

    def iterate(self, t: jax.Array, carry: Pytree) -> Pytree:
        """Refresh the subsample, follow a trajectory, accept or reject its end, and store it."""
        start, quadratic, columns = carry
        memory = self.memory
        p, a = self.vector(memory.momentum, t), self.vector(memory.slope)
        drift = tuple(memory.drift[t, k] for k in range(4))
        fresh = self.shape.subsample + t * self.shape.fresh
        now = Iteration(t, fresh, memory.steps[t], a, drift)
        self.copy_fresh_fields(fresh)
        zero, rows = jnp.float32(0), jnp.zeros(self.shape.rows, jnp.float32)
        sums = DensitySums(zero, zero, zero if self.shape.certain else None)
        path = Travel(start, p, columns, sums, Known(rows, rows, zero), zero)
        end = jax.lax.fori_loop(
            jnp.int32(0),
            now.steps + 1,
            lambda s, path: self.with_fresh_zero().step(s, now, path),
            path,
        )
        here, there = self.sums(end.here), _quadratic(end.z, a)
        log, log_there = self.log_of(end.start) + quadratic, self.log_of(here) + there
        energy = 0.5 * jnp.sum(end.p * end.p) - log_there
        gain = gain_of(0.5 * jnp.sum(p * p) - log, energy)
        taken = memory.accept[t] < gain
        z, quadratic, log, sums = jax.tree.map(
            lambda x, y: jnp.where(taken, x, y),
            (end.z, there, log_there, here),
            (start, quadratic, log, end.start),
        )
        self.write_vector(memory.positions, z, t)
        variance = self.shape.variance(sums.squares)
        memory.record(t, log, end.accepted, sums.mean, variance, gain, energy)
        return z, quadratic, end.columns

    def copy_fresh_fields(self, fresh: jax.Array) -> None:
        """Append the fields of the fresh rows to the fields of all other rows."""
        shape, pool = self.shape, self.memory.pool
        inside = jnp.arange(at_least(shape.fresh), dtype=jnp.int32)
        row_ids = fresh + jnp.minimum(inside, shape.fresh - 1)

        def field(k: int) -> Ref:
            return pool.at[row_ids, jnp.full(row_ids.shape, shape.width + k, jnp.int32)]

        to = shape.subsample + shape.certain + inside
        self.copy_fields(field, to, inside < shape.fresh)

    def begin(self) -> Pytree:
        """Return the start of the first iteration: z, the proxy there, and columns."""
        memory = self.memory
        plgpu.store(numbered(memory.places, 0, self.inside), self.inside)
        self.copy_fields(lambda k: numbered(self.fields, k, self.inside), self.inside)
        self.wait()
        columns = self.read(memory.pool, self.row_ids(0))
        z = self.vector(memory.start)
        return z, _quadratic(z, self.vector(memory.slope)), columns


def _quadratic(z: jax.Array, a: jax.Array) -> jax.Array:
    """Evaluate the proxy at z, up to a constant."""
    return jnp.sum(z * (a - 0.5 * z))


def run(
    residuals: LinearTaylor, shape: PhasedShape, split: bool, interpret: bool, *refs: Ref
) -> None:
    """Run all iterations of one chain; `refs` are those of `Memory`, the fields and scratch."""
    *others, scratch = refs
    inputs, (fields, *outputs) = others[:-5], others[-5:]
    memory = Memory(*inputs, *outputs)
    chain = ManyThreads(residuals, shape, split, interpret, memory, fields, scratch)
    z, _, _ = jax.lax.fori_loop(
        jnp.int32(0),
        memory.count[0],
        lambda t, carry: chain.with_fresh_zero().iterate(t, carry),
        chain.begin(),
    )
    chain.write_vector(memory.last, z)

"""One chain as a GPU program: many iterations of HMC-ECS over a pool of rows.

Each chain has one pool with the rows of all iterations: first the m of the subsample, then the
fresh ones. Rows are only ever read; what changes is which row of the pool each place of the
subsample holds. If the m rows of d numbers fit into registers, they stay there, and an iteration
reads only the rows that it replaces; otherwise every evaluation reads all rows, tile by tile. Array
sizes in a program are powers of two: columns are split into at most two such pieces, and places
beyond m are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from modicum.kernels.control_variates import LinearTaylor
from modicum.kernels.expansion import TERMS, About
from modicum.runtime import Pytree

Ref: TypeAlias = Any  # a reference to memory; JAX has no public name for it
Vector: TypeAlias = tuple[jax.Array, ...]  # a vector of d numbers, piece by piece
EXTRAS = 16  # room for a row's numbers after its columns: eta, y, scale and seven coefficients
ETA, OUTCOME, SCALE, TAYLOR = 0, 1, 2, 3
FIELDS = TAYLOR + TERMS  # extras in use
STATS = 8  # room for statistics per iteration, of which six are in use
PER_WARP = 2**11  # floats per warp


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
class Shape:
    """Sizes of a program, which holds a small subsample, or reads a large one tile by tile."""

    subsample: int  # m
    block: int  # rows of a block
    refreshes: int
    ddof: int
    widths: tuple[int, ...]  # widths of the pieces of columns
    certain: int  # certainty rows, padded to whole tiles
    tile: int  # rows of the subsample that are read at a time
    certain_tile: int

    def variance(self, squares: jax.Array) -> jax.Array:
        """sigma-hat^2, from the sum of squares of D about its mean."""
        return squares / (self.subsample * (self.subsample - self.ddof))

    @property
    def width(self) -> int:
        """Columns of a row, including padding."""
        return sum(self.widths)

    @property
    def slices(self) -> list[Any]:  # of Pallas, which has no public type for them
        """Slices of a vector's pieces in memory."""
        return [pl.ds(sum(self.widths[:k]), width) for k, width in enumerate(self.widths)]

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


# The program ------------------------------------------------------------------------------


class Estimated(NamedTuple):
    """Mean and sum of squares of D over the subsample at some z, and their gradients."""

    mean: jax.Array
    squares: jax.Array  # about the mean
    plain: Vector  # sum of the gradients of D
    moved: Vector  # sum of the gradients of D times D - mean


class Certain(NamedTuple):
    """The sum of the residuals of certainty rows at some z, and its gradient."""

    total: jax.Array
    gradient: Vector


class Held(NamedTuple):
    """D of each row at some z, and its slope in the predictor."""

    values: jax.Array
    slopes: jax.Array


class Here(NamedTuple):
    """A point of a trajectory, and everything known there."""

    z: Vector
    estimated: Estimated
    certain: Certain | None
    held: Held | None  # of the subsample, if it is in registers


class RegisterRows(NamedTuple):
    """Rows in registers."""

    columns: Vector  # (rows, width) each
    fields: tuple[jax.Array, ...]  # a row's other numbers


class Subsample(NamedTuple):
    """Which row of the pool each place holds, and the rows themselves if they fit."""

    row_ids: jax.Array
    rows: RegisterRows | None


def _dot(a: Vector, b: Vector) -> jax.Array:
    return sum((jnp.sum(x * y) for x, y in zip(a, b, strict=True)), start=jnp.float32(0))


def _plus(a: Vector, step: jax.Array | float, b: Vector) -> Vector:
    """a + step b."""
    return tuple(x + step * y for x, y in zip(a, b, strict=True))


def _weighted_sum(rows: RegisterRows, weight: jax.Array) -> Vector:
    """Sum the rows times their weights."""
    return tuple(jnp.sum(x * weight[:, None], axis=0) for x in rows.columns)


def _placed(new: jax.Array, old: jax.Array, chosen: jax.Array) -> jax.Array:
    """Replace the values of the places that are `chosen`, (places, block), by those of a block."""
    here = jnp.sum(jnp.where(chosen, new[None, :], 0.0), axis=1)
    return jnp.where(jnp.sum(chosen, axis=1, dtype=jnp.int32) > 0, here, old)


@dataclass(frozen=True)
class Chain:
    """The program of one chain.

    Parameters
    ----------
    residuals, shape, split, interpret
        The residual of a row, the sizes, whether the integrator is split, and whether the program
        is interpreted, without threads.
    memory
        The memory to read and write.
    a
        The gradient of the proxy at the anchor.
    """

    residuals: LinearTaylor
    shape: Shape
    split: bool
    interpret: bool
    memory: Memory
    a: Vector

    # Rows ---------------------------------------------------------------------------------

    def write_places(self, row_ids: jax.Array) -> None:
        """Write the rows of all places, which other threads of the program will read."""
        if not self.interpret:
            plgpu.debug_barrier()
        self.memory.places[jnp.arange(len(row_ids), dtype=jnp.int32)] = row_ids
        if not self.interpret:
            plgpu.debug_barrier()

    def read(
        self,
        memory: Ref,
        row_ids: jax.Array,
        old: RegisterRows | None = None,
        new: jax.Array | None = None,
    ) -> RegisterRows:
        """Read the given rows of a pool; with `old` rows, only those marked `new`."""

        def entries(at: Ref, kept: jax.Array | None) -> jax.Array:
            if kept is None or new is None:
                return plgpu.load(at)
            mask = new if kept.ndim == 1 else jnp.broadcast_to(new[:, None], kept.shape)
            return plgpu.load(at, mask=mask, other=kept)

        columns, start = [], 0
        for k, width in enumerate(self.shape.widths):
            at = start + jnp.arange(width, dtype=jnp.int32)
            kept = None if old is None else old.columns[k]
            columns.append(entries(memory.at[row_ids[:, None], at[None, :]], kept))
            start += width
        fields = []
        for k in range(FIELDS):
            at = memory.at[row_ids, jnp.full(row_ids.shape, start + k, jnp.int32)]
            fields.append(entries(at, None if old is None else old.fields[k]))
        return RegisterRows(tuple(columns), tuple(fields))

    def values(self, rows: RegisterRows, z: Vector) -> Held:
        """Compute D of each row at z, and its slope in the row's predictor."""
        parts = [
            jnp.sum(x * piece[None, :], axis=1) for x, piece in zip(rows.columns, z, strict=True)
        ]
        eta, y, scale, *taylor = rows.fields
        e = sum(parts[1:], start=parts[0])
        value, slope = self.residuals.residual(e, About(eta, y, tuple(taylor)))
        return Held(scale * value, scale * slope)

    # Sums over rows -----------------------------------------------------------------------

    def log_of(self, estimated: Estimated) -> jax.Array:
        """dhat - sigma-hat^2 / 2 (eqs. 4.2 and 4.3)."""
        return estimated.mean - 0.5 * self.shape.variance(estimated.squares)

    def estimate_held(self, rows: RegisterRows, z: Vector) -> tuple[Estimated, Held]:
        """Estimate from a subsample that is in registers; return D of each row too."""
        m = self.shape.subsample
        here = self.values(rows, z)
        live = jnp.arange(self.shape.places, dtype=jnp.int32) < m
        mean = jnp.sum(jnp.where(live, here.values, 0.0)) / m
        off = jnp.where(live, here.values - mean, 0.0)
        plain = _weighted_sum(rows, jnp.where(live, here.slopes, 0.0))
        moved = _weighted_sum(rows, jnp.where(live, off * here.slopes, 0.0))
        return Estimated(mean, jnp.sum(off * off), plain, moved), here

    def estimate_by_tiles(self, z: Vector, about: jax.Array) -> Estimated:
        """Estimate from a subsample in memory, with sums about `about`, a guess at the mean."""
        m, size = self.shape.subsample, self.shape.tile

        def add(k: jax.Array, carry: Pytree) -> Pytree:
            first, second, plain, moved = carry
            at = k * size + jnp.arange(size, dtype=jnp.int32)
            live = at < m
            rows = self.read(self.memory.pool, self.memory.places[jnp.minimum(at, m - 1)])
            here = self.values(rows, z)
            off = jnp.where(live, here.values - about, 0.0)
            slope = jnp.where(live, here.slopes, 0.0)
            plain = _plus(plain, 1.0, _weighted_sum(rows, slope))
            moved = _plus(moved, 1.0, _weighted_sum(rows, off * slope))
            return first + off, second + off * off, plain, moved

        zero, nothing = jnp.zeros(size, jnp.float32), self._nothing()
        first, second, plain, moved = jax.lax.fori_loop(
            jnp.int32(0), jnp.int32(self.shape.tiles), add, (zero, zero, nothing, nothing)
        )
        away = jnp.sum(first) / m
        squares = jnp.maximum(jnp.sum(second) - m * away * away, 0.0)
        return Estimated(about + away, squares, plain, _plus(moved, -away, plain))

    def sum_certain(self, z: Vector) -> Certain:
        """Sum over the certainty rows."""
        size, tiles = self.shape.certain_tile, self.shape.certain // self.shape.certain_tile

        def add(k: jax.Array, carry: Pytree) -> Pytree:
            total, gradient = carry
            row_ids = k * size + jnp.arange(size, dtype=jnp.int32)
            rows = self.read(self.memory.certain, row_ids)
            here = self.values(rows, z)
            return total + here.values, _plus(gradient, 1.0, _weighted_sum(rows, here.slopes))

        start = (jnp.zeros(size, jnp.float32), self._nothing())
        total, gradient = jax.lax.fori_loop(jnp.int32(0), jnp.int32(tiles), add, start)
        return Certain(jnp.sum(total), gradient)

    def _nothing(self) -> Vector:
        return tuple(jnp.zeros(w, jnp.float32) for w in self.shape.widths)

    # The log-density ----------------------------------------------------------------------

    def evaluate(self, z: Vector, subsample: Subsample, about: jax.Array) -> Here:
        """Compute the sums over all rows at z; `about` is a guess at the mean of D."""
        held = None
        if subsample.rows is None:
            estimated = self.estimate_by_tiles(z, about)
        else:
            estimated, held = self.estimate_held(subsample.rows, z)
        return Here(z, estimated, self.sum_certain(z) if self.shape.certain else None, held)

    def log_density(self, here: Here) -> jax.Array:
        """Return the log-density, up to a constant."""
        quadratic = _dot(here.z, _plus(self.a, -0.5, here.z))
        log = self.log_of(here.estimated) + quadratic
        return log if here.certain is None else log + here.certain.total

    def force(self, here: Here) -> Vector:
        """Return the gradient of the log-density, less its standard normal part if it is split."""
        m = self.shape.subsample
        mean = tuple(x / m for x in here.estimated.plain)
        slope = _plus(mean, -1 / (m * (m - self.shape.ddof)), here.estimated.moved)
        gradient = _plus(slope, 1.0, self.a)
        if not self.split:
            gradient = _plus(gradient, -1.0, here.z)
        return gradient if here.certain is None else _plus(gradient, 1.0, here.certain.gradient)

    # The refresh --------------------------------------------------------------------------

    def refresh(
        self, t: jax.Array, here: Here, subsample: Subsample
    ) -> tuple[Here, Subsample, jax.Array]:
        """Propose K blocks one after the other, each accepted by eq. 3.5.

        Sums are updated for the rows that enter and leave, so that only these are evaluated. Return
        the updated `Here` and subsample, and the number of blocks accepted.
        """
        b, K = self.shape.block, self.shape.refreshes
        everywhere = jnp.arange(self.shape.places, dtype=jnp.int32)
        inside = jnp.arange(at_least(b), dtype=jnp.int32)

        def propose(k: jax.Array, carry: Pytree) -> Pytree:
            here, subsample, accepted = carry
            first = self.memory.which[t, k] * b
            fresh = self.shape.subsample + (t * K + k) * b
            chosen = (everywhere[:, None] == (first + inside)[None, :]) & (inside < b)[None, :]
            came = self.read(self.memory.pool, fresh + jnp.minimum(inside, b - 1))
            new = self.values(came, here.z)
            then = self.swapped(here, came, new, inside < b, self.went(here, subsample, chosen))
            now = here.estimated
            taken = self.memory.chance[t, k] < self.log_of(then) - self.log_of(now)
            estimated = jax.tree.map(lambda x, y: jnp.where(taken, x, y), then, now)
            within = everywhere - first
            replaced = taken & (within >= 0) & (within < b)
            row_ids = jnp.where(replaced, fresh + within, subsample.row_ids)
            rows, held = subsample.rows, here.held
            if rows is not None and held is not None:
                rows = self.read(self.memory.pool, row_ids, rows, replaced)
                held = Held(
                    *(_placed(x, y, chosen & taken) for x, y in zip(new, held, strict=True))
                )
            here = here._replace(estimated=estimated, held=held)
            accepted += jnp.where(taken, jnp.float32(1), jnp.float32(0))
            return here, Subsample(row_ids, rows), accepted

        start = (here, subsample, jnp.float32(0))
        return jax.lax.fori_loop(jnp.int32(0), jnp.int32(K), propose, start)

    def went(
        self, here: Here, subsample: Subsample, chosen: jax.Array
    ) -> tuple[RegisterRows, Held, jax.Array]:
        """Return rows that include those of a block, their D at z, and a mask of the block."""
        if subsample.rows is not None and here.held is not None:
            return subsample.rows, here.held, jnp.sum(chosen, axis=1, dtype=jnp.int32) > 0
        before = jnp.sum(jnp.where(chosen, subsample.row_ids[:, None], 0), axis=0, dtype=jnp.int32)
        rows = self.read(self.memory.pool, before)
        b = self.shape.block
        return rows, self.values(rows, here.z), jnp.arange(at_least(b), dtype=jnp.int32) < b

    def swapped(
        self,
        here: Here,
        came: RegisterRows,
        new: Held,
        live: jax.Array,
        went: tuple[RegisterRows, Held, jax.Array],
    ) -> Estimated:
        """Update the estimate: the rows `came` replace the rows `went`."""
        m, now = self.shape.subsample, here.estimated
        gone, old, of_block = went
        off = jnp.where(live, new.values - now.mean, 0.0)
        lost = jnp.where(of_block, old.values - now.mean, 0.0)
        shift = (jnp.sum(off) - jnp.sum(lost)) / m
        squares = now.squares + jnp.sum(off * off) - jnp.sum(lost * lost) - m * shift * shift
        up, down = jnp.where(live, new.slopes, 0.0), jnp.where(of_block, old.slopes, 0.0)
        moved = _plus(now.moved, -shift, now.plain)
        moved = _plus(moved, 1.0, _weighted_sum(came, (off - shift) * up))
        moved = _plus(moved, -1.0, _weighted_sum(gone, (lost - shift) * down))
        plain = _plus(now.plain, 1.0, _weighted_sum(came, up))
        plain = _plus(plain, -1.0, _weighted_sum(gone, down))
        return Estimated(now.mean + shift, squares, plain, moved)

    # The trajectory -----------------------------------------------------------------------

    def iterate(self, t: jax.Array, carry: Pytree) -> Pytree:
        """Refresh the subsample, follow a trajectory, accept or reject its end, and store it."""
        start, subsample = carry
        memory = self.memory
        # read all inputs first, to hide the latency of memory
        p = tuple(memory.momentum[t, s] for s in self.shape.slices)
        steps, chance = memory.steps[t], memory.accept[t]
        half, keep, move, turn = (memory.drift[t, k] for k in range(4))
        start, subsample, accepted = self.refresh(t, start, subsample)
        if subsample.rows is None:
            self.write_places(subsample.row_ids)
        about = start.estimated.mean

        def leap(_: jax.Array, carry: tuple[Here, Vector]) -> tuple[Here, Vector]:
            here, p = carry
            p = _plus(p, half, self.force(here))
            there = tuple(keep * x + move * y for x, y in zip(here.z, p, strict=True))
            q = tuple(keep * y - turn * x for x, y in zip(here.z, p, strict=True))
            here = self.evaluate(there, subsample, about)
            return here, _plus(q, half, self.force(here))

        end, q = jax.lax.fori_loop(jnp.int32(0), steps, leap, (start, p))
        energy = 0.5 * _dot(q, q) - self.log_density(end)
        gain = 0.5 * _dot(p, p) - self.log_density(start) - energy
        lost = ~(jnp.abs(energy) < jnp.inf) | (gain != gain)  # NaN is never accepted
        gain = jnp.where(lost, -jnp.inf, gain)
        taken = chance < gain
        there: Here = jax.tree.map(lambda x, y: jnp.where(taken, x, y), end, start)
        now = there.estimated
        for s, piece in zip(self.shape.slices, there.z, strict=True):
            memory.positions[t, s] = piece
        variance = self.shape.variance(now.squares)
        record = (self.log_density(there), accepted, now.mean, variance, gain, energy)
        for k, value in enumerate(record):
            memory.stats[t, k] = value
        return there, subsample


def run(residuals: LinearTaylor, shape: Shape, split: bool, interpret: bool, *refs: Ref) -> None:
    """Run all iterations of one chain; `refs` are those of `Memory`."""
    memory = Memory(*refs)
    a, z = (tuple(ref[s] for s in shape.slices) for ref in (memory.slope, memory.start))
    chain = Chain(residuals, shape, split, interpret, memory, a)
    everywhere = jnp.arange(shape.places, dtype=jnp.int32)
    row_ids = jnp.where(everywhere < shape.subsample, everywhere, 0)
    rows = chain.read(memory.pool, row_ids) if shape.tiles == 1 else None
    if rows is None:
        chain.write_places(row_ids)
    subsample = Subsample(row_ids, rows)
    here, count = chain.evaluate(z, subsample, jnp.float32(0)), memory.count[0]
    here, subsample = jax.lax.fori_loop(jnp.int32(0), count, chain.iterate, (here, subsample))
    for s, piece in zip(shape.slices, here.z, strict=True):
        memory.last[s] = piece
    chain.write_places(subsample.row_ids)

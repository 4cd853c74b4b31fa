"""One chain as a program of the accelerator: many iterations of HMC-ECS over a pool of rows.

Rows of all iterations lie in one pool per chain: first the m of the subsample, then the fresh ones.
What changes is which row of the pool each place of the subsample holds, so that rows are only ever
read. m rows of d numbers that fit into registers stay there, and an iteration reads those that it
replaces; else rows are read tile by tile at every evaluation. Arrays of a program have sizes that
are powers of two: columns are cut into two such pieces at most, and places beyond m count for
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from modicum.runtime import Pytree

__all__ = [
    "ETA",
    "EXTRAS",
    "OUTCOME",
    "SCALE",
    "STATS",
    "TAYLOR",
    "TERMS",
    "Program",
    "RowResidual",
    "Shape",
    "at_least",
    "at_most",
    "pieces",
    "run",
]

Ref: TypeAlias = Any  # memory of a program; JAX has no public name for it
Vector: TypeAlias = tuple[jax.Array, ...]  # d numbers, piece by piece
EXTRAS = 16  # numbers kept of a row beside its columns: eta, y, scale and seven coefficients
ETA, OUTCOME, SCALE, TAYLOR = 0, 1, 2, 3
TERMS = 7
PER_WARP = 2**11  # numbers that 32 threads hold
STATS = 8  # numbers stored per iteration, of which six are in use


class RowResidual(Protocol):
    """What a control variate leaves over of rows that enter through one linear predictor."""

    def residual(
        self, e: jax.Array, eta: jax.Array, y: jax.Array, taylor: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """The residual at eta + e and its slope in e, elementwise."""
        ...


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
    """Sizes that the program is compiled for."""

    subsample: int  # m
    block: int  # rows of a block
    refreshes: int
    ddof: int
    widths: tuple[int, ...]  # of the pieces of columns
    certain: int  # certain rows, padded to whole tiles
    tile: int  # rows of the subsample that are read at a time
    certain_tile: int

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


# Rows and estimates -----------------------------------------------------------------------


class Estimated(NamedTuple):
    """Mean of D over the subsample, and the sum of squares about it."""

    mean: jax.Array
    squares: jax.Array


class Here(NamedTuple):
    """A place on a trajectory."""

    z: Vector
    log_density: jax.Array
    gradient: Vector  # of the log-density, or of what a split integrator leaves to kicks
    estimated: Estimated
    values: jax.Array | None  # D of each place, where rows are held


class RegisterRows(NamedTuple):
    """Rows in registers."""

    columns: Vector  # (rows, width) each
    eta: jax.Array
    y: jax.Array
    scale: jax.Array
    taylor: tuple[jax.Array, ...]


def _dot(a: Vector, b: Vector) -> jax.Array:
    return sum((jnp.sum(x * y) for x, y in zip(a, b, strict=True)), start=jnp.float32(0))


def _plus(a: Vector, step: jax.Array | float, b: Vector) -> Vector:
    """a + step b."""
    return tuple(x + step * y for x, y in zip(a, b, strict=True))


@dataclass(frozen=True)
class Program:
    """One chain: functions of values in registers and of memory."""

    residuals: RowResidual
    shape: Shape
    split: bool
    interpret: bool

    def write(self, memory: Ref, values: jax.Array) -> None:
        """Write what other threads of the program are about to read."""
        if not self.interpret:
            plgpu.debug_barrier()
        memory[jnp.arange(len(values), dtype=jnp.int32)] = values
        if not self.interpret:
            plgpu.debug_barrier()

    # Rows ---------------------------------------------------------------------------------

    def read(self, memory: Ref, row_ids: jax.Array) -> RegisterRows:
        """Rows of a pool, by number."""
        columns, start = [], 0
        for width in self.shape.widths:
            at = start + jnp.arange(width, dtype=jnp.int32)
            columns.append(memory[row_ids[:, None], at[None, :]])
            start += width

        def extra(k: int) -> jax.Array:
            return memory[row_ids, jnp.full(row_ids.shape, start + k, jnp.int32)]

        taylor = tuple(extra(TAYLOR + j) for j in range(TERMS))
        return RegisterRows(tuple(columns), extra(ETA), extra(OUTCOME), extra(SCALE), taylor)

    def replaced(
        self, held: RegisterRows, memory: Ref, row_ids: jax.Array, new: jax.Array
    ) -> RegisterRows:
        """The rows that are held, but those of the pool by number where they are `new`."""
        start = 0
        columns = []
        for width, old in zip(self.shape.widths, held.columns, strict=True):
            at = memory.at[row_ids[:, None], start + jnp.arange(width, dtype=jnp.int32)[None, :]]
            columns.append(
                plgpu.load(at, mask=jnp.broadcast_to(new[:, None], old.shape), other=old)
            )
            start += width

        def extra(k: int, old: jax.Array) -> jax.Array:
            at = memory.at[row_ids, jnp.full(row_ids.shape, start + k, jnp.int32)]
            return plgpu.load(at, mask=new, other=old)

        taylor = tuple(extra(TAYLOR + j, old) for j, old in enumerate(held.taylor))
        eta, y, scale = (
            extra(k, old) for k, old in ((ETA, held.eta), (OUTCOME, held.y), (SCALE, held.scale))
        )
        return RegisterRows(tuple(columns), eta, y, scale, taylor)

    def values(self, held: RegisterRows, z: Vector) -> tuple[jax.Array, jax.Array]:
        """D of each row at z, and its slope in the row's predictor."""
        parts = [
            jnp.sum(x * piece[None, :], axis=1) for x, piece in zip(held.columns, z, strict=True)
        ]
        e = sum(parts[1:], start=parts[0])
        value, slope = self.residuals.residual(e, held.eta, held.y, held.taylor)
        return held.scale * value, held.scale * slope

    @staticmethod
    def back(held: RegisterRows, weight: jax.Array) -> Vector:
        """The sum of rows times their weights."""
        return tuple(jnp.sum(x * weight[:, None], axis=0) for x in held.columns)

    # The log-density ----------------------------------------------------------------------

    def log_of(self, estimated: Estimated) -> jax.Array:
        """dhat - sigma-hat^2 / 2 (eqs. 4.2 and 4.3)."""
        return estimated.mean - 0.5 * self.variance(estimated)

    def variance(self, estimated: Estimated) -> jax.Array:
        """sigma-hat^2."""
        m = self.shape.subsample
        return estimated.squares / (m * (m - self.shape.ddof))

    def of_held(self, held: RegisterRows, z: Vector) -> tuple[Estimated, Vector, jax.Array]:
        """The estimate from rows that are all held, the gradient of its log, and D of each."""
        m = self.shape.subsample
        D, slope = self.values(held, z)
        live = jnp.arange(self.shape.places, dtype=jnp.int32) < m
        mean = jnp.sum(jnp.where(live, D, 0.0)) / m
        off = jnp.where(live, D - mean, 0.0)
        weight = (1 / m - off / (m * (m - self.shape.ddof))) * slope
        gradient = self.back(held, jnp.where(live, weight, 0.0))
        return Estimated(mean, jnp.sum(off * off)), gradient, D

    def of_tiles(self, pool: Ref, places: Ref, z: Vector) -> tuple[Estimated, Vector]:
        """The same tile by tile; the gradient of the squares follows the mean as it moves."""
        m, size = self.shape.subsample, self.shape.tile

        def add(k: jax.Array, carry: Pytree) -> Pytree:
            (mean, squares), plain, moved = carry
            at = k * size + jnp.arange(size, dtype=jnp.int32)
            live = at < m
            held = self.read(pool, places[jnp.minimum(at, m - 1)])
            D, slope = self.values(held, z)
            slope = jnp.where(live, slope, 0.0)
            before = (k * size).astype(jnp.float32)
            count = jnp.minimum(size, m - k * size).astype(jnp.float32)
            own = jnp.sum(jnp.where(live, D, 0.0)) / count
            shift = (own - mean) * count / (before + count)
            about = jnp.where(live, D - own, 0.0)
            squares = squares + jnp.sum(about * about) + (own - mean) * shift * before
            mean = mean + shift
            moved = _plus(moved, -shift, plain)
            moved = _plus(moved, 1.0, self.back(held, (D - mean) * slope))
            return Estimated(mean, squares), _plus(plain, 1.0, self.back(held, slope)), moved

        nothing = tuple(jnp.zeros(w, jnp.float32) for w in self.shape.widths)
        start = (Estimated(jnp.float32(0), jnp.float32(0)), nothing, nothing)
        tiles = jnp.int32(self.shape.tiles)
        estimated, plain, moved = jax.lax.fori_loop(jnp.int32(0), tiles, add, start)
        whole = tuple(x / m for x in plain)
        return estimated, _plus(whole, -1 / (m * (m - self.shape.ddof)), moved)

    def of_certain(self, memory: Ref, z: Vector) -> tuple[jax.Array, Vector]:
        """The sum of the residuals of certain rows, and its gradient."""
        size = self.shape.certain_tile

        def add(k: jax.Array, carry: Pytree) -> Pytree:
            total, gradient = carry
            held = self.read(memory, k * size + jnp.arange(size, dtype=jnp.int32))
            D, slope = self.values(held, z)
            return total + jnp.sum(D), _plus(gradient, 1.0, self.back(held, slope))

        nothing = tuple(jnp.zeros(w, jnp.float32) for w in self.shape.widths)
        tiles = jnp.int32(self.shape.certain // size)
        return jax.lax.fori_loop(jnp.int32(0), tiles, add, (jnp.float32(0), nothing))


# Iterations -------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class _Chain:
    """The iterations of one chain."""

    program: Program
    memory: Memory
    a: Vector

    @property
    def slices(self) -> list[Any]:
        """The pieces of a vector in memory."""
        widths = self.program.shape.widths
        return [pl.ds(sum(widths[:k]), width) for k, width in enumerate(widths)]

    def estimate(
        self, z: Vector, held: RegisterRows | None
    ) -> tuple[Estimated, Vector, jax.Array | None]:
        """The estimate at z, the gradient of its log, and D of rows that are held."""
        if held is not None:
            return self.program.of_held(held, z)
        return *self.program.of_tiles(self.memory.pool, self.memory.places, z), None

    def evaluate(self, z: Vector, held: RegisterRows | None) -> Here:
        """The log-density, its gradient and the estimate at z."""
        program = self.program
        estimated, gradient, values = self.estimate(z, held)
        log = program.log_of(estimated) + _dot(z, _plus(self.a, -0.5, z))
        gradient = _plus(gradient, 1.0, self.a)
        if not program.split:
            gradient = _plus(gradient, -1.0, z)
        if program.shape.certain:
            total, slope = program.of_certain(self.memory.certain, z)
            log, gradient = log + total, _plus(gradient, 1.0, slope)
        return Here(z, log, gradient, estimated, values)

    def refresh(
        self,
        t: jax.Array,
        z: Vector,
        row_ids: jax.Array,
        now: Estimated,
        values: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Propose K blocks one after the other, each accepted by eq. 3.5.

        Return which rows are held then, and how many blocks were accepted.
        """
        program, memory = self.program, self.memory
        m, b, K = program.shape.subsample, program.shape.block, program.shape.refreshes

        def propose(k: jax.Array, carry: Pytree) -> Pytree:
            row_ids, now, values, accepted = carry
            first = memory.which[t, k] * b
            chosen = everywhere[:, None] == (first + inside)[None, :]
            fresh = m + (t * K + k) * b
            new = self.values_at(fresh + jnp.minimum(inside, b - 1), z)
            if values is None:
                before = jnp.sum(jnp.where(chosen, row_ids[:, None], 0), axis=0, dtype=jnp.int32)
                old = self.values_at(before, z)
            else:
                old = jnp.sum(jnp.where(chosen, values[:, None], 0.0), axis=0)
            then = self.swapped(old, new, inside < b, now)
            taken = memory.chance[t, k] < program.log_of(then) - program.log_of(now)
            now = Estimated(*(jnp.where(taken, x, y) for x, y in zip(then, now, strict=True)))
            within = everywhere - first
            replaced = taken & (within >= 0) & (within < b)
            row_ids = jnp.where(replaced, fresh + within, row_ids)
            if values is not None and K > 1:  # else nobody asks again
                there = jnp.sum(jnp.where(chosen, new[None, :], 0.0), axis=1)
                values = jnp.where(replaced, there, values)
            accepted += jnp.where(taken, jnp.float32(1), jnp.float32(0))
            return row_ids, now, values, accepted

        everywhere = jnp.arange(program.shape.places, dtype=jnp.int32)
        inside = jnp.arange(at_least(b), dtype=jnp.int32)
        start = (row_ids, now, values, jnp.float32(0))
        row_ids, _, _, accepted = jax.lax.fori_loop(jnp.int32(0), jnp.int32(K), propose, start)
        return row_ids, accepted

    def values_at(self, row_ids: jax.Array, z: Vector) -> jax.Array:
        """D of rows of the pool."""
        return self.program.values(self.program.read(self.memory.pool, row_ids), z)[0]

    def swapped(self, old: jax.Array, new: jax.Array, live: jax.Array, now: Estimated) -> Estimated:
        """The estimate with rows of the values `new` in place of `old`, from that `now`."""
        m = self.program.shape.subsample
        off, gone = jnp.where(live, new - now.mean, 0.0), jnp.where(live, old - now.mean, 0.0)
        shift = (jnp.sum(off) - jnp.sum(gone)) / m
        squares = now.squares + jnp.sum(off * off) - jnp.sum(gone * gone) - m * shift * shift
        return Estimated(now.mean + shift, squares)

    def hold(self, row_ids: jax.Array) -> RegisterRows | None:
        """Read the rows if there is room for all of them; else say where they are."""
        if self.program.shape.tiles == 1:
            return self.program.read(self.memory.pool, row_ids)
        self.program.write(self.memory.places, row_ids)
        return None

    def hold_anew(
        self, held: RegisterRows | None, row_ids: jax.Array, new: jax.Array
    ) -> RegisterRows | None:
        """The same after some of the rows changed."""
        if held is None:
            return self.hold(row_ids)
        return self.program.replaced(held, self.memory.pool, row_ids, new)

    def iterate(self, t: jax.Array, carry: Pytree) -> Pytree:
        """Refresh the subsample, follow a trajectory, decide about its end, and write it down."""
        z, row_ids, held, now, values = carry
        program, memory = self.program, self.memory
        # all that is known beforehand is read first, since it takes a while to come
        p = tuple(memory.momentum[t, s] for s in self.slices)
        steps, chance = memory.steps[t], memory.accept[t]
        half, keep, move, turn = (memory.drift[t, k] for k in range(4))
        before = row_ids
        row_ids, accepted = self.refresh(t, z, row_ids, now, values)
        held = self.hold_anew(held, row_ids, row_ids != before)
        start = self.evaluate(z, held)

        def leap(_: jax.Array, carry: tuple[Here, Vector]) -> tuple[Here, Vector]:
            here, p = carry
            p = _plus(p, half, here.gradient)
            there = tuple(keep * x + move * y for x, y in zip(here.z, p, strict=True))
            q = tuple(keep * y - turn * x for x, y in zip(here.z, p, strict=True))
            here = self.evaluate(there, held)
            return here, _plus(q, half, here.gradient)

        end, q = jax.lax.fori_loop(jnp.int32(0), steps, leap, (start, p))
        energy = 0.5 * _dot(q, q) - end.log_density
        gain = (0.5 * _dot(p, p) - start.log_density) - energy
        lost = ~(jnp.abs(energy) < jnp.inf) | (gain != gain)  # no number is never accepted
        gain = jnp.where(lost, -jnp.inf, gain)
        taken = chance < gain
        there = jax.tree.map(lambda x, y: jnp.where(taken, x, y), end, start)
        now = there.estimated
        for s, piece in zip(self.slices, there.z, strict=True):
            memory.positions[t, s] = piece
        stats = (there.log_density, accepted, now.mean, program.variance(now), gain, energy)
        for k, value in enumerate(stats):
            memory.stats[t, k] = value
        return there.z, row_ids, held, now, there.values


def run(program: Program, *refs: Ref) -> None:
    """All iterations of one chain; the refs are those of `Memory`."""
    memory, shape = Memory(*refs), program.shape
    chain = _Chain(program, memory, ())
    chain = replace(chain, a=tuple(memory.slope[s] for s in chain.slices))
    everywhere = jnp.arange(shape.places, dtype=jnp.int32)
    z = tuple(memory.start[s] for s in chain.slices)
    row_ids = jnp.where(everywhere < shape.subsample, everywhere, 0)
    held = chain.hold(row_ids)
    now, _, values = chain.estimate(z, held)
    start, count = (z, row_ids, held, now, values), memory.count[0]
    z, row_ids, *_ = jax.lax.fori_loop(jnp.int32(0), count, chain.iterate, start)
    for s, piece in zip(chain.slices, z, strict=True):
        memory.last[s] = piece
    program.write(memory.places, row_ids)

"""One chain as a program of many threads, for a subsample that few threads cannot hold.

Its evaluations are `Phases`, and its rows lie in a pool as in `program`. They stay in registers
from one iteration to the next, and an iteration reads only the rows that it replaces. All rows,
including the fresh ones, are evaluated anew at the start of a trajectory: that costs less than
keeping residuals, and it leaves one place in the code where rows are evaluated, which determines
the compile time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton as plgpu

from modicum.kernels.fused.phases import (
    SLOPE,
    VALUE,
    Columns,
    Phases,
    Residuals,
    Sums,
    load,
    numbered,
    piece_of,
)
from modicum.kernels.fused.sizes import FIELD, Memory, PhasedShape, Ref, RowResidual, at_least
from modicum.runtime import Pytree


@dataclass(frozen=True)
class PhasedProgram:
    """Static parameters of the program."""

    residuals: RowResidual
    shape: PhasedShape
    split: bool
    interpret: bool


class Travel(NamedTuple):
    """State of a trajectory."""

    z: jax.Array
    p: jax.Array
    columns: Columns
    start: Sums  # at the start of the trajectory, after the refresh
    here: Residuals
    accepted: jax.Array  # number of blocks


class Iteration(NamedTuple):
    """Constants of an iteration."""

    t: jax.Array  # its number
    fresh: jax.Array  # where its fresh rows begin in the pool
    steps: jax.Array
    a: jax.Array  # gradient of the proxy at the anchor
    drift: tuple[jax.Array, ...]  # half the step size, and the coefficients of z and p in a step


@dataclass(frozen=True)
class _Chain:
    """The iterations of one chain."""

    phases: Phases
    split: bool

    def with_fresh_zero(self) -> _Chain:
        """Read `Phases.zero` from memory again, at the start of a loop body."""
        return replace(self, phases=replace(self.phases, zero=self.phases.memory.count[1]))

    # The refresh --------------------------------------------------------------------------

    def refresh(
        self, now: Iteration, known: Residuals, columns: Columns
    ) -> tuple[Residuals, Columns, Sums, jax.Array]:
        """Propose K blocks one after the other, each accepted by eq. 3.5.

        Return the resulting residuals at z, columns and sums, and the number of blocks accepted.
        """
        phases = self.phases
        memory, shape = phases.memory, phases.shape
        phases.put(VALUE, known.values)
        phases.put(SLOPE, known.slopes)
        phases.wait()
        chosen, sums, accepted = self.choose(now.t, phases.sums(known))
        to_take = numbered(memory.places, 1 + phases.zero, phases.inside)
        plgpu.store(to_take, chosen)
        phases.wait()
        chosen = load(to_take)  # written by other threads
        new, at = chosen >= 0, shape.subsample + shape.certain + jnp.maximum(chosen, 0)
        values = load(phases.line(VALUE, at), new, known.values)
        slopes = load(phases.line(SLOPE, at), new, known.slopes)
        phases.copy_fields(lambda k: phases.line(FIELD + k, at), phases.inside, new)
        holds = numbered(memory.places, phases.zero, phases.inside)
        plgpu.store(holds, now.fresh + chosen, mask=new)
        chosen = phases.row_ids(1)
        new, row_ids = (chosen >= 0)[:, None], now.fresh + jnp.maximum(chosen, 0)
        columns = tuple(
            load(piece_of(memory.pool, row_ids, j), jnp.broadcast_to(new, old.shape), old)
            for j, old in enumerate(columns)
        )
        return Residuals(values, slopes, sums.mean), columns, sums, accepted

    def choose(self, t: jax.Array, now: Sums) -> tuple[jax.Array, Sums, jax.Array]:
        """Return which fresh row each place takes (-1: none), the new sums, and blocks accepted.

        A block changes the sums of D and of D squared, both about the old mean.
        """
        phases, memory = self.phases, self.phases.memory
        m, b, K = phases.shape.subsample, phases.shape.block, phases.shape.refreshes
        k = jnp.arange(at_least(K), dtype=jnp.int32)
        which = load(numbered(memory.which, t, k), k < K, -1)
        new = self.block_sums(m + phases.shape.certain + k * b, k < K, now.mean)

        def log_of(first: jax.Array, second: jax.Array) -> jax.Array:
            return first / m - 0.5 * phases.variance(second - first * first / m)

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
        block, place = (f(phases.inside, jnp.int32(b)) for f in (jax.lax.div, jax.lax.rem))
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
        b = self.phases.shape.block
        inside = jnp.arange(at_least(b), dtype=jnp.int32)
        mask = live[:, None] & (inside < b)[None, :]
        values = load(self.phases.line(VALUE, first[:, None] + inside[None, :]), mask, 0.0)
        off = jnp.where(mask, values - mean, 0.0)
        return jnp.sum(off, axis=1), jnp.sum(off * off, axis=1)

    # The trajectory -----------------------------------------------------------------------

    def step(self, s: jax.Array, now: Iteration, path: Travel) -> Travel:
        """Evaluate a point of the trajectory, refresh rows if it is the first, and move on."""
        phases = self.phases
        known = phases.evaluate(path.z, path.columns, now.fresh, s == 0)
        known, columns, start, accepted = jax.lax.cond(
            s == 0,
            lambda: self.refresh(now, known, path.columns),
            lambda: (known, path.columns, path.start, path.accepted),
        )
        force = phases.slope_of(known, columns) + now.a
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
        phases, memory = self.phases, self.phases.memory
        p, a = phases.vector(memory.momentum, t), phases.vector(memory.slope)
        drift = tuple(memory.drift[t, k] for k in range(4))
        fresh = phases.shape.subsample + t * phases.shape.fresh
        now = Iteration(t, fresh, memory.steps[t], a, drift)
        self.copy_fresh_fields(fresh)
        zero, rows = jnp.float32(0), jnp.zeros(phases.shape.rows, jnp.float32)
        sums = Sums(zero, zero, zero if phases.shape.certain else None)
        path = Travel(start, p, columns, sums, Residuals(rows, rows, zero), zero)
        end = jax.lax.fori_loop(
            jnp.int32(0),
            now.steps + 1,
            lambda s, path: self.with_fresh_zero().step(s, now, path),
            path,
        )
        here, there = phases.sums(end.here), _quadratic(end.z, a)
        log, log_there = phases.log_of(end.start) + quadratic, phases.log_of(here) + there
        energy = 0.5 * jnp.sum(end.p * end.p) - log_there
        gain = (0.5 * jnp.sum(p * p) - log) - energy
        lost = ~(jnp.abs(energy) < jnp.inf) | (gain != gain)  # NaN is never accepted
        gain = jnp.where(lost, -jnp.inf, gain)
        taken = memory.accept[t] < gain
        z, quadratic, log, sums = jax.tree.map(
            lambda x, y: jnp.where(taken, x, y),
            (end.z, there, log_there, here),
            (start, quadratic, log, end.start),
        )
        phases.write_vector(memory.positions, z, t)
        stats = (log, end.accepted, sums.mean, phases.variance(sums.squares), gain, energy)
        for k, value in enumerate(stats):
            memory.stats[t, k] = value
        return z, quadratic, end.columns

    def copy_fresh_fields(self, fresh: jax.Array) -> None:
        """Append the fields of the fresh rows to the fields of all other rows."""
        shape, pool = self.phases.shape, self.phases.memory.pool
        inside = jnp.arange(at_least(shape.fresh), dtype=jnp.int32)
        row_ids = fresh + jnp.minimum(inside, shape.fresh - 1)

        def field(k: int) -> Ref:
            return pool.at[row_ids, jnp.full(row_ids.shape, shape.width + k, jnp.int32)]

        to = shape.subsample + shape.certain + inside
        self.phases.copy_fields(field, to, inside < shape.fresh)

    def begin(self) -> Pytree:
        """Return the start of the first iteration: z, the proxy there, and columns."""
        phases, memory = self.phases, self.phases.memory
        plgpu.store(numbered(memory.places, 0, phases.inside), phases.inside)
        phases.copy_fields(lambda k: numbered(phases.fields, k, phases.inside), phases.inside)
        phases.wait()
        columns = phases.read(memory.pool, phases.row_ids(0))
        z = phases.vector(memory.start)
        return z, _quadratic(z, phases.vector(memory.slope)), columns


def _quadratic(z: jax.Array, a: jax.Array) -> jax.Array:
    """Evaluate the proxy at z, up to a constant."""
    return jnp.sum(z * (a - 0.5 * z))


def run_phased(program: PhasedProgram, *refs: Ref) -> None:
    """Run all iterations of one chain; `refs` are those of `Memory`, the fields and scratch."""
    *others, scratch = refs
    inputs, (fields, *outputs) = others[:-5], others[-5:]
    memory = Memory(*inputs, *outputs)
    shape, interpret = program.shape, program.interpret
    phases = Phases(program.residuals, shape, memory, fields, scratch, 0, interpret)
    chain = _Chain(phases, program.split)
    z, _, _ = jax.lax.fori_loop(
        jnp.int32(0),
        memory.count[0],
        lambda t, carry: chain.with_fresh_zero().iterate(t, carry),
        chain.begin(),
    )
    phases.write_vector(memory.last, z)

"""HMC-ECS with a whole chain in one program of the accelerator: many iterations per launch.

Launched operation by operation, an iteration is some hundred small steps that wait for each other,
whatever the number of chains. Here a chain is one program that holds its coordinates and the
numbers of its rows, and loops over all iterations of a window: refresh, trajectory, accept, store.
It follows `EnergyConservingKernel` step by step, in float32, with the same random numbers: these,
and the fresh rows, depend on keys alone and are made beforehand. Residuals keep their relative
precision, so that n times their rounding stays small.

Rows of all iterations lie in one pool per chain: first the m of the subsample, then the fresh ones.
What changes is which row of the pool each place of the subsample holds, so that memory is only ever
read. With m rows of d numbers that fit into registers they are read once per iteration, else tile
by tile at every evaluation. Arrays of a program have sizes that are powers of two: columns are cut
into two such pieces at most, and places beyond m count for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from modicum.kernels.base import Draw
from modicum.kernels.energy_conserving import (
    EnergyConservingContext,
    EnergyConservingKernel,
    EnergyConservingState,
    certain_rows,
    refresh_chances,
)
from modicum.kernels.moves import DIVERGENT, HMCMove, path_chances
from modicum.runtime import Pytree

__all__ = ["FusedKernel", "PredictorRows", "RowResidual", "pieces"]

Ref: TypeAlias = Any  # memory of a program; JAX has no public name for it
Vector: TypeAlias = tuple[jax.Array, ...]  # d numbers, piece by piece
EXTRAS = 16  # numbers kept of a row beside its columns: eta, y, scale and seven coefficients
ETA, OUTCOME, SCALE, TAYLOR = 0, 1, 2, 3
TERMS = 7
IN_REGISTERS = 2**14  # numbers of a subsample that one program can hold
PER_WARP = 2**11
TILE = 2**13  # numbers of rows that are read at a time where they do not fit
STATS = 8  # numbers stored per iteration, of which six are in use


class RowResidual(Protocol):
    """What a control variate leaves over of rows that enter through one linear predictor."""

    def residual(
        self, e: jax.Array, eta: jax.Array, y: jax.Array, taylor: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """The residual at eta + e and its slope in e, elementwise."""
        ...


class PredictorRows(Protocol):
    """Cached rows of such a control variate: a named tuple."""

    @property
    def rows(self) -> jax.Array:
        """Whitened, (..., d)."""
        ...

    @property
    def eta(self) -> jax.Array:
        """At the anchor."""
        ...

    @property
    def y(self) -> jax.Array:
        """Outcomes."""
        ...

    @property
    def taylor(self) -> jax.Array:
        """Coefficients of the expansion, (..., 7)."""
        ...

    @property
    def scale(self) -> jax.Array:
        """What a residual is multiplied by."""
        ...

    def _replace(self, **changes: jax.Array) -> PredictorRows: ...


def pieces(size: int) -> tuple[int, ...]:
    """Powers of two that hold `size` columns: one, or two where that wastes less.

    Examples
    --------
    >>> pieces(29), pieces(151), pieces(55), pieces(3)
    ((32,), (128, 32), (64,), (16,))
    """
    whole = max(16, _at_least(size))
    first = whole // 2
    if size <= 32 or first + max(16, _at_least(size - first)) >= whole:
        return (whole,)
    return first, max(16, _at_least(size - first))


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
        return _at_least(self.subsample)

    @property
    def tiles(self) -> int:
        """Times rows are read for one evaluation; 1: they are held."""
        return -(-self.subsample // self.tile)

    @property
    def warps(self) -> int:
        """Threads of a program, in units of 32."""
        held = self.tile * sum(self.widths)
        return min(8, _at_least(-(-held // PER_WARP)))


class Estimated(NamedTuple):
    """Mean of D over the subsample, and the sum of squares about it."""

    mean: jax.Array
    squares: jax.Array


class Here(NamedTuple):
    """A place on a trajectory."""

    z: Vector
    log_density: jax.Array
    gradient: Vector
    estimated: Estimated


class Held(NamedTuple):
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
class _Program:
    """One chain: functions of values in registers and of memory."""

    residuals: RowResidual
    shape: Shape
    interpret: bool

    def write(self, memory: Ref, at: jax.Array, values: jax.Array) -> None:
        """Write what other threads of the program are about to read."""
        if not self.interpret:
            plgpu.debug_barrier()
        memory[at] = values
        if not self.interpret:
            plgpu.debug_barrier()

    # Rows ---------------------------------------------------------------------------------

    def read(self, memory: Ref, row_ids: jax.Array) -> Held:
        """Rows of a pool, by number."""
        columns, start = [], 0
        for width in self.shape.widths:
            at = start + jnp.arange(width, dtype=jnp.int32)
            columns.append(memory[row_ids[:, None], at[None, :]])
            start += width

        def extra(k: int) -> jax.Array:
            return memory[row_ids, jnp.full(row_ids.shape, start + k, jnp.int32)]

        taylor = tuple(extra(TAYLOR + j) for j in range(TERMS))
        return Held(tuple(columns), extra(ETA), extra(OUTCOME), extra(SCALE), taylor)

    def values(self, held: Held, z: Vector) -> tuple[jax.Array, jax.Array]:
        """D of each row at z, and its slope in the row's predictor."""
        parts = [
            jnp.sum(x * piece[None, :], axis=1) for x, piece in zip(held.columns, z, strict=True)
        ]
        e = sum(parts[1:], start=parts[0])
        value, slope = self.residuals.residual(e, held.eta, held.y, held.taylor)
        return held.scale * value, held.scale * slope

    @staticmethod
    def back(held: Held, weight: jax.Array) -> Vector:
        """The sum of rows times their weights."""
        return tuple(jnp.sum(x * weight[:, None], axis=0) for x in held.columns)

    # The log-density ----------------------------------------------------------------------

    def log_of(self, estimated: Estimated) -> jax.Array:
        """dhat - sigma-hat^2 / 2 (eqs. 4.2 and 4.3)."""
        return estimated.mean - 0.5 * self.variance(estimated)

    def variance(self, estimated: Estimated) -> jax.Array:
        m = self.shape.subsample
        return estimated.squares / (m * (m - self.shape.ddof))

    def of_held(self, held: Held, z: Vector) -> tuple[Estimated, Vector]:
        """The estimate from rows that are all held, and the gradient of its log."""
        m = self.shape.subsample
        D, slope = self.values(held, z)
        live = jnp.arange(self.shape.places, dtype=jnp.int32) < m
        mean = jnp.sum(jnp.where(live, D, 0.0)) / m
        off = jnp.where(live, D - mean, 0.0)
        weight = (1 / m - off / (m * (m - self.shape.ddof))) * slope
        gradient = self.back(held, jnp.where(live, weight, 0.0))
        return Estimated(mean, jnp.sum(off * off)), gradient

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


def _run(program: _Program, *refs: Ref) -> None:
    """All iterations of one chain; the first eleven refs are read, the last four written."""
    count, pool, certain, which, chance, momentum, accept, steps, step_size, z_ref, a_ref, *out = (
        refs
    )
    out_z, out_stats, last, places = out
    shape = program.shape
    offsets = [sum(shape.widths[:k]) for k in range(len(shape.widths))]
    slices = [pl.ds(o, w) for o, w in zip(offsets, shape.widths, strict=True)]
    a = tuple(a_ref[s] for s in slices)
    h = step_size[0]
    m, b, K = shape.subsample, shape.block, shape.refreshes
    everywhere = jnp.arange(shape.places, dtype=jnp.int32)
    inside = jnp.arange(_at_least(b), dtype=jnp.int32)

    def evaluate(z: Vector, held: Held | None) -> Here:
        if held is not None:
            estimated, gradient = program.of_held(held, z)
        else:
            estimated, gradient = program.of_tiles(pool, places, z)
        log = program.log_of(estimated) + _dot(z, _plus(a, -0.5, z))
        gradient = _plus(_plus(gradient, 1.0, a), -1.0, z)
        if shape.certain:
            total, slope = program.of_certain(certain, z)
            log, gradient = log + total, _plus(gradient, 1.0, slope)
        return Here(z, log, gradient, estimated)

    def refresh(t: jax.Array, z: Vector, held_ids: jax.Array, now: Estimated) -> Pytree:
        """Propose K blocks one after the other, each accepted by eq. 3.5."""

        def propose(k: jax.Array, carry: Pytree) -> Pytree:
            held_ids, now, accepted = carry
            first = which[t, k] * b
            chosen = everywhere[:, None] == (first + inside)[None, :]
            before = jnp.sum(jnp.where(chosen, held_ids[:, None], 0), axis=0, dtype=jnp.int32)
            fresh = m + (t * K + k) * b
            live = inside < b
            old, _ = program.values(program.read(pool, before), z)
            new, _ = program.values(program.read(pool, fresh + jnp.minimum(inside, b - 1)), z)
            off, gone = jnp.where(live, new - now.mean, 0.0), jnp.where(live, old - now.mean, 0.0)
            shift = (jnp.sum(off) - jnp.sum(gone)) / m
            squares = now.squares + jnp.sum(off * off) - jnp.sum(gone * gone) - m * shift * shift
            then = Estimated(now.mean + shift, squares)
            taken = chance[t, k] < program.log_of(then) - program.log_of(now)
            now = Estimated(*(jnp.where(taken, x, y) for x, y in zip(then, now, strict=True)))
            within = everywhere - first
            replaced = taken & (within >= 0) & (within < b)
            held_ids = jnp.where(replaced, fresh + within, held_ids)
            return held_ids, now, accepted + jnp.where(taken, jnp.float32(1), jnp.float32(0))

        start = (held_ids, now, jnp.float32(0))
        held_ids, _, accepted = jax.lax.fori_loop(jnp.int32(0), jnp.int32(K), propose, start)
        return held_ids, accepted

    def iterate(t: jax.Array, carry: Pytree) -> Pytree:
        z, held_ids, now = carry
        held_ids, accepted = refresh(t, z, held_ids, now)
        held = None
        if shape.tiles == 1:
            held = program.read(pool, held_ids)
        else:
            program.write(places, everywhere, held_ids)
        start = evaluate(z, held)
        p = tuple(momentum[t, s] for s in slices)

        def leap(_: jax.Array, carry: tuple[Here, Vector]) -> tuple[Here, Vector]:
            here, p = carry
            p = _plus(p, h / 2, here.gradient)
            here = evaluate(_plus(here.z, h, p), held)
            return here, _plus(p, h / 2, here.gradient)

        end, q = jax.lax.fori_loop(jnp.int32(0), steps[t], leap, (start, p))
        energy = 0.5 * _dot(q, q) - end.log_density
        gain = (0.5 * _dot(p, p) - start.log_density) - energy
        lost = ~(jnp.abs(energy) < jnp.inf) | (gain != gain)
        gain = jnp.where(lost, -jnp.inf, gain)
        taken = accept[t] < gain
        z = tuple(jnp.where(taken, x, y) for x, y in zip(end.z, start.z, strict=True))
        now = Estimated(
            *(jnp.where(taken, x, y) for x, y in zip(end.estimated, start.estimated, strict=True))
        )
        for s, piece in zip(slices, z, strict=True):
            out_z[t, s] = piece
        log = jnp.where(taken, end.log_density, start.log_density)
        for k, value in enumerate((log, accepted, now.mean, program.variance(now), gain, energy)):
            out_stats[t, k] = value
        return z, held_ids, now

    z = tuple(z_ref[s] for s in slices)
    held_ids = jnp.where(everywhere < m, everywhere, 0)
    if shape.tiles == 1:
        now, _ = program.of_held(program.read(pool, held_ids), z)
    else:
        program.write(places, everywhere, held_ids)
        now, _ = program.of_tiles(pool, places, z)
    z, held_ids, _ = jax.lax.fori_loop(jnp.int32(0), count[0], iterate, (z, held_ids, now))
    for s, piece in zip(slices, z, strict=True):
        last[s] = piece
    program.write(places, everywhere, held_ids)


# The kernel, as seen from outside ---------------------------------------------------------


class Script(NamedTuple):
    """Random numbers of iterations, with leading axes for chains and iterations."""

    which: jax.Array  # blocks to be proposed anew
    log_chance: jax.Array  # logarithms of the uniform numbers that decide about them
    momentum: jax.Array
    log_accept: jax.Array  # the same for the end of the trajectory
    steps: jax.Array  # leapfrog steps


@dataclass(frozen=True)
class FusedKernel:
    """Many iterations of `plain` after warm-up, for chains stacked along a leading axis.

    Parameters
    ----------
    plain
        The kernel whose iterations these are: with the perturbed estimator, HMC, and rows that
        enter through one linear predictor. Its proxy must be a quadratic with B = -I, without warp,
        and its mass one.
    residuals
        The residual of such a row: the control variate of `plain`.
    ddof
        Of the estimator of `plain`.
    interpret
        Whether to run the program without an accelerator, operation by operation.
    registers, tile
        Numbers of a subsample that a program holds at most, and that it reads at a time beyond.
    warps
        Threads of a program, in units of 32; 0: by how much it holds.
    """

    plain: EnergyConservingKernel
    residuals: RowResidual
    ddof: int = 1
    interpret: bool = False
    registers: int = IN_REGISTERS
    tile: int = TILE
    warps: int = 0

    def shape(self, size: int, certain: int) -> Shape:
        """What is compiled for `size` parameters and so many certain rows."""
        m, widths = self.plain.subsample, pieces(size)
        width = sum(widths)
        places = _at_least(m)
        tile = places if places * width <= self.registers else _at_most(self.tile // width)
        # what is read beside a subsample that is held must leave room for it
        beside = min(_at_most(self.tile // width), tile, 32)
        whole = -(-certain // beside) * beside
        return Shape(
            m, self.plain.block, self.plain.refreshes, self.ddof, widths, whole, tile, beside
        )

    def numbers(self, size: int) -> tuple[int, int]:
        """Numbers of a chain's pool: of its subsample, and of each iteration."""
        width = sum(pieces(size)) + EXTRAS
        return self.plain.subsample * width, self.plain.refreshes * self.plain.block * width

    def script(self, key: jax.Array, step_size: jax.Array, size: int) -> Script:
        """The random numbers of one iteration, as `plain` draws them."""
        refresh_key, move_key = jax.random.split(key)
        which, log_chance, _ = refresh_chances(refresh_key, self.plain.refreshes, self.plain.blocks)
        move = self.plain.move
        assert isinstance(move, HMCMove)
        steps, move_key = move.steps(move_key, step_size)
        normal, rest = path_chances(move_key, size, jnp.float64)
        return Script(which, log_chance, normal, -0.5 * jnp.sum(rest**2), steps)

    def advance(
        self,
        keys: jax.Array,
        state: EnergyConservingState,
        fresh: PredictorRows,
        count: jax.Array,
        context: EnergyConservingContext,
    ) -> tuple[EnergyConservingState, Draw]:
        """Run the first `count` iterations; draws of the others are of no meaning.

        Parameters
        ----------
        keys
            Of every iteration, (chains, iterations).
        state
            Of `plain`, with a leading axis for chains.
        fresh
            What `plain.prepare` made of the rows that the iterations requested, (chains,
            iterations, ...).
        """
        length, size = keys.shape[1], state.z.shape[1]
        shape = self.shape(size, certain_rows(context))
        script, inputs = self.inputs(keys, state, fresh, count, context)
        positions, stats, last, places = self.launch(shape, length, inputs)
        at = places[:, : shape.subsample, None]
        held = jnp.take_along_axis(inputs[1], at, axis=1)
        chosen = _of_pool(held, state.subsample, size, sum(shape.widths))
        z = last[:, :size].astype(jnp.float64)
        form = self.plain.control_variate
        values = jax.vmap(lambda rows, z: form.values(rows, z, context.proxy))(chosen, z)
        after = state._replace(z=z, subsample=chosen, values=values)
        step_size = state.adaptation.step_size
        return after, self._draws(positions[..., :size], stats, script, step_size, context)

    def inputs(
        self,
        keys: jax.Array,
        state: EnergyConservingState,
        fresh: PredictorRows,
        count: jax.Array,
        context: EnergyConservingContext,
    ) -> tuple[Script, tuple[jax.Array, ...]]:
        """Random numbers, and all that programs read."""
        chains, size = state.z.shape
        shape = self.shape(size, certain_rows(context))
        step_size = state.adaptation.step_size
        of_chain = jax.vmap(partial(self.script, size=size), in_axes=(0, None))
        script = jax.vmap(of_chain)(keys, step_size)
        subsample: PredictorRows = state.subsample
        flat = jax.tree.map(lambda x: x.reshape(chains, -1, *x.shape[3:]), fresh)
        parts = [_rows_of_pool(part, shape.widths) for part in (subsample, flat)]
        pool = jnp.concatenate(parts, axis=1)
        certain = jnp.zeros((1, pool.shape[2]), jnp.float32)
        if context.certain is not None:
            certain = _rows_of_pool(context.certain, shape.widths)
            certain = _widened(certain, shape.certain, axis=0)
        width = sum(shape.widths)
        inputs = (
            count.astype(jnp.int32)[None],
            pool,
            certain,
            script.which.astype(jnp.int32),
            script.log_chance.astype(jnp.float32),
            _widened(script.momentum.astype(jnp.float32), width),
            script.log_accept.astype(jnp.float32),
            script.steps.astype(jnp.int32),
            step_size.astype(jnp.float32)[:, None],
            _widened(state.z.astype(jnp.float32), width),
            _widened(context.proxy.a.astype(jnp.float32), width),
        )
        return script, inputs

    def launch(self, shape: Shape, length: int, inputs: tuple[jax.Array, ...]) -> list[jax.Array]:
        """Run one program per chain: positions, statistics, the last position, and places."""
        chains = inputs[1].shape[0]
        width, shared = sum(shape.widths), {0, 2, 10}  # what all chains read alike

        def of_chain(array: jax.Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
            rest = array.shape[1:]
            return pl.BlockSpec((None, *rest), lambda c: (c, *(0 for _ in rest)))

        def whole(array: jax.Array) -> pl.BlockSpec:
            return pl.BlockSpec(array.shape, lambda c: tuple(0 for _ in array.shape))

        outputs = [
            jax.ShapeDtypeStruct((chains, length, width), jnp.float32),
            jax.ShapeDtypeStruct((chains, length, STATS), jnp.float32),
            jax.ShapeDtypeStruct((chains, width), jnp.float32),
            jax.ShapeDtypeStruct((chains, shape.places), jnp.int32),
        ]
        program = _Program(self.residuals, shape, self.interpret)
        call = pl.pallas_call(
            partial(_run, program),
            out_shape=outputs,
            grid=(chains,),
            in_specs=[whole(x) if k in shared else of_chain(x) for k, x in enumerate(inputs)],
            out_specs=[of_chain(x) for x in outputs],
            compiler_params=plgpu.CompilerParams(num_warps=self.warps or shape.warps, num_stages=1),
            interpret=self.interpret,
            name="hmc_ecs",
        )
        made: list[jax.Array] = call(*inputs)
        return made

    def _draws(
        self,
        positions: jax.Array,
        stats: jax.Array,
        script: Script,
        step_size: jax.Array,
        context: EnergyConservingContext,
    ) -> Draw:
        """What `plain` records of each iteration, by the same names and in the same types."""
        log, accepted, mean, variance, gain, energy = (
            stats[..., k].astype(jnp.float64) for k in range(6)
        )
        plain, steps = self.plain, script.steps
        rows = plain.subsample + certain_rows(context)
        return {
            "position": positions,  # as it is, since it travels to the host
            "lp": log + context.constant,
            "step_size": jnp.broadcast_to(step_size[:, None], steps.shape),
            "acceptance_rate_u": accepted / plain.refreshes,
            "rows_touched": plain.refreshes * plain.block + rows * (steps + 1),
            "difference_estimate": mean,
            "variance_estimate": variance,
            "acceptance_rate": jnp.exp(jnp.minimum(gain, 0.0)),
            "diverging": gain < -DIVERGENT,
            "energy": energy,
            "n_steps": steps,
            "reached_max_treedepth": jnp.zeros(steps.shape, bool),
        }


def _at_least(number: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


def _at_most(number: int) -> int:
    """The largest power of two that is not larger, and 1 at least."""
    return 1 << max(0, number.bit_length() - 1)


def _widened(values: jax.Array, size: int, axis: int = -1) -> jax.Array:
    """Zeros appended along an axis, up to `size`."""
    missing = [(0, 0)] * values.ndim
    missing[axis] = (0, size - values.shape[axis])
    return jnp.pad(values, missing)


def _rows_of_pool(cached: PredictorRows, widths: tuple[int, ...]) -> jax.Array:
    """Columns of each row and what else is kept of it, side by side in float32."""
    extras = jnp.concatenate(
        [jnp.stack([cached.eta, cached.y, cached.scale], axis=-1), cached.taylor], axis=-1
    )
    columns = _widened(cached.rows.astype(jnp.float32), sum(widths))
    return jnp.concatenate([columns, _widened(extras.astype(jnp.float32), EXTRAS)], axis=-1)


def _of_pool(pool: jax.Array, like: PredictorRows, size: int, width: int) -> PredictorRows:
    """Rows of a pool as cached rows, in the types that those of `like` have."""
    extras = pool[..., width:]
    parts = {
        "rows": pool[..., :size],
        "eta": extras[..., ETA],
        "y": extras[..., OUTCOME],
        "scale": extras[..., SCALE],
        "taylor": extras[..., TAYLOR : TAYLOR + TERMS],
    }
    return like._replace(**{name: x.astype(like.rows.dtype) for name, x in parts.items()})

"""HMC-ECS with each chain as a single GPU program that runs many iterations per launch.

Launched operation by operation, an iteration is a sequence of about a hundred small kernels,
whatever the number of chains. Here a chain is one program that holds its coordinates and its rows,
and loops over all iterations of a window: refresh, trajectory, accept, store. It follows
`EnergyConservingKernel` step by step, in float32, with the same random numbers: these and the fresh
rows depend on keys alone and are computed beforehand. Residuals are computed to full relative
precision, so that n times their rounding error stays small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from modicum.kernels.control_variates import LinearRows, LinearTaylor
from modicum.kernels.energy_conserving import (
    EnergyConservingContext,
    EnergyConservingKernel,
    EnergyConservingState,
    certain_rows,
)
from modicum.kernels.expansion import TERMS
from modicum.kernels.fused.program import (
    ETA,
    EXTRAS,
    OUTCOME,
    SCALE,
    STATS,
    TAYLOR,
    Shape,
    at_least,
    at_most,
    pieces,
    run,
)
from modicum.kernels.likelihood_estimates import EMPTY
from modicum.kernels.moves import DIVERGENT, HMCMove, PathChances
from modicum.kernels.protocols import Draw, RowRequest, carried_fields
from modicum.models.model import Batch

IN_REGISTERS = 2**11  # largest subsample, in floats, that a program holds
TILE = 2**11  # floats read at a time if the subsample does not fit
TOGETHER = 2**16  # rows of a table that are prepared at a time


@dataclass(frozen=True)
class FusedKernel:
    """Many iterations of `plain` after warm-up, for chains stacked along a leading axis.

    Parameters
    ----------
    plain
        The kernel whose iterations are run, with the perturbed estimator, HMC, and rows that enter
        through one linear predictor. Its proxy must be a quadratic with B = -I, without warp, and
        its mass matrix the identity.
    residuals
        The residual of a row: the control variate of `plain`.
    ddof
        Degrees of freedom of the estimator of `plain`.
    certain
        Number of certainty rows.
    interpret
        Whether to run the program without a GPU, operation by operation.
    registers
        Largest subsample, in floats, that a program holds, including certainty rows read beside it.
    tile
        Floats read at a time from a subsample that is not held.
    """

    plain: EnergyConservingKernel
    residuals: LinearTaylor
    ddof: int = 1
    certain: int = 0
    interpret: bool = False
    registers: int = IN_REGISTERS
    tile: int = TILE

    def shape(self, size: int) -> Shape:
        """Choose the sizes of the program for `size` parameters."""
        widths, places = pieces(size), at_least(self.plain.subsample)
        width = sum(widths)
        # certainty rows are read beside the subsample, and must leave room for it
        certain_tile = min(at_most(self.tile // width), places, 32)
        is_small = (places + (certain_tile if self.certain else 0)) * width <= self.registers
        tile = places if is_small else at_most(self.tile // width)
        certain_tile = min(certain_tile, tile)
        padded = -(-self.certain // certain_tile) * certain_tile
        common = (self.plain.subsample, self.plain.block, self.plain.refreshes, self.ddof)
        return Shape(*common, widths, padded, tile, certain_tile)

    def numbers(self, size: int) -> tuple[int, int]:
        """Floats in a chain's pool: for its subsample, and for each iteration."""
        width = self.shape(size).width + EXTRAS
        return self.plain.subsample * width, self.plain.refreshes * self.plain.block * width

    # Rows ---------------------------------------------------------------------------------

    def of_prepared(self, prepared: LinearRows) -> jax.Array:
        """Convert the result of `plain.prepare` to the form that programs read."""
        return _pool_rows(prepared, self.shape(jnp.asarray(prepared.rows).shape[-1]).width)

    def table(self, rows: Batch, context: EnergyConservingContext) -> jax.Array:
        """Prepare all rows once, in the form that programs read, (n, floats per row)."""
        n = len(next(iter(rows.values())))
        size = min(n, TOGETHER)

        def part(first: jax.Array) -> jax.Array:
            batch = {k: jax.lax.dynamic_slice_in_dim(v, first, size) for k, v in rows.items()}
            batch["probability"] = jnp.ones(size)
            return self.of_prepared(self.plain.prepare(batch, context))

        def enter(k: jax.Array, table: jax.Array) -> jax.Array:
            first = jnp.minimum(k * size, n - size)  # the last part overlaps the one before it
            return jax.lax.dynamic_update_slice_in_dim(table, part(first), first, axis=0)

        numbers = jax.eval_shape(part, 0).shape[1]
        blank = jnp.zeros((n, numbers), jnp.float32)
        return jax.lax.fori_loop(0, -(-n // size), enter, blank)

    def of_table(self, table: jax.Array, request: RowRequest) -> jax.Array:
        """Take the requested rows from a table, with residuals divided by the probabilities."""
        over = 1 / carried_fields(request)["probability"]
        scale = jnp.arange(table.shape[1]) == table.shape[1] - EXTRAS + SCALE
        return table[request.row_ids] * jnp.where(scale, over[..., None], 1).astype(jnp.float32)

    # Iterations ---------------------------------------------------------------------------

    @property
    def move(self) -> HMCMove:
        """The move of `plain`."""
        assert isinstance(self.plain.move, HMCMove)
        return self.plain.move

    def script(
        self, key: jax.Array, step_size: jax.Array, context: EnergyConservingContext
    ) -> tuple[jax.Array, ...]:
        """Draw the random numbers of one iteration, the same as `plain` draws.

        Return the inputs from `which` to `drift` of `Memory`.
        """
        refresh, path = self.plain.chances(key, context)
        assert isinstance(path, PathChances)
        steps, h = self.move.steps(path, step_size)
        turned = (jnp.cos(h), jnp.sin(h), jnp.sin(h)) if self.move.split else (1.0, h, 0.0)
        drift = jnp.stack([h / 2, *map(jnp.asarray, turned)])
        return refresh.block, refresh.log_uniform, path.momentum, path.log_uniform, steps, drift

    def advance(
        self,
        keys: jax.Array,
        state: EnergyConservingState,
        fresh: jax.Array,
        count: jax.Array,
        context: EnergyConservingContext,
    ) -> tuple[EnergyConservingState, Draw]:
        """Run the first `count` iterations; draws of later iterations are meaningless.

        Parameters
        ----------
        keys
            One key per iteration, (chains, iterations).
        state
            State of `plain`, with a leading axis for chains.
        fresh
            The rows that the iterations requested, from `of_table` or `of_prepared`.
        """
        length, size = keys.shape[1], state.z.shape[1]
        shape = self.shape(size)
        step_size = state.adaptation.step_size
        of_chain = jax.vmap(partial(self.script, context=context), in_axes=(0, None))
        *_, steps, _ = script = jax.vmap(of_chain)(keys, step_size)
        inputs = self.inputs(script, state, fresh, count, context)
        positions, stats, last, places = self.launch(shape, length, inputs)
        at = places[:, : shape.subsample, None]
        held = jnp.take_along_axis(inputs[1], at, axis=1)
        extras = held[..., shape.width :]  # rows of the pool become cached rows again
        parts = {
            "rows": held[..., :size],
            "eta": extras[..., ETA],
            "y": extras[..., OUTCOME],
            "scale": extras[..., SCALE],
            "taylor": extras[..., TAYLOR : TAYLOR + TERMS],
        }
        chosen = state.subsample._replace(
            **{name: x.astype(state.subsample.eta.dtype) for name, x in parts.items()}
        )
        z = last[:, :size].astype(jnp.float64)
        cv, tables = self.plain.control_variate, context.estimator
        values = jax.vmap(lambda rows, z: cv.values(rows, z, context.proxy))(chosen, z)
        estimate = jax.vmap(partial(self.plain.estimator.combine, tables=tables))
        log = estimate(values, state.owners != EMPTY).log
        after = state._replace(z=z, subsample=chosen, values=values, log=log)
        return after, self._draws(positions[..., :size], stats, steps, step_size, context)

    def inputs(
        self,
        script: tuple[jax.Array, ...],
        state: EnergyConservingState,
        fresh: jax.Array,
        count: jax.Array,
        context: EnergyConservingContext,
    ) -> tuple[jax.Array, ...]:
        """Return the inputs of the programs, in the order of `Memory`."""
        chains, size = state.z.shape
        shape = self.shape(size)
        width = shape.width
        flat = fresh.reshape(chains, -1, fresh.shape[-1])
        pool = jnp.concatenate([_pool_rows(state.subsample, width), flat], axis=1)
        certain = jnp.zeros((1, pool.shape[2]), jnp.float32)
        if context.certain is not None:
            certain = _pool_rows(context.certain, width)
            certain = _padded(certain, shape.certain, axis=0)
        which, chance, momentum, *others = script
        inputs = (
            *(count[None], pool, certain, which, chance, _padded(momentum, width), *others),
            *(_padded(state.z, width), _padded(context.proxy.a, width)),
        )
        return tuple(x.astype(jnp.float32 if x.dtype.kind == "f" else jnp.int32) for x in inputs)

    def launch(self, shape: Shape, length: int, inputs: tuple[jax.Array, ...]) -> list[jax.Array]:
        """Run one program per chain; return positions, statistics, last positions and places."""
        chains = inputs[1].shape[0]
        width, shared = shape.width, {0, 2, 10}  # inputs common to all chains

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
        call = pl.pallas_call(
            partial(run, self.residuals, shape, self.move.split, self.interpret),
            out_shape=outputs,
            grid=(chains,),
            in_specs=[whole(x) if k in shared else of_chain(x) for k, x in enumerate(inputs)],
            out_specs=[of_chain(x) for x in outputs],
            compiler_params=plgpu.CompilerParams(num_warps=shape.warps, num_stages=1),
            interpret=self.interpret,
            name="hmc_ecs",
        )
        return call(*inputs)

    def _draws(
        self,
        positions: jax.Array,
        stats: jax.Array,
        steps: jax.Array,
        step_size: jax.Array,
        context: EnergyConservingContext,
    ) -> Draw:
        """Return what `plain` records of each iteration, under the same names and types."""
        log, accepted, mean, variance, gain, energy = (
            stats[..., k].astype(jnp.float64) for k in range(6)
        )
        plain = self.plain
        rows = plain.subsample + certain_rows(context)
        return {
            "position": positions,  # stays float32 for the transfer to the host
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


def _padded(values: jax.Array, size: int, axis: int = -1) -> jax.Array:
    """Pad an axis with zeros, up to `size`."""
    missing = [(0, 0)] * values.ndim
    missing[axis] = (0, size - values.shape[axis])
    return jnp.pad(values, missing)


def _pool_rows(cached: LinearRows, width: int) -> jax.Array:
    """Lay out cached rows for a pool: each row's columns, then its extras, in float32."""
    extras = jnp.concatenate(
        [jnp.stack([cached.eta, cached.y, cached.scale], axis=-1), cached.taylor], axis=-1
    )
    columns = _padded(jnp.asarray(cached.rows, jnp.float32), width)
    return jnp.concatenate([columns, _padded(extras.astype(jnp.float32), EXTRAS)], axis=-1)

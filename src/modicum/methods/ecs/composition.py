"""Compose the kernel and the plan of an HMC-ECS run from the choices of its pilot study.

On a GPU a chain may run as one fused program; `fusing_obstacle` says why not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import ModicumWarning, SettingError
from modicum.kernels.adaptation import schedule
from modicum.kernels.control_variates import LinearTaylor
from modicum.kernels.designs import DESIGNS, CertaintyRows
from modicum.kernels.energy_conserving import (
    EnergyConservingContext,
    EnergyConservingKernel,
    certain_rows,
)
from modicum.kernels.group_residuals import GroupTaylor
from modicum.kernels.likelihood_estimates import Estimator, Perturbed
from modicum.kernels.moves import HMCMove, NUTSMove
from modicum.kernels.protocols import ControlVariate, Move, Settled
from modicum.kernels.remainder import TERMS, About
from modicum.methods.ecs.pilot import Study
from modicum.methods.ecs.settings import EnergyConserving, Fused
from modicum.methods.ecs.signed_products import Coreset
from modicum.methods.method import Chosen, Plan, Tuning
from modicum.methods.skewed_axes import explain_curves
from modicum.methods.weights import cached_rows, rows_for_chains, tables_for_chains
from modicum.methods.whole_groups import GroupDesign, group_tables, uneven_groups
from modicum.models.model import Batch
from modicum.rows import Rows
from modicum.rows.grouped_rows import as_groups
from modicum.runtime import Pytree, to_device

WIDEST = 512  # most columns for which a program can hold a few rows


def fused_kernel(
    fused: Fused, kernel: EnergyConservingKernel, context: EnergyConservingContext
) -> tuple[Settled | None, str]:
    """Return the kernel that fuses many iterations per launch, or None; and the reason.

    With `fused=True`, an obstacle is an error.
    """
    if fused is False:
        return None, "fused iterations were switched off"
    why = fusing_obstacle(kernel, context)
    if why is None:
        from modicum.kernels.fused.kernel import FusedKernel

        form, estimator = kernel.control_variate, kernel.estimator
        assert isinstance(form, LinearTaylor)
        assert isinstance(estimator, Perturbed)
        settled = FusedKernel(kernel, form, estimator.ddof, certain_rows(context))
        return settled, "a chain runs as one GPU program"
    if fused is True:
        raise SettingError(f"iterations cannot be fused, since {why}; leave `fused` out.")
    return None, why


def fusing_obstacle(kernel: EnergyConservingKernel, context: EnergyConservingContext) -> str | None:
    """Say why iterations cannot be fused; None if they can."""
    proxy, form = context.proxy, kernel.control_variate
    if jax.default_backend() != "gpu":
        return "there is no GPU"
    if not isinstance(kernel.estimator, Perturbed):
        return "the estimator is not the perturbed estimator"
    if type(kernel.move) is not HMCMove:
        return "parameters are not moved by HMC"
    if not isinstance(form, LinearTaylor):
        return "rows do not enter through a single linear predictor"
    if form.prior is not None or proxy.warp is not None or proxy.bend is not None:
        return "a prior is not normal"
    if proxy.levels is not None:
        return "rare levels have control variates of their own"
    if proxy.curves is not None:
        return "the posterior is skewed along some axes"
    if proxy.B is not None:
        return "control variates are not of second order about the mode"
    if proxy.point.shape[0] > WIDEST:
        return f"there are more than {WIDEST} parameters"
    return None if _can_lower(form) else "the family uses a function that GPU programs lack"


@lru_cache(maxsize=8)
def _can_lower(form: LinearTaylor) -> bool:
    """Whether the family's residuals can be lowered to a GPU program, by trying it."""
    try:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton
    except ImportError:
        return False

    def program(e: jax.Array, value: jax.Array, slope: jax.Array) -> None:
        at = e[...]
        value[...], slope[...] = form.residual(at, About(at, at, (at,) * TERMS))

    shape = jax.ShapeDtypeStruct((16,), jnp.float32)
    params = triton.CompilerParams(num_warps=1, num_stages=1)
    call = pl.pallas_call(program, out_shape=(shape, shape), compiler_params=params)
    try:
        jax.jit(call).trace(shape).lower(lowering_platforms=("cuda",))
    except Exception:  # the exception depends on JAX's version
        return False
    return True


@dataclass(frozen=True)
class Composition:
    """A likelihood estimator and its subsample.

    Attributes
    ----------
    estimator
        Estimates the likelihood from residuals.
    subsample, blocks, refreshes
        Capacity of the subsample in rows, its blocks, and blocks proposed anew per iteration.
    tables
        The estimator's constants for this data set.
    certainty
        Number of rows outside the subsample that are always evaluated.
    coreset
        Rows whose residuals predict the estimator's expectation, if any.
    """

    estimator: Estimator[Pytree]  # of tables of any kind
    subsample: int
    blocks: int
    refreshes: int
    tables: Pytree = ()
    certainty: int = 0
    coreset: Coreset | None = None

    def plan(self, study: Study, tuning: Tuning, notes: list[ModicumWarning]) -> Plan:
        """Return the plan of the run."""
        task, method = study.task, study.method
        design: Chosen = {"value": method.design, "why": DESIGNS[method.design].description}
        uneven = uneven_groups(as_groups(task.rows), self.subsample) if task.grouped else []
        kernel, context = self.kernel(study), self.context(study)
        kernel, integrator = with_integrator(method, kernel, context)
        settled, path = fused_kernel(method.fused, kernel, context)
        if jax.default_backend() == "gpu":
            fused: Chosen = {"value": "plain" if settled is None else "fused", "why": path}
            tuning = tuning | {"path": fused} | integrator
        return Plan(
            kernel=kernel,
            context=context,
            flags=schedule(task.tune, task.draws, False, adapt_step=method.step_size is None),
            anchor=study.anchor,
            rows=rows_of(study),
            floats_per_iteration=self.floats_per_iteration(study),
            start_rows=self.subsample,
            tuning=tuning
            | {"design": design}
            | study.expansion.tuning
            | study.whitening
            | study.explain_levels()
            | explain_curves(study.curves),
            notes=[*study.anchor.notes, *notes, *uneven],
            memo=study,
            settled=settled,
        )

    def kernel(self, study: Study) -> EnergyConservingKernel:
        """Compose the kernel."""
        rows, design = study.task.rows, study.design
        return EnergyConservingKernel(
            self._sized_control_variate(study),
            self.estimator,
            GroupDesign(design, as_groups(rows).largest) if rows.grouped else design,
            _move(study.method),
            self.subsample,
            self.blocks,
            self.refreshes,
            study.method.target_accept,
            first_step=study.method.step_size,
        )

    @staticmethod
    def _sized_control_variate(study: Study) -> ControlVariate[Pytree]:
        """Return the control variate, for groups with the typical number of rows of a draw."""
        form = study.control_variate
        if not isinstance(form, GroupTaylor) or study.slope_groups is None:
            return form
        typical = float(np.mean(study.slope_groups["group_rows"]))
        return replace(form, typical=8 * ceil(typical / 8))

    def context(self, study: Study) -> EnergyConservingContext:
        """Return the data that the kernel reads."""
        certain, tables = study.certain(self.certainty), study.tables
        if certain is not None:
            tables = study.design.without(certain, tables)
        if study.task.grouped:
            tables = group_tables(tables, as_groups(study.task.rows))
        return EnergyConservingContext(
            proxy=study.proxy_of_chains,
            design=tables_for_chains(tables, study.placed),
            estimator=to_device(self.tables),
            constant=jax.device_put(np.float64(study.anchor.C + study.folded_prior)),
            certain=None if certain is None else _cached_certain(study, certain),
            coreset=None if self.coreset is None else cached_coreset(study, self.coreset),
        )

    def floats_per_iteration(self, study: Study) -> int:
        """Floats that an iteration holds: its rows, whitened or not, and its random numbers."""
        size, requested = study.task.target.size, self.refreshes * (self.subsample // self.blocks)
        rows, fields = study.task.rows, study.task.floats_per_row
        if rows.grouped:
            return size + requested * as_groups(rows).largest * (fields + 12)
        if study.arrow:  # rows are kept as they are
            return size + requested * (2 * fields + 12)
        return size + requested * (size + fields + 12)


def rows_of(study: Study) -> Batch | Rows:
    """Return the rows that chains read, in the order in which the design numbers them."""
    if study.task.grouped:  # group tables hold plain row numbers
        return study.placed
    return rows_for_chains(study.tables, study.placed)


def _cached_certain(study: Study, certain: CertaintyRows) -> Pytree:
    """Read the certainty rows once, and prepare them for evaluation."""
    batch = study.task.rows.take(certain.row_ids) | {"probability": np.ones(len(certain))}
    return cached_rows(study.control_variate, batch, study.proxy)


def cached_coreset(study: Study, coreset: Coreset) -> Pytree:
    """Prepare the coreset's rows for evaluation, with their weights."""
    rows = study.pilot_rows.batch
    batch = {name: np.asarray(values)[coreset.row_ids] for name, values in rows.items()}
    batch["probability"] = 1 / coreset.weights
    return cached_rows(study.control_variate, batch, study.proxy)


def with_integrator(
    method: EnergyConserving, kernel: EnergyConservingKernel, context: EnergyConservingContext
) -> tuple[EnergyConservingKernel, Tuning]:
    """Resolve integrator="auto" of the inner HMC; return the kernel and the reason.

    A CPU keeps the paper's integrator. The split integrator is chosen only where rounding makes
    draws differ from a CPU's anyway.
    """
    if method.inner != "hmc":
        return kernel, {}
    split, why = method.integrator == "split", "set by hand"
    if method.integrator == "auto":
        obstacle = fusing_obstacle(kernel, context)
        split = obstacle is None
        why = "a chain can run as one GPU program" if obstacle is None else obstacle
        kernel = replace(kernel, move=method.hmc(split))
    chosen: Chosen = {"value": "split" if split else "leapfrog", "why": why}
    return kernel, {"integrator": chosen}


def _move(method: EnergyConserving) -> Move:
    if not isinstance(method.inner, str):
        return method.inner
    if method.inner == "nuts":
        return NUTSMove()
    return method.hmc(split=method.integrator == "split")

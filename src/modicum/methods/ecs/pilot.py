"""The pilot study before an HMC-ECS run, and the plan of the run that follows from it.

A `Study` has the control variates at the anchor and the design rows are drawn by, and measures the
residuals of some rows at draws from the posterior's normal approximation. From these moments a
method chooses its subsample, a `Composition`; `Study.plan` makes kernel, context and all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.designs import DESIGNS, RowFacts, Weighted, WeightTables, draw_on_host
from modicum.errors import ConvergenceError, ModicumWarning
from modicum.estimators import GroupTaylor, LinearTaylor, control_variate, proxy
from modicum.kernels.adaptation import schedule
from modicum.kernels.base import ControlVariate, Estimator, Move, Pytree, RowDesign, straighten
from modicum.kernels.energy_conserving import EnergyConservingContext, EnergyConservingKernel
from modicum.kernels.moves import HMCMove, NUTSMove
from modicum.methods.base import Chosen, Plan, Task, Tuning
from modicum.methods.ecs.base import EnergyConserving
from modicum.methods.ecs.tuning import (
    Pilot,
    Rehearsal,
    log_ratios,
    proxy_ratios,
    rehearse,
    study,
)
from modicum.methods.groups import of_groups, uneven_groups
from modicum.methods.weights import design_tables, ends_near_the_mode, expected_residuals
from modicum.models.base import Batch
from modicum.passes import Anchor
from modicum.passes.faults import first_bad_row
from modicum.passes.mode import folded_prior, prior_slope
from modicum.random import Stream, generator, key
from modicum.rows import Rows
from modicum.rows.groups import GroupedRows
from modicum.run import place_rows

__all__ = ["Composition", "Study"]

PILOT_DRAWS, PILOT_ROWS = 32, 20_000
CANDIDATES = 2_048  # of which pilot draws are resampled
PILOT_GROUPS, SLOPE_GROUPS = 512, 64  # instead, where groups are integrated out
REHEARSED = 4_096  # pilot rows that stand for all in a rehearsal
NORMAL = 0.5  # sd of log posterior over normal approximation up to which nothing is rehearsed


@dataclass(frozen=True)
class Composition:
    """An estimator, and the subsample it is to work on.

    Attributes
    ----------
    estimator
        What makes a likelihood of residuals.
    subsample, blocks, refreshes
        Room for rows, in how many blocks, of which how many are proposed anew per iteration.
    tables
        What the estimator knows of the data.
    """

    estimator: Estimator[Any]
    subsample: int
    blocks: int
    refreshes: int
    tables: Pytree = ()


@dataclass
class Study:
    """The pilot study of one run: control variates, design and residual moments."""

    method: EnergyConserving
    task: Task
    anchor: Anchor
    pilot: Pilot = field(init=False)

    def __post_init__(self) -> None:
        task, anchor, order = self.task, self.anchor, self.method.order
        self.control_variate = control_variate(task.target, order, self.method.precision)
        # Normal priors are part of the proxy's quadratic, which leaves out its constant.
        self.folded_prior = folded_prior(task.target, anchor.point)[0]
        self.proxy = proxy(anchor, task.target, order)
        # One Newton step from t* is where the posterior is: pilot draws about t* itself would
        # flatter the control variates, whose residuals vanish there.
        self.centre = anchor.factor.T @ (anchor.A + self._prior_slope())
        self.draws = self._pilot_draws()
        straight = self._straight(self.draws)
        self.design = DESIGNS[self.method.design]()
        facts = self._facts(straight)
        weighted = design_tables(task, Weighted(), facts)
        self.weight_tables = weighted
        tables: Pytree = weighted
        if type(self.design) is not Weighted:
            tables = design_tables(task, self.design, facts)
        self.pilot = self._study(straight, weighted, tables)
        self.draws_rows: RowDesign = self.design
        if isinstance(task.rows, GroupedRows):
            self.draws_rows, tables = of_groups(self.design, tables, task.rows)
        self.tables = jax.tree.map(jnp.asarray, tables)

    def _straight(self, draws: np.ndarray) -> np.ndarray:
        """Whitened coordinates of draws in which effects are relative to their scales."""
        if self.proxy.warp is None:
            return draws
        return np.asarray(jax.vmap(lambda z: straighten(z, self.proxy)[0])(jnp.asarray(draws)))

    def _prior_slope(self) -> np.ndarray:
        """Gradient of the log-prior at t*, by the normal that stands for it where it is none."""
        target, point = self.task.target, self.anchor.point
        if target.exact_prior is None:
            return prior_slope(target, point)[1]
        L = self.anchor.factor
        exact, numbers = target.exact_prior
        mean, precision = exact.stand_in(point, L @ L.T, numbers)
        return np.asarray(folded_prior(target, point)[1] - precision @ (point - mean))

    def _pilot_draws(self) -> np.ndarray:
        """Draws from about the posterior, in whitened coordinates.

        From its normal approximation; the standard deviations of groups may be far from that on
        their logarithm, and are resampled by the proxy, which is nearly exact in them.
        """
        rng = generator(self.task.seed, Stream.PILOT_DRAWS)
        of_groups = isinstance(self.control_variate, GroupTaylor)
        number = CANDIDATES if of_groups else PILOT_DRAWS
        draws = self.centre + rng.standard_normal((number, len(self.centre)))
        if not of_groups:
            return np.asarray(draws)
        ratios = proxy_ratios(self.control_variate, self.proxy, self.centre, draws)
        weights = np.exp(ratios - np.max(ratios))
        return np.asarray(draws[rng.choice(number, PILOT_DRAWS, p=weights / weights.sum())])

    def _facts(self, draws: np.ndarray) -> RowFacts:
        @cache
        def expected() -> np.ndarray:
            sums = self.task.sums
            few = draws[: 4 if isinstance(sums.rows, GroupedRows) else 8]
            expected = expected_residuals(sums, self.control_variate, self.proxy, few)
            if isinstance(sums.rows, GroupedRows):  # what a group costs counts as well
                expected = expected / np.sqrt(sums.rows.index.size)
            return expected

        return RowFacts(len(self.task.rows), PILOT_ROWS, expected, floor=self.method.floor)

    def _study(self, draws: np.ndarray, weighted: WeightTables, tables: Pytree) -> Pilot:
        rows = self.task.rows
        rng = generator(self.task.seed, Stream.PILOT_ROWS)
        most = PILOT_GROUPS if isinstance(rows, GroupedRows) else PILOT_ROWS
        drawn = draw_on_host(rng, min(len(rows), most), weighted)
        drawn_with = np.asarray(drawn.probability)
        studied = self.design.probability_of(drawn, tables)
        batch = rows.take(np.asarray(drawn.row_ids)) | {"probability": studied}
        self.task.ledger.add("pilot", len(drawn_with) * len(draws), "density")
        self._rows, self._ratio = batch, studied / drawn_with
        self._few: Batch | None = None
        if isinstance(rows, GroupedRows):
            first = np.asarray(drawn.row_ids)[:SLOPE_GROUPS]
            self._few = rows.take(first) | {"probability": studied[:SLOPE_GROUPS]}
        pilot = study(self.control_variate, batch, self._ratio, self.proxy, draws, self._few)
        bad = np.flatnonzero(~np.isfinite(pilot.variance))
        if len(bad):
            t = self.anchor.point + self.anchor.factor @ draws[bad[0]]
            raise ConvergenceError(ends_near_the_mode(first_bad_row(self.task.sums, t)))
        return pilot

    def rehearse(self) -> Rehearsal | None:
        """Short chains on some of the pilot rows; None where the posterior is known to be normal.

        With a linear predictor and nothing else, rows are weighted by a pass that knows the
        posterior's spread, and non-normal posteriors of real tables do no harm: no rehearsal.
        """
        if isinstance(self.control_variate, LinearTaylor):
            return None
        ratios = log_ratios(self.control_variate, self.pilot, self.proxy, self.centre, self.draws)
        if np.std(ratios) <= NORMAL:
            return None
        some = slice(0, None if isinstance(self.task.rows, GroupedRows) else REHEARSED)
        rehearsal = rehearse(
            self.control_variate,
            {name: values[some] for name, values in self._rows.items()},
            self._ratio[some],
            self.proxy,
            self.centre,
            key(self.task.seed, Stream.REHEARSAL),
        )
        self.task.ledger.add("pilot", rehearsal.evaluations, "gradient")
        return rehearsal

    @property
    def steps(self) -> int:
        """Leapfrog steps to be expected per iteration."""
        return _expected_steps(self.method.trajectory, self.task.target.size)

    @property
    def fresh(self) -> float:
        """What a fresh row costs, in evaluations of a row."""
        return self.control_variate.fresh_cost

    def plan(self, parts: Composition, tuning: Tuning, notes: list[ModicumWarning]) -> Plan:
        """All that a run needs, given the subsample that was chosen."""
        task, method = self.task, self.method
        design: Chosen = {"value": method.design, "why": DESIGNS[method.design].description}
        uneven = []
        if isinstance(task.rows, GroupedRows):
            uneven = uneven_groups(task.rows, parts.subsample)
        return Plan(
            kernel=self.kernel(parts),
            context=self.context(parts),
            flags=schedule(task.tune, task.draws, False, adapt_step=method.step_size is None),
            anchor=self.anchor,
            rows=place_rows(_members(task.rows), method.memory_limit),
            floats_per_iteration=self.floats_per_iteration(parts),
            start_rows=parts.subsample,
            tuning=tuning | {"design": design},
            notes=[*self.anchor.notes, *notes, *uneven],
            memo=self,
        )

    def kernel(self, parts: Composition) -> EnergyConservingKernel:
        """Compose the kernel."""
        return EnergyConservingKernel(
            self._with_room(parts.subsample),
            parts.estimator,
            self.draws_rows,
            _move(self.method),
            parts.subsample,
            parts.blocks,
            parts.refreshes,
            self.method.target_accept,
            first_step=self.method.step_size,
        )

    def _with_room(self, subsample: int) -> ControlVariate[Any]:
        """The control variate, with room for the rows that so many groups usually have."""
        form = self.control_variate
        if not isinstance(form, GroupTaylor) or self._few is None:
            return form
        size = self._few["group_rows"]
        usual = np.mean(size) + 2.5 * np.std(size) / np.sqrt(subsample)
        return replace(form, typical=8 * ceil(usual / 8))

    def floats_per_iteration(self, parts: Composition) -> int:
        """How many numbers an iteration holds of the rows it requests."""
        requested = parts.refreshes * (parts.subsample // parts.blocks)
        rows = self.task.rows
        fields = sum(int(np.prod(shape)) for shape in rows.fields.values())
        if isinstance(rows, GroupedRows):
            return requested * rows.largest * (fields + 12)
        return requested * (self.task.target.size + fields + 12)

    def context(self, parts: Composition) -> EnergyConservingContext:
        """What the kernel reads."""
        return EnergyConservingContext(
            proxy=self.proxy,
            design=self.tables,
            estimator=jax.tree.map(jnp.asarray, parts.tables),
            constant=jnp.asarray(self.anchor.C + self.folded_prior),
        )


def _members(rows: Rows) -> Rows:
    """The rows that a request for units names by number."""
    return rows.members if isinstance(rows, GroupedRows) else rows


def _move(method: EnergyConserving) -> Move:
    if not isinstance(method.inner, str):
        return method.inner
    if method.inner == "nuts":
        return NUTSMove()
    return HMCMove(method.trajectory, jitter=method.jitter)


def _expected_steps(trajectory: float, size: int) -> int:
    """Leapfrog steps: the step size for an acceptance of .8 falls like d^(-1/4)."""
    return max(1, ceil(trajectory / (1.4 * size**-0.25)))

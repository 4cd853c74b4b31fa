"""The pilot study before an HMC-ECS run, and the plan of the run that follows from it.

A `Study` has the control variates at the anchor and the design rows are drawn by, and measures the
residuals of some rows at draws from the posterior's normal approximation. From these moments a
method chooses its subsample, a `Composition`; `Study.plan` makes kernel, context and all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Any

import jax.numpy as jnp
import numpy as np

from modicum.designs import Design, Uniform, Weighted, draw_on_host, weight_tables
from modicum.errors import ModicumWarning
from modicum.estimators import Estimator, LinearTaylor, control_variate, proxy
from modicum.kernels.adaptation import schedule
from modicum.kernels.energy_conserving import EnergyConservingKernel
from modicum.kernels.moves import HMCMove, Move, NUTSMove
from modicum.methods.base import Chosen, Plan, Task, Tuning
from modicum.methods.ecs.base import DESIGNS, EnergyConserving
from modicum.methods.ecs.tuning import Pilot, Rehearsal, log_ratios, rehearse, study
from modicum.methods.weights import expected_residuals
from modicum.models import LinearPredictorModel
from modicum.passes import Anchor
from modicum.passes.full_likelihood import free_memory
from modicum.passes.mode import prior_hessian, prior_slope
from modicum.random import Stream, generator, key

__all__ = ["Composition", "Study", "where_rows_live"]

PILOT_DRAWS, PILOT_ROWS = 32, 20_000
REHEARSED = 4_096  # pilot rows that stand for all in a rehearsal
NORMAL = 0.5  # sd of log posterior over normal approximation up to which nothing is rehearsed
SMALL_STORE = 2**28  # bytes up to which the rows of a store are simply read into memory


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
        Numbers the estimator reads.
    """

    estimator: Estimator
    subsample: int
    blocks: int
    refreshes: int
    tables: dict[str, float] = field(default_factory=dict)


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
        at, slope = prior_slope(task.target, anchor.point)
        prior = slope, prior_hessian(task.target, anchor.point)
        # Normal priors are part of the proxy's quadratic, which leaves out its constant.
        self.folded_prior = at if isinstance(task.target.model, LinearPredictorModel) else 0.0
        self.proxy = proxy(anchor, task.target, order, prior)
        # One Newton step from t* is where the posterior is: pilot draws about t* itself would
        # flatter the control variates, whose residuals vanish there.
        self.centre = anchor.factor.T @ (anchor.A + prior[0])
        rng = generator(task.seed, Stream.PILOT_DRAWS)
        self.draws = self.centre + rng.standard_normal((PILOT_DRAWS, len(self.centre)))
        weighted = self._weighted_tables(self.draws)
        self.design: Design = Weighted() if self.method.design == "weighted" else Uniform()
        self.pilot = self._study(self.draws, weighted)
        tables: dict[str, Any] = weighted
        if self.method.design == "uniform":
            tables = {"rows": len(task.rows)}
        self.tables = {name: jnp.asarray(table) for name, table in tables.items()}

    def _weighted_tables(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        def compute() -> dict[str, np.ndarray]:
            expected = expected_residuals(
                self.task.sums, self.control_variate, self.proxy, draws[:8]
            )
            return weight_tables(expected, self.method.floor)

        return self.task.remember("design", compute)

    def _study(self, draws: np.ndarray, tables: dict[str, np.ndarray]) -> Pilot:
        rows = self.task.rows
        rng = generator(self.task.seed, Stream.PILOT_ROWS)
        drawn = draw_on_host(rng, min(len(rows), PILOT_ROWS), tables)
        drawn_with = np.asarray(drawn.probability)
        studied = drawn_with
        if self.method.design == "uniform":
            studied = np.full_like(drawn_with, 1 / len(rows))
        batch = rows.take(np.asarray(drawn.row_ids)) | {"probability": studied}
        self.task.ledger.add("pilot", len(drawn_with) * len(draws), "density")
        self._rows, self._ratio = batch, studied / drawn_with
        return study(self.control_variate, batch, self._ratio, self.proxy, draws)

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
        some = slice(0, REHEARSED)
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
        design: Chosen = {"value": method.design, "why": DESIGNS[method.design]}
        return Plan(
            kernel=self.kernel(parts),
            context=self.context(parts),
            flags=schedule(task.tune, task.draws, False, adapt_step=method.step_size is None),
            anchor=self.anchor,
            rows=where_rows_live(task),
            floats_per_iteration=self.floats_per_iteration(parts),
            start_rows=parts.subsample,
            tuning=tuning | {"design": design},
            notes=[*self.anchor.notes, *notes],
        )

    def kernel(self, parts: Composition) -> EnergyConservingKernel:
        """Compose the kernel."""
        return EnergyConservingKernel(
            self.control_variate,
            parts.estimator,
            self.design,
            _move(self.method),
            parts.subsample,
            parts.blocks,
            parts.refreshes,
            self.method.target_accept,
            first_step=self.method.step_size,
        )

    def floats_per_iteration(self, parts: Composition) -> int:
        """How many numbers an iteration holds of the rows it requests."""
        requested = parts.refreshes * (parts.subsample // parts.blocks)
        fields = sum(int(np.prod(shape)) for shape in self.task.rows.fields.values())
        return requested * (self.task.target.size + fields + 12)

    def context(self, parts: Composition) -> dict[str, Any]:
        """What the kernel reads."""
        return {
            "proxy": self.proxy,
            "design": self.tables,
            "estimator": {name: jnp.asarray(value) for name, value in parts.tables.items()},
            "constant": jnp.asarray(self.anchor.C + self.folded_prior),
        }


def _move(method: EnergyConserving) -> Move:
    if not isinstance(method.inner, str):
        return method.inner
    if method.inner == "nuts":
        return NUTSMove()
    return HMCMove(method.trajectory, jitter=method.jitter)


def _expected_steps(trajectory: float, size: int) -> int:
    """Leapfrog steps: the step size for an acceptance of .8 falls like d^(-1/4)."""
    return max(1, ceil(trajectory / (1.4 * size**-0.25)))


def where_rows_live(task: Task) -> Any:
    """On the device where they fit comfortably; else they are fetched ahead of time."""
    rows = task.rows
    comfortable = SMALL_STORE if rows.is_store else free_memory() // 2
    if rows.nbytes > comfortable:
        return rows
    return {name: jnp.asarray(values) for name, values in rows.slice(0, len(rows)).items()}

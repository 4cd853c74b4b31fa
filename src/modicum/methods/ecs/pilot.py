"""The pilot study before an HMC-ECS run: control variates, design, residuals at pilot draws.

The subsample of perturbed HMC-ECS: m, G and K, from a pilot study or set by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import jax.numpy as jnp
import numpy as np

from modicum.designs import Design, Uniform, Weighted, draw_on_host, weight_tables
from modicum.errors import ConvergenceError
from modicum.estimators import Estimator, Perturbed, control_variate, proxy
from modicum.kernels.energy_conserving import EnergyConservingKernel
from modicum.kernels.moves import HMCMove, Move, NUTSMove
from modicum.methods.base import Task
from modicum.methods.ecs.tuning import Choice, Pilot, choose, study
from modicum.methods.weights import ends_near_the_mode, expected_residuals
from modicum.models import LinearPredictorModel
from modicum.passes import Anchor
from modicum.passes.faults import first_bad_row
from modicum.passes.full_likelihood import free_memory
from modicum.passes.mode import prior_hessian, prior_slope
from modicum.random import Stream, generator

__all__ = ["PAPER_BLOCKS", "Composition", "Study", "choose_for", "perturbed", "where_rows_live"]

PILOT_DRAWS, PILOT_ROWS = 32, 20_000
SMALL_STORE = 2**28  # bytes up to which the rows of a store are simply read into memory


@dataclass(frozen=True)
class Composition:
    """An estimator, and the subsample it is to work on.

    Attributes
    ----------
    estimator
        What makes a likelihood of residuals.
    subsample, blocks, refreshes
        Room for rows, in how many blocks, of which how many are proposed anew an iteration.
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

    method: Any  # an EnergyConserving method
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
        centre = anchor.factor.T @ (anchor.A + prior[0])
        rng = generator(task.seed, Stream.PILOT_DRAWS)
        draws = centre + rng.standard_normal((PILOT_DRAWS, len(centre)))
        weighted = self._weighted_tables(draws)
        self.design: Design = Weighted() if self.method.design == "weighted" else Uniform()
        self.pilot = self._study(draws, weighted)
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
        pilot = study(self.control_variate, batch, studied / drawn_with, self.proxy, draws)
        bad = np.flatnonzero(~np.isfinite(pilot.variance))
        if len(bad):
            t = self.anchor.point + self.anchor.factor @ draws[bad[0]]
            raise ConvergenceError(ends_near_the_mode(first_bad_row(self.task.sums, t)))
        return pilot

    @property
    def steps(self) -> int:
        """Leapfrog steps to be expected an iteration."""
        return _expected_steps(self.method.trajectory, self.task.target.size)

    @property
    def fresh(self) -> float:
        """What a fresh row costs, in evaluations of a row."""
        return self.control_variate.fresh_cost

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
        """How many numbers an iteration holds of the rows it wants."""
        wanted = parts.refreshes * (parts.subsample // parts.blocks)
        fields = sum(int(np.prod(shape)) for shape in self.task.rows.fields.values())
        return wanted * (self.task.target.size + fields + 12)

    def context(self, parts: Composition) -> dict[str, Any]:
        """What the kernel reads."""
        return {
            "proxy": self.proxy,
            "design": self.tables,
            "estimator": {name: jnp.asarray(value) for name, value in parts.tables.items()},
            "constant": jnp.asarray(self.anchor.C + self.folded_prior),
        }


def _move(method: Any) -> Move:
    if method.inner == "hmc":
        return HMCMove(method.trajectory, jitter=method.jitter)
    return NUTSMove() if method.inner == "nuts" else method.inner


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


PAPER_BLOCKS = {"blocks": 100, "refreshes": 1}


def choose_for(
    study: Study, fixed: Mapping[str, int] | None = None, fixed_by: str = "set by hand"
) -> Choice:
    """Choose m, G and K; what is given in `fixed` or set by the user stays."""
    method = study.method
    names = ("subsample", "blocks", "refreshes")
    settings = {name: getattr(method, name) for name in names if getattr(method, name) is not None}
    given = dict(fixed or {}) | settings
    needs = (study.pilot, study.steps, method.bias, method.ddof)
    return choose(*needs, fixed_by=fixed_by, fresh=study.fresh, **given)


def perturbed(method: Any, choice: Choice) -> Composition:
    """The perturbed estimator on m rows in G blocks."""
    return Composition(Perturbed(method.ddof), choice.subsample, choice.blocks, choice.refreshes)

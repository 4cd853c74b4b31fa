"""HMC-ECS: Hamiltonian Monte Carlo with energy-conserving subsampling, tuned by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from modicum.designs import Design, Uniform, Weighted, weight_tables
from modicum.errors import SettingError
from modicum.estimators import Perturbed, control_variate, proxy
from modicum.kernels.adaptation import schedule
from modicum.kernels.delayed import DelayedAcceptanceKernel
from modicum.kernels.energy_conserving import EnergyConservingKernel
from modicum.kernels.moves import HMCMove, Move, NUTSMove
from modicum.methods.base import Method, Outcome, Plan, Task
from modicum.methods.ecs_guards import look_ahead, look_back
from modicum.methods.full_data import WholeLogPosterior
from modicum.models import LinearPredictorModel
from modicum.passes import Anchor, anchor_at
from modicum.passes.mode import prior_hessian, prior_slope
from modicum.passes.whole import free_memory, hold
from modicum.precision import in_double_precision
from modicum.run import History
from modicum.tuning import Choice, Pilot, choose, expected_residuals, study

__all__ = ["HMCECS"]

PILOT_DRAWS, PILOT_ROWS = 32, 20_000


@dataclass(frozen=True)
class HMCECS(Method):
    """Perturbed HMC-ECS (Dang, Quiroz, Kohn, Tran and Villani), with weighted rows by default.

    Every setting left at None is chosen from a pilot study of the residuals and explained in
    `Posterior.tuning`.

    Parameters
    ----------
    subsample
        Rows in the subsample, m.
    blocks
        Blocks of the subsample, G; a refresh proposes one block anew.
    refreshes
        Blocks proposed anew an iteration, K.
    design
        "weighted": rows drawn in proportion to their expected residual. "uniform": the papers'.
    order
        Order of the Taylor control variates: 0, 1 or 2.
    inner
        "hmc", "nuts", or any `Move`: a hashable function (key, point, logdensity, step_size,
        inverse_mass) -> (point, MoveInfo), such as a wrapped BlackJAX kernel.
    trajectory
        Step size times leapfrog steps of the inner HMC, in posterior standard deviations.
    target_accept
        Acceptance rate the step size is tuned for.
    anchor
        "mode", or a flat vector of unconstrained parameters to expand about.
    bias
        Largest shift of a posterior mean the perturbation may cause, in posterior standard
        deviations, by the pilot study.
    ddof
        1: unbiased variance estimate; 0: the paper's.
    floor
        Share of weighted draws that is uniform.
    precision
        "float64" or "float32": of the subsample's rows and residuals (sums are float64).
    exact
        None: the perturbed method. "delayed": every proposal is accepted or rejected by the
        log-likelihood of all rows, so that the posterior is exact at one pass an iteration.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.HMCECS(design="uniform", subsample=1300, inner="nuts").subsample
    1300
    """

    subsample: int | None = None
    blocks: int | None = None
    refreshes: int | None = None
    design: Literal["weighted", "uniform"] = "weighted"
    order: int = 2
    inner: Any = "hmc"
    trajectory: float = 1.2
    target_accept: float = 0.8
    anchor: Any = "mode"
    bias: float = 0.05
    ddof: int = 1
    floor: float = 0.1
    precision: Literal["float64", "float32"] = "float64"
    exact: Literal["delayed"] | None = None
    name: ClassVar[str] = "hmc-ecs"

    def __post_init__(self) -> None:
        _check(self)
        if not isinstance(self.anchor, str):  # hashable and fully shown by repr
            point = np.asarray(self.anchor, np.float64)
            object.__setattr__(self, "anchor", tuple(float(t) for t in point.ravel()))

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Anchor, weights, pilot study, choice of m, G and K, kernel."""
        anchor = self._anchor(task)
        study_ = _Study(self, task, anchor)
        choice = choose(
            study_.pilot,
            steps=_expected_steps(self.trajectory, task.target.size),
            bias=self.bias,
            ddof=self.ddof,
            subsample=self.subsample,
            blocks=self.blocks,
            refreshes=self.refreshes,
        )
        notes = look_ahead(self, study_.pilot, choice, len(task.rows), anchor)
        kernel: Any = EnergyConservingKernel(
            study_.control_variate,
            Perturbed(self.ddof),
            study_.design,
            self._move(),
            choice.subsample,
            choice.blocks,
            choice.refreshes,
            self.target_accept,
        )
        context = {
            "proxy": study_.proxy,
            "design": study_.tables,
            "constant": jnp.asarray(anchor.C + study_.folded_prior),
        }
        if self.exact == "delayed":
            source, chunks = hold(task.rows)
            context |= {"data": chunks, "rows": jnp.asarray(len(task.rows))}
            kernel = DelayedAcceptanceKernel(kernel, WholeLogPosterior(task.target, source))
        return Plan(
            kernel=kernel,
            context=context,
            signals=schedule(task.tune, task.draws, adapt_mass=False),
            anchor=anchor,
            rows=_where_rows_live(task),
            tuning=_explain(choice, self),
            notes=[*anchor.notes, *notes],
        )

    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Enter what full-data HMC would have cost, and look back at the run."""
        steps = sum(int(part["n_steps"].sum()) for part in (history.warmup, history.stats) if part)
        task.ledger.full_data = task.ledger.by_purpose.get("mode", 0) + steps * len(task.rows)
        plan.tuning["step_size"] = {
            "value": float(np.mean(history.stats["step_size"])),
            "why": f"dual averaging for an acceptance rate of {self.target_accept}",
        }
        found = [] if self.exact else look_back(plan.kernel, history)
        return Outcome(warnings=found)

    def _anchor(self, task: Task) -> Anchor:
        if self.anchor == "mode":
            return task.anchor_at_mode()
        point = np.asarray(self.anchor)
        if point.shape != task.start.shape:
            raise SettingError(
                f"the anchor has {point.size} entries, but the model has {task.start.size} "
                f"unconstrained parameters ({', '.join(task.names[:3])} ...)."
            )
        arrays = task.remember("anchor", lambda: anchor_at(task.sums, point).to_arrays())
        return Anchor.from_arrays(arrays)

    def _move(self) -> Move:
        if self.inner == "hmc":
            return HMCMove(self.trajectory)
        return NUTSMove() if self.inner == "nuts" else self.inner


@dataclass
class _Study:
    """The pilot study of one run: control variates, design and residual moments."""

    method: HMCECS
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
        rng = np.random.default_rng([task.seed, 1])
        draws = centre + rng.standard_normal((PILOT_DRAWS, len(centre)))
        weighted = self._weighted_tables(draws)
        self.design: Design = Weighted() if self.method.design == "weighted" else Uniform()
        self.tables: dict[str, Any] = {k: jnp.asarray(v) for k, v in weighted.items()}
        self.pilot = self._study(draws)
        if self.method.design == "uniform":
            self.tables = {"rows": jnp.asarray(len(task.rows))}

    def _weighted_tables(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        def compute() -> dict[str, np.ndarray]:
            expected = expected_residuals(
                self.task.sums, self.control_variate, self.proxy, draws[:8]
            )
            return weight_tables(expected, self.method.floor)

        return self.task.remember("design", compute)

    def _study(self, draws: np.ndarray) -> Pilot:
        rows = self.task.rows
        drawn = Weighted().draw(
            jax.random.fold_in(jax.random.key(2), self.task.seed & 0x7FFFFFFF),
            min(len(rows), PILOT_ROWS),
            self.tables,
        )
        drawn_with = np.asarray(drawn.probability)
        studied = drawn_with
        if self.method.design == "uniform":
            studied = np.full_like(drawn_with, 1 / len(rows))
        batch = rows.take(np.asarray(drawn.rows)) | {"probability": studied}
        self.task.ledger.add("pilot", len(drawn_with) * len(draws), "density")
        return study(self.control_variate, batch, studied / drawn_with, self.proxy, draws)


def _expected_steps(trajectory: float, size: int) -> int:
    """Leapfrog steps: the step size for an acceptance of .8 falls like d^(-1/4)."""
    return max(1, ceil(trajectory / (1.4 * size**-0.25)))


def _where_rows_live(task: Task) -> Any:
    """On the device where they fit comfortably; else they are fetched ahead of time."""
    rows = task.rows
    comfortable = 2**28 if rows.is_store else free_memory() // 2
    if rows.nbytes > comfortable:
        return rows
    return {name: jnp.asarray(values) for name, values in rows.slice(0, len(rows)).items()}


def _explain(choice: Choice, method: HMCECS) -> dict[str, Any]:
    values = {
        "subsample": choice.subsample,
        "blocks": choice.blocks,
        "refreshes": choice.refreshes,
    }
    told: dict[str, Any] = {
        name: {"value": value, "why": choice.why[name]} for name, value in values.items()
    }
    told["design"] = {"value": method.design, "why": _DESIGNS[method.design]}
    return told | {name: choice.why[name] for name in ("bias_bound", "variance")}


_DESIGNS = {
    "weighted": "rows are drawn in proportion to their expected residual over the posterior",
    "uniform": "every row alike, as in the papers",
}


def _check(method: HMCECS) -> None:
    for name in ("subsample", "blocks", "refreshes"):
        value = getattr(method, name)
        least = 2 if name == "subsample" else 1
        if value is not None and (not isinstance(value, int | np.integer) or value < least):
            raise SettingError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    if method.design not in _DESIGNS:
        raise SettingError(f"design must be 'weighted' or 'uniform', not {method.design!r}.")
    if method.order not in (0, 1, 2):
        raise SettingError(f"order must be 0, 1 or 2, not {method.order!r}.")
    if method.ddof not in (0, 1):
        raise SettingError("ddof must be 1, or 0 for the paper's divisor.")
    if isinstance(method.inner, str) and method.inner not in ("hmc", "nuts"):
        raise SettingError(f"inner must be 'hmc', 'nuts' or a Move, not {method.inner!r}.")
    if method.precision not in ("float64", "float32"):
        raise SettingError("precision must be 'float64' or 'float32'.")
    if method.exact not in (None, "delayed"):
        raise SettingError(f"exact must be None or 'delayed', not {method.exact!r}.")
    if method.exact and method.inner != "hmc":
        raise SettingError("exact='delayed' needs a reversible inner kernel: inner='hmc'.")
    if isinstance(method.anchor, str) and method.anchor != "mode":
        raise SettingError(f"anchor must be 'mode' or a point, not {method.anchor!r}.")
    for name in ("trajectory", "bias"):
        if not getattr(method, name) > 0:
            raise SettingError(f"{name} must be a positive number.")
    for name in ("target_accept", "floor"):
        if not 0 < getattr(method, name) < 1:
            raise SettingError(f"{name} must lie between 0 and 1.")
    m, G = method.subsample, method.blocks
    if m is not None and G is not None and m % G:
        raise SettingError(
            f"a subsample of {m} rows does not divide into {G} blocks; "
            f"take {G * ceil(m / G)} rows or another number of blocks."
        )

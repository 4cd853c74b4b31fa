"""Stochastic-gradient MCMC: what all its methods share, and the general composition."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from modicum.designs import Uniform
from modicum.errors import SettingError
from modicum.estimators.gradients import ESTIMATORS, GradientEstimator
from modicum.kernels.integrators import INTEGRATORS, Integrator
from modicum.kernels.selectors import SELECTORS, Selector
from modicum.kernels.stochastic_gradient import StepFlags, StochasticGradientKernel
from modicum.ledger import Ledger
from modicum.methods.base import Method, Outcome, Plan, Task
from modicum.methods.ecs.pilot import where_rows_live
from modicum.methods.sgmcmc.checks import look_back
from modicum.methods.sgmcmc.coordinates import Frame, frame
from modicum.methods.sgmcmc.design import design_of
from modicum.methods.sgmcmc.settings import DESIGNS, Parts, check, check_parts, picked
from modicum.methods.sgmcmc.step_size import gradient_noise, largest_step, step_sizes
from modicum.passes import LocalEngine, Sums
from modicum.random import Stream, generator, key
from modicum.run import History, PeriodicHook
from modicum.runtime import in_double_precision

__all__ = ["StochasticGradient", "StochasticGradientFamily"]

PILOT_POINTS = 4


@dataclass(frozen=True, kw_only=True)
class StochasticGradientFamily(Method):
    """Settings that all stochastic-gradient methods share.

    Parameters
    ----------
    step_size
        In the coordinates the chain moves in: see `whiten`. A number, a function of the
        iteration's number such as `mo.Decay`, or None: the largest step whose variances, on the
        posterior's normal approximation and with the gradient noise of a few pilot batches, are
        off by no more than `bias`.
    batch
        Rows in a batch, drawn with replacement.
    design
        "uniform"; "weighted": in proportion to the expected size of a row's gradient, found in one
        pass; "stratified": in proportion from clusters of like rows.
    clusters
        How many clusters, for design="stratified".
    whiten
        True: chains move in z, t = mode + L z, where the posterior is about standard normal.
        False: in the parameters themselves, as in the papers; no mode is looked for unless
        control variates or weighted rows need it. None: True up to 2,000 parameters.
    start
        "mode" (the default where the mode is known): a draw about the mode; "zero"; "model": the
        model's own start (the default otherwise), another for each chain of a network unless
        whitened; or a flat vector of unconstrained parameters.
    spread
        Scatter of the chains' starts: about the mode in posterior standard deviations (1), else in
        the chain's coordinates (0).
    precision
        "float64" or "float32": of state and gradients.
    bias
        Share by which variances may be off, where step_size is None.
    """

    step_size: float | Callable[[int], float] | None = None
    batch: int = 100
    design: Literal["uniform", "weighted", "stratified"] = "uniform"
    clusters: int = 10
    whiten: bool | None = None
    start: Any = None
    spread: float | None = None
    precision: Literal["float64", "float32"] = "float64"
    bias: float = 0.05

    def __post_init__(self) -> None:
        check(self)
        if self.start is not None and not isinstance(self.start, str):
            point = np.asarray(self.start, np.float64)  # hashable and fully shown by repr
            object.__setattr__(self, "start", tuple(float(t) for t in point.ravel()))
        check_parts(self.parts())

    @abstractmethod
    def parts(self) -> Parts:
        """Integrator, estimator and selector."""

    def iterations(self, passes: float, rows: int) -> int:
        """Gradients of rows are counted as in the EWSG paper: M + 1 batches, n for a snapshot."""
        parts = self.parts()
        cost = StochasticGradientKernel(*parts, Uniform(), self.batch).cost
        budget = passes * rows
        if not parts.estimator.needs_snapshots:
            return int(budget / cost + 1e-9)
        every = parts.estimator.period(rows, self.batch)  # type: ignore[attr-defined]
        cycle = rows + every * cost
        whole = int(budget / cycle + 1e-9)
        left = budget - whole * cycle - rows
        return whole * every + max(0, int(left / cost + 1e-9))

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Coordinates, design, kernel, step size, snapshots."""
        parts = self._checked(task)
        place = frame(self, task, parts)
        estimator = parts.estimator.bound(task.target, self.precision)
        design, tables = design_of(self, task, place.anchor, estimator.order)
        kernel = StochasticGradientKernel(
            *(parts.integrator, estimator, parts.selector, design, int(self.batch)),
            precision=self.precision,
            own_start=place.own_start,
        )
        context = self._context(task, place, estimator, tables)
        step_size, tuning = self._step_size(task, place, kernel, context)
        pause = self._pause(task, kernel, context)
        return Plan(
            kernel=kernel,
            context=context,
            flags=_flags(kernel, step_size, task.tune + task.draws, pause),
            anchor=place.coordinates,
            rows=where_rows_live(task),
            floats_per_iteration=_floats_per_iteration(task, kernel),
            tuning=tuning | {"design": {"value": self.design, "why": DESIGNS[self.design]}},
            notes=list(place.notes),
            pause=pause,
        )

    def _checked(self, task: Task) -> Parts:
        task.check_fields(self.name)
        if task.checkpoint is not None and callable(self.step_size) and "0x" in repr(self):
            raise SettingError(
                "a checkpoint cannot tell one function from another; give step_size as mo.Decay or "
                "as a frozen dataclass with a __call__ of your own."
            )
        return self.parts()

    def _context(
        self, task: Task, place: Frame, estimator: GradientEstimator, tables: Any
    ) -> dict[str, Any]:
        own = {
            "point": place.coordinates.point,
            "factor": place.coordinates.factor,
            "start": place.start,
            "spread": place.spread,
        }
        return {name: jnp.asarray(value, self.precision) for name, value in own.items()} | {
            "rows": jnp.asarray(len(task.rows)),
            "design": tables,
            "estimator": estimator.arrays(place.anchor),
        }

    def _step_size(
        self, task: Task, place: Frame, kernel: StochasticGradientKernel, context: Any
    ) -> tuple[Any, dict[str, Any]]:
        """The step size, and why."""
        if self.step_size is not None:
            shown = self.step_size if not callable(self.step_size) else repr(self.step_size)
            return self.step_size, {"step_size": {"value": shown, "why": "set by hand"}}
        if not place.whitened or kernel.integrator.response(1.0) is None:
            raise SettingError(
                f"{self.name} cannot choose its step without knowing the curvature"
                + ("" if place.whitened else " in raw parameters")
                + "; give step_size."
            )
        rng = generator(task.seed, Stream.STEP_SEARCH)
        points = rng.standard_normal((PILOT_POINTS, task.target.size)).astype(self.precision)
        seen = gradient_noise(
            kernel, context, task.rows, points, 0 * points, key(task.seed, Stream.NOISE_ROWS)
        )
        task.ledger.add("pilot", seen.evaluations, "gradient")
        noise = float(seen.variance.max())
        h = largest_step(kernel.integrator, noise, self.bias)
        why = (
            f"the largest with variances at most {self.bias:.0%} off, where batches give the "
            f"whitened gradient a variance of {noise:.2g}"
        )
        return h, {"step_size": {"value": h, "why": why}}

    def _pause(
        self, task: Task, kernel: StochasticGradientKernel, context: Any
    ) -> PeriodicHook | None:
        estimator = kernel.estimator
        if not estimator.needs_snapshots:
            return None
        # Without a bar of its own: that of the run is on the screen. Without the run's ledger: each
        # chain counts the snapshots among the rows it touched.
        uncounted = Ledger(rows=len(task.rows))
        sums = Sums(task.target, task.rows, LocalEngine(progressbar=False), uncounted)

        def renew(state: Any) -> Any:
            return state._replace(memory=estimator.snapshot(sums, state.walk.z, context))

        return PeriodicHook(estimator.period(len(task.rows), self.batch), renew)

    @in_double_precision
    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Look back at the run: chains that left for infinity, and gradient noise."""
        return Outcome(warnings=look_back(self, task, plan, history))


def _flags(
    kernel: StochasticGradientKernel, step_size: Any, total: int, pause: PeriodicHook | None
) -> StepFlags:
    number = np.arange(total)
    period = kernel.integrator.period
    never = np.zeros(total, bool)
    return StepFlags(
        jnp.asarray(step_sizes(step_size, total)),
        jnp.asarray(never if period is None else number % period == 0),
        jnp.asarray(never if pause is None else number % pause.every == 0),
    )


def _floats_per_iteration(task: Task, kernel: StochasticGradientKernel) -> int:
    """How many numbers an iteration holds of the rows it wants."""
    width = sum(int(np.prod(shape)) for shape in task.rows.fields.values()) + 1
    prepared = task.target.size + 12 if kernel.estimator.needs_anchor else width
    return kernel.batches * kernel.batch * (width + prepared)


@dataclass(frozen=True, kw_only=True)
class StochasticGradient(StochasticGradientFamily):
    """Any integrator with any gradient estimator and any selector of batches.

    Parameters
    ----------
    integrator
        "langevin", "preconditioned", "underdamped", "friction", "baoab", or an object of
        `modicum.kernels.integrators` with settings.
    estimator
        "minibatch", "taylor", "svrg", or an object of `modicum.estimators.gradients`.
    selector
        "plain", "exponential", or an object of `modicum.kernels.selectors`.

    Notes
    -----
    The other settings are those of `StochasticGradientFamily`.

    Examples
    --------
    EWSG on the accurate splitting, with control variates:

    >>> import modicum as mo
    >>> method = mo.StochasticGradient(
    ...     integrator="baoab", estimator="taylor", selector="exponential", batch=50
    ... )
    >>> method.parts().integrator
    Baoab(friction=2.0)
    """

    integrator: str | Integrator = "underdamped"
    estimator: str | GradientEstimator = "minibatch"
    selector: str | Selector = "plain"
    name: ClassVar[str] = "stochastic-gradient"

    def parts(self) -> Parts:
        """As they were given."""
        return Parts(
            picked(self.integrator, INTEGRATORS, Integrator, "integrator"),
            picked(self.estimator, ESTIMATORS, GradientEstimator, "estimator"),
            picked(self.selector, SELECTORS, Selector, "selector"),
        )

"""Stochastic-gradient MCMC: the base of all its methods, and the general composition.

A method combines `Parts` (integrator, gradient estimator, selector of batches) with the settings of
`StochasticGradientFamily`; `plan` places the chains in their coordinates, whitened or not, chooses
the step size and composes the kernel.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar
from weakref import ref

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import Bytes, Count, FromZero, Point, Positive, Rule, Share, number, one_of
from modicum.errors import ConvergenceError, ModicumWarning, SettingError, suggestion
from modicum.kernels.designs import DESIGNS, CertaintyRows, Uniform
from modicum.kernels.gradients import ESTIMATORS, BaseGradientEstimator
from modicum.kernels.integrators import INTEGRATORS, Integrator
from modicum.kernels.protocols import StochasticGradientContext
from modicum.kernels.stochastic_gradient import (
    SELECTORS,
    Selector,
    StepFlags,
    StochasticGradientKernel,
    StochasticGradientState,
)
from modicum.kernels.whitening import Whitening
from modicum.ledger import Ledger
from modicum.methods.method import (
    Chosen,
    Coordinates,
    Method,
    Parameters,
    Plan,
    Task,
    Tuning,
)
from modicum.methods.sgmcmc.design import certainty_of, design_of
from modicum.methods.sgmcmc.step_size import (
    gradient_noise,
    largest_step,
    look_ahead,
    look_back,
    step_sizes,
)
from modicum.models import BaseModel, Target
from modicum.models.model import DENSE_LIMIT
from modicum.passes import Anchor, LocalEngine, Sums
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.run.iterations import place_rows
from modicum.run.runner import PeriodicHook
from modicum.runtime import in_double_precision, to_device


@dataclass(frozen=True)
class RandomStart:
    """A start drawn by the model for each key, so that chains of a network begin apart.

    It is part of a kernel, which is a key of the compilation cache. So two of them are equal if
    their parameters and rows have the same layout, and the rows, which are read only during
    compilation, are held by a weak reference.
    """

    target: Target
    fields: tuple[tuple[str, tuple[int, ...]], ...]
    rows: ref[Rows] = field(compare=False)

    def __call__(self, key: jax.Array) -> jax.Array:
        """Return the flat vector of parameters."""
        rows = self.rows()
        assert rows is not None
        leaves = jax.tree.leaves(self.target.model.random_start(rows, key))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])


@dataclass(frozen=True)
class Placement:
    """Coordinates of a run, and where its chains start in them."""

    coordinates: Coordinates
    anchor: Anchor | None  # with the factor of the coordinates
    whitened: bool
    start: np.ndarray  # in the chain's coordinates
    spread: np.ndarray  # factor of the scatter about `start`
    random_start: RandomStart | None = None  # replaces `start`
    notes: list[ModicumWarning] = field(default_factory=list)


def place_chains(method: StochasticGradientFamily, task: Task, control_variates: bool) -> Placement:
    """Find the mode if it is needed, and place the chains."""
    d, start, spread = task.target.size, method.start, method.spread
    whiten = d <= DENSE_LIMIT if method.whiten is None else method.whiten
    uses = {
        "whiten=True": whiten,
        "control variates": control_variates,
        f"design={method.design!r}": DESIGNS[method.design].needs == "expected",
        "start='mode'": start == "mode",
    }
    reasons = [name for name, is_used in uses.items() if is_used]
    if reasons and d > DENSE_LIMIT:
        raise SettingError(
            f"{reasons[0]} needs the Hessian of all {d:,} parameters, and the limit is "
            f"{DENSE_LIMIT:,}; leave it out, and use whiten=False and a start of your own."
        )
    at_mode = _anchor(task, reasons[0]) if reasons else None
    coordinates: Coordinates = Parameters(np.zeros(d))
    anchor = at_mode
    if at_mode is not None and whiten:
        coordinates = at_mode
    elif at_mode is not None:
        # Parameters relative to the mode; the anchor's sums are needed in these coordinates.
        coordinates = Parameters(at_mode.point, record=at_mode.record)
        anchor = replace(at_mode, factor=np.eye(d))
    if start is None:
        start = "model" if at_mode is None else "mode"
    random_start = None
    if start == "mode":
        assert at_mode is not None
        z, scatter = np.zeros(d), np.ones(()) if whiten else at_mode.dense_factor
        scatter = (1.0 if spread is None else spread) * scatter  # a draw about the mode
    else:
        named = {"zero": np.zeros(d), "model": task.start}
        point = named[start] if isinstance(start, str) else task.point(start, "start")
        z, scatter = coordinates.whiten(point), np.asarray(spread or 0.0)
        draws = type(task.target.model).random_start is not BaseModel.random_start
        if start == "model" and not whiten and draws:
            random_start = RandomStart(task.target, tuple(task.rows.fields.items()), ref(task.rows))
    notes = [] if at_mode is None else at_mode.notes
    return Placement(coordinates, anchor, whiten, z, scatter, random_start, notes)


def _anchor(task: Task, reason: str) -> Anchor:
    try:
        return task.anchor_at_mode()
    except ConvergenceError as fault:
        raise ConvergenceError(
            f"{fault} ({reason} needs the mode; whiten=False, a step_size for the parameters "
            "themselves and a plain minibatch do not.)"
        ) from fault


PILOT_POINTS = 4
T = TypeVar("T")
DesignName: TypeAlias = Annotated[str, one_of(DESIGNS)]
StepSizes: TypeAlias = Annotated[
    Callable[[int], float], Rule("a function of the iteration number", callable)
]


class Parts(NamedTuple):
    """The parts of a stochastic-gradient method."""

    integrator: Integrator
    estimator: BaseGradientEstimator
    selector: Selector

    def check(self) -> None:
        """Refuse combinations that would not sample from the intended distribution."""
        self.selector.batches(self.integrator)  # raises for some integrators
        if self.integrator.needs_raw_gradients and self.estimator.order:
            raise SettingError(
                "pSGLD scales steps by the size of minibatch gradients, which control variates and "
                'snapshots make vanish near the mode; use estimator="minibatch", or another '
                "integrator."
            )


@dataclass(frozen=True, kw_only=True)
class StochasticGradientFamily(Method):
    """Settings that all stochastic-gradient methods share.

    Parameters
    ----------
    step_size
        Step size in the chain's coordinates, see `whiten`: a number, a function of the iteration
        number such as `mo.Decay`, or None: the largest step at which variances are off by at most
        `bias`, computed for the posterior's normal approximation with the gradient noise of a few
        pilot batches.
    batch
        Rows in a batch, drawn with replacement.
    design
        "uniform"; "weighted": with probability proportional to the expected size of a row's
        gradient, found in one pass; "stratified": proportionally from clusters of similar rows.
    clusters
        Number of clusters, for design="stratified".
    certainty
        Number of rows that every step reads, those with the largest expected residuals; the others
        are drawn. Gradients must have control variates. "auto": with design="weighted" the number
        that minimises noise times cost, otherwise 0.
    whiten
        True: chains move in z, t = mode + L z, where the posterior is about standard normal.
        False: in the parameters themselves, as in the papers; the mode is computed only if control
        variates or weighted rows need it. None: True up to 2,000 parameters.
    start
        "mode" (the default if the mode is known): a draw about the mode; "zero"; "model" (the
        default otherwise): the model's start, different for each chain of a network unless
        whitened; or a flat vector of unconstrained parameters.
    spread
        Scatter of the chains' starts: about the mode in posterior standard deviations (1), else in
        the chain's coordinates (0).
    precision
        "float64" or "float32", for state and gradients.
    bias
        Largest relative error of variances, if step_size is None.
    memory_limit
        Bytes of rows that may be kept in memory; the rows of larger data sets are read when chains
        need them. By default half of the free memory, or 256 MiB for a row store.
    """

    step_size: Annotated[Positive | StepSizes | None, "None chooses it automatically"] = None
    batch: Count = 100
    design: DesignName = "uniform"
    clusters: Count = 10
    certainty: FromZero | Literal["auto"] = "auto"
    whiten: bool | None = None
    start: Literal["mode", "zero", "model"] | Point | None = None
    spread: Annotated[float, number("a number of at least 0", lambda v: v >= 0)] | None = None
    precision: Literal["float64", "float32"] = "float64"
    bias: Share = 0.05
    memory_limit: Bytes | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts().check()

    @abstractmethod
    def parts(self) -> Parts:
        """Return integrator, estimator and selector."""

    def iterations(self, passes: float, rows: int) -> int:
        """Return the iterations that `passes` pay for, with the cost model of the EWSG paper.

        A step costs M + 1 batches of row gradients, and a snapshot n.
        """
        parts = self.parts()
        cost = StochasticGradientKernel(*parts, Uniform(), self.batch).cost
        budget = passes * rows
        period = parts.estimator.period(rows, self.batch)
        if period is None:
            return int(budget / cost + 1e-9)
        cycle = rows + period * cost
        cycles = int(budget / cycle + 1e-9)
        remaining = budget - cycles * cycle - rows
        return cycles * period + max(0, int(remaining / cost + 1e-9))

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Place the chains, make the design, compose the kernel, and choose the step size."""
        parts = self._checked(task)
        place = place_chains(self, task, parts.estimator.needs_anchor)
        estimator = parts.estimator.bind(task.target, self.precision)
        tabled = design_of(
            self.design, self.batch, self.clusters, task, place.anchor, estimator.order
        )
        kernel = StochasticGradientKernel(
            *(parts.integrator, estimator, parts.selector, tabled.design, int(self.batch)),
            precision=self.precision,
            random_start=place.random_start,
        )
        point, factor = place.coordinates.point, place.coordinates.factor
        placed = place_rows(task.rows, self.memory_limit).result()
        rows = tabled.design.placed(tabled.tables, placed)[1]

        def context_with(certain: CertaintyRows | None) -> StochasticGradientContext:
            tables, always = tabled.tables, None
            if certain is not None:
                tables = tabled.design.without(certain, tables)
                ones = {"probability": np.ones(len(certain))}
                always = task.rows.take(certain.row_ids) | ones
            return StochasticGradientContext(
                Whitening(jnp.asarray(point, self.precision), jnp.asarray(factor, self.precision)),
                start=jnp.asarray(place.start, self.precision),
                spread=jnp.asarray(place.spread, self.precision),
                n=jnp.asarray(len(task.rows)),
                design=to_device(tabled.design.placed(tables, placed)[0]),
                estimator=estimator.arrays(place.anchor, always),
            )

        def noise_in(context: StochasticGradientContext) -> float:
            """Measure the largest variance of any coordinate of the gradient, at a few points."""
            rng = generator(task.seed, Stream.STEP_SEARCH)
            points = rng.standard_normal((PILOT_POINTS, task.target.size)).astype(self.precision)
            where = (context, rows, points, 0 * points, Stream.NOISE_ROWS)
            return float(gradient_noise(task, kernel, *where)[1].max())

        context = context_with(None)
        noise = cache(partial(noise_in, context))
        settings = (estimator.fresh_cost, self.step_size is not None, noise)
        certain, why = certainty_of(self.certainty, task, tabled, *settings)
        if certain is not None:
            context = context_with(certain)
            noise = cache(partial(noise_in, context))
        step_size, tuning = self._step_size(place, kernel, noise)
        hook = self._hook(task, kernel, context)
        return Plan(
            kernel=kernel,
            context=context,
            flags=_flags(kernel, step_size, task.tune + task.draws, hook),
            anchor=place.coordinates,
            rows=rows,
            floats_per_iteration=_floats_per_iteration(task, kernel, estimator),
            tuning=tuning
            | {
                "design": Chosen(value=self.design, why=tabled.design.description),
                "certainty": Chosen(value=0 if certain is None else len(certain), why=why),
            },
            notes=[*place.notes, *look_ahead(self.batch, len(task.rows))],
            hook=hook,
            finish=partial(look_back, kernel),
        )

    def _checked(self, task: Task) -> Parts:
        task.check_fields(self.name)
        task.refuse_own_parameters(self.name)
        if task.checkpoint is not None and callable(self.step_size) and "0x" in repr(self):
            raise SettingError(
                "a checkpoint cannot tell one function from another; give step_size as mo.Decay or "
                "as a frozen dataclass with a __call__ method."
            )
        return self.parts()

    def _step_size(
        self,
        place: Placement,
        kernel: StochasticGradientKernel,
        measured: Callable[[], float],
    ) -> tuple[float | Callable[[int], float], Tuning]:
        """Return the step size, and the reason for it."""
        if self.step_size is not None:
            value = repr(self.step_size) if callable(self.step_size) else self.step_size
            return self.step_size, {"step_size": {"value": value, "why": "set by hand"}}
        if not place.whitened or kernel.integrator.response(1.0) is None:
            raise SettingError(
                f"{self.name} cannot choose its step without knowing the curvature"
                + ("" if place.whitened else " in raw parameters")
                + "; give step_size."
            )
        noise = measured()
        h = largest_step(kernel.integrator, noise, self.bias)
        why = (
            f"the largest with variances at most {self.bias:.0%} off, given a variance of "
            f"{noise:.2g} of the whitened gradient over batches"
        )
        return h, {"step_size": {"value": h, "why": why}}

    def _hook(
        self, task: Task, kernel: StochasticGradientKernel, context: StochasticGradientContext
    ) -> PeriodicHook | None:
        estimator, period = kernel.estimator, kernel.estimator.period(len(task.rows), self.batch)
        if period is None:
            return None
        # No progress bar, since the run has one, and not the run's ledger, since each chain counts
        # its snapshots among the rows it touched.
        uncounted = Ledger(rows=len(task.rows))
        sums = Sums(task.target, task.rows, LocalEngine(progressbar=False), uncounted)

        def renew(state: StochasticGradientState) -> StochasticGradientState:
            return state._replace(memory=estimator.renewed(sums, state.integrator.z, context))

        return PeriodicHook(period, renew)


def _flags(
    kernel: StochasticGradientKernel,
    step_size: float | Callable[[int], float],
    total: int,
    hook: PeriodicHook | None,
) -> StepFlags:
    number = np.arange(total)
    period = kernel.integrator.period
    never = np.zeros(total, bool)
    return StepFlags(
        to_device(step_sizes(step_size, total)),
        to_device(never if period is None else number % period == 0),
        to_device(never if hook is None else number % hook.every == 0),
    )


def _floats_per_iteration(
    task: Task, kernel: StochasticGradientKernel, estimator: BaseGradientEstimator
) -> int:
    """Return the floats per iteration that requested rows and noise take in memory."""
    width = task.floats_per_row + 1
    prepared = task.target.size + 12 if estimator.needs_anchor else width
    return task.target.size + kernel.batches * kernel.batch * (width + prepared)


@dataclass(frozen=True, kw_only=True)
class StochasticGradient(StochasticGradientFamily):
    """Any integrator with any gradient estimator and any selector of batches.

    Parameters
    ----------
    integrator
        "langevin", "preconditioned", "underdamped", "friction", "baoab", or an object of
        `modicum.kernels.integrators` with settings.
    estimator
        "minibatch", "taylor", "svrg", or an object of `modicum.kernels.gradients`.
    selector
        "plain", "exponential", or an object of `modicum.kernels.stochastic_gradient`.

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
    estimator: str | BaseGradientEstimator = "minibatch"
    selector: str | Selector = "plain"
    name: ClassVar[str] = "stochastic-gradient"
    summary: ClassVar[str] = "any integrator with any gradient estimator and selector"

    def parts(self) -> Parts:
        """Return the parts that the settings name."""
        return Parts(
            _part(self.integrator, INTEGRATORS, Integrator, "integrator"),
            _part(self.estimator, ESTIMATORS, BaseGradientEstimator, "estimator"),  # type: ignore[type-abstract]
            _part(self.selector, SELECTORS, Selector, "selector"),  # type: ignore[type-abstract]
        )


def _part(setting: object, registry: Mapping[str, type[T]], base: type[T], kind: str) -> T:
    """Return the part that a setting names, or the setting itself if it is a part."""
    if isinstance(setting, base):
        return setting
    if isinstance(setting, str) and setting in registry:
        return registry[setting]()
    if isinstance(setting, type) and issubclass(setting, base):
        return setting()
    names = ", ".join(repr(name) for name in registry)
    raise SettingError(
        f"there is no {kind} {setting!r}{suggestion(str(setting), registry)}; give {names}, or an "
        "object."
    )

"""Energy-conserving subsampling: settings of its methods, and how a run is composed.

A run goes through the stages of a pilot study (`modicum.methods.pilot`). Then a method chooses its
subsample from the residuals, which with the study is all that its kernel depends on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from math import ceil, pi
from typing import Annotated, ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import (
    Bytes,
    Count,
    FromZero,
    Point,
    Positive,
    Rule,
    Share,
    among,
    check_settings,
    one_of,
)
from modicum.errors import ModicumWarning, SettingError
from modicum.kernels.control_variates import LinearTaylor, cached_rows
from modicum.kernels.designs import DESIGNS
from modicum.kernels.energy_conserving import (
    EnergyConservingContext,
    EnergyConservingKernel,
    certain_rows,
)
from modicum.kernels.expansion import TERMS, About
from modicum.kernels.group_residuals import GroupTaylor
from modicum.kernels.likelihood_estimates import LIKELIHOODS, Perturbed
from modicum.kernels.moves import HMCMove, NUTSMove, import_ahead, schedule, typical_step_size
from modicum.kernels.protocols import ControlVariate, Move, Settled
from modicum.methods.ecs.run_checks import Case
from modicum.methods.ecs.subsample import Tuned
from modicum.methods.method import Chosen, Method, Outcome, OwnMove, Plan, Task, Tuning, account
from modicum.methods.pilot.anchored_proxy import StudySettings, check_task
from modicum.methods.pilot.coreset import Coreset
from modicum.methods.pilot.study import Study, Weights, study_rows, weigh
from modicum.methods.skewed_axes import explain_curves
from modicum.methods.weights import cheapest_number
from modicum.methods.whole_groups import GroupDesign, group_tables, uneven_groups
from modicum.methods.without_mode import NoMeanError, anchor_at_mean, may_have_mean
from modicum.models.model import Batch
from modicum.passes import Anchor, anchor_at
from modicum.rows import Rows
from modicum.rows.grouped_rows import as_groups
from modicum.run.iterations import Placed, place_rows
from modicum.run.runner import History
from modicum.runtime import Pytree, backend, in_double_precision, to_device

LEAPFROG_LENGTH = 1.2  # length of a trajectory, as in the HMC-ECS paper (section 6.3)
MOST_CERTAIN = 20_000  # most certainty rows; they are never more than a quarter of the table
# Cost relative to that of half as many, above which doubling stops: near its minimum the cost
# hardly depends on the number, and every row must be held and read.
STOP_RATIO = 0.95
QUARTER_TURN = pi / 2  # length after which a standard normal is independent of its start
INNER_HMC = {False: HMCMove(LEAPFROG_LENGTH), True: HMCMove(QUARTER_TURN, split=True)}
WIDEST = 512  # most columns for which a program on a GPU can hold a few rows
C = TypeVar("C", bound=Tuned)
Fused: TypeAlias = bool | Literal["auto"]


@dataclass(frozen=True, eq=False)
class BurnIn:
    """Result of the burn-in of the paper's schedule.

    Attributes
    ----------
    anchor
        The anchor at the mean of the last draws.
    sizes
        The numbers of rows m, recalibrated unless set by hand, of blocks and of refreshes.
    why
        The reasons for these.
    tuning
        A description of the burn-in.
    """

    anchor: Anchor
    sizes: Mapping[str, int]
    why: Mapping[str, str]
    tuning: Tuning


class Examined(NamedTuple, Generic[C]):
    """A run before it is composed.

    Attributes
    ----------
    study, choice
        The pilot study, and the subsample chosen by it.
    tuning, notes
        Descriptions, and doubts.
    distance
        Distance of the posterior's mean from the anchor, in posterior standard deviations.
    placement
        The rows on their way to the device.
    """

    study: Study
    choice: C
    tuning: Tuning
    notes: list[ModicumWarning]
    distance: float
    placement: Placed


@dataclass(frozen=True, kw_only=True)
class ECSExpert:
    """Settings of HMC-ECS that few change: for experiments, and for the papers' results.

    Parameters
    ----------
    tuning
        "auto": anchor at the mode, and m, G and K from a pilot study. "paper": the schedule of the
        paper's section 6.3, from the mean of a 1 % subset through 1,000 burn-in iterations.
    estimator
        How residuals become a log-likelihood. "perturbed": their average less half its variance;
        "paper": the same, with the paper's divisor m^2 of the variance, not m (m - 1).
    integrator
        Integrator of the inner HMC. "leapfrog", with trajectories of 1.2 posterior standard
        deviations; "split", with pi / 2: the normal approximation at the mode is integrated
        exactly, and steps only follow the deviation from it, so that fewer steps suffice and more
        proposals are accepted; "auto": "split" on a GPU if a chain can run as one program
        (see `fused`), else "leapfrog". On a GPU, `Posterior.tuning["integrator"]` says which.
    levels
        Whether rare levels of factors, and other columns of few rows, have control variates of
        their own, which follow how the rows of a level move together. "auto": unless a chain may
        run as one program on a GPU, which lacks them. Only models with one linear predictor, the
        weighted design and order 2 have them.
    precision
        "float64" or "float32": type of the subsample's rows and residuals (sums are float64).
    fused
        "auto": on a GPU, after warm-up, a chain runs as one program that does many iterations per
        launch, in float32, if the model and the settings allow it; else iterations run one by one,
        as with False. `Posterior.tuning["path"]` says which. True: raise an error where "auto"
        would fall back.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.HMCECS(expert=mo.ECSExpert(integrator="split", levels=False)).expert.integrator
    'split'
    """

    tuning: Literal["auto", "paper"] = "auto"
    estimator: Annotated[str, one_of(LIKELIHOODS)] = "perturbed"
    integrator: Literal["auto", "leapfrog", "split"] = "auto"
    levels: bool | Literal["auto"] = "auto"
    precision: Literal["float64", "float32"] = "float64"
    fused: Fused = "auto"

    def __post_init__(self) -> None:
        check_settings(self)


AsExpert: TypeAlias = Annotated[ECSExpert, Rule("mo.ECSExpert", lambda v: type(v) is ECSExpert)]


@dataclass(frozen=True, kw_only=True)
class EnergyConserving(Method, Generic[C]):
    """Subsampling in which the dynamics and the accept step use the same rows.

    It holds the settings that do not depend on the estimator; see `HMCECS`.
    """

    blocks: Count | None = None
    refreshes: Count | None = None
    design: str = "weighted"
    order: Annotated[int, among(0, 1, 2)] = 2
    inner: Literal["hmc", "nuts"] | OwnMove = "hmc"
    target_accept: Share = 0.8
    step_size: Positive | None = None
    anchor: Literal["mode", "mean"] | Point = "mode"
    certainty: FromZero | Literal["auto"] = "auto"
    memory_limit: Bytes | None = None
    expert: AsExpert = ECSExpert()
    of_digests: ClassVar[bool] = True
    number: ClassVar[str]  # the setting that fixes how many rows are drawn
    by_spread: ClassVar[bool] = True  # see `StudySettings`

    def __post_init__(self) -> None:
        super().__post_init__()
        # Blocks are replaced one by one, which rules out designs that draw a whole batch jointly.
        usable = [k for k, v in DESIGNS.items() if v.independent and v.needs != "clusters"]
        if self.design not in usable:
            names = " or ".join(map(repr, usable))
            raise SettingError(f"design must be {names}, not {self.design!r}.")
        if self.expert.integrator != "auto" and self.inner != "hmc":
            raise SettingError(
                f"integrator={self.expert.integrator!r} is for inner='hmc'; other moves have "
                "their own."
            )
        if self.scheduled and self.anchor != "mode":
            raise SettingError("tuning='paper' finds its own anchor; leave `anchor` out.")
        if self.scheduled and self.certainty not in ("auto", 0):
            raise SettingError("tuning='paper' draws all its rows; leave `certainty` out.")

    # What the methods differ in ------------------------------------------------------------

    @property
    def scheduled(self) -> bool:
        """Whether the run follows the schedule of the paper."""
        return self.expert.tuning == "paper"

    @property
    def by_hand(self) -> dict[str, int]:
        """The sizes that the user set."""
        own = {name: getattr(self, name) for name in (self.number, "blocks", "refreshes")}
        return {name: value for name, value in own.items() if value is not None}

    @abstractmethod
    def choose(self, study: Study, certainty: int, fixed: Mapping[str, int]) -> C:
        """Choose the sizes that are not `fixed`, given the number of certainty rows."""

    @abstractmethod
    def look_ahead(self, study: Study, choice: C) -> tuple[list[ModicumWarning], float]:
        """Check the choice before the run; return also how far the posterior is from the anchor."""

    @abstractmethod
    def look_back(
        self, case: Case, kernel: EnergyConservingKernel, history: History
    ) -> list[ModicumWarning]:
        """Check the run by its recorded statistics."""

    @abstractmethod
    def burn_in(self, task: Task) -> BurnIn:
        """Run the schedule of the paper."""

    # The stages of a run -------------------------------------------------------------------

    @property
    def studied(self) -> StudySettings:
        """The settings of the pilot study."""
        expert = self.expert
        may_be_fused = expert.fused and backend() == "gpu"
        return StudySettings(
            order=self.order,
            precision=expert.precision,
            design=self.design,
            anchor=self.anchor if isinstance(self.anchor, str) else "anchor",
            levels=not may_be_fused if expert.levels == "auto" else expert.levels,
            by_spread=self.by_spread,
            scheduled=self.scheduled,
        )

    def check_task(self, task: Task) -> None:
        """Refuse rows and models that the method cannot handle."""
        check_task(task)

    def find_anchor(self, task: Task) -> Anchor:
        """Return the anchor at the mode, at the mean, or at the user's point."""
        if self.inner != "hmc" or self.anchor == "mean":
            import_ahead()
        if self.anchor == "mode":
            return task.anchor_at_mode()
        if self.anchor == "mean":
            if not may_have_mean(task):
                raise NoMeanError(
                    "anchor='mean' is for models of your own on thousands of rows, of which a "
                    "subset can locate the posterior; use anchor='mode', or method='nuts'."
                )
            return anchor_at_mean(task).anchor
        point = task.point(self.anchor, "anchor")
        return task.remember("anchor", Anchor, lambda: anchor_at(task.sums, point))

    @in_double_precision
    def examine(self, task: Task, weights: Weights | None = None) -> Examined[C]:
        """Find the anchor and weight rows unless `weights` are given; study them, and choose."""
        self.check_task(task)
        placement = place_rows(task.rows.members, self.memory_limit)  # takes one core
        tuning: Tuning = {}
        if self.scheduled:
            burned_in = self.burn_in(task)
            study = study_rows(weigh(self.studied, task, burned_in.anchor))
            choice = self.choose(study, 0, {**burned_in.sizes, **self.by_hand})
            why = {name: w for name, w in burned_in.why.items() if name not in self.by_hand}
            choice = replace(choice, why=choice.why | why)
            tuning = burned_in.tuning
        else:
            study = study_rows(weights or weigh(self.studied, task, self.find_anchor(task)))
            if self.anchor == "mean":
                tuning["anchor"] = anchor_at_mean(task).text
            choice = self._cheapest(study)
        notes, distance = self.look_ahead(study, choice)
        notes = [*study.about.anchor.notes, *notes]
        if task.grouped:
            notes += uneven_groups(as_groups(task.rows), choice.capacity)
        return Examined(study, choice, choice.tuning | tuning, notes, distance, placement)

    def _cheapest(self, study: Study) -> C:
        """Choose the number of certainty rows together with everything that depends on it."""
        setting, n, count, why = self.certainty, len(study.task.rows), 0, None
        if study.task.grouped:
            if setting not in ("auto", 0):
                raise SettingError(
                    "groups with integrated effects are drawn whole, and have no certainty rows; "
                    "use certainty=0."
                )
            why = "groups are drawn, each with all its rows"
        elif self.design != "weighted":
            why = f"rows are drawn by design={self.design!r}, not by their expected residuals"
        elif self.number in self.by_hand:
            why = f"{self.number} is set by hand"
        chosen = cache(lambda count: self.choose(study, count, self.by_hand))
        if setting != "auto":
            if setting >= n:
                raise SettingError(
                    f"certainty={setting} leaves none of {n:,} rows to draw; use fewer, or "
                    "method='nuts' on all rows."
                )
            count, why = setting, "set by hand"
        if why is None:
            steps, most = self.steps(study) + 1, min(MOST_CERTAIN, n // 4)
            count, ratio = cheapest_number(lambda k: chosen(k).cost, most, steps, STOP_RATIO)
            share = f"{ratio:.0%}" if ratio > 0.01 else "less than 1%"
            why = "certainty rows would not save a tenth of the evaluations"
            if count:
                why = (
                    f"an effective draw takes {share} of the evaluations that it takes without "
                    "certainty rows, and more rows would save little"
                )
        choice = chosen(count)
        return replace(choice, why=choice.why | {"certainty": why})

    @in_double_precision
    def compose(self, examined: Examined[C]) -> Plan:
        """Return the plan of a run."""
        study, choice, tuning, notes, _, placement = examined
        task, placed = study.task, placement.result()
        design = Chosen(value=self.design, why=DESIGNS[self.design].description)
        kernel, (context, rows) = self.kernel(study, choice), self.context(study, choice, placed)
        kernel, integrator = self.with_integrator(kernel, context)
        settled, path = fused_kernel(self.expert.fused, kernel, context)
        if backend() == "gpu":
            fused = Chosen(value="plain" if settled is None else "fused", why=path)
            tuning = tuning | {"path": fused} | integrator
        return Plan(
            kernel=kernel,
            context=context,
            flags=schedule(task.tune, task.draws, False, adapt_step=self.step_size is None),
            anchor=study.about.anchor,
            rows=rows,
            floats_per_iteration=floats_per_iteration(study, choice),
            start_rows=choice.capacity,
            tuning=tuning | {"design": design} | study.about.tuning | explain_curves(study.curves),
            notes=notes,
            settled=settled,
            finish=partial(self._finish, kernel, study),
        )

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Find the anchor, study rows, choose the subsample, and compose the kernel."""
        return self.compose(self.examine(task))

    def _finish(
        self,
        kernel: EnergyConservingKernel,
        study: Study,
        task: Task,
        plan: Plan,
        history: History,
    ) -> Outcome:
        """Account for the cost, and check the run."""
        account(task, plan, history, self.step_size, self.target_accept)
        doubts = self.look_back(Case.of(study), kernel, history)
        return Outcome(weights=history.stats.get("sign"), warnings=doubts)

    # The kernel ----------------------------------------------------------------------------

    def steps(self, study: Study) -> int:
        """Expected leapfrog steps per iteration."""
        return ceil(LEAPFROG_LENGTH / typical_step_size(study.task.target.size))

    def _move(self) -> Move:
        if not isinstance(self.inner, str):
            return self.inner
        split = self.expert.integrator == "split"
        return NUTSMove() if self.inner == "nuts" else INNER_HMC[split]

    def kernel(self, study: Study, choice: C) -> EnergyConservingKernel:
        """Compose the kernel."""
        rows, design = study.task.rows, study.weights.design
        return EnergyConservingKernel(
            _sized_control_variate(study),
            choice.estimator,
            GroupDesign(design, as_groups(rows).largest) if rows.grouped else design,
            self._move(),
            choice.capacity,
            choice.blocks,
            choice.refreshes,
            self.target_accept,
            first_step=self.step_size,
        )

    def context(
        self, study: Study, choice: C, placed: Batch | Rows
    ) -> tuple[EnergyConservingContext, Batch | Rows]:
        """Return the data that the kernel reads, and the rows that it requests."""
        about, weights, always = study.about, study.weights, None
        certain, tables, proxy = weights.certain(choice.certainty), weights.tables, about.proxy
        if certain is not None:
            tables = weights.design.without(certain, tables)
            batch = study.task.rows.take(certain.row_ids) | {"probability": np.ones(len(certain))}
            always = cached_rows(about.control_variate, batch, proxy)
        if study.task.grouped:
            tables, rows = group_tables(tables, as_groups(study.task.rows)), placed
        else:
            tables, rows = weights.design.placed(tables, placed)
        if study.curves is not None:
            proxy = proxy.mapped(curves=to_device(study.curves))
        coreset = choice.coreset
        context = EnergyConservingContext(
            proxy=proxy,
            design=to_device(tables),
            estimator=to_device(choice.tables),
            constant=jax.device_put(np.float64(about.anchor.C + about.folded_prior)),
            certain=always,
            coreset=None if coreset is None else cached_coreset(study, coreset),
        )
        return context, rows

    def with_integrator(
        self, kernel: EnergyConservingKernel, context: EnergyConservingContext
    ) -> tuple[EnergyConservingKernel, Tuning]:
        """Resolve integrator="auto" of the inner HMC; return the kernel and the reason.

        A CPU keeps the paper's integrator. The split integrator is chosen only where rounding makes
        draws differ from a CPU's anyway.
        """
        if self.inner != "hmc":
            return kernel, {}
        split, why = self.expert.integrator == "split", "set by hand"
        if self.expert.integrator == "auto":
            obstacle = fusing_obstacle(kernel, context)
            split = obstacle is None
            why = "a chain can run as one GPU program" if obstacle is None else obstacle
            kernel = replace(kernel, move=INNER_HMC[split])
        return kernel, {"integrator": Chosen(value="split" if split else "leapfrog", why=why)}


def _sized_control_variate(study: Study) -> ControlVariate[Pytree]:
    """Return the control variate, for groups with the typical number of rows of a draw."""
    form, few = study.about.control_variate, study.residuals.few
    if not isinstance(form, GroupTaylor) or few is None:
        return form
    return replace(form, typical=8 * ceil(float(np.mean(few["group_rows"])) / 8))


def floats_per_iteration(study: Study, choice: Tuned) -> int:
    """Floats that an iteration holds: its rows, whitened or not, and its random numbers."""
    size, requested = study.task.target.size, choice.refreshes * (choice.capacity // choice.blocks)
    rows, fields = study.task.rows, study.task.floats_per_row
    if rows.grouped:
        return size + requested * as_groups(rows).largest * (fields + 12)
    if study.about.arrow:  # rows are kept as they are
        return size + requested * (2 * fields + 12)
    return size + requested * (size + fields + 12)


def cached_coreset(study: Study, coreset: Coreset) -> Pytree:
    """Prepare the coreset's rows for evaluation, with their weights."""
    rows = study.rows.batch
    batch = {name: np.asarray(values)[coreset.row_ids] for name, values in rows.items()}
    batch["probability"] = 1 / coreset.weights
    return cached_rows(study.about.control_variate, batch, study.about.proxy)


# One program on a GPU ----------------------------------------------------------------------


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
    if backend() != "gpu":
        return "there is no GPU"
    if not isinstance(kernel.estimator, Perturbed):
        return "the estimator is not the perturbed estimator"
    if type(kernel.move) is not HMCMove:
        return "parameters are not moved by HMC"
    if not isinstance(form, LinearTaylor):
        return "rows do not enter through a single linear predictor"
    if proxy.prior is not None or proxy.where.warp is not None or proxy.bend is not None:
        return "a prior is not normal"
    if proxy.levels is not None:
        return "rare levels have control variates of their own"
    if proxy.where.curves is not None:
        return "the posterior is skewed along some axes"
    if proxy.B is not None:
        return "control variates are not of second order about the mode"
    if proxy.where.point.shape[0] > WIDEST:
        return f"there are more than {WIDEST} parameters"
    return None if _can_lower(form) else "JAX makes no GPU program of the family"


@lru_cache(maxsize=8)
def _can_lower(form: LinearTaylor) -> bool:
    """Whether the family's residuals can be lowered to a GPU program, by trying it.

    They cannot by a JAX without Pallas's Triton, which it says will go.
    """

    def program(e: jax.Array, value: jax.Array, slope: jax.Array) -> None:
        at = e[...]
        value[...], slope[...] = form.residual(at, About(at, at, (at,) * TERMS))

    shape = jax.ShapeDtypeStruct((16,), jnp.float32)
    try:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton

        params = triton.CompilerParams(num_warps=1, num_stages=1)
        call = pl.pallas_call(program, out_shape=(shape, shape), compiler_params=params)
        jax.jit(call).trace(shape).lower(lowering_platforms=("cuda",))
    except Exception:  # the exception depends on JAX's version
        return False
    return True


def check_blocks(number: int | None, blocks: int | None, unit: str) -> None:
    """Raise unless `blocks` divides a `number` of rows or products."""
    if number is not None and blocks is not None and number % blocks:
        raise SettingError(
            f"{number} {unit} cannot be divided into {blocks} blocks; use "
            f"{blocks * ceil(number / blocks)} {unit} or another number of blocks."
        )

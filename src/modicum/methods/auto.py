"""Choose a method if the user names none: the cheapest valid one.

The choice depends on counted work and on properties of the posterior, never on a clock: the same
seed and rows give the same draws on any machine. Times are only reported.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from modicum.errors import ConvergenceError, CrudeControlVariateError, NoModeError
from modicum.methods.cost import Work, affordable, is_short, seconds_for
from modicum.methods.ecs import HMCECS
from modicum.methods.ecs.composition import Examined
from modicum.methods.ecs.run_checks import COSTLY, DOUBTED, MISLED, UNFIT
from modicum.methods.ecs.subsample import Choice
from modicum.methods.full_data import NUTS, WIDER
from modicum.methods.laplace import (
    MOST_POOL,
    Density,
    Laplace,
    Proposals,
    nested_density,
    normal_density,
)
from modicum.methods.method import Method, Parameters, Plan, Task
from modicum.methods.pilot.short_chains import ANCHOR_FAR
from modicum.methods.pilot.study import Weights, weigh
from modicum.methods.without_mode import may_have_mean
from modicum.progress import duration
from modicum.rows.grouped_rows import as_groups
from modicum.runtime import in_double_precision

# Share of effective draws, along skewed axes too, below which NUTS takes trajectories longer than
# those of a normal posterior: four times as long on 3,031 firms with 64 heavy-tailed columns.
FEW = 0.05
# Gradients that cost as much as value and slope of a residual, without a linear predictor.
RESIDUAL = 4


class SubsamplingError(Exception):
    """HMC-ECS would fail, or cost more than NUTS; says whether the mode misleads it."""

    def __init__(self, reason: str, misled: bool = False) -> None:
        super().__init__(reason)
        self.misled = misled


@dataclass(frozen=True)
class Auto(Method):
    """The cheapest valid method: weighted normal draws, HMC-ECS, or NUTS on all rows.

    Thousands of normal draws at the mode are weighted using a pool of rows. If the posterior is so
    close to normal that they suffice with room to spare (a Pareto k below 0.4, and a pool whose
    noise is far below Monte Carlo error), they are the answer; if it is far from normal on a few
    axes only, so are draws that follow its quantiles there. If scales of groups are sampled, they
    are drawn first, and coefficients are normal given these. Otherwise, if the rows are few, NUTS
    runs on all of them; if not, the pilot study of HMC-ECS tells how many rows it needs, or why it
    would fail. NUTS runs instead if the study raises a doubt or no mode is found and all rows are
    affordable. For a model of your own without a mode, or with one far from the posterior,
    HMC-ECS is studied about the mean of short chains on a subset. If all of this fails, NUTS runs
    on all rows.
    `Posterior.tuning["method"]` says in one line what was chosen, and what NUTS would cost.

    Parameters
    ----------
    laplace
        Whether weighted normal draws may be chosen. `mo.sample` excludes them if `thin`,
        `parallel` or `superchains` is given, since these are settings of chains.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.Auto()
    Auto(laplace=True)
    """

    laplace: bool = True
    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "the cheapest valid one: laplace, hmc-ecs or nuts; the default"
    of_digests: ClassVar[bool] = True

    @property
    def may_draw_normals(self) -> bool:  # type: ignore[override]
        """Whether weighted normal draws may be chosen."""
        return self.laplace

    def plan(self, task: Task) -> Plan:
        """Return the plan of the chosen method."""
        return self.decide(task)[1]

    @in_double_precision
    def decide(self, task: Task) -> tuple[Method, Plan]:
        """Choose the cheapest valid method, and return it with its plan."""
        nuts, few = NUTS(), task.of_few_chains()
        steps = nuts.gradients(task.target.size)
        all_rows = Work.of_chains(few, len(task.rows) * steps, steps)
        normal, began = Laplace(weighted=False), time.perf_counter()
        exact = normal.normal_given_scales(task) if self.laplace else None
        if exact is not None and exact.suffices:
            return normal, _planned(normal, exact, all_rows, began)
        verdict, longer = None, False
        try:
            weights = _weights(task, all_rows)
            density = _density(weights) if self.laplace else None
            if density is not None:
                began = time.perf_counter()
                try:
                    proposals = normal.weighed(weights, density)
                except ConvergenceError as error:
                    verdict = f"not taken: {error}"
                else:
                    if proposals.suffices:
                        return normal, _planned(normal, proposals, all_rows, began)
                    verdict = f"not taken: {proposals.numbers}"
                    longer = proposals.verdict.share < FEW
            if density is not None or _has_scales(task):
                _refuse_few(task, all_rows.longer(WIDER))
            plan = _plan_subsampling(HMCECS(), weights, all_rows)
            if verdict is not None:
                plan.tuning["normal draws"] = verdict
            return HMCECS(), plan
        except SubsamplingError as unsuited:
            reason, misled = str(unsuited), unsuited.misled
        if misled and may_have_mean(task):
            about_mean = HMCECS(anchor="mean")
            try:
                elsewhere = weigh(about_mean.studied, task, about_mean.find_anchor(task))
                return about_mean, _plan_subsampling(about_mean, elsewhere, all_rows)
            except SubsamplingError as unsuited:
                reason += f", and about the mean {unsuited}"
            except (ConvergenceError, CrudeControlVariateError):  # no mean, or no use
                pass
        plan = nuts.plan(few)
        if verdict is not None:
            plan.tuning["normal draws"] = verdict
        # Trajectories are longer if scales must be learned, or if few proposals were effective.
        if isinstance(plan.anchor, Parameters) or longer:
            all_rows = all_rows.longer(WIDER)
        (seconds,) = seconds_for(task, all_rows)
        plan.tuning["method"] = f"NUTS on all rows, since {reason}; about {duration(seconds)}."
        return nuts, plan


def _planned(method: Laplace, proposals: Proposals, all_rows: Work, began: float) -> Plan:
    """Plan draws that suffice; a resumed run reports the time that weighing took originally."""
    plan, task = method.of(proposals), proposals.task
    took = task.remember("weighing", float, lambda: time.perf_counter() - began)
    (others,) = seconds_for(task, all_rows)
    plan.tuning["method"] = _cost_line(proposals.density.description, took, others)
    return plan


def _weights(task: Task, all_rows: Work) -> Weights:
    """Return weights of rows at the mode.

    Raises
    ------
    SubsamplingError
        If there are none.
    NoModeError
        If no mode of a family was found, and NUTS on all rows would take too long without one.
    """
    method = HMCECS()
    try:
        anchor = task.anchor_at_mode()
        if anchor.modes is not None and len(anchor.modes) > 1:
            raise SubsamplingError(
                f"the posterior has {len(anchor.modes)} modes and HMC-ECS expands about one"
            )
        method.check_task(task)
        return weigh(method.studied, task, anchor)
    except CrudeControlVariateError as crude:
        raise SubsamplingError(crude.sentence) from crude
    except NoModeError as none:
        own = task.target.model.users_functions  # for which nothing else may be right
        if not own and not affordable(task, all_rows.longer(WIDER)):
            raise
        reason = "the posterior has no mode that could be found, and HMC-ECS expands about one"
        raise SubsamplingError(reason, misled=True) from none


def _has_scales(task: Task) -> bool:
    """Whether some parameters belong to priors, as scales of groups do."""
    return task.target.likelihood.size != task.target.size


def _density(weights: Weights) -> Density | None:
    """Return the density whose draws are worth trying: normal, or normal given scales of groups.

    None if the mode is not concave, for scales that are not of groups, and for many groups.
    """
    about, task = weights.about, weights.about.task
    if any(note.code in UNFIT for note in about.anchor.notes):
        return None
    if _has_scales(task):
        return nested_density(about)
    plain = about.proxy.where.warp is None and task.target.model.has_mode
    return normal_density(about) if plain and not (task.grouped and _are_many(task)) else None


def _are_many(task: Task) -> bool:
    """Whether groups have too many rows, each at all nodes, to weigh thousands of draws."""
    model = task.target.integrated
    return len(as_groups(task.rows).members) * model.per_effect**model.effects > MOST_POOL


def _plan_subsampling(method: HMCECS, weights: Weights, all_rows: Work) -> Plan:
    """Plan HMC-ECS, or raise a `SubsamplingError`."""
    task = weights.about.task
    try:
        examined = method.examine(task, weights)
    except CrudeControlVariateError as crude:
        raise SubsamplingError(crude.sentence) from crude
    reasons = [note for note in examined.notes if note.code in UNFIT | COSTLY]
    if reasons:
        raise SubsamplingError(reasons[0].sentence, reasons[0].code in MISLED)
    doubt = _doubt(examined)
    if doubt is not None and affordable(task, all_rows):
        raise SubsamplingError(doubt)
    study, choice = examined.study, examined.choice
    rows, steps = choice.subsample + choice.certainty, method.steps(study) + 1
    cost = 1 if study.about.linear else RESIDUAL
    work = Work.of_chains(task, rows * steps * cost, steps)
    if work.gradients > all_rows.gradients:
        raise SubsamplingError(
            f"HMC-ECS would evaluate {rows:,} of {len(task.rows):,} rows at every step of its "
            "trajectories, which costs more"
        )
    plan, seconds = method.compose(examined), seconds_for(task, work, all_rows)
    plan.tuning["method"] = _cost_line(f"HMC-ECS, m = {choice.subsample:,}", *seconds)
    return plan


def _refuse_few(task: Task, work: Work) -> None:
    """Raise a `SubsamplingError` if chains on all rows take at most half a minute.

    A study of control variates would take as long, and they are likely to be crude.
    """
    if is_short(task, work):
        normal, scales = "no normal draws describe the posterior", "scales of groups are sampled"
        raise SubsamplingError(
            f"{scales if _has_scales(task) else normal}, where control variates are crude, and "
            f"{len(task.rows):,} rows are few"
        )


def _doubt(examined: Examined[Choice]) -> str | None:
    """Say why HMC-ECS would warn that its answer may be wrong; None if it would not.

    The pilot study has seen draws of the posterior itself, which show where chains will go: so far
    from the mode that `anchor-far` follows, or where residuals are heavy-tailed.
    """
    doubts = [note for note in examined.notes if note.code in DOUBTED]
    if doubts:
        return doubts[0].sentence
    if examined.distance > ANCHOR_FAR:
        return (
            f"the posterior's mean lies {examined.distance:.1f} posterior sd from its mode, about "
            "which HMC-ECS expands"
        )
    return None


def _cost_line(description: str, seconds: float, all_rows: float) -> str:
    """Describe the chosen method, its time, and the time that NUTS on all rows would take."""
    return (
        f"{description}: about {duration(seconds)}; NUTS on all rows would take about "
        f"{duration(all_rows)}."
    )

"""Which method, where nobody asked for one: what is right, and among that what is cheapest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from modicum.errors import CrudeControlVariateError, NoModeError
from modicum.kernels.energy_conserving import EnergyConservingKernel
from modicum.methods.base import Method, Plan, Task
from modicum.methods.cost import duration, seconds_per_row
from modicum.methods.ecs import HMCECS
from modicum.methods.ecs.checks import COSTLY, UNFIT
from modicum.methods.ecs.pilot import Study
from modicum.methods.full_data import NUTS
from modicum.methods.laplace import Laplace, weigh
from modicum.random import Stream, generator
from modicum.rows.groups import GroupedRows
from modicum.runtime import in_double_precision

__all__ = ["Auto", "default_plan"]

TRIAL = 1_000  # normal draws by which it is foretold whether weighted ones will do
ROOM = 0.4  # Pareto k below which they are taken: .5 is the limit
STILL = 0.02  # posterior sds by which their pool of rows may move a mean
EFFECTIVE = 0.5  # of the draws, at least
DENSITY = 1 / 3  # cost of a log-likelihood, in gradients
OVERHEAD = 5e-5  # seconds of an iteration that touches no row
COMPILING = 4.0  # seconds, of a chain's step; weighted draws have none


def default_plan(task: Task) -> tuple[Method, Plan]:
    """HMC-ECS, or NUTS on all rows where it would not do: by its pilot, or for several modes."""
    method: Method = HMCECS()
    try:
        modes = task.anchor_at_mode().modes if task.starts and task.starts.more_than_first else None
        if modes is not None and len(modes) > 1:
            reasons = [f"the posterior has {len(modes)} modes and HMC-ECS expands about one"]
        else:
            plan = method.plan(task)
            reasons = [note.sentence for note in plan.notes if note.code in UNFIT | COSTLY]
            if not reasons:
                return method, plan
    except CrudeControlVariateError as crude:
        reasons = [crude.sentence]
    except NoModeError:
        reasons = ["the posterior has no mode that could be found, and HMC-ECS expands about one"]
    method = NUTS()
    plan = method.plan(task.of_few_chains())
    plan.tuning["method"] = f"NUTS on all rows, since {reasons[0]}."
    return method, plan


@dataclass(frozen=True)
class Auto(Method):
    """The cheapest method that is right: weighted normal draws, HMC-ECS, or NUTS on all rows.

    The pilot study of HMC-ECS says how many rows it needs, a trial of a thousand draws whether
    weighted normal draws are enough, with room to spare, and a timed gradient what each would take.
    `Posterior.tuning["choice"]` has it in one line.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.Auto()
    Auto()
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "the cheapest that is right: laplace, hmc-ecs or nuts, and says why"

    def plan(self, task: Task) -> Plan:
        """The plan of the method that is taken."""
        return self.decide(task)[1]

    @in_double_precision
    def decide(self, task: Task) -> tuple[Method, Plan]:
        """Take the cheapest that is right."""
        method, plan = default_plan(task)
        kernel, study = plan.kernel, plan.memo
        if not isinstance(kernel, EnergyConservingKernel) or not isinstance(study, Study):
            plan.tuning["choice"] = str(plan.tuning.get("method", "NUTS on all rows"))
            return method, plan
        seconds = _remembered_seconds(task, study, kernel.subsample)
        cheapest = min(seconds, key=lambda name: seconds[name])
        if cheapest == "laplace" and not _normal_enough(task, study):
            cheapest = "nuts" if seconds["nuts"] < seconds["hmc-ecs"] else "hmc-ecs"
        if cheapest == "laplace":
            method = Laplace()
            plan = method.of_study(study)
        elif cheapest == "nuts":
            method = NUTS()
            plan = method.plan(task.of_few_chains())
        plan.tuning["choice"] = _line(cheapest, seconds, kernel.subsample)
        return method, plan


def _line(chosen: str, seconds: dict[str, float], subsample: int) -> str:
    """What is taken and what it takes; what all rows would take, or subsampling."""
    names = {
        "laplace": "weighted normal draws",
        "hmc-ecs": f"HMC-ECS, m = {subsample:,}",
        "nuts": "NUTS on all rows",
    }
    others = [name for name in ("hmc-ecs", "nuts") if name != chosen]
    rest = "; ".join(f"{names[n]} would take about {duration(seconds[n])}" for n in others)
    return f"{names[chosen]}: about {duration(seconds[chosen])}; {rest}."


def _remembered_seconds(task: Task, study: Study, subsample: int) -> dict[str, float]:
    """As they were found when the run began: a resumed run must not choose anew."""

    def compute() -> dict[str, np.ndarray]:
        per_row = seconds_per_row(task, study.anchor.point)
        found = _seconds(task, study, subsample, per_row)
        return {name: np.asarray(value) for name, value in found.items()}

    def read(arrays: dict[str, np.ndarray]) -> dict[str, float]:
        return {name: float(arrays[name]) for name in ("hmc-ecs", "nuts", "laplace")}

    return task.remember("seconds", compute, read)


def _seconds(task: Task, study: Study, subsample: int, per_row: float) -> dict[str, float]:
    """Roughly: of all chains, as many at a time as there are cores, with what is compiled."""
    iterations = (task.tune + task.draws) * task.chains / min(task.chains, os.cpu_count() or 1)
    draws = task.draws * task.chains
    pool, gradients = min(len(task.rows), Laplace().pool), NUTS().gradients(task.target.size)
    return {
        "hmc-ecs": COMPILING + iterations * (OVERHEAD + subsample * (study.steps + 1) * per_row),
        "nuts": COMPILING + iterations * (OVERHEAD + len(task.rows) * gradients * per_row),
        "laplace": draws * pool * DENSITY * per_row,
    }


def _normal_enough(task: Task, study: Study) -> bool:
    """Whether weighted normal draws would do, with room to spare."""
    whole = task.target.likelihood.size == task.target.size
    if isinstance(task.rows, GroupedRows) or not whole or study.proxy.warp is not None:
        return False
    rng = generator(task.seed, Stream.LAPLACE_DRAWS)
    z = study.centre + rng.standard_normal((TRIAL, len(study.centre)))
    _, verdict, _ = weigh(study, np.asarray(z), Laplace().pool)
    return verdict.tail < ROOM and verdict.noise < STILL and verdict.share > EFFECTIVE

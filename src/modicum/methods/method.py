"""The interface of a method: it turns a task into a plan that the runner executes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar, TypeAlias, TypedDict, TypeVar

import numpy as np

from modicum.arguments import Rule, check_settings
from modicum.errors import ConvergenceError, ModicumWarning, SettingError
from modicum.files import Json, plain, restored
from modicum.kernels.protocols import Kernel, Move, Settled
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.models.model import Batch
from modicum.passes import NEAR, Anchor, ModeRecord, Starts, Sums, anchor_at_mode
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.run.chains import Chains
from modicum.run.checkpoint import Checkpoint
from modicum.run.runner import History, PeriodicHook, capacity_for, run
from modicum.runtime import Pytree

OwnMove: TypeAlias = Annotated[Move, Rule("a Move", callable)]  # for the setting `inner`
T = TypeVar("T")


class Chosen(TypedDict):
    """A setting's value, and the reason for it."""

    value: float | str | None
    why: str


Tuning = dict[str, Chosen | str | float | list[float]]  # what `Posterior.tuning` shows


@dataclass(frozen=True)
class Task:
    """What to sample: a posterior, the number of draws, and the sums over rows that methods use."""

    target: Target
    start: np.ndarray
    rows: Rows
    sums: Sums
    names: tuple[str, ...]  # of the entries of the flat vector
    draws: int  # iterations after warm-up, including those that thinning discards
    tune: int
    chains: int
    seed: int
    checkpoint: Checkpoint | None = None
    starts: Starts | None = None  # where to search for other modes
    anchor: Anchor | None = None  # at the mode, if it is known already
    few_chains: int | None = None  # number of chains for a method whose steps read all rows
    # what functions of these rows found, which methods of the same run share; see `once`
    known: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    def of_few_chains(self) -> Task:
        """Return the task with as many chains as suit a method whose steps read all rows."""
        if self.few_chains is None:
            return self
        return replace(self, chains=self.few_chains, few_chains=None)

    def of_some_rows(self, stream: Stream, size: int, chains: int, tune: int, draws: int) -> Task:
        """Return the task of so many random rows, for short chains that no checkpoint keeps."""
        sums = self.sums.of_some(generator(self.seed, stream), size)
        alone = replace(self, rows=sums.rows, sums=sums, known={}, anchor=None, checkpoint=None)
        return replace(alone, chains=chains, tune=tune, draws=draws, few_chains=None)

    def once(self, find: Callable[[Task], T]) -> T:
        """Return `find(self)`, or raise the error that it raised: it is called once per run."""
        if find not in self.known:
            try:
                self.known[find] = find(self)
            except ConvergenceError as fault:
                self.known[find] = fault
        found: T = self.known[find]
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def ledger(self) -> Ledger:
        """The ledger that counts row evaluations."""
        return self.sums.ledger

    @property
    def grouped(self) -> bool:
        """Whether groups, whose effects are integrated out, are drawn in place of rows."""
        return self.rows.grouped

    @property
    def floats_per_row(self) -> int:
        """Numbers in the fields of one row."""
        return sum(int(np.prod(shape)) for shape in self.rows.fields.values())

    def check_fields(self, method: str) -> None:
        """Refuse rows with a field that would be mistaken for a row's sampling probability."""
        if "probability" in self.rows.fields:
            raise SettingError(
                f"{method} uses the field `probability` for the chance with which a row is drawn; "
                "rename your field of that name."
            )

    def point(self, values: object, called: str) -> np.ndarray:
        """Return a flat vector of the user's; refuse one that is not of these parameters."""
        point = np.asarray(values, np.float64)
        if point.shape != self.start.shape:
            raise SettingError(
                f"the {called} has {point.size} entries, but the model has {self.start.size} "
                f"unconstrained parameters ({', '.join(self.names[:3])} ...)."
            )
        return point

    def refuse_own_parameters(self, method: str) -> None:
        """Refuse priors that have parameters: chains would not be whitened for them."""
        if self.target.likelihood.size < self.target.size:
            raise SettingError(
                f"{method} does not sample the parameters of priors (scales of groups, of a "
                "horseshoe); use method='hmc-ecs', 'hmc-ecs-signed', 'hmc' or 'nuts'."
            )

    def remember(self, name: str, kind: Any, compute: Callable[[], T]) -> T:  # kind: T as a type
        """Return what `compute` returns, or what the checkpoint has of it, arrays as NumPy's.

        The ledger counts the row evaluations of computing it either way.
        """
        if self.checkpoint is None:
            return compute()
        before = self.ledger.to_dict()

        def with_bill() -> dict[str, Json]:
            return {"found": plain(compute()), "ledger": self.ledger.since(before)}

        def read(parts: Mapping[str, Json]) -> tuple[T, Ledger]:
            return restored(kind, parts["found"]), Ledger.from_dict(parts["ledger"])

        found, bill = self.checkpoint.remember(name, with_bill, read)
        if self.ledger.to_dict() == before:  # nothing was computed
            self.ledger.merge(bill)
        return found

    def anchor_at_mode(self) -> Anchor:
        """Find the mode, or a point near it, and expand there; done once per run.

        Raises
        ------
        NoModeError
            If no mode was found.
        """
        return self.once(_anchor_at_mode)


def _anchor_at_mode(task: Task) -> Anchor:
    if task.anchor is not None:
        return task.anchor
    where = (task.sums, task.start, task.names, task.seed)
    find = partial(anchor_at_mode, *where, within=NEAR, starts=task.starts)
    return task.remember("anchor", Anchor, find)


@dataclass(frozen=True)
class Parameters:
    """The parameters themselves as coordinates, counted from `point`, in units of `factor`."""

    point: np.ndarray
    factor: np.ndarray = field(default_factory=lambda: np.ones(()))
    record: ModeRecord | None = None  # how the mode was found, if there was a search
    modes: ClassVar[None] = None  # as an `Anchor` has

    def whiten(self, t: np.ndarray) -> np.ndarray:
        """Return the coordinates z of `t`, of shape (..., d)."""
        return np.asarray((t - self.point) / self.factor)


Coordinates: TypeAlias = Anchor | Parameters  # z of a chain: t = point + factor z
Finish: TypeAlias = Callable[[Task, "Plan", History], "Outcome"]


@dataclass
class Plan:
    """A kernel ready to run, with everything it reads."""

    kernel: Kernel[Pytree, Pytree] | None  # None: `history` holds all draws already
    context: Pytree
    flags: Pytree
    anchor: Coordinates
    rows: Batch | Rows | None = None  # from which the kernel requests rows (see run.Chains)
    floats_per_iteration: int = 0  # floats prepared for an iteration, ahead of it
    start_rows: int = 0  # rows that each chain evaluates before its first iteration
    tuning: Tuning = field(default_factory=dict)
    notes: list[ModicumWarning] = field(default_factory=list)
    hook: PeriodicHook | None = None  # runs on the chains between iterations
    history: History | None = None  # all draws, if no chain needs to run
    settled: Settled | None = None  # runs many iterations at once after warm-up
    finish: Finish = lambda task, plan, history: Outcome()  # what to add after the run


@dataclass
class Outcome:
    """What a method adds to the draws of a finished run: weights, and reasons to doubt them."""

    weights: np.ndarray | None = None
    target_accept: float = 0.8  # acceptance rate that the moves were tuned for
    independent: bool = False  # whether draws are independent, so that R-hat and ESS are moot
    warnings: list[ModicumWarning] = field(default_factory=list)


class Method(ABC):
    """A sampling method with its settings: what `method=` accepts."""

    name: ClassVar[str]
    summary: ClassVar[str]  # in a few words, for help texts and lists
    has_warmup: ClassVar[bool] = True
    may_draw_normals = False  # whether it may take normal draws rather than a chain
    of_digests: ClassVar[bool] = False  # whether it accepts a digest in place of rows
    of_few_rows: ClassVar[bool] = True  # whether a step is cheap enough for thousands of chains

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def fewest_distinct(self) -> float:
        """How many distinct rows there must be for equal rows to be one row with a weight.

        To draw rows of a few is pointless, and to draw heavy ones as often as others is noisy.
        """
        design = getattr(self, "design", None)
        return {None: 1, "weighted": 10_000}.get(design, math.inf)

    @abstractmethod
    def plan(self, task: Task) -> Plan:
        """Find the anchor, tune what must be tuned before the run, and compose the kernel."""

    def decide(self, task: Task) -> tuple[Method, Plan]:
        """Return the method to run, and its plan: itself, unless it chooses among others."""
        return self, self.plan(task)

    def withdraw_claims(self, plan: Plan, doubts: Sequence[ModicumWarning]) -> None:  # noqa: B027
        """Withdraw claims from `plan.tuning` that the `doubts` about the run contradict."""

    def iterations(self, passes: float, rows: int) -> int:
        """Return the number of iterations of one chain that cost `passes` passes over the rows."""
        raise SettingError(
            f"iterations of {self.name} differ in cost, so that passes does not determine their "
            "number; give draws instead."
        )


def run_on_some_rows(task: Task, plan: Plan, keys: np.ndarray) -> History:
    """Run the short chains of `of_some_rows`."""
    assert plan.kernel is not None
    capacity = capacity_for(task.target.size, task.tune + task.draws)
    chains = Chains(plan.kernel, plan.context, keys, plan.flags, capacity)
    history = run(chains, task.tune, task.draws, progressbar=False)
    for stats in (history.warmup, history.stats):
        task.ledger.add("subset", int(stats["rows_touched"].sum()), "gradient")
    return history


def account(
    task: Task, plan: Plan, history: History, step_size: float | None, target_accept: float
) -> None:
    """Record what moves on all rows would have cost, and the step size that was used."""
    steps = sum(int(part["n_steps"].sum()) for part in (history.warmup, history.stats) if part)
    task.ledger.full_data = task.ledger.by_purpose.get("mode", 0) + steps * task.ledger.rows
    tuned = f"dual averaging for an acceptance rate of {target_accept}"
    plan.tuning["step_size"] = {
        "value": float(np.mean(history.stats["step_size"])),
        "why": tuned if step_size is None else "set by hand",
    }

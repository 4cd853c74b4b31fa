"""What a method is: settings in, a plan for the runner out."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Protocol, TypedDict, TypeVar

import numpy as np

from modicum.errors import ModicumWarning, NoModeError, SettingError, is_number
from modicum.kernels.base import Kernel, Settled
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.models.arrow import Factor
from modicum.models.base import Batch
from modicum.passes import NEAR, Anchor, ModeRecord, Starts, Sums, anchor_at_mode
from modicum.rows import Rows
from modicum.run import Checkpoint, History, PeriodicHook
from modicum.runtime import Pytree

__all__ = [
    "Chosen",
    "Coordinates",
    "Method",
    "Outcome",
    "Parameters",
    "Plan",
    "Task",
    "Tuning",
    "check_memory_limit",
]

Arrays = dict[str, np.ndarray]
T = TypeVar("T")


class Chosen(TypedDict):
    """A setting's value, and the reason for it."""

    value: float | str | None
    why: str


Tuning = dict[str, Chosen | str | float | list[float]]  # what `Posterior.tuning` shows


@dataclass(frozen=True)
class Task:
    """What was asked for: a posterior, how many draws of it, and the means to get them."""

    target: Target
    start: np.ndarray
    rows: Rows
    sums: Sums
    names: tuple[str, ...]  # of the entries of the flat vector
    draws: int  # iterations after warm-up, those not recorded included
    tune: int
    chains: int
    seed: int
    checkpoint: Checkpoint | None = None
    starts: Starts | None = None  # where other modes are looked for
    anchor: Anchor | None = None  # at the mode, where it was found with the task
    few_chains: int | None = None  # enough for a method whose steps read all rows
    # what was found once, for other methods of the same run
    cache: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    def of_few_chains(self) -> Task:
        """The same with the chains that a method gets whose steps read all rows."""
        if self.few_chains is None:
            return self
        anchor = self._anchor if isinstance(self._anchor, Anchor) else None
        return replace(self, chains=self.few_chains, anchor=anchor, few_chains=None)

    @property
    def ledger(self) -> Ledger:
        """Where row evaluations are counted."""
        return self.sums.ledger

    def check_fields(self, method: str) -> None:
        """Refuse rows with a field that would be mistaken for a row's sampling probability."""
        if "probability" in self.rows.fields:
            raise SettingError(
                f"{method} calls the chance with which a row was drawn `probability`; give the "
                "field of that name another one."
            )

    def refuse_own_parameters(self, method: str) -> None:
        """Refuse priors with parameters of their own: chains would not be whitened for these."""
        if self.target.likelihood.size < self.target.size:
            raise SettingError(
                f"{method} does not sample the parameters of priors (scales of groups, of a "
                "horseshoe); use method='hmc-ecs', 'hmc-ecs-signed', 'hmc' or 'nuts'."
            )

    def remember(self, name: str, compute: Callable[[], Arrays], read: Callable[[Arrays], T]) -> T:
        """What `read` makes of arrays that are computed, or taken from the checkpoint.

        The ledger counts them either way.
        """
        if self.checkpoint is None:
            return read(compute())
        fresh = False

        def with_bill() -> Arrays:
            nonlocal fresh
            fresh, before = True, self.ledger.to_dict()
            return compute() | {"ledger": np.array(json.dumps(self.ledger.since(before)))}

        def with_bill_read(arrays: Arrays) -> tuple[T, Ledger]:
            bill = Ledger.from_dict(json.loads(str(arrays.pop("ledger"))))
            return read(arrays), bill

        value, bill = self.checkpoint.remember(name, with_bill, with_bill_read)
        if not fresh:
            self.ledger.merge(bill)
        return value

    def anchor_at_mode(self) -> Anchor:
        """Find the mode, or a point next to it, and what is known there, once per run.

        Raises
        ------
        NoModeError
            If there is none that could be found.
        """
        anchor = self._anchor
        if isinstance(anchor, NoModeError):
            raise anchor
        return anchor

    @cached_property
    def _anchor(self) -> Anchor | NoModeError:
        if self.anchor is not None:
            return self.anchor

        def compute() -> Arrays:
            where = (self.sums, self.start, self.names, self.seed)
            return anchor_at_mode(*where, within=NEAR, starts=self.starts).to_arrays()

        try:
            return self.remember("anchor", compute, Anchor.from_arrays)
        except NoModeError as none:
            return none


class Coordinates(Protocol):
    """What a chain moves in: t = point + factor z. An `Anchor` is one."""

    @property
    def point(self) -> np.ndarray:
        """Where z = 0 is."""
        ...

    @property
    def factor(self) -> Factor:
        """L; a vector where it is diagonal, and a number c where it is c I."""
        ...

    @property
    def record(self) -> ModeRecord | None:
        """How the mode was found, if it was looked for."""
        ...


@dataclass(frozen=True)
class Parameters:
    """The parameters themselves as coordinates, counted from `point`."""

    point: np.ndarray
    factor: np.ndarray = field(default_factory=lambda: np.ones(()))
    record: ModeRecord | None = None


@dataclass
class Plan:
    """A kernel ready to run, with everything it reads."""

    kernel: Kernel[Pytree, Pytree] | None  # None: the draws are made already, see `history`
    context: Pytree
    flags: Pytree
    anchor: Coordinates
    rows: Batch | Rows | None = None  # those the kernel requests (see run.Chains)
    floats_per_iteration: int = 0  # prepared of the rows an iteration requests
    start_rows: int = 0  # evaluated by each chain before its first iteration
    tuning: Tuning = field(default_factory=dict)
    notes: list[ModicumWarning] = field(default_factory=list)
    hook: PeriodicHook | None = None  # what is done to the chains between iterations
    history: History | None = None  # all draws, where no chain had to run
    memo: object = None  # what the method needs again in `finish`
    settled: Settled | None = None  # does many iterations at once after warm-up


@dataclass
class Outcome:
    """What a method makes of a finished run, beyond the draws themselves."""

    weights: np.ndarray | None = None
    target_accept: float = 0.8  # what the moves were tuned for
    independent: bool = False  # whether R-hat and ESS have nothing to find: no chain, no start
    warnings: list[ModicumWarning] = field(default_factory=list)


class Method(ABC):
    """A named composition with its settings: what `method=` accepts."""

    name: ClassVar[str]
    summary: ClassVar[str]  # in a few words, for help texts and lists
    has_warmup: ClassVar[bool] = True
    of_digests: ClassVar[bool] = False  # whether it takes a digest in place of rows
    of_few_rows: ClassVar[bool] = True  # whether a step is cheap enough for thousands of chains

    @abstractmethod
    def plan(self, task: Task) -> Plan:
        """Find the anchor, tune what is tuned ahead, compose the kernel."""

    def decide(self, task: Task) -> tuple[Method, Plan]:
        """The method that is taken, and its plan: itself, unless it chooses among others."""
        return self, self.plan(task)

    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Look back at the run: weights of the draws, and reasons to doubt them."""
        del task, plan, history
        return Outcome()

    def withdraw_claims(self, plan: Plan, doubts: Sequence[ModicumWarning]) -> None:
        """Withdraw claims from `plan.tuning` that the `doubts` about the run contradict."""
        del plan, doubts

    def iterations(self, passes: float, rows: int) -> int:
        """The number of iterations of one chain that cost `passes` passes over the rows."""
        del passes, rows
        raise SettingError(
            f"iterations of {self.name} differ in cost, so that a number of passes does not say "
            "how many there are; give draws instead."
        )


def check_memory_limit(limit: int | None) -> None:
    """Refuse a setting `memory_limit` that is neither None nor a number of bytes."""
    if limit is not None and not (is_number(limit) and limit >= 0):
        raise SettingError(f"memory_limit must be a number of bytes, or None, not {limit!r}.")

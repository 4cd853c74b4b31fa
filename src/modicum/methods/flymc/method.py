"""FlyMC: Firefly Monte Carlo, exact sampling that evaluates only bright rows."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Literal

import numpy as np

from modicum.diagnostics import ess
from modicum.errors import ModicumWarning, SettingError, is_number, whole_number
from modicum.estimators.bounds import bound_of
from modicum.kernels.adaptation import schedule, typical_step_size
from modicum.kernels.base import Move
from modicum.kernels.flymc import FlyKernel
from modicum.kernels.moves import HMCMove, MALAMove, NUTSMove, RandomWalkMove
from modicum.methods.base import Method, Outcome, Plan, Task, check_memory_limit
from modicum.methods.flymc.pilot import FlyStudy
from modicum.models.base import DENSE_LIMIT
from modicum.run import History, place_rows
from modicum.runtime import in_double_precision


def look_ahead(study: FlyStudy) -> list[ModicumWarning]:
    """Warn if so many rows are bright that FlyMC saves little."""
    ours = study.n * study.rate + study.bright * (study.steps + 2)
    theirs = study.n * study.steps
    if ours <= theirs / 2:
        return []
    remedy = "use method='hmc-ecs', or method='nuts' on all rows"
    if not study.method.tuned:
        remedy = "use tuned=True, or method='nuts' on all rows"
    return [
        ModicumWarning(
            "bright-many",
            f"FlyMC saves little here: {study.share:.0%} of the rows are expected to be bright, "
            f"and an iteration to evaluate {ours:,.0f} rows, against {theirs:,.0f} for a method on "
            "all rows",
            remedy,
            share=study.share,
        )
    ]


def look_back(capacity: int, history: History) -> list[ModicumWarning]:
    """Warn if bright rows ran out of room, or if the lights changed slowly."""
    stats, doubts = history.stats, []
    refused = int(stats["bright_refused"].sum())
    if refused:
        doubts.append(
            ModicumWarning(
                "bright-full",
                f"{refused} of {stats['n_bright'].size} updates of the lights were refused because "
                f"there is room for only {capacity:,} bright rows, so that parts of the posterior "
                "where more are bright are missing",
                "raise `capacity`",
                refused=refused,
                capacity=capacity,
            )
        )
    bright = stats["n_bright"]
    if bright.shape[1] >= 100 and np.ptp(bright) > 0:
        effective = float(np.nanmin(ess(bright[..., None].astype(float))))
        if effective < 50:
            doubts.append(
                ModicumWarning(
                    "lights-slow",
                    f"the lights change slowly: the number of bright rows has an effective sample "
                    f"size of {effective:.0f} in {bright.size} draws",
                    "raise `rate`, or draw more",
                    ess=effective,
                )
            )
    return doubts


ACCEPT = {"hmc": 0.8, "nuts": 0.8, "mala": 0.574, "random-walk": 0.234}


@dataclass(frozen=True)
class FlyMC(Method):
    """Firefly Monte Carlo (Maclaurin and Adams 2014), for `Logistic`, `StudentT` and `Softmax`.

    Every row has a light; only bright rows enter a step of the parameters, and the posterior is
    exact. With bounds tuned at the mode few rows are bright; untuned, a few per cent are.

    Parameters
    ----------
    tuned
        Whether each row's bound is tight at the mode, or the same for all rows.
    update
        "implicit": every bright row may go dark, and some dark rows are tried. "explicit": the
        lights of a random share of the rows are drawn anew.
    inner
        The move of the parameters: "hmc", "nuts", "mala", "random-walk", or any `Move`.
    rate
        Probability with which an update tries a row. By default an update tries as many rows as a
        move evaluates ("implicit"), or a tenth of all ("explicit").
    capacity
        The largest number of bright rows; None: chosen by a pilot study.
    trajectory, jitter
        Length of HMC's trajectories in posterior standard deviations, and the share by which each
        is randomly longer or shorter.
    target_accept
        Acceptance rate for which the step size is tuned; None: .8 for "hmc" and "nuts", .574 for
        "mala", .234 for "random-walk".
    step_size
        A fixed step size, in posterior standard deviations; None: tuned during warm-up.
    memory_limit
        Bytes of rows that may be held in memory; rows of larger data sets are read when chains
        need them. By default half of the free memory, or 256 MiB for a row store.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.FlyMC(tuned=False, update="explicit").rate is None
    True
    """

    tuned: bool = True
    update: Literal["implicit", "explicit"] = "implicit"
    inner: str | Move = "hmc"
    rate: float | None = None
    capacity: int | None = None
    trajectory: float = 1.2
    jitter: float = 0.0
    target_accept: float | None = None
    step_size: float | None = None
    memory_limit: int | None = None
    name: ClassVar[str] = "flymc"
    summary: ClassVar[str] = "Firefly Monte Carlo: exact, reads the bright rows only"

    def __post_init__(self) -> None:
        _check(self)

    @property
    def accept(self) -> float:
        """The acceptance rate for which the step size is tuned."""
        if self.target_accept is not None:
            return self.target_accept
        return ACCEPT.get(self.inner, 0.8) if isinstance(self.inner, str) else 0.8

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Find the mode, collapse the bounds, find the bright rows, and compose the kernel."""
        bound_of(task.target.model)  # refuse models without a bound before making any pass
        task.refuse_own_parameters(self.name)
        if task.target.size > DENSE_LIMIT:
            raise SettingError(
                f"FlyMC needs a matrix of all {task.target.size:,} parameters, and the limit is "
                f"{DENSE_LIMIT:,}; use method='nuts' on all rows."
            )
        anchor = task.anchor_at_mode()
        study = FlyStudy(self, task, anchor, _expected_steps(self, task.target.size))
        kernel = FlyKernel(
            study.bounded,
            _move(self),
            study.capacity,
            study.proposals,
            self.update,
            self.accept,
            first_step=_first_step(self, task.target.size),
        )
        return Plan(
            kernel=kernel,
            context=study.context,
            flags=schedule(task.tune, task.draws, False, adapt_step=self.step_size is None),
            anchor=anchor,
            rows=place_rows(task.rows, self.memory_limit),
            floats_per_iteration=study.floats_per_iteration,
            tuning=study.explain(),
            notes=[*anchor.notes, *look_ahead(study)],
        )

    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Record what moves on all rows would have cost, and check the run."""
        steps = sum(int(part["n_steps"].sum()) for part in (history.warmup, history.stats) if part)
        task.ledger.full_data = task.ledger.by_purpose.get("mode", 0) + steps * len(task.rows)
        why = f"dual averaging for an acceptance rate of {self.accept}"
        plan.tuning["step_size"] = {
            "value": float(np.mean(history.stats["step_size"])),
            "why": why if self.step_size is None else "set by hand",
        }
        assert isinstance(plan.kernel, FlyKernel)
        return Outcome(warnings=look_back(plan.kernel.capacity, history), target_accept=self.accept)


def _move(method: FlyMC) -> Move:
    if method.inner == "hmc":
        return HMCMove(method.trajectory, jitter=method.jitter)
    named: dict[str, Move] = {
        "nuts": NUTSMove(),
        "mala": MALAMove(),
        "random-walk": RandomWalkMove(),
    }
    return named[method.inner] if isinstance(method.inner, str) else method.inner


def _first_step(method: FlyMC, size: int) -> float | None:
    if method.step_size is None and method.inner == "random-walk":
        return float(2.38 * size**-0.5)  # optimal for a normal target in many dimensions
    return method.step_size


def _expected_steps(method: FlyMC, size: int) -> int:
    """Return the gradients of a move, at the step size typical of the acceptance rate."""
    if method.inner in ("mala", "random-walk"):
        return 1
    return ceil(method.trajectory / typical_step_size(size))


def _check(method: FlyMC) -> None:
    check_memory_limit(method.memory_limit)
    if not isinstance(method.tuned, bool | np.bool_):
        raise SettingError(f"tuned must be True or False, not {method.tuned!r}.")
    if method.update not in ("implicit", "explicit"):
        raise SettingError(f"update must be 'implicit' or 'explicit', not {method.update!r}.")
    if not callable(method.inner) and method.inner not in ACCEPT:
        raise SettingError(
            f"inner must be one of {', '.join(ACCEPT)} or a Move, not {method.inner!r}."
        )
    for name in ("rate", "target_accept"):
        value = getattr(method, name)
        if value is not None and not (is_number(value) and 0 < value < 1):
            raise SettingError(f"{name} must lie between 0 and 1, or be None for the default.")
    for name in ("trajectory", "step_size"):
        value = getattr(method, name)
        if value is not None and not (is_number(value) and value > 0):
            raise SettingError(f"{name} must be a positive number.")
    if not is_number(method.jitter) or not 0 <= method.jitter < 1:
        raise SettingError("jitter must lie between 0 and 1.")
    if method.capacity is not None:
        whole_number("capacity", method.capacity)

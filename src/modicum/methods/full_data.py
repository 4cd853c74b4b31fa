"""HMC and NUTS on all rows: exact, and affordable for moderate n."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Annotated, ClassVar, Literal

import numpy as np

from modicum.arguments import BelowOne, Bytes, Count, Positive, Share
from modicum.errors import ModicumWarning, NoModeError, listed
from modicum.kernels.all_rows import FullDataContext, FullDataKernel, ModeStarts
from modicum.kernels.moves import HMCMove, NUTSMove, import_ahead, schedule, typical_step_size
from modicum.kernels.protocols import Move
from modicum.kernels.whitening import Curves, Warp, Whitening, warp_of
from modicum.methods.cost import slow_run
from modicum.methods.method import Coordinates, Method, Outcome, Parameters, Plan, Task, Tuning
from modicum.methods.skewed_axes import curves_on_all_rows, explain_curves
from modicum.methods.without_mode import (
    AtMean,
    FullLogPosterior,
    NoMeanError,
    anchor_at_mean,
    disperse,
    dispersed_starts,
    far_from_normal,
    may_have_mean,
)
from modicum.passes import Anchor, Modes
from modicum.random import chain_keys, words_at_start
from modicum.run.runner import History
from modicum.runtime import Pytree, in_double_precision, to_device

# The usual acceptance rate; one with shorter steps for group effects about which the data carry at
# most CLEAR times as much information as their prior, which nearly avoids divergences for half as
# many more gradients. With more information there are none, and shorter steps would be wasted.
ACCEPT, CAREFUL, CLEAR = 0.8, 0.95, 5.0
DENSE_METRIC = 50  # most parameters for which warm-up learns a dense mass matrix
WIDER = 4  # cost of learning scales: times the gradients of a whitened posterior


@dataclass(frozen=True)
class _FullData(Method):
    """A Hamiltonian move on all rows.

    Parameters
    ----------
    target_accept
        Acceptance rate for which the step size is tuned. By default 0.8, and 0.95 if the data say
        little about the effects of some groups: near a group standard deviation of zero, steps must
        be shorter.
    step_size
        A fixed step size, in posterior standard deviations; None: tuned during warm-up.
    memory_limit
        Bytes of rows that may be held in memory; a larger data set is read again for every
        gradient. By default half of the free memory.
    metric
        The mass matrix that warm-up learns: "diagonal" or "dense". By default diagonal if the
        parameters are whitened at the mode; otherwise dense, up to 50 parameters.
    """

    target_accept: Annotated[Share | None, "0.8 is usual"] = None
    step_size: Annotated[Positive | None, "None tunes it"] = None
    memory_limit: Bytes | None = None
    metric: Literal["diagonal", "dense"] | None = None
    of_digests: ClassVar[bool] = True
    of_few_rows: ClassVar[bool] = False

    @abstractmethod
    def move(self) -> Move:
        """Return the Hamiltonian move."""

    @abstractmethod
    def gradients(self, size: int) -> int:
        """Return the expected gradients of all rows per iteration, with `size` parameters."""

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Whiten at the mode, load the rows, and compose the kernel.

        If no mode is of use, short chains on a subset locate the posterior; if these fail too,
        chains start from dispersed points and learn all scales.
        """
        import_ahead()
        try:
            anchor = task.anchor_at_mode()
        except NoModeError:
            if self.step_size is not None:  # its unit, posterior standard deviations, is unknown
                raise
            return self._without_mode(task, "none was found")
        if self.step_size is None and _misleads(task, anchor):
            return self._without_mode(task, "the posterior is far from normal about it")
        return self._at_mode(task, anchor)

    def _without_mode(self, task: Task, reason: str) -> Plan:
        if may_have_mean(task):
            with suppress(NoMeanError):
                return self._at_mean(task, anchor_at_mean(task), reason)
        return self._dispersed(task, reason)

    def _accept(self, warp: Warp | None) -> float:
        """Return the acceptance rate that was set, or one that suits the group effects."""
        if self.target_accept is not None:
            return self.target_accept
        if warp is None:
            return ACCEPT
        term, ratio = np.asarray(warp.term), np.asarray(warp.ratio)
        weakest = min(np.median(ratio[term == k]) for k in np.unique(term))
        return ACCEPT if weakest > CLEAR else CAREFUL

    def _at_mean(self, task: Task, mean: AtMean, reason: str) -> Plan:
        """Whiten by the covariance of short chains on a subset; warm-up learns the remainder."""
        flags = schedule(task.tune, task.draws, adapt_mass=True)
        tuning: Tuning = {"mode": f"not used, since {reason}: chains start about {mean.text}"}
        return self._composed(task, mean.anchor, flags, tuning, [], self._learned_metric(task))

    def _dispersed(self, task: Task, reason: str) -> Plan:
        """Start from dispersed points, in the parameters themselves, and learn all scales."""
        begin = disperse(task)
        return self._composed(
            task,
            Parameters(task.start, begin.scale),
            schedule(task.tune, task.draws, adapt_mass=True, whitened=False),
            {"mode": f"not used, since {reason}: chains start from dispersed points"},
            self._no_mode_warnings(task),
            self._learned_metric(task),
            first_step=float(begin.step_size),
            longer=WIDER,
            starts=dispersed_starts(begin, task.start, chain_keys(task.seed, task.chains)),
        )

    def _learned_metric(self, task: Task) -> str:
        """Return the mass matrix that warm-up learns if no mode whitens the parameters."""
        return self.metric or ("dense" if task.target.size <= DENSE_METRIC else "diagonal")

    @listed
    def _no_mode_warnings(self, task: Task) -> Iterator[ModicumWarning]:
        """Warn that a family's mode was not found; a user's model need not have one."""
        if task.target.model.users_functions:
            return
        yield ModicumWarning(
            "no-mode",
            f"the search for the posterior mode failed, so that {self.name.upper()} runs on "
            "all rows from dispersed points, and learns all scales during warm-up",
            "rescale the columns of x (mean 0, sd 1) or give a tighter prior (prior_scale), "
            "and compare; trust these draws only if no warning follows",
        )

    def _at_mode(self, task: Task, anchor: Anchor) -> Plan:
        """Whiten at the mode, along curves where the posterior is skewed."""
        tuned = self.step_size is None
        warp = warp_of(anchor, task.target)
        # A step size set by the user refers to whitened coordinates without curves.
        curves = task.once(curves_on_all_rows) if tuned and not warp else None
        flags = schedule(task.tune, task.draws, adapt_mass=tuned, adapt_step=tuned)
        tuning, notes, starts = explain_curves(curves), anchor.notes, None
        if anchor.modes is not None and len(anchor.modes) > 1:
            starts = _starts(anchor, task)
            notes = [note for note in notes if note.code != "other-modes"]
            notes += anchor.modes.unvisited_warnings(task.chains, task.names)
            tuning["modes"] = anchor.modes.text(task.chains)
        return self._composed(
            task,
            anchor,
            flags,
            tuning,
            notes,
            first_step=self.step_size,
            starts=starts,
            warp=warp,
            curves=curves,
        )

    def _composed(
        self,
        task: Task,
        where: Coordinates,
        flags: Pytree,
        tuning: Tuning,
        notes: list[ModicumWarning],
        metric: str | None = None,
        *,
        first_step: float | None = None,
        longer: int = 1,
        starts: ModeStarts | None = None,
        warp: Warp | None = None,
        curves: Curves | None = None,
    ) -> Plan:
        """Load the rows and compose the kernel.

        A `metric` is reported if it is given. Trajectories are `longer` than those of a whitened
        posterior.
        """
        log_posterior, chunks = FullLogPosterior.of(task, self.memory_limit)
        n, accept = len(task.rows), self._accept(warp)
        held = "in memory" if log_posterior.source is None else "on disk"
        evaluations = n * longer * self.gradients(task.target.size)
        work = f"{self.name.upper()} on all {n:,} rows"
        slow = slow_run(task, evaluations, work, "use fewer draws, or fewer rows")
        return Plan(
            FullDataKernel(
                log_posterior,
                self.move(),
                accept,
                first_step=first_step,
                dense=(metric or self.metric) == "dense",
            ),
            FullDataContext(
                Whitening.about(where.point, where.factor, warp, curves),
                n=to_device(np.asarray(n)),
                data=chunks,
                starts=starts,
            ),
            flags,
            where,
            start_rows=n,
            tuning={"rows held": held} | tuning | ({} if metric is None else {"metric": metric}),
            notes=[*notes, *slow],
            finish=partial(_finish, accept),
        )


def _finish(accept: float, task: Task, plan: Plan, history: History) -> Outcome:
    """Warn if chains that started at several modes stayed where they began."""
    modes = plan.anchor.modes
    if modes is None or len(modes) < 2 or task.chains < 2:
        return Outcome(target_accept=accept)
    at = plan.anchor.point + history.position @ np.asarray(plan.anchor.factor).T
    apart = [_apart(modes, task.chains)] if modes.apart(at) else []
    return Outcome(target_accept=accept, warnings=apart)


def _misleads(task: Task, anchor: Anchor) -> bool:
    """Whether the only mode of a user's model gives the wrong scales."""
    model = task.target.model
    if not (model.users_functions and model.has_mode) or anchor.factor.ndim < 2:
        return False
    if anchor.modes is not None and len(anchor.modes) > 1:
        return False
    if any(note.code == "not-concave" for note in anchor.notes):
        return True
    return far_from_normal(task, anchor)


def _apart(modes: Modes, chains: int) -> ModicumWarning:
    weights = ", ".join(f"{weight:.0%}" for weight in modes.weights)
    counts = ", ".join(map(str, np.bincount(modes.chains_at(chains), minlength=len(modes))))
    return ModicumWarning(
        "modes-apart",
        f"no chain moved between the {len(modes)} modes, so that the draws represent each mode by "
        f"the number of chains that started there ({counts}) and not by its weight (about "
        f"{weights} by Laplace's approximation)",
        "make the posterior unimodal (order the components, fix a sign, or use a prior that "
        "separates the modes), or analyse the chains of each mode separately",
        modes=len(modes),
    )


def _starts(anchor: Anchor, task: Task) -> ModeStarts:
    """Spread the chains over all modes that are not negligible; chains are known by their keys."""
    modes = anchor.modes
    assert modes is not None
    whiten = np.linalg.inv(anchor.dense_factor)
    return ModeStarts(
        keys=to_device(words_at_start(chain_keys(task.seed, task.chains))[:, 1]),
        mode=to_device(modes.chains_at(task.chains)),
        centre=to_device((modes.points - anchor.point) @ whiten.T),
        spread=to_device(whiten @ modes.factors),
    )


@dataclass(frozen=True)
class NUTS(_FullData):
    """The no-U-turn sampler on all rows, whitened at the mode if that is of use.

    A model of your own need not have a mode: with a kink, a funnel or a spike, chains start from
    dispersed points and warm-up learns the scales in Stan's windows. So it is, with a warning, if
    the mode of a family is not found.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.NUTS(target_accept=0.9)
    NUTS(target_accept=0.9, step_size=None, memory_limit=None, metric=None, max_depth=10)
    """

    max_depth: Count = 10
    name: ClassVar[str] = "nuts"
    summary: ClassVar[str] = "the no-U-turn sampler on all rows: exact"

    def move(self) -> Move:
        """Return BlackJAX's NUTS."""
        return NUTSMove(self.max_depth)

    def gradients(self, size: int) -> int:
        """Return the gradients that a whitened posterior takes: trees of about depth three."""
        return int(2 ** min(self.max_depth, 3) - 1)


@dataclass(frozen=True)
class HMC(_FullData):
    """Hamiltonian Monte Carlo on all rows with a fixed trajectory length, whitened at the mode.

    Parameters
    ----------
    trajectory
        Step size times leapfrog steps, in posterior standard deviations; 1.2 as in the HMC-ECS
        paper.
    max_steps
        The most leapfrog steps per iteration.
    jitter
        Share by which each trajectory is randomly longer or shorter.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.HMC(trajectory=1.5).trajectory
    1.5
    """

    trajectory: Annotated[Positive, "1.2 is usual"] = 1.2
    max_steps: Count = 100
    jitter: BelowOne = 0.0
    name: ClassVar[str] = "hmc"
    summary: ClassVar[str] = "Hamiltonian Monte Carlo on all rows: exact"

    def move(self) -> Move:
        """Return HMC with trajectories of a fixed length."""
        return HMCMove(self.trajectory, self.max_steps, self.jitter)

    def gradients(self, size: int) -> int:
        """Return trajectory over step size, which is the typical one unless it is set."""
        step = self.step_size or typical_step_size(size)
        return min(self.max_steps, ceil(self.trajectory / step))

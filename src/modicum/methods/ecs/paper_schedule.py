"""The tuning schedule of the HMC-ECS paper (section 6.3), for comparison.

The anchor starts at the posterior mean of a 1 % subset. During 1,000 burn-in iterations it moves to
the mean of recent draws every 200, each time at the cost of a pass; m is recalibrated after the
first 100. There are G = 100 blocks, one of which is refreshed per iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from modicum.errors import SettingError
from modicum.kernels.adaptation import schedule
from modicum.methods.ecs.composition import Composition, rows_of
from modicum.methods.ecs.pilot import Study
from modicum.methods.ecs.subsample import Choice
from modicum.methods.full_data import HMC
from modicum.methods.method import Task, Tuning
from modicum.passes import Anchor, Sums, anchor_at
from modicum.random import Stream, chain_keys, generator
from modicum.run import Chains, History, capacity_for, run

PAPER_BLOCKS = {"blocks": 100, "refreshes": 1}
STAGES = (100, 100, 200, 200, 200, 200)  # iterations between two moves of the anchor
SUBSET_SHARE, SMALLEST_SUBSET = 0.01, 1_000


class Scheduled(Protocol):
    """What the schedule needs of a method; `HMCECS` provides it."""

    @property
    def subsample(self) -> int | None:
        """The number of rows m, if set by hand."""
        ...

    def study(self, task: Task, anchor: Anchor) -> Study:
        """Return the pilot study at an anchor."""
        ...

    def choose(self, study: Study, settings: Mapping[str, int] | None = None) -> Choice:
        """Choose those of m, G and K that are not in `settings`."""
        ...

    def composition(self, choice: Choice) -> Composition:
        """Return the estimator on the chosen subsample."""
        ...


@dataclass(frozen=True, eq=False)
class BurnIn:
    """Result of the burn-in.

    Attributes
    ----------
    anchor
        The anchor at the mean of the last draws.
    subsample
        The number of rows m, recalibrated unless set by hand.
    calibrated
        Values of m chosen at the first anchor and after 100 iterations; empty if m was set by hand.
    variance
        Estimated variance of the log-likelihood estimate at each iteration, averaged over chains.
    """

    anchor: Anchor
    subsample: int
    calibrated: tuple[int, ...]
    variance: np.ndarray


def burn_in(method: Scheduled, task: Task) -> BurnIn:
    """Run the schedule, or restore its result from a checkpoint."""

    def compute() -> dict[str, np.ndarray]:
        burned_in = _burn_in(method, task)
        own = {
            "subsample": np.asarray(burned_in.subsample),
            "calibrated": np.asarray(burned_in.calibrated, np.int64),
            "variance": burned_in.variance,
        }
        return burned_in.anchor.to_arrays() | own

    def read(arrays: dict[str, np.ndarray]) -> BurnIn:
        m, calibrated = int(arrays["subsample"]), tuple(int(m) for m in arrays["calibrated"])
        return BurnIn(Anchor.from_arrays(arrays), m, calibrated, arrays["variance"])

    return task.remember("anchor", compute, read)


def _burn_in(method: Scheduled, task: Task) -> BurnIn:
    if task.sums.rest is not None:
        raise SettingError(
            "tuning='paper' starts from a subset of the rows, which a digest does not have; leave "
            "`tuning` out."
        )
    anchor = anchor_at(task.sums, _subset_mean(task))
    m = method.subsample or 0
    # Stages are not checkpointed one by one: the result of the whole burn-in is.
    staged = replace(task, checkpoint=None)
    variance, calibrated = [], []
    for number, length in enumerate(STAGES):
        study = method.study(staged, anchor)
        if number <= 1 and method.subsample is None:  # before, and again after 100 iterations
            m = min(method.choose(study, PAPER_BLOCKS).subsample, len(task.rows) // 200 * 100)
            calibrated.append(m)
        parts = method.composition(method.choose(study, PAPER_BLOCKS | {"subsample": m}))
        history = _stage(study, parts, staged, length, number)
        variance.append(history.stats["variance_estimate"].mean(axis=0))
        recent = history.position[:, length // 2 :].mean(axis=(0, 1))
        anchor = anchor_at(task.sums, anchor.point + anchor.factor @ recent)
    return BurnIn(anchor, m, tuple(calibrated), np.concatenate(variance))


def explain_burn_in(burn_in: BurnIn, by_hand: Collection[str]) -> tuple[dict[str, str], Tuning]:
    """Explain m, G and K unless they were set by hand, and describe the burn-in."""
    why = dict.fromkeys(PAPER_BLOCKS, "as in the paper")
    if burn_in.calibrated:
        why["subsample"] = (
            f"chosen by the pilot study after the first {STAGES[0]} iterations of burn-in; before "
            f"them, at the mean of a subset, {burn_in.calibrated[0]:,}"
        )
    tuning: Tuning = {
        "burn-in variance": [float(f"{v:.4g}") for v in burn_in.variance],
        "recalibration": [float(m) for m in burn_in.calibrated],
    }
    return {name: reason for name, reason in why.items() if name not in by_hand}, tuning


def _stage(study: Study, parts: Composition, task: Task, length: int, number: int) -> History:
    longest = max(STAGES)  # flags and capacity have one shape, so that all stages compile once
    chains = Chains(
        parts.kernel(study),
        parts.context(study),
        chain_keys(task.seed, task.chains, number + 1),
        schedule(length, longest - length, adapt_mass=False),
        capacity_for(task.target.size + parts.floats_per_iteration(study), longest),
        rows_of(study),
    )
    history = run(chains, 0, length, progressbar=False)
    task.ledger.add("burn-in", int(history.stats["rows_touched"].sum()), "gradient")
    return history


def _subset_mean(task: Task) -> np.ndarray:
    """Return the posterior mean given a random 1 % of the rows, by HMC on all of these."""
    n = len(task.rows)
    size = min(n, max(SMALLEST_SUBSET, 20 * task.target.size, int(SUBSET_SHARE * n)))
    row_ids = np.sort(generator(task.seed, Stream.PAPER_SUBSET).choice(n, size, replace=False))
    rows = task.rows.subset(row_ids)
    sums = Sums(task.target, rows, task.sums.engine, task.ledger)
    small = replace(task, rows=rows, sums=sums, tune=200, draws=200, checkpoint=None)
    plan = HMC().plan(small)
    keys = chain_keys(task.seed, 2, 0)
    capacity = capacity_for(task.target.size, 400)
    assert plan.kernel is not None
    chains = Chains(plan.kernel, plan.context, keys, plan.flags, capacity)
    history = run(chains, small.tune, small.draws, progressbar=False)
    for stats in (history.warmup, history.stats):
        task.ledger.add("subset", int(stats["rows_touched"].sum()), "gradient")
    return plan.anchor.point + plan.anchor.factor @ history.position.mean(axis=(0, 1))

"""The schedule of the HMC-ECS paper (section 6.3), for comparison.

The anchor starts at the posterior mean of a 1 % subset. During 1,000 burn-in iterations it moves to
the mean of recent draws every 200, each time at the cost of a pass; m is recalibrated after the
first 100. There are G = 100 blocks, one of which is refreshed per iteration.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from modicum.errors import SettingError
from modicum.kernels.moves import schedule
from modicum.methods.ecs.composition import (
    BurnIn,
    EnergyConserving,
    floats_per_iteration,
)
from modicum.methods.ecs.subsample import Choice
from modicum.methods.full_data import HMC
from modicum.methods.method import Task, Tuning, run_on_some_rows
from modicum.methods.pilot.study import Study, study_rows, weigh
from modicum.passes import anchor_at
from modicum.random import Stream, chain_keys
from modicum.run.chains import Chains
from modicum.run.iterations import place_rows
from modicum.run.runner import History, capacity_for, run

PAPER_BLOCKS = {"blocks": 100, "refreshes": 1}
STAGES = (100, 100, 200, 200, 200, 200)  # iterations between two moves of the anchor
SUBSET_SHARE, SMALLEST_SUBSET = 0.01, 1_000


def burn_in(method: EnergyConserving[Choice], task: Task) -> BurnIn:
    """Run the schedule of the perturbed method, or restore its result from a checkpoint."""
    return task.remember("anchor", BurnIn, lambda: _burn_in(method, task))


def _burn_in(method: EnergyConserving[Choice], task: Task) -> BurnIn:
    if task.sums.rest is not None:
        raise SettingError(
            "tuning='paper' starts from a subset of the rows, which a digest does not have; leave "
            "`tuning` out."
        )
    anchor = anchor_at(task.sums, _subset_mean(task))
    fixed, m = "subsample" in method.by_hand, method.by_hand.get("subsample", 0)
    # Stages are not checkpointed one by one: the result of the whole burn-in is.
    staged = replace(task, checkpoint=None)
    variance, calibrated = [], list[float]()
    for number, length in enumerate(STAGES):
        study = study_rows(weigh(method.studied, staged, anchor))
        if number <= 1 and not fixed:  # before, and again after 100 iterations
            chosen = method.choose(study, 0, PAPER_BLOCKS | method.by_hand).subsample
            m = min(chosen, len(task.rows) // 200 * 100)
            calibrated.append(float(m))
        sizes = PAPER_BLOCKS | {"subsample": m} | method.by_hand
        history = _stage(method, study, method.choose(study, 0, sizes), length, number)
        variance.append(history.stats["variance_estimate"].mean(axis=0))
        recent = history.position[:, length // 2 :].mean(axis=(0, 1))
        anchor = anchor_at(task.sums, anchor.point + anchor.factor @ recent)
    why = dict.fromkeys([*PAPER_BLOCKS, "certainty"], "as in the paper")
    if calibrated:
        why["subsample"] = (
            f"chosen by the pilot study after the first {STAGES[0]} iterations of burn-in; "
            f"before them, at the mean of a subset, {calibrated[0]:,.0f}"
        )
    tuning: Tuning = {
        "burn-in variance": [float(f"{v:.4g}") for v in np.concatenate(variance)],
        "recalibration": calibrated,
    }
    return BurnIn(anchor, PAPER_BLOCKS | {"subsample": int(m)}, why, tuning)


def _stage(
    method: EnergyConserving[Choice],
    study: Study,
    choice: Choice,
    length: int,
    number: int,
) -> History:
    longest = max(STAGES)  # flags and capacity have one shape, so that all stages compile once
    task = study.task
    placed = place_rows(task.rows.members, method.memory_limit).result()
    context, rows = method.context(study, choice, placed)
    chains = Chains(
        method.kernel(study, choice),
        context,
        chain_keys(task.seed, task.chains, number + 1),
        schedule(length, longest - length, adapt_mass=False),
        capacity_for(task.target.size + floats_per_iteration(study, choice), longest),
        rows,
    )
    history = run(chains, 0, length, progressbar=False)
    task.ledger.add("burn-in", int(history.stats["rows_touched"].sum()), "gradient")
    return history


def _subset_mean(task: Task) -> np.ndarray:
    """Return the posterior mean given a random 1 % of the rows, by HMC on all of these."""
    n = len(task.rows)
    size = min(n, max(SMALLEST_SUBSET, 20 * task.target.size, int(SUBSET_SHARE * n)))
    small = task.of_some_rows(Stream.PAPER_SUBSET, size, chains=2, tune=200, draws=200)
    plan = HMC().plan(small)
    history = run_on_some_rows(small, plan, chain_keys(task.seed, small.chains, 0))
    return plan.anchor.point + plan.anchor.factor @ history.position.mean(axis=(0, 1))

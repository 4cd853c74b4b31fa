"""A rough estimate of how long a run will take, before it starts."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import jax
import numpy as np

from modicum.errors import ModicumWarning
from modicum.methods.base import Task
from modicum.models import LinearPredictorModel
from modicum.passes.engine import chunk_rows, padded_chunk
from modicum.passes.full_likelihood import free_memory
from modicum.passes.sums import chunk_gradient
from modicum.runtime import COMPILED

__all__ = ["Work", "duration", "seconds_for", "seconds_per_row", "slow_run"]

PATIENCE = 120.0  # seconds from which a run is called slow
QUICK = 3e10  # row evaluations times parameters that are not worth a measurement
# What counts as so many gradients of rows:
OVERHEAD = 2_000  # an iteration that evaluates none
DENSITY = 1 / 3  # a log-likelihood
LINK = 40  # operations of a link function
LEAST_COMPILING = 1.0  # seconds, where what was compiled so far came from a cache
USUAL = 1e-7  # seconds per gradient, where nothing was measured


def slow_run(
    task: Task, point: np.ndarray, evaluations: float, work: str, remedy: str
) -> list[ModicumWarning]:
    """Warn of a run that will take minutes.

    Parameters
    ----------
    task
        What was asked for.
    point
        Where a gradient is timed.
    evaluations
        Rows that an iteration of one chain evaluates.
    work
        What takes so long, such as "NUTS on all 500,000 rows".
    remedy
        What would be quicker.
    """
    total = evaluations * (task.tune + task.draws) * task.chains
    if total * task.target.size < QUICK:
        return []
    seconds = total / _chains_at_once(task.chains) * seconds_per_row(task, point)
    if seconds < PATIENCE:
        return []
    return [
        ModicumWarning(
            "slow",
            f"{work} will take about {duration(seconds)} ({task.tune + task.draws:,} iterations "
            f"of {task.chains} chains)",
            remedy,
            seconds=seconds,
        )
    ]


def _chains_at_once(chains: int) -> int:
    """Chains that advance together: one per core, and all on an accelerator."""
    on_cpu = jax.default_backend() == "cpu"
    return min(chains, os.cpu_count() or 1) if on_cpu else chains


def seconds_per_row(task: Task, point: np.ndarray) -> float:
    """Time the gradient of one row, by the first chunk of rows; it is in no account.

    The chunk lies where chains will find it: on the device, or on the host if all rows are too
    many for the device's memory.
    """
    rows, target = task.rows, task.target.likelihood
    size = chunk_rows(rows)
    resident = rows.nbytes <= free_memory() // 2
    t = np.asarray(point, np.float64)[: target.size]
    chunk = jax.device_put(padded_chunk(rows, 0, size))

    def evaluate() -> None:
        batch, present = chunk if resident else padded_chunk(rows, 0, size)
        jax.block_until_ready(chunk_gradient(target, t, batch, present))

    evaluate()  # compiles
    started = time.perf_counter()
    evaluate()
    return (time.perf_counter() - started) / int(np.sum(chunk[1]))


# What methods would cost, to choose among them ---------------------------------------------


@dataclass(frozen=True)
class Work:
    """What a run takes, counted: the same on every machine, so that a choice by it is as well.

    Attributes
    ----------
    gradients
        Gradients of single rows, or what takes as long.
    compiles
        Whether the step of a chain has to be compiled.
    """

    gradients: float
    compiles: bool = True

    @classmethod
    def of_chains(cls, task: Task, evaluations: float) -> Work:
        """Chains whose iterations evaluate so many rows."""
        return cls((task.tune + task.draws) * task.chains * (OVERHEAD + evaluations))

    @classmethod
    def of_densities(cls, evaluations: float) -> Work:
        """So many log-likelihoods of rows, in blocks."""
        return cls(evaluations * DENSITY, compiles=False)


def seconds_for(task: Task, *works: Work) -> list[float]:
    """About how long runs will take here, by what this one has taken so far.

    A resumed run is told what was measured when it began.
    """

    def compute() -> dict[str, np.ndarray]:
        compiling = max(COMPILED.seconds, LEAST_COMPILING)
        return {"pace": np.array([_seconds_per_gradient(task), compiling])}

    def read(arrays: dict[str, np.ndarray]) -> tuple[float, float]:
        each, compiling = arrays["pace"]
        return float(each), float(compiling)

    each, compiling = task.remember("pace", compute, read)
    together = _chains_at_once(task.chains)
    return [
        work.gradients * each / (together if work.compiles else 1) + compiling * work.compiles
        for work in works
    ]


def _seconds_per_gradient(task: Task) -> float:
    """Of one row on one core, by the passes that found the mode."""
    measured, cores = task.sums.clock.per_row, os.cpu_count() or 1
    if "gradient" in measured:
        return measured["gradient"] * cores
    if "hessian" not in measured:  # a resumed run, or a mode that came with the task
        return USUAL
    target = task.target
    if not isinstance(target.model, LinearPredictorModel):
        return measured["hessian"] * cores / (1 + target.size)
    # Two products with a vector, against one of matrices, which does twice as much per second.
    coding = target.coding
    d = target.size if coding is None else len(coding.dense) + len(coding.terms)
    return measured["hessian"] * cores * (4 * d + LINK) / (d**2 + 4 * d + LINK)


def duration(seconds: float) -> str:
    """Say how long something takes, in the unit one would choose.

    Examples
    --------
    >>> [duration(seconds) for seconds in (0.2, 4.4, 200, 9000, 400_000)]
    ['0.2 s', '4 s', '3 minutes', '2 hours', '5 days']
    """
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"

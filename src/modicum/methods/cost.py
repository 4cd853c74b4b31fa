"""A rough estimate of how long a run will take, before it starts.

Counts of work are the same on every machine; seconds depend on the machine. The compiled gradient
of a user's function is timed, less the overhead of calling any compiled function: a chain's loop
is compiled as a whole and makes no such calls, which would dominate the time on a small table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import jax
import numpy as np

from modicum.errors import ModicumWarning, listed
from modicum.methods.method import Task
from modicum.models import Target
from modicum.models.model import Batch
from modicum.passes.engine import chunk_bounds, chunk_rows, compiled_pass
from modicum.passes.sums import chunk_gradient
from modicum.progress import duration
from modicum.runtime import Array, free_memory, in_double_precision, on_accelerator

PATIENCE = 120.0  # a run that takes longer, in seconds, is called slow
OVERHEAD = 2_000  # overhead of an iteration, in gradients of rows
LINK = 40  # operations of a link function
# Most operations of a run on all rows that is preferred to an answer in doubt: about five minutes
# on two cores.
AFFORDABLE = 6e11
# Most operations of a run on all rows that is preferred to an answer that may turn out to be in
# doubt: half a minute.
SHORT = 6e10
# Assumed rather than measured, in seconds on a typical machine:
ITERATION = 5e-5  # an iteration of a chain, without the rows that it evaluates
STEP = 2e-5  # a step of a trajectory, without the rows that it evaluates
OPERATION = 1e-9  # an operation of a gradient
LEAST = 1e-9  # the gradient of one row, at least
COMPILING, CACHED = 3.0, 1.5  # compiling a chain's step; loading it if compiled earlier
SLOWLY = 8.0  # compiling it for an accelerator, or for groups with integrated effects
AT_HAND = 0.2  # seconds of compiling so far below which a user's model was compiled earlier
MANY = 50_000  # fewest rows for which a pass tells the cost of a row
REPEATS, LONG = 7, 0.1  # most evaluations to time, and seconds after which timing stops


@listed
def slow_run(task: Task, evaluations: float, work: str, remedy: str) -> Iterator[ModicumWarning]:
    """Warn of a run that will take minutes.

    Parameters
    ----------
    task
        What to sample.
    evaluations
        Rows that an iteration of one chain evaluates.
    work
        What takes so long, such as "NUTS on all 500,000 rows".
    remedy
        What would be faster.
    """
    total = evaluations * (task.tune + task.draws) * task.chains
    seconds = total / _chains_at_once(task.chains) * seconds_per_gradient(task)
    if seconds < PATIENCE:
        return
    yield ModicumWarning(
        "slow",
        f"{work} will take about {duration(seconds)} ({task.tune + task.draws:,} iterations "
        f"of {task.chains} chains)",
        remedy,
        seconds=seconds,
    )


def _chains_at_once(chains: int) -> int:
    """Return how many chains advance at once: one per core, or all on an accelerator."""
    return chains if on_accelerator() else min(chains, os.cpu_count() or 1)


@in_double_precision
def _timed_gradient(task: Task) -> float:
    """Time the gradient of one row on the first chunk of rows; the ledger does not count it.

    The chunk lies where chains will read it: on the device, or on the host if the rows do not fit
    the device's memory.
    """
    rows, target = task.rows, task.target.likelihood
    size = chunk_rows(rows)
    resident = rows.nbytes <= free_memory() // 2
    t = np.asarray(task.start, np.float64)[: target.size]
    chunk = jax.device_put(rows.chunk(0, size))

    def seconds(function: Callable[[Target, Array, Batch, Array], tuple[Array, ...]]) -> float:
        def evaluate() -> None:
            batch, present = chunk if resident else rows.chunk(0, size)
            jax.block_until_ready(function(target, t, batch, present))

        return _quickest(evaluate)

    rows_in_chunk = int(np.asarray(chunk[1]).sum())
    calling = seconds(_nothing) if resident else 0.0  # chains that stream rows pay for calls too
    return max((seconds(chunk_gradient) - calling) / rows_in_chunk, LEAST)


@compiled_pass
def _nothing(target: Target, t: Array, batch: Batch, present: Array) -> tuple[Array, ...]:
    """Take and return what a gradient does, without computing it."""
    return t[0] * present[0], t * 2.0


def _quickest(evaluate: Callable[[], None]) -> float:
    """Time a few evaluations and return the fastest: other programs may slow the rest."""
    evaluate()  # compiles
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < LONG:
        started = time.perf_counter()
        evaluate()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


# Cost of a method, to choose among methods ------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Counted work of a run: the same on every machine, and so is a choice based on it.

    Attributes
    ----------
    rows
        Gradients of single rows, or the equivalent.
    iterations
        Iterations of all chains together.
    steps
        Steps of all their trajectories.
    chains
        Number of chains.
    """

    rows: float
    iterations: float = 0.0
    steps: float = 0.0
    chains: int = 1

    @classmethod
    def of_chains(cls, task: Task, rows: float, steps: float) -> Work:
        """Return the work of chains, given rows and trajectory steps per iteration."""
        iterations = (task.tune + task.draws) * task.chains
        return cls(iterations * rows, iterations, iterations * steps, task.chains)

    @property
    def gradients(self) -> float:
        """The whole work in gradients of rows, by which methods are compared."""
        return OVERHEAD * self.iterations + self.rows

    def longer(self, times: float) -> Work:
        """Return the work with trajectories `times` times as long."""
        return replace(self, rows=times * self.rows, steps=times * self.steps)


def affordable(task: Task, work: Work) -> bool:
    """Whether a run takes only minutes, judged by counted operations rather than a clock."""
    return work.rows * _operations(task) <= AFFORDABLE


def is_short(task: Task, work: Work) -> bool:
    """Whether a run takes at most half a minute, judged by counted operations."""
    return work.rows * _operations(task) <= SHORT


def _operations(task: Task) -> int:
    """Count the operations of one row's gradient: two products with a vector, and the link."""
    coding = task.target.coding
    d = task.target.size if coding is None else len(coding.dense) + len(coding.terms)
    return 4 * d + LINK


def seconds_for(task: Task, *works: Work) -> list[float]:
    """Estimate how long chains will take on this machine.

    A resumed run uses the times measured when it began.
    """

    def measure() -> tuple[float, float, float]:
        busy = _slowed_by_others()
        return busy, seconds_per_gradient(task, busy), _seconds_of_compiling(task, busy)

    busy, per_gradient, compiling = task.remember("pace", tuple[float, float, float], measure)

    def seconds(work: Work) -> float:
        by_calls = busy * (ITERATION * work.iterations + STEP * work.steps)
        return compiling + (by_calls + per_gradient * work.rows) / _chains_at_once(work.chains)

    return [seconds(work) for work in works]


def _seconds_of_compiling(task: Task, busy: float) -> float:
    """Estimate the time to compile a chain's step, from the model's compilation so far."""
    so_far = task.sums.clock.compiling
    if task.target.model.users_functions and so_far < AT_HAND:
        return busy * CACHED
    return so_far + busy * (SLOWLY if on_accelerator() or task.grouped else COMPILING)


def _slowed_by_others() -> float:
    """How many times longer what is assumed takes on a machine that other programs keep busy.

    The load is that of the last minute, of which one core's may be our own.
    """
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1.0, (load + cores - 1) / cores)


def seconds_per_gradient(task: Task, busy: float = 1.0) -> float:
    """Estimate the seconds per gradient of one row on one core, which others may keep `busy`."""
    target, rows = task.target, task.rows
    linear = target.model.has_predictors
    if target.model.users_functions and not linear:
        return _timed_gradient(task)  # compiled already, by the search for a mode
    measured = task.sums.clock.per_row.get("hessian")
    if measured is None or len(rows) < MANY:  # a pass over few rows is dominated by calls
        return busy * OPERATION * _operations(task)
    measured *= min(os.cpu_count() or 1, len(chunk_bounds(rows)))
    if not linear:
        return measured / (1 + target.size)
    # Two matrix-vector products, against a matrix product, which does twice as much per second.
    operations = _operations(task)
    return measured * operations / (((operations - LINK) / 4) ** 2 + operations)

"""Running a peer's kernel: one compiled scan of a few iterations, called until time is up.

The same compiled scan serves warm-up and sampling, so that a peer compiles once and its sampling
phase holds no compilation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from modicum_lab.bench.run_result import Budget, LeftOut

__all__ = ["Scanned", "scan_until"]

PATIENCE = 120.0  # seconds that compiling and warm-up may take, besides four times the budget


@dataclass
class Scanned:
    """Draws (1, draw, d), gradients of each phase, and what the phases took.

    Attributes
    ----------
    draws
        Kept positions.
    before, sampling
        Seconds of compilation and warm-up, and of sampling.
    gradients_before, gradients
        In either.
    credit
        Perfect copies of the chain that idle cores could have run beside it, itself included.
    """

    draws: np.ndarray
    before: float
    sampling: float
    gradients_before: int
    gradients: int
    credit: float


def scan_until(
    some: Callable[..., tuple[Any, tuple[Any, Any]]],
    state: Any,
    data: tuple[Any, ...],
    tune: int,
    budget: Budget,
) -> Scanned:
    """Call ``some(state, *data) -> state, (positions, gradients)`` until time or draws run out.

    `tune` is how many iterations are not kept, to be dropped in whole calls.
    """
    started = time.perf_counter()
    compiled = jax.jit(some).lower(state, *data).compile()
    done = spent_before = 0
    while done < tune:
        state, (positions, gradients) = jax.block_until_ready(compiled(state, *data))
        done += len(positions)
        spent_before += int(np.sum(gradients))
        waited = time.perf_counter() - started
        if waited > PATIENCE + 4 * budget.seconds and done < tune:
            raise LeftOut(
                f"warm-up was given up after {waited:,.0f} s, with {done} of {tune} iterations "
                f"done; at this pace it would take {waited * tune / done:,.0f} s"
            )
    before = time.perf_counter() - started
    parts: list[np.ndarray] = []
    spent = 0
    started, processor = time.perf_counter(), time.process_time()
    while not parts or (
        time.perf_counter() - started < budget.seconds
        and len(parts) * len(parts[0]) < budget.draws * budget.chains
    ):
        state, (positions, gradients) = jax.block_until_ready(compiled(state, *data))
        parts.append(np.asarray(positions))
        spent += int(np.sum(gradients))
    sampling = time.perf_counter() - started
    used = (time.process_time() - processor) / sampling
    credit = float(np.clip(budget.cores / max(used, 1e-9), 1, budget.cores))
    return Scanned(np.concatenate(parts)[None], before, sampling, spent_before, spent, credit)

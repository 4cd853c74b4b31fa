"""Designs of stochastic-gradient methods: uniform, weighted by expected gradients, clustered."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from modicum.errors import SettingError
from modicum.kernels.control_variates import control_variate, proxy
from modicum.kernels.designs import (
    DESIGNS,
    CertaintyRows,
    Design,
    RowFacts,
    Weighted,
    WeightTables,
    certainty_rows,
)
from modicum.linalg.columns import model_matrix
from modicum.methods.method import Task
from modicum.methods.weights import cheapest_number, design_tables, expected_residuals
from modicum.models.model import Batch
from modicum.passes import Anchor
from modicum.passes.engine import of_numpy
from modicum.passes.hessians import map_by_numpy
from modicum.random import Stream, generator
from modicum.rows import Coding
from modicum.rows.weight_classes import KeptNumbers
from modicum.runtime import Pytree

CLUSTERED_ROWS = 20_000  # rows from which k-means learns its centres
NOISY = 0.25  # gradient noise, in posterior variances, above which it limits the step
FLOOR = 0.1  # share of weighted draws that is uniform
UNCLUSTERED = ("weight", "offset", "probability")  # fields that k-means ignores


class TabledDesign(NamedTuple):
    """A design, its tables, and the facts they were made from."""

    name: str
    design: Design[Pytree]
    tables: Pytree
    facts: RowFacts


def design_of(
    name: str, batch: int, clusters: int, task: Task, anchor: Anchor | None, order: int
) -> TabledDesign:
    """Return the design of that name, with its tables."""
    design = DESIGNS[name]()

    def expected() -> np.ndarray | KeptNumbers:
        assert anchor is not None
        return _expected(task, anchor, order)

    facts = RowFacts(len(task.rows), batch, expected, lambda: _clusters(task, clusters), FLOOR)
    return TabledDesign(name, design, design_tables(task, design, facts), facts)


def certainty_of(
    count: int | Literal["auto"],
    task: Task,
    tabled: TabledDesign,
    fresh_cost: float | None,
    step_by_hand: bool,
    noise: Callable[[], float],
) -> tuple[CertaintyRows | None, str]:
    """Return the rows that every step reads, and the reason for their number.

    Parameters
    ----------
    count
        The number of certainty rows, if the user set it.
    tabled
        The design, and how it draws rows without certainty rows.
    fresh_cost
        Cost of a fresh row in row evaluations; None: gradients have no control variates.
    step_by_hand
        Whether the user set the step size, so that it does not depend on the noise.
    noise
        Variance of the whitened gradient over batches of such draws.
    """
    n = len(task.rows)
    if count != "auto" and count > 0:
        if fresh_cost is None:
            raise SettingError(
                "certainty rows need gradients with control variates; use "
                'estimator="taylor", or leave `certainty` out.'
            )
        if count >= n:
            raise SettingError(f"certainty={count} leaves none of {n:,} rows to draw; use fewer.")
        ranked = tabled.tables
        if tabled.name != "weighted":
            ranked = design_tables(task, Weighted(), tabled.facts)
        return certainty_rows(ranked, count, FLOOR), "set by hand"
    if count == 0:
        return None, "set by hand"
    if fresh_cost is None:
        return None, "gradients have no control variates"
    if tabled.name != "weighted":
        return None, f"rows are drawn by design={tabled.name!r}, not by their expected residuals"
    if step_by_hand:
        return None, "step_size is set by hand"
    variance = noise()
    if variance < NOISY:
        return None, f"the gradient noise is small anyway, {variance:.2g} posterior variances"
    return _cheapest(tabled.tables, tabled.facts.count, fresh_cost)


def _cheapest(
    tables: WeightTables, batch: int, fresh_cost: float
) -> tuple[CertaintyRows | None, str]:
    """Choose the number of certainty rows that minimises noise times cost of a step.

    The noise is sum_k e_k^2 / w_k over the rows that are drawn, where the weights give the expected
    residuals e_k up to a factor. A step costs a fresh row per row of the batch and one evaluation
    per certainty row.
    """
    n = int(np.sum(tables.size))
    expected = np.maximum(np.asarray(tables.probability) - FLOOR / n, 0.0)

    def times_cost(number: int) -> float:
        rest = certainty_rows(tables, number, FLOOR).rest if number else tables
        size, probability = np.asarray(rest.size), np.asarray(rest.probability)
        drawn = size > 0
        noise = float(np.sum(size[drawn] * expected[drawn] ** 2 / probability[drawn]))
        return (batch * (1 + fresh_cost) + number) * noise

    count, ratio = cheapest_number(times_cost, n // 4)
    if not count:
        return None, "certainty rows would not reduce noise times cost by a tenth"
    saved = f"{1 - ratio:.0%} less than without"
    return certainty_rows(
        tables, count, FLOOR
    ), f"the number that minimises noise times cost, {saved}"


def _expected(task: Task, anchor: Anchor, order: int) -> np.ndarray | KeptNumbers:
    """Return expected residuals of this order, which are about proportional to gradients."""
    target = task.target
    draws = generator(task.seed, Stream.PILOT_DRAWS).standard_normal((8, target.size))
    return expected_residuals(
        task.sums, control_variate(target, order), proxy(anchor, target, order), draws
    )


def _clusters(task: Task, count: int) -> np.ndarray:
    """Return the cluster of each row, by k-means on the rows' fields (Fu and Zhang 2017).

    Columns are scaled to unit variance, except that a column that hardly varies stays small.
    """
    from scipy.cluster.vq import kmeans2  # slow to import, and seldom needed

    rows, n = task.rows, len(task.rows)
    if count > n:
        raise SettingError(f"{n:,} rows cannot make {count:,} clusters; ask for fewer.")
    rng = generator(task.seed, Stream.CLUSTERS)
    clustered_ids = np.sort(rng.choice(n, min(n, CLUSTERED_ROWS), replace=False))
    columns = _columns(rows.coding, rows.take(clustered_ids))
    spread = columns.std(axis=0)
    scale = np.maximum(spread, 0.1 * spread.max()) if spread.max() > 0 else np.ones_like(spread)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a cluster may be empty
        centres, _ = kmeans2(columns / scale, count, minit="++", rng=rng)
    to_nearest = partial(_nearest, rows.coding)
    return task.sums.engine.map_rows(to_nearest, (centres, scale), rows, "clusters")


def _columns(coding: Coding | None, batch: Batch) -> np.ndarray:
    """Return the fields side by side, with codes expanded into columns of x."""
    if coding is not None:
        others = {name: values for name, values in batch.items() if name not in coding.fields}
        batch = others | {"x": model_matrix(coding, batch).densely()}
    clustered = [values for name, values in sorted(batch.items()) if name not in UNCLUSTERED]
    columns = [
        np.reshape(np.asarray(values, np.float64), (len(values), -1)) for values in clustered
    ]
    return np.concatenate(columns, axis=1)


@of_numpy
def _nearest(
    coding: Coding | None,
    arguments: tuple[np.ndarray, np.ndarray],
    batch: Batch,
    present: np.ndarray,
) -> np.ndarray:
    from scipy.cluster.vq import vq

    centres, scale = arguments

    def nearest(block: Batch) -> np.ndarray:
        return np.asarray(vq(_columns(coding, block) / scale, centres)[0], np.int64)

    return map_by_numpy(nearest, batch, present)

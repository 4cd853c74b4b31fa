"""Sampling designs: how rows are drawn, and with what probability.

Rows are drawn uniformly, by weights, or from strata. Rows with the largest weights may be certainty
rows: always evaluated, and left out of the draws.

A design is a hashable class without arrays; the arrays it reads to draw are its tables, a separate
named tuple. Designs that need facts about the data (the expected size of each row's residual, the
cluster of a row) declare them in `needs`, and read them from `RowFacts`. To add a design, write a
class like those below and add it to `DESIGNS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arrays import as_either
from modicum.errors import SettingError
from modicum.models.model import Batch
from modicum.rows import Rows
from modicum.rows.weight_classes import (
    CLASSES,
    Classes,
    KeptNumbers,
    KeptOrder,
    extent_of,
    ordered,
    rows_by_class,
)
from modicum.runtime import Array, on_accelerator

Tables = TypeVar("Tables")  # a named tuple of arrays


class Drawn(NamedTuple):
    """The drawn rows, and the probability of each."""

    row_ids: jax.Array
    probability: jax.Array


@dataclass(frozen=True)
class RowFacts:
    """Facts about the rows for designs; functions among them make a pass over the data when called.

    Attributes
    ----------
    n
        Number of rows.
    count
        Number of rows drawn at a time.
    expected
        Computes the expected size of each row's residual or gradient.
    clusters
        Computes the cluster of each row, whole numbers from 0; None where there are no clusters.
    floor
        Fraction of weighted draws that is uniform.
    """

    n: int
    count: int
    expected: Callable[[], np.ndarray | KeptNumbers]
    clusters: Callable[[], np.ndarray] | None = None
    floor: float = 0.1


class Design(ABC, Generic[Tables]):
    """A distribution over rows. Frozen dataclasses: hashable, without arrays."""

    description: ClassVar[str]
    """How rows are drawn, as a clause for reports."""
    needs: ClassVar[Literal["nothing", "expected", "clusters"]] = "nothing"
    """Which of the `RowFacts` that take a pass the tables need."""
    independent: ClassVar[bool] = True
    """Whether rows are drawn independently, any number at a time, so that some can be replaced."""
    # Any, because a class variable cannot refer to the type variable Tables
    layout: ClassVar[Callable[..., Any]]
    """The named tuple that holds the tables."""

    @abstractmethod
    def tables(self, facts: RowFacts) -> Tables:
        """Build the tables that `draw` reads."""

    @abstractmethod
    def draw(self, key: jax.Array, count: int, tables: Tables) -> Drawn:
        """Draw `count` rows, with replacement."""

    def placed(self, tables: Tables, rows: Batch | Rows) -> tuple[Tables, Batch | Rows]:
        """Return tables and rows as chains read them, where rows are on the device or fetched."""
        return tables, rows

    def probability_of(self, drawn: Drawn, tables: Tables) -> np.ndarray:
        """Return this design's probability of rows that `draw_on_host` drew by their weights.

        For independent designs only: in others, a single row has no probability.
        """
        raise SettingError(f"{type(self).__name__} draws whole batches, not independent rows.")

    def without(self, certain: CertaintyRows, tables: Tables) -> Tables:
        """Return the tables of this design over all rows but the certainty rows."""
        raise SettingError(
            f"{type(self).__name__} cannot leave rows out of its draws; use certainty=0, or "
            'design="weighted".'
        )


# Uniform ----------------------------------------------------------------------------------


class UniformTables(NamedTuple):
    """The tables of a uniform design."""

    n: int | jax.Array
    skipped: Array | None = None  # rows left out, sorted, minus their rank; None if none are


@dataclass(frozen=True)
class Uniform(Design[UniformTables]):
    """Rows drawn with probability 1/n each: the design of the papers.

    Examples
    --------
    >>> import jax
    >>> from modicum.kernels.designs import Uniform, UniformTables
    >>> drawn = Uniform().draw(jax.random.key(1), 3, UniformTables(10))
    >>> drawn.row_ids.shape, float(drawn.probability[0]).__round__(3)
    ((3,), 0.1)
    """

    description: ClassVar[str] = "all rows are equally likely, as in the papers"
    layout: ClassVar[Callable[..., Any]] = UniformTables

    def tables(self, facts: RowFacts) -> UniformTables:
        """Return the number of rows."""
        return UniformTables(facts.n)

    def draw(self, key: jax.Array, count: int, tables: UniformTables) -> Drawn:
        """Draw `count` rows, with replacement."""
        n = jnp.asarray(tables.n)
        row_ids = jax.random.randint(key, (count,), 0, n)
        if tables.skipped is not None:  # map to the k-th remaining row
            row_ids += jnp.searchsorted(jnp.asarray(tables.skipped), row_ids, side="right")
        return Drawn(row_ids, jnp.broadcast_to(1.0 / n, (count,)))

    def probability_of(self, drawn: Drawn, tables: UniformTables) -> np.ndarray:
        """1/n for every row."""
        return np.full_like(np.asarray(drawn.probability), 1 / int(tables.n))

    def without(self, certain: CertaintyRows, tables: UniformTables) -> UniformTables:
        """Draw all other rows with equal probability."""
        row_ids = np.sort(certain.row_ids)
        remaining = int(tables.n) - len(row_ids)
        return UniformTables(remaining, row_ids - np.arange(len(row_ids)))


# Weighted ---------------------------------------------------------------------------------


class WeightTables(NamedTuple):
    """Rows sorted by class, and one entry per class."""

    order: Array | KeptOrder | None  # row ids, class after class; None means 0, 1, 2, ...
    start: Array  # where each class begins in `order`
    size: Array  # number of rows of each class
    cumulative: Array  # cumulative probability of the classes
    probability: Array  # probability of one row of each class


@dataclass(frozen=True)
class Weighted(Design[WeightTables]):
    """Rows drawn in proportion to the expected size of their residual.

    Weights are rounded to a few hundred classes, evenly spaced on a log scale. A draw picks a class
    by the class's total weight, then one of its rows at random: two table look-ups for any n, four
    bytes per row, and exactly known probabilities, because the classes are the design.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from modicum.kernels.designs import Weighted, weight_tables
    >>> tables = weight_tables(np.array([1.0, 1.0, 98.0]), floor=0.0)
    >>> drawn = Weighted().draw(jax.random.key(1), 1000, tables)
    >>> float((drawn.row_ids == 2).mean()) > 0.95
    True
    """

    description: ClassVar[str] = (
        "rows are drawn in proportion to the expected size of their residual or gradient"
    )
    needs: ClassVar[Literal["nothing", "expected", "clusters"]] = "expected"
    layout: ClassVar[Callable[..., Any]] = WeightTables

    def tables(self, facts: RowFacts) -> WeightTables:
        """See `weight_tables`."""
        return weight_tables(facts.expected(), facts.floor)

    def draw(self, key: jax.Array, count: int, tables: WeightTables) -> Drawn:
        """Draw `count` rows, with replacement."""
        uniform = jax.random.uniform(key, (2, count), dtype=tables.cumulative.dtype)
        return _look_up(uniform, tables, jnp)

    def placed(self, tables: WeightTables, rows: Batch | Rows) -> tuple[WeightTables, Batch | Rows]:
        """Have chains draw places in the weighted order, where the fetcher translates them to rows.

        If rows are on the device, so is the order.
        """
        assert tables.order is not None
        assert not isinstance(tables.order, jax.Array)
        if isinstance(rows, Rows):
            return tables._replace(order=None), ordered(rows, tables.order)
        return tables._replace(order=np.asarray(tables.order)), rows  # gathered from the workers

    def probability_of(self, drawn: Drawn, tables: WeightTables) -> np.ndarray:
        """Return the probability with which the rows were drawn."""
        return np.asarray(drawn.probability)

    def without(self, certain: CertaintyRows, tables: WeightTables) -> WeightTables:
        """Return the tables that `certainty_rows` derived from these."""
        return certain.rest


def draw_on_host(rng: np.random.Generator, count: int, tables: WeightTables) -> Drawn:
    """Draw `count` rows as `Weighted` does, in NumPy, without compiling."""
    return _look_up(rng.random((2, count)), tables, np)


def _look_up(uniform: Array, tables: WeightTables, xp: ModuleType) -> Drawn:
    """Map two uniform numbers per draw to a row: its class, and its place in the class."""
    which, within = uniform
    if xp is jnp and on_accelerator():  # a loop would make the host wait
        kind = jnp.searchsorted(tables.cumulative, which, side="right", method="scan_unrolled")
    else:
        kind = xp.searchsorted(tables.cumulative, which, side="right")
    size = tables.size[kind]
    place = tables.start[kind] + xp.minimum((within * size).astype(size.dtype), size - 1)
    row_ids = place if tables.order is None else tables.order[place]
    return Drawn(as_either(row_ids).astype(size.dtype), tables.probability[kind])


def weight_tables(expected: np.ndarray | KeptNumbers, floor: float = 0.1) -> WeightTables:
    """Build the tables of a weighted design from the expected size of each row's residual.

    Parameters
    ----------
    expected
        One number from 0 per row, such as the root mean square of its residual over the posterior.
    floor
        Fraction of uniform draws: w = (1 - floor) expected / sum(expected) + floor / n. It bounds
        residual / w where the expectation is too small.
    """
    n = len(expected)
    sums, least, most, _ = extent_of(expected)
    total = float(np.cumsum(sums)[-1])
    if not np.isfinite(total) or least < 0:
        raise SettingError("expected residuals must be finite numbers from 0.")
    share = (1 - floor) / total if total > 0 else 0.0
    even = floor / n if total > 0 else 1 / n
    smallest = np.log(share * least + even or 1e-300)
    largest = np.log(share * most + even)
    spacing = max((largest - smallest) / (CLASSES - 1), 1e-12)
    classes = Classes(share, even, smallest, spacing)
    order: np.ndarray | KeptOrder
    if isinstance(expected, np.ndarray):
        mass, size, order = rows_by_class(expected, classes)
    else:
        mass, size, order = expected.sort(classes)
    # Empty classes are kept, so that all tables have one shape and share one compiled kernel. They
    # are never drawn, since the cumulative sum does not grow there.
    total_mass = np.cumsum(mass)
    return WeightTables(
        order=order,
        start=np.cumsum(size) - size,
        size=size,
        cumulative=total_mass / total_mass[-1],
        probability=mass / total_mass[-1] / np.maximum(size, 1),
    )


# Certainty rows ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CertaintyRows:
    """Rows that are always evaluated, and the design over the others.

    Attributes
    ----------
    row_ids
        The rows with the largest weights.
    rest
        The weighted design over all other rows.
    slope, even
        A row with probability p before has probability slope p + even under `rest`.
    """

    row_ids: np.ndarray
    rest: WeightTables
    slope: float
    even: float

    def __len__(self) -> int:
        return len(self.row_ids)

    def probability(self, drawn: Drawn) -> np.ndarray:
        """Probability under `rest` of rows drawn with the original tables; 0 for certainty rows."""
        certain = np.isin(np.asarray(drawn.row_ids), self.row_ids)
        among_rest = self.slope * np.asarray(drawn.probability) + self.even
        return np.asarray(np.where(certain, 0.0, among_rest))


def certainty_rows(tables: WeightTables, count: int, floor: float = 0.1) -> CertaintyRows:
    """Make the `count` rows with the largest weights certainty rows.

    Rows are sorted by class in the tables, so those with the largest weights come last: only the
    classes' sizes and probabilities change, and no row has to be read. The others are again drawn
    with w = (1 - floor) expected / sum(expected) + floor / n, now over the remaining rows.

    Parameters
    ----------
    tables
        Tables of all rows, as `weight_tables` made them with the same `floor`.
    count
        Number of certainty rows.
    floor
        Fraction of uniform draws.

    Examples
    --------
    >>> import numpy as np
    >>> from modicum.kernels.designs import certainty_rows, weight_tables
    >>> certain = certainty_rows(weight_tables(np.array([1.0, 5.0, 2.0, 1.0])), 2)
    >>> sorted(certain.row_ids.tolist()), int(certain.rest.size.sum())
    ([1, 2], 2)
    """
    assert tables.order is not None, "chains draw places, and nobody else does"
    n = len(tables.order)
    if not 0 <= count < n:
        raise SettingError(
            f"{count:,} of {n:,} rows cannot be certainty rows; leave some to be drawn."
        )
    before, start = np.asarray(tables.probability), np.asarray(tables.start)
    size = np.clip(n - count - start, 0, np.asarray(tables.size))
    expected = before - floor / n  # up to a constant factor
    total = float(size @ expected)
    remaining = n - count
    # if certainty rows hold all of the expected residuals, draw the others uniformly
    share = (1 - floor) / total if total > 1e-9 * (1 - floor) else 0.0
    even = (floor if share else 1.0) / remaining
    after = np.where(size > 0, share * expected + even, 0.0)
    mass = np.cumsum(size * after)
    rest = tables._replace(size=size, cumulative=mass / mass[-1], probability=after / mass[-1])
    row_ids = np.asarray(tables.order[remaining:]).astype(np.int64)
    scale = 1 / mass[-1]
    return CertaintyRows(row_ids, rest, share * scale, (even - share * floor / n) * scale)


# Stratified -------------------------------------------------------------------------------


class StrataTables(NamedTuple):
    """Rows sorted by group, one entry per group, and the group of each place in a batch."""

    order: Array  # row ids, group after group
    start: Array  # where each group begins in `order`
    size: Array  # number of rows of each group
    group: Array  # group of each place in a batch
    probability: Array  # probability that a row of the group has a given place


@dataclass(frozen=True)
class Stratified(Design[StrataTables]):
    """b_c of the n_c rows of group c, so that a row has the probability b_c / (b n_c) of a place.

    The mean of values over these probabilities is sum_c (n_c / b_c) times the sum of the group's
    values: unbiased for the sum over all rows, without the variance between groups.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from modicum.kernels.designs import Stratified, strata_tables
    >>> tables = strata_tables(np.array([0, 0, 0, 1]), 4)
    >>> drawn = Stratified().draw(jax.random.key(1), 4, tables)
    >>> int((drawn.row_ids == 3).sum())
    1
    """

    description: ClassVar[str] = "a fixed number of rows is drawn from each cluster of similar rows"
    needs: ClassVar[Literal["nothing", "expected", "clusters"]] = "clusters"
    independent: ClassVar[bool] = False
    layout: ClassVar[Callable[..., Any]] = StrataTables

    def tables(self, facts: RowFacts) -> StrataTables:
        """See `strata_tables`."""
        assert facts.clusters is not None, "a method without clusters must refuse this design"
        return strata_tables(facts.clusters(), facts.count)

    def draw(self, key: jax.Array, count: int, tables: StrataTables) -> Drawn:
        """Draw `count` rows, the batch size the tables were made for."""
        group = tables.group
        assert group.shape == (count,), "the tables were made for another batch size"
        size = tables.size[group]
        within = jax.random.uniform(key, (count,), tables.probability.dtype)
        place = jnp.minimum((within * size).astype(size.dtype), size - 1)
        row_ids = jnp.asarray(tables.order[tables.start[group] + place], size.dtype)
        return Drawn(row_ids, jnp.asarray(tables.probability[group]))


def strata_tables(group: np.ndarray, batch: int) -> StrataTables:
    """Build the tables of a stratified design, with places in proportion to the groups' sizes.

    Parameters
    ----------
    group
        The group of each row: whole numbers from 0.
    batch
        Rows drawn at a time; every nonempty group gets at least one place.
    """
    numbers, group = np.unique(group, return_inverse=True)
    size = np.bincount(group)
    if batch < len(numbers):
        raise SettingError(
            f"a batch of {batch} rows cannot hold one row of each of {len(numbers)} groups; use a "
            "larger batch or fewer clusters."
        )
    share = size / size.sum()
    places = np.maximum(1, np.floor(batch * share)).astype(np.int64)
    while places.sum() != batch:  # give to the largest remainder, take from the smallest
        missing = batch * share - places
        more = places.sum() < batch
        spare = np.where(places > 1, missing, np.inf)
        places[np.argmax(missing) if more else np.argmin(spare)] += 1 if more else -1
    order = np.argsort(group, kind="stable")
    return StrataTables(
        order=order.astype(np.uint32 if len(order) < 2**32 else np.int64),
        start=np.cumsum(size) - size,
        size=size,
        group=np.repeat(np.arange(len(size)), places),
        probability=places / (batch * size),
    )


DESIGNS: dict[str, type[Design[Any]]] = {
    "uniform": Uniform,
    "weighted": Weighted,
    "stratified": Stratified,
}

"""How rows are drawn and with what probability.

Every row alike: the design of the papers.

Rows drawn in proportion to how large their residual is expected to be.

Weights are sorted into a few hundred classes, evenly spaced on a log scale. A draw picks a class by
the class's total weight, then one of its rows at random: two table look-ups whatever n is, four
bytes a row, and probabilities that are known exactly because the classes *are* the design.

Rows drawn a fixed number from each of several groups, such as clusters of like rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError

__all__ = [
    "Design",
    "Drawn",
    "Stratified",
    "Uniform",
    "Weighted",
    "draw_on_host",
    "strata_tables",
    "weight_tables",
]


class Drawn(NamedTuple):
    """Rows that were drawn, and the probability each had."""

    row_ids: jax.Array
    probability: jax.Array


class Design(Protocol):
    """A distribution over rows. Hashable; its tables travel as `tables`."""

    def draw(self, key: jax.Array, count: int, tables: Any) -> Drawn:
        """Draw `count` rows independently, with replacement."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Rows drawn with probability 1/n each; `tables` holds n as `rows`.

    Examples
    --------
    >>> import jax
    >>> from modicum.designs import Uniform
    >>> drawn = Uniform().draw(jax.random.key(1), 3, {"rows": 10})
    >>> drawn.row_ids.shape, float(drawn.probability[0]).__round__(3)
    ((3,), 0.1)
    """

    def draw(self, key: jax.Array, count: int, tables: Any) -> Drawn:
        """Draw `count` rows, with replacement."""
        n = jnp.asarray(tables["rows"])
        rows = jax.random.randint(key, (count,), 0, n)
        return Drawn(rows, jnp.broadcast_to(1.0 / n, (count,)))


CLASSES = 256
BLOCK = 1 << 20  # rows sorted at a time, so that temporaries stay small


@dataclass(frozen=True)
class Weighted:
    """Rows drawn with probability close to given weights; see `weight_tables`.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from modicum.designs import Weighted, weight_tables
    >>> tables = weight_tables(np.array([1.0, 1.0, 98.0]), floor=0.0)
    >>> drawn = Weighted().draw(jax.random.key(1), 1000, tables)
    >>> float((drawn.row_ids == 2).mean()) > 0.95
    True
    """

    def draw(self, key: jax.Array, count: int, tables: Any) -> Drawn:
        """Draw `count` rows, with replacement."""
        uniform = jax.random.uniform(key, (2, count), dtype=tables["cumulative"].dtype)
        return _look_up(uniform, tables, jnp)


def draw_on_host(rng: np.random.Generator, count: int, tables: Any) -> Drawn:
    """Draw `count` rows as `Weighted` does, by NumPy: nothing has to be compiled."""
    return _look_up(rng.random((2, count)), tables, np)


def _look_up(uniform: Any, tables: Any, xp: Any) -> Drawn:
    """Rows at two uniform numbers each: which class, and where in it."""
    which, within = uniform
    kind = xp.searchsorted(tables["cumulative"], which, side="right")
    size = tables["size"][kind]
    place = xp.minimum((within * size).astype(size.dtype), size - 1)
    rows = tables["order"][tables["start"][kind] + place]
    return Drawn(rows.astype(size.dtype), tables["probability"][kind])


def weight_tables(expected: np.ndarray, floor: float = 0.1) -> dict[str, np.ndarray]:
    """Build the tables of a weighted design from the expected size of each row's residual.

    Parameters
    ----------
    expected
        A number from 0 a row, such as the root mean square of its residual over the posterior.
    floor
        Share of the draws that is uniform: w = (1 - floor) expected / sum(expected) + floor / n.
        It bounds residual / w, and covers what the expectation misses.
    """
    n = len(expected)
    total = float(np.sum(expected, dtype=np.float64))
    if not np.isfinite(total) or expected.min() < 0:
        raise SettingError("expected residuals must be finite numbers from 0.")
    share = (1 - floor) / total if total > 0 else 0.0
    even = floor / n if total > 0 else 1 / n
    smallest = np.log(share * float(expected.min()) + even or 1e-300)
    largest = np.log(share * float(expected.max()) + even)
    spacing = max((largest - smallest) / (CLASSES - 1), 1e-12)

    def classes(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = share * block.astype(np.float64) + even
        with np.errstate(divide="ignore"):
            place = np.maximum(np.log(weight), smallest) - smallest
        return np.minimum(np.rint(place / spacing), CLASSES - 1).astype(np.uint8), weight

    kinds = np.empty(n, np.uint8)
    mass = np.zeros(CLASSES)
    for first in range(0, n, BLOCK):
        kind, weight = classes(expected[first : first + BLOCK])
        kinds[first : first + BLOCK] = kind
        mass += np.bincount(kind, weights=weight, minlength=CLASSES)
    size = np.bincount(kinds, minlength=CLASSES)
    # Classes without rows stay in: tables of one shape share one compiled kernel. They are never
    # drawn, since the sum does not grow there.
    total_mass = np.cumsum(mass)
    return {
        "order": _sorted_rows(kinds, size),
        "start": np.cumsum(size) - size,
        "size": size,
        "cumulative": total_mass / total_mass[-1],
        "probability": mass / total_mass[-1] / np.maximum(size, 1),
    }


def _sorted_rows(kinds: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Row numbers sorted by class: a counting sort in blocks."""
    order = np.empty(len(kinds), np.uint32 if len(kinds) < 2**32 else np.int64)
    place = np.cumsum(size) - size
    for first in range(0, len(kinds), BLOCK):
        block = kinds[first : first + BLOCK]
        inside = np.argsort(block, kind="stable")
        counts = np.bincount(block, minlength=len(size))
        cut = np.cumsum(counts)
        for kind in np.flatnonzero(counts):
            rows = inside[cut[kind] - counts[kind] : cut[kind]] + first
            order[place[kind] : place[kind] + counts[kind]] = rows
        place = place + counts
    return order


@dataclass(frozen=True)
class Stratified:
    """b_c rows from group c of n_c, so that a row has the probability b_c / (b n_c) of a place.

    An average of values over these probabilities is sum_c (n_c / b_c) sum of the group's values:
    unbiased for the sum over all rows, without the variance between groups.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from modicum.designs import Stratified, strata_tables
    >>> tables = strata_tables(np.array([0, 0, 0, 1]), 4)
    >>> drawn = Stratified().draw(jax.random.key(1), 4, tables)
    >>> int((drawn.row_ids == 3).sum())
    1
    """

    def draw(self, key: jax.Array, count: int, tables: Any) -> Drawn:
        """Draw `count` rows, which must be what the tables were made for."""
        group = tables["group"]
        assert group.shape == (count,), "strata_tables was told another batch size"
        size = tables["size"][group]
        within = jax.random.uniform(key, (count,), tables["probability"].dtype)
        place = jnp.minimum((within * size).astype(size.dtype), size - 1)
        rows = tables["order"][tables["start"][group] + place]
        return Drawn(rows.astype(size.dtype), tables["probability"][group])


def strata_tables(group: np.ndarray, batch: int) -> dict[str, np.ndarray]:
    """Build the tables of a stratified design: places in proportion to the groups' sizes.

    Parameters
    ----------
    group
        The group of each row: whole numbers from 0.
    batch
        Rows drawn at a time; every group that has rows gets one place at least.
    """
    numbers, group = np.unique(group, return_inverse=True)
    size = np.bincount(group)
    if batch < len(numbers):
        raise SettingError(
            f"a batch of {batch} rows cannot hold one of each of {len(numbers)} groups; use a "
            "larger batch or fewer clusters."
        )
    share = size / size.sum()
    places = np.maximum(1, np.floor(batch * share)).astype(np.int64)
    while places.sum() != batch:  # the largest remainder, or what can best be spared
        missing = batch * share - places
        more = places.sum() < batch
        spare = np.where(places > 1, missing, np.inf)
        places[np.argmax(missing) if more else np.argmin(spare)] += 1 if more else -1
    order = np.argsort(group, kind="stable")
    return {
        "order": order.astype(np.uint32 if len(order) < 2**32 else np.int64),
        "start": np.cumsum(size) - size,
        "size": size,
        "group": np.repeat(np.arange(len(size)), places),
        "probability": places / (batch * size),
    }

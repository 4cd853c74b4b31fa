"""Rows drawn a fixed number from each of several groups, such as clusters of like rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from modicum.designs.base import Drawn
from modicum.errors import SettingError

__all__ = ["Stratified", "strata_tables"]


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
    >>> int((drawn.rows == 3).sum())
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

"""Layout of an arrow matrix: the effects of the factor with the most levels, and the border.

A model may have too many parameters for dense matrices if nearly all of them are effects of one
factor: their precision is then an arrow matrix (`matrices`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models.matrix import DenseMatrix, ModelMatrix, model_matrix
from modicum.rows import CodedTerm, Coding
from modicum.runtime import Array

MOST_BORDER = 2_000  # most parameters besides the big factor's effects, whose block is dense
MOST_NUMBERS = 50_000_000  # most entries between effects and border, 400 MB per matrix


@dataclass(frozen=True)
class ArrowLayout:
    """The split of the flat vector into effects of the big factor and the border.

    Parameters
    ----------
    field
        The field of the rows that holds the codes of the factor.
    levels
        Number of its levels.
    firsts
        Flat index of the first level of each of its effects; the other levels follow.
    scales
        The column of x that each effect multiplies; None for an intercept.
    coding
        The columns of the border alone, numbered from zero.
    size
        Length of the flat vector.
    """

    field: str
    levels: int
    firsts: tuple[int, ...]
    scales: tuple[int | None, ...]
    coding: Coding
    size: int

    @cached_property
    def big(self) -> np.ndarray:
        """Flat indices of the effects, (levels, effects)."""
        return np.arange(self.levels)[:, None] + np.array(self.firsts)

    @cached_property
    def border(self) -> np.ndarray:
        """Flat indices of all other parameters, in order."""
        inside = np.zeros(self.size, bool)
        inside[self.big] = True
        return np.flatnonzero(~inside)

    def border_matrix(self, batch: dict[str, Array]) -> ModelMatrix:
        """Return the model matrix of some rows without the columns of the factor's effects."""
        if self.coding.terms:
            return model_matrix(self.coding, batch)
        if not self.coding.dense:
            like = jnp.asarray(batch[self.field])
            return DenseMatrix(jnp.zeros((*like.shape, 0)))
        return DenseMatrix(jnp.asarray(batch["x"])[..., np.argsort(self.coding.dense)])

    def own_columns(self, batch: dict[str, Array]) -> jax.Array:
        """Return the values that multiply the effects of each row's level, (rows, effects)."""
        ones = jnp.ones(jnp.shape(batch[self.field]))
        columns = [ones if s is None else jnp.asarray(batch["x"])[..., s] for s in self.scales]
        return jnp.stack(columns, axis=-1)


def arrow_layout(coding: Coding, common: int, size: int) -> ArrowLayout | None:
    """Return the layout for the factor with the most levels; None if the border is too large.

    Parameters
    ----------
    coding
        The coding of the model matrix: common columns, then one per effect and level.
    common
        Number of common columns.
    size
        Length of the flat vector: columns and all other parameters.
    """
    effects = [term for term in coding.terms if term.first >= common]
    largest = max(effects, key=lambda term: term.width)
    own = [term for term in effects if term.field == largest.field]
    if not arrow_fits(largest.width, len(own), size):
        return None
    inside = np.zeros(coding.size, bool)
    for term in own:
        inside[term.columns] = True
    place = np.cumsum(~inside) - 1
    others = tuple(
        CodedTerm(t.field, int(place[t.first]), t.width, t.reference, t.scale)
        for t in coding.terms
        if t not in own
    )
    border = Coding(tuple(int(place[j]) for j in coding.dense), others)
    firsts, scales = tuple(term.first for term in own), tuple(term.scale for term in own)
    return ArrowLayout(largest.field, largest.width, firsts, scales, border, size)


def arrow_fits(levels: int, effects: int, size: int) -> bool:
    """Whether `size` parameters fit as effects of one big factor and a border."""
    border = size - levels * effects
    return border <= MOST_BORDER and levels * effects * border <= MOST_NUMBERS

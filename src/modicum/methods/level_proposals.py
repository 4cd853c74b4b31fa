"""Several proposals for the effects of each level, of which one is taken by its weight.

Given the scales of pooled terms and the border b of an arrow, the effects u_j of the levels of its
largest factor have nothing to do with each other: the posterior of u_j is in proportion to

    f_j(u) = exp(l_j(u, b)) N(u; 0, Q_j^-1),

where l_j is the log-likelihood of the rows of level j. A normal density q_j is close to it if the
level has many rows. If it has few, q_j is off by a little; but the weight of a draw is the product
over all levels, and hundreds of small errors multiply. Of M proposals u_jm from q_j, therefore, one
is taken for each level with a chance in proportion to g_jm = f_j(u_jm) / q_j(u_jm), and in the
weight of the draw stands the mean of g_jm over m, in place of g_j of the proposal that was taken.
Weights of this kind are unbiased for any M (they are those of importance sampling of the proposals
and of the choice among them), and vary by a share of 1 / M as much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from modicum.linalg.arrow import ArrowLayout
from modicum.models import Target
from modicum.models.model import Batch
from modicum.rows import Rows
from modicum.runtime import (
    FASTEST_COMPILE,
    Array,
    in_double_precision,
    in_equal_blocks,
    jit,
)

AT_ONCE = 1 << 18  # log-densities of rows that are held at a time


@dataclass(frozen=True, eq=False)
class LevelProposals:
    """How many proposals there are for each level, and what weighs them.

    Attributes
    ----------
    target
        The posterior, with effects of a factor that are apart from all others.
    rows
        All rows.
    number
        Proposals for each level.
    """

    target: Target
    rows: Rows
    number: int

    def others(self, rng: np.random.Generator, draws: tuple[int, int]) -> OtherProposals:
        """Draw the random numbers of all proposals but the first, for (scales, draws)."""
        levels, effects = self._layout.big.shape
        normals = rng.standard_normal((self.number - 1, *draws, levels, effects))
        return OtherProposals(self, normals, rng.gumbel(size=(self.number, *draws, levels)))

    def log_likelihoods(self, points: np.ndarray) -> np.ndarray:
        """Log-likelihood of the rows of each level at coefficients (..., coefficients)."""
        batch, levels, firsts = self._by_level
        flat = points.reshape(-1, points.shape[-1])
        found = np.zeros((len(flat), self._layout.levels))

        def evaluate(some: np.ndarray) -> np.ndarray:
            of_rows = np.asarray(_of_rows(self.target.likelihood, some, batch))
            return np.asarray(np.add.reduceat(of_rows, firsts, axis=1))

        together = max(1, AT_ONCE // len(self.rows))
        found[:, levels] = in_equal_blocks(evaluate, flat, together)
        found[np.isnan(found)] = -np.inf
        return found.reshape(*points.shape[:-1], -1)

    @property
    def _layout(self) -> ArrowLayout:
        layout = self.target.arrow_of_effects
        assert layout is not None
        return layout

    @cached_property
    def _by_level(self) -> tuple[Batch, np.ndarray, np.ndarray]:
        """All rows, sorted by level, the levels that occur, and the first row of each."""
        batch = self.rows.take(np.arange(len(self.rows)))
        codes = np.asarray(batch[self._layout.field])
        order = np.argsort(codes, kind="stable")
        levels, firsts = np.unique(codes[order], return_index=True)
        return {name: np.asarray(field)[order] for name, field in batch.items()}, levels, firsts


class OtherProposals(NamedTuple):
    """All proposals for the effects of levels but the first, as random numbers."""

    to: LevelProposals
    normals: np.ndarray  # (M - 1, scales, draws, levels, effects)
    gumbels: np.ndarray  # that choose among all, (M, scales, draws, levels)

    def choose(
        self,
        c: np.ndarray,
        first: np.ndarray,
        big: np.ndarray,
        propose: Callable[[np.ndarray], np.ndarray],
        precision: np.ndarray,
    ) -> np.ndarray:
        """Take one proposal for each level.

        Parameters
        ----------
        c
            Coefficients, (scales, draws, coefficients); effects are changed in place.
        first
            The standard normal numbers of the first proposals, (scales, draws, levels, effects).
        big
            Where the effects are, (levels, effects).
        propose
            Makes effects of such numbers.
        precision
            Q of one level, (scales, effects, effects).

        Returns
        -------
        numpy.ndarray
            What added to the log-density of the first proposals leaves the logarithm of the weight,
            if it is taken from the log-posterior of those that were taken; (scales, draws).
        """
        normals = np.concatenate([first[None], self.normals])
        effects = propose(normals)
        points = np.repeat(c[None], len(normals), axis=0)
        points[..., big] = effects
        log_joint = self.to.log_likelihoods(points)  # log f but for a constant
        log_joint -= np.sum(effects * (effects @ precision[:, None]), axis=-1) / 2
        log_g = log_joint + np.sum(normals**2, axis=-1) / 2
        taken = np.argmax(log_g + self.gumbels, axis=0)[None]  # in proportion to g
        c[..., big] = np.take_along_axis(effects, taken[..., None], axis=0)[0]
        of_taken = np.take_along_axis(log_joint, taken, axis=0)[0]
        top = log_g.max(axis=0)
        with np.errstate(invalid="ignore"):
            log_mean = top + np.log(np.mean(np.exp(log_g - top), axis=0))
        gap = of_taken - log_mean + np.sum(first**2, axis=-1) / 2
        return np.where(np.isfinite(top), gap, 0.0).sum(axis=-1)  # else the log-posterior is -inf


@in_double_precision
@jit(static=0, options=FASTEST_COMPILE)
def _of_rows(likelihood: Target, points: Array, batch: Batch) -> jax.Array:
    """Log-density of each row at each point, (points, rows)."""
    return jax.vmap(likelihood.log_likelihood, in_axes=(0, None))(points, batch)

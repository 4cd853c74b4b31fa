"""Draws of a model with pooled terms, without a chain: scales first, coefficients given the scales.

Scales are drawn from a density close to their marginal (`scale_densities`), coefficients from their
normal distribution given these (`given_scales`), and a draw is weighted like any proposal.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np

from modicum.methods.given_scales import Pooled
from modicum.methods.level_proposals import LevelProposals, OtherProposals
from modicum.methods.scale_densities import ScaleDensity, ScaleKernels
from modicum.runtime import in_threads

SHARED = 200  # scales that are drawn where a factor takes long


class Nested(NamedTuple):
    """Draws of coefficients and scales.

    Attributes
    ----------
    t
        Coefficients, then scales, (length, chains, d). Where factors are dear, successive draws
        share their scales.
    scales
        What scales were drawn from.
    log_proposal
        Log-density of the scales as they were proposed, (length, chains).
    log_marginal
        log p~ of the scales.
    log_given
        Log-density of the coefficients given the scales, but for a constant.
    """

    t: np.ndarray
    scales: ScaleDensity | ScaleKernels
    log_proposal: np.ndarray
    log_marginal: np.ndarray
    log_given: np.ndarray

    def gaps(self, log_ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first draws, (draws, d), and how far the posterior is from their density.

        `log_ratio` are their log-weights, which the proposal of scales is taken out of.
        """
        count = len(log_ratio)
        gap = log_ratio + (self.log_proposal - self.log_marginal).ravel()[:count]
        return self.t.reshape(-1, self.t.shape[2])[:count], gap


def nested_draws(
    pooled: Pooled,
    density: ScaleDensity | ScaleKernels,
    rng: np.random.Generator,
    shape: tuple[int, int],
    levels: LevelProposals | None = None,
) -> Nested:
    """Draw coefficients and scales; `shape` is (length, chains).

    With `levels`, the effects of each level are one of several proposals.
    """
    length, chains = shape
    times = ceil(length * chains / SHARED) if pooled.is_dear else 1  # draws that share scales
    groups, first = ceil(length / times), len(pooled.origin)
    h, of_scales = density.draw(rng, groups * chains)
    scales = h.shape[1] - pooled.followed
    t = np.empty((groups, times, chains, first + scales))
    t[..., first:] = h[:, :scales].reshape(groups, 1, chains, -1)
    logs = np.empty((3, groups, times, chains))
    logs[0] = of_scales.reshape(groups, 1, chains)
    together = pooled.together(times * (1 if levels is None else levels.number))
    parts = [np.arange(k, min(k + together, len(h))) for k in range(0, len(h), together)]

    def with_noise(some: np.ndarray) -> tuple[np.ndarray, np.ndarray, OtherProposals | None]:
        others = None if levels is None else levels.others(rng, (len(some), times))
        return h[some], rng.standard_normal((len(some), times, first)), others

    drawn = in_threads(lambda given: pooled.draw(*given), map(with_noise, parts))
    for some, (c, of_c, of_h) in zip(parts, drawn, strict=True):
        where = (some // chains, slice(None), some % chains)
        t[(*where, slice(first))] = c
        logs[(2, *where)], logs[(1, *where)] = of_c, of_h[:, None]
    flat = logs.reshape(3, groups * times, chains)[:, :length]
    return Nested(t.reshape(groups * times, chains, -1)[:length], density, *flat)

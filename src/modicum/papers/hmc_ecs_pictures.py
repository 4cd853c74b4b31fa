"""Pictures several experiments of the HMC-ECS paper share: marginals, means and variances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from modicum.papers.fits import Fit
from modicum.plots import pyplot
from modicum.posterior.labels import scalar_names

__all__ = ["density", "draw_marginals", "draw_moments", "some_parameters"]

PANEL = 2.3  # inches


def density(values: np.ndarray, weights: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Kernel density estimate at `at` that respects signs (which SciPy's refuses).

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=4_000)
    >>> density(x, np.ones(4_000), np.zeros(1)).round(1)
    array([0.4])
    """
    total = weights.sum()
    mean = weights @ values / total
    sd = np.sqrt(max(weights @ (values - mean) ** 2 / total, 0.0))
    width = max(1.06 * sd * len(values) ** -0.2, 1e-300)  # Silverman's rule
    bumps = np.exp(-0.5 * ((at[:, None] - values) / width) ** 2)
    return np.asarray(bumps @ weights / (total * width * np.sqrt(2 * np.pi)))


def some_parameters(truth: Fit, seed: int) -> tuple[Sequence[int], list[str]]:
    """Four parameters at random, as in the paper, and all names."""
    names = [
        name
        for parameter, x in truth.post.draws.items()
        for name in scalar_names(parameter, x.shape[2:], truth.post.labels)
    ]
    return np.sort(np.random.default_rng(seed).choice(len(names), 4, replace=False)).tolist(), names


def draw_marginals(fits: Sequence[Fit], truth: Fit, which: Sequence[int], names: Any) -> Any:
    """A line of panels a method, a column a parameter; full HMC in every panel."""
    figure, axes = pyplot().subplots(
        len(fits), len(which), figsize=(PANEL * len(which) + 1.2, 1.3 * len(fits) + 0.8),
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for row, fit in zip(axes, fits, strict=True):
        for ax, k in zip(row, which, strict=True):
            at = truth.mean[k] + truth.sd[k] * np.linspace(-6, 6, 200)
            for one, style in ((truth, "-"), (fit, "--")):
                y = density(one.draws[..., k].ravel(), one.weights.ravel(), at)
                ax.plot(at, y, style, color=one.colour, label=one.label, linewidth=1.6)
            ax.set_yticks([])
            ax.tick_params(labelsize=7)
            ax.locator_params(axis="x", nbins=4)
        row[0].set_ylabel(_two_lines(fit.label), fontsize=8, rotation=0, ha="right", va="center")
    for ax, k in zip(axes[-1], which, strict=True):
        ax.set_xlabel(names[k], fontsize=8)
    said = f"solid: {truth.label}; dashed: the method"
    figure.suptitle(said, fontsize=9)
    return figure


def draw_moments(fits: Sequence[Fit], truth: Fit) -> Any:
    """Means above and variances below against those of full HMC; the diagonal is agreement."""
    figure, axes = pyplot().subplots(
        2, len(fits), figsize=(PANEL * len(fits) + 0.6, 2 * PANEL), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for column, fit in zip(axes.T, fits, strict=True):
        for ax, ours, theirs in (
            (column[0], fit.mean, truth.mean),
            (column[1], fit.sd**2, truth.sd**2),
        ):
            ends = [theirs.min(), theirs.max()]
            ax.plot(ends, ends, color=truth.colour, linewidth=1)
            ax.plot(theirs, ours, "o", color=fit.colour, markersize=4, alpha=0.8)
            ax.tick_params(labelsize=7)
        column[1].set(xscale="log", yscale="log")
        column[0].set_title(_two_lines(fit.label), fontsize=8)
        column[1].set_xlabel(truth.label, fontsize=8)
    axes[0][0].set_ylabel("posterior means", fontsize=9)
    axes[1][0].set_ylabel("posterior variances", fontsize=9)
    return figure


def _two_lines(label: str) -> str:
    return label.replace(", ", ",\n").replace(" (", "\n(")

"""Figures that several HMC-ECS experiments share: marginals, means and variances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from modicum.plots import METHOD_COLOURS, pyplot
from modicum_lab.papers.fits import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MatplotlibFigure

PANEL, ABREAST = 2.3, 4  # inches, and methods side by side
ORDER_COLOURS = {0: "#4d2c0a", 1: "#a6611a", 2: METHOD_COLOURS["hmc-ecs-uniform"]}
"""Shades of one colour: the same method with control variates of each order."""


def density(values: np.ndarray, weights: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return a kernel density estimate at `at` with signed weights, which SciPy refuses.

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
    """Choose four parameters at random, as in the paper; return them and all names."""
    names = [str(name) for name in truth.post.summary().index]
    return np.sort(np.random.default_rng(seed).choice(len(names), 4, replace=False)).tolist(), names


def draw_marginals(
    fits: Sequence[Fit], truth: Fit, which: Sequence[int], names: Sequence[str]
) -> MatplotlibFigure:
    """Draw one row of panels per method, one column per parameter, each with full HMC."""
    figure, axes = pyplot().subplots(
        len(fits), len(which), figsize=(PANEL * len(which) + 1.2, 1.3 * len(fits) + 0.8),
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for row, fit in zip(axes, fits, strict=True):
        for ax, k in zip(row, which, strict=True):
            at = truth.mean[k] + truth.sd[k] * np.linspace(-6, 6, 200)
            for shown_fit, style in ((truth, "-"), (fit, "--")):
                y = density(shown_fit.draws[..., k].ravel(), shown_fit.weights.ravel(), at)
                ax.plot(at, y, style, color=shown_fit.colour, label=shown_fit.label, linewidth=1.6)
            ax.set_yticks([])
            ax.tick_params(labelsize=7)
            ax.locator_params(axis="x", nbins=4)
        row[0].set_ylabel(_two_lines(fit.label), fontsize=8, rotation=0, ha="right", va="center")
    for ax, k in zip(axes[-1], which, strict=True):
        ax.set_xlabel(names[k].removeprefix("beta[").removesuffix("]"), fontsize=7)
    figure.suptitle(f"solid: {truth.label}; dashed: the method", fontsize=9)
    return figure


def draw_moments(fits: Sequence[Fit], truth: Fit) -> MatplotlibFigure:
    """Plot means (above) and variances (below) against full HMC; the diagonal is agreement."""
    across = min(ABREAST, len(fits))
    bands = -(-len(fits) // across)
    figure, axes = pyplot().subplots(
        2 * bands, across, figsize=(PANEL * across + 0.6, 1.9 * 2 * bands), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for ax in axes.flat:
        ax.set_visible(False)
    for number, fit in enumerate(fits):
        band, column = divmod(number, across)
        upper, lower = axes[2 * band][column], axes[2 * band + 1][column]
        _against(upper, fit.mean, truth.mean, fit, truth)
        _against(lower, fit.sd**2, truth.sd**2, fit, truth)
        lower.set(xscale="log", yscale="log")
        lower.tick_params(which="minor", labelbottom=False, labelleft=False)  # avoid overlaps
        upper.set_title(fit.label, fontsize=8)
        lower.set_xlabel(truth.label, fontsize=8)
        if column == 0:
            upper.set_ylabel("posterior means", fontsize=9)
            lower.set_ylabel("posterior variances", fontsize=9)
    return figure


def _against(ax: Axes, ours: np.ndarray, theirs: np.ndarray, fit: Fit, truth: Fit) -> None:
    ax.set_visible(True)
    ends = [theirs.min(), theirs.max()]
    ax.plot(ends, ends, color=truth.colour, linewidth=1)
    ax.plot(theirs, ours, "o", color=fit.colour, markersize=4, alpha=0.8)
    ax.tick_params(labelsize=7)


def _two_lines(label: str) -> str:
    return label.replace(", ", ",\n").replace(" (", "\n(")

"""Eq. 4.6 of the HMC-ECS paper: how fast the perturbed posterior approaches the posterior.

The perturbed posterior is the average of exp(lhat - sigma-hat^2 / 2) over all subsamples (section
4.2). There are n^m of them, but the average needs no sampling. With S1 and S2 the sums of d and d^2
over the subsample, and b = n^2 / (2 m (m - ddof)), the exponent is

    (n / m) S1 - b S2 + (b / m) S1^2.

The exponential of the square is an average over a standard normal z of exp(z sqrt(2 b / m) S1).
Given z, rows are independent, and the average over subsamples is the m-th power of one over rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import expit, logsumexp

from modicum.plots import pyplot
from modicum_lab.papers.experiments import (
    Figure,
    Result,
    Scale,
    Table,
    claims,
    experiment,
    sized,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

POINTS, REACH = 61, 5.0  # quadrature over the parameter, up to so many posterior sds
NODES = 20  # quadrature over z
TRUE = 0.5  # coefficient of the simulated tables
PAPER, OURS, UNCORRECTED = "divisor m^2 (4.3)", "divisor m (m - 1)", "without sigma-hat^2 / 2"
ESTIMATES: dict[str, int | None] = {PAPER: 0, OURS: 1, UNCORRECTED: None}  # to degrees of freedom


@dataclass(frozen=True)
class Size:
    """Numbers of rows, subsamples, and tables averaged over."""

    rows: tuple[int, ...]
    subsamples: tuple[int, ...]
    tables: int


SIZES: dict[Scale, Size] = {
    "smoke": Size((100, 200, 400), (20, 40, 80), 3),
    "laptop": Size((100, 200, 400, 800, 1_600), (20, 40, 80, 160, 320), 20),
    "paper": Size((100, 200, 400, 800, 1_600, 3_200, 6_400), (20, 40, 80, 160, 320), 100),
}


class OneSlope(NamedTuple):
    """A logistic regression on one column, with a flat prior, about its mode."""

    log_posterior: np.ndarray  # at each point of the quadrature
    residuals: np.ndarray  # d = l - q of each row there: points by rows


def one_slope(n: int, rng: np.random.Generator) -> OneSlope:
    """Simulate a table of `n` rows; return its posterior and the residuals of eq. 4.4."""
    x = rng.normal(size=n)
    y = rng.random(n) < expit(TRUE * x)
    mode = 0.0
    for _ in range(50):  # Newton's method
        chance = expit(mode * x)
        curvature = np.sum(x**2 * chance * (1 - chance))
        mode += float(np.sum(x * (y - chance)) / curvature)
    steps = np.linspace(-REACH, REACH, POINTS)[:, None] / np.sqrt(curvature)
    chance = expit(mode * x)
    slope, bend = x * (y - chance), -(x**2) * chance * (1 - chance)
    # log(1 + e^eta) as a difference from the mode keeps the digits of a small residual
    change = steps * x * y - np.log1p(chance * np.expm1(steps * x))
    return OneSlope(change.sum(1), change - steps * slope - steps**2 / 2 * bend)


def log_average(residuals: np.ndarray, m: int, ddof: int | None) -> np.ndarray:
    """Return log E exp(dhat - sigma-hat^2 / 2) over all subsamples of m rows.

    Parameters
    ----------
    residuals
        d of each row, along the last axis.
    m
        Rows of a subsample, drawn with replacement.
    ddof
        Degrees of freedom of sigma-hat^2; None leaves it out.

    Examples
    --------
    >>> bool(np.isclose(log_average(np.array([0.3]), 5, 1), 0.3))  # equal rows have no variance
    True
    """
    n = residuals.shape[-1]
    b = 0.0 if ddof is None else n**2 / (2 * m * (m - ddof))
    z, weight = np.polynomial.hermite_e.hermegauss(NODES)
    of_z = []
    for node in z:
        tilt = n / m + node * np.sqrt(2 * b / m)
        of_z.append(m * (logsumexp(tilt * residuals - b * residuals**2, axis=-1) - np.log(n)))
    average: np.ndarray = logsumexp(np.stack(of_z, -1), b=weight / weight.sum(), axis=-1)
    return average


def distance(table: OneSlope, m: int, ddof: int | None) -> float:
    """Return the integral of |perturbed - posterior| in eq. 4.6."""
    shift = log_average(table.residuals, m, ddof) - table.residuals.sum(1)
    exact, perturbed = (
        np.exp(log - logsumexp(log)) for log in (table.log_posterior, table.log_posterior + shift)
    )
    return float(np.abs(perturbed - exact).sum())


Distances = Mapping[str, np.ndarray]
"""By estimate, the mean distance: numbers of rows by subsamples."""


def distances(size: Size, seed: int) -> Distances:
    """Average the distance over simulated tables."""
    found = {name: np.zeros((len(size.rows), len(size.subsamples))) for name in ESTIMATES}
    for i, n in enumerate(size.rows):
        for k in range(size.tables):
            table = one_slope(n, np.random.default_rng([seed, n, k]))
            for name, ddof in ESTIMATES.items():
                found[name][i] += [distance(table, m, ddof) for m in size.subsamples]
    return {name: total / size.tables for name, total in found.items()}


def power(at: Sequence[int], values: np.ndarray) -> float:
    """Return the power of `at` with which `values` change, by least squares of logarithms.

    Examples
    --------
    >>> round(power([10, 20, 40], np.array([4.0, 1.0, 0.25])), 6)
    -2.0
    """
    return float(np.polyfit(np.log(at), np.log(values), 1)[0])


@experiment("hmc-ecs", "equation-4-6", "How fast the perturbation vanishes with m and n")
def equation_4_6(scale: Scale, seed: int) -> Result:
    """Distance of the perturbed posterior from the posterior, without sampling."""
    size = sized(SIZES, scale)
    found = distances(size, seed)
    in_m = {name: power(size.subsamples, of.mean(0)) for name, of in found.items()}
    in_n = {name: power(size.rows, of.mean(1)) for name, of in found.items()}
    columns = ["estimate", "n", *(f"m = {m}" for m in size.subsamples), "power of m"]
    rows = [
        [name, n, *row, power(size.subsamples, row)]
        for name, of in found.items()
        for n, row in zip(size.rows, of, strict=True)
    ]
    return Result(
        tables=[
            Table("equation-4-6", columns, rows, f"Means over {size.tables} simulated tables."),
            claims(
                [
                    ("power of m", round(in_m[PAPER], 2), -2, abs(in_m[PAPER] + 2) < 0.2),
                    ("power of n, at most", round(in_n[PAPER], 2), -1, in_n[PAPER] < -0.9),
                ],
                "The rate is a bound: n may well help more.",
            ),
        ],
        figures=[Figure("equation-4-6", partial(_draw, size, found), CAPTION)],
        settings={"rows": size.rows, "subsamples": size.subsamples, "tables": size.tables},
        ledger={"quadrature": POINTS * size.tables * sum(size.rows)},
        notes=[
            "Logistic regression on one standard normal column, flat prior, expansion at the mode. "
            "The average over subsamples and the integral are quadratures, not samples.",
            f"With the divisor m (m - 1), Modicum's default, powers of m and n are "
            f"{in_m[OURS]:.2f} and {in_n[OURS]:.2f}, and the distance is "
            f"{float(np.mean(found[OURS] / found[PAPER])):.2f} times the paper's on average. "
            f"Without the correction the power of m is {in_m[UNCORRECTED]:.2f}.",
        ],
    )


CAPTION = (
    "Integral of |perturbed posterior - posterior|, averaged over tables. Left: against m at the "
    "largest n. Right: against n at the smallest m. Dotted: the rates of eq. 4.6."
)


def _draw(size: Size, found: Distances) -> MatplotlibFigure:
    figure, axes = pyplot().subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    sides = (
        (size.subsamples, {name: of[-1] for name, of in found.items()}, 2),
        (size.rows, {name: of[:, 0] for name, of in found.items()}, 1),
    )
    for ax, (at, curves, rate) in zip(axes, sides, strict=True):
        for (name, curve), marker in zip(curves.items(), "os^", strict=True):
            ax.plot(at, curve, marker=marker, label=name, alpha=0.85)
        line = curves[PAPER][0] * (np.asarray(at) / at[0]) ** -float(rate)
        ax.plot(at, line, ":", color="#555555", label="rate of eq. 4.6")
        ax.set(xscale="log", yscale="log", ylabel="distance from the posterior")
        ax.set_xticks(at, [f"{each:,}" for each in at])
        ax.minorticks_off()
        ax.grid(alpha=0.25)
    axes[0].set_xlabel(f"rows per subsample m, at n = {size.rows[-1]:,}")
    axes[1].set_xlabel(f"rows n, at m = {size.subsamples[0]}")
    axes[0].legend(frameon=False, fontsize=9)
    return figure

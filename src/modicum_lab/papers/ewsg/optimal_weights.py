"""EWSG paper, Theorem 1 (section 4.1): the unbiased selection with the least variance.

Given all n gradients, the probabilities p that minimise the trace of the covariance of n grad V_I
with E[n grad V_I] = grad V solve a linear programme, whose solutions have at most d + 1 entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from modicum.plots import colour_of
from modicum_lab.papers.ewsg.common import draw_lines, panels
from modicum_lab.papers.ewsg.gaussian import SETTINGS, STEP, D, Gaussian, log_weights
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

SIZES = (10, 20, 50, 100, 200)  # n
STATES: dict[Scale, int] = {"smoke": 20, "laptop": 100, "paper": 500}


def optimal_weights(errors: np.ndarray) -> np.ndarray:
    """Solve min sum p_i |b_i|^2 subject to sum p_i b_i = 0 and sum p_i = 1 (eq. 2).

    Parameters
    ----------
    errors
        b_i = n grad V_i - grad V, (n, d).

    Examples
    --------
    >>> b = np.array([[-3.0], [-1.0], [1.0], [3.0]])
    >>> optimal_weights(b).round(3)
    array([0. , 0.5, 0.5, 0. ])
    """
    from scipy.optimize import linprog

    n, d = errors.shape
    equal = np.vstack([errors.T, np.ones(n)])
    solved = linprog(np.sum(errors**2, axis=1), A_eq=equal, b_eq=np.append(np.zeros(d), 1.0))
    return np.asarray(solved.x)


def exponential_weights(gradients: np.ndarray, momentum: np.ndarray) -> np.ndarray:
    """Return the weights of eq. 4 with x = sqrt(h) gamma r / sigma, of n grad V_i, (n, d)."""
    log_weight = log_weights(gradients, momentum)
    weights = np.exp(log_weight - log_weight.max())
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class Selection:
    """Bias and variance of a selection at stationarity, averaged over states."""

    bias: float  # squared bias of the selected gradient
    variance: float  # trace of its covariance
    rows: float  # number of rows with a probability above 1e-9

    @property
    def error(self) -> float:
        """Mean squared error of the selected gradient."""
        return self.bias + self.variance


def compared(target: Gaussian, states: int, seed: int) -> dict[str, Selection]:
    """Compare uniform, exponential and optimal selection at the same states."""
    rng = np.random.default_rng([seed, 7])
    by_name: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(states):
        theta = target.mean + target.sd * rng.normal(size=D)
        gradients = len(target.centres) * (theta - target.centres)
        errors = gradients - gradients.mean(axis=0)
        ways = {
            "uniform": np.full(len(errors), 1 / len(errors)),
            "ewsg": exponential_weights(gradients, rng.normal(size=D)),
            "optimal": optimal_weights(errors),
        }
        for name, p in ways.items():
            mean = p @ errors
            spread = float(p @ np.sum((errors - mean) ** 2, axis=1))
            selection = (float(np.sum(mean**2)), spread, float(np.sum(p > 1e-9)))
            by_name.setdefault(name, []).append(selection)
    return {name: Selection(*np.mean(rows, axis=0)) for name, rows in by_name.items()}


NAMES = {
    "uniform": "uniform",
    "ewsg": "exponential weights, eq. 4",
    "optimal": "optimal, Theorem 1",
}


@experiment("ewsg", "theorem-1", "The unbiased selection with the least variance, Gaussian")
def theorem_1(scale: Scale, seed: int) -> Result:
    """Compare linear programming with uniform and exponential weights, as n grows."""
    states = sized(STATES, scale)
    result = Result(settings=SETTINGS | {"n": SIZES, "states": states, "step_size": STEP})
    by_n = {n: compared(Gaussian.drawn(n, seed), states, seed) for n in SIZES}
    rows = [
        [n, NAMES[name], s.rows, s.bias, s.variance, s.error / of_n["uniform"].error]
        for n, of_n in by_n.items()
        for name, s in of_n.items()
    ]
    columns = ["n", "selection", "rows with a chance", "squared bias of the gradient",
               "variance of the gradient", "both, over uniform"]  # fmt: skip
    ratios = [of_n["ewsg"].error / of_n["uniform"].error for of_n in by_n.values()]
    note = (
        "At stationarity, exact in the index, on average over states. The optimal selection has "
        f"at most d + 1 = {D + 1} rows and is unbiased; it needs the gradients of all rows at "
        "every step, so that it is of no practical use, as the paper says. Exponential weights do "
        f"not approach it: squared bias and variance together are {min(ratios):.2f} to "
        f"{max(ratios):.2f} times those of uniform batches (see figure-1d-1i). h = {STEP:g} is "
        "that of n = 20; at n = 100 and more it makes the weights of eq. 4 so uneven that one or "
        "two rows have all the chance, which has no variance and a large bias."
    )
    result.tables += [Table("theorem-1", columns, rows, note), _claims(by_n)]
    result.figures.append(Figure("theorem-1", lambda: _draw(by_n), "Averages over states."))
    result.ledger = {"all selections": states * sum(SIZES)}
    result.notes.append("Computed from the centres directly: no chain is run.")
    return result


def _claims(by_n: dict[int, dict[str, Selection]]) -> Table:
    most = max(of_n["optimal"].rows for of_n in by_n.values())
    largest = max(of_n["optimal"].error / of_n["uniform"].error for of_n in by_n.values())
    return claims(
        [
            ("rows of the optimal selection", f"{most:g} at most", f"at most d + 1 = {D + 1}",
             most <= D + 1),
            ("it has less variance than uniform", f"{largest:.2g} of it at most", "yes",
             largest < 1),
        ]
    )  # fmt: skip


def _draw(by_n: dict[int, dict[str, Selection]]) -> MatplotlibFigure:
    figure, (ax,) = panels(1, size=(6.0, 4.2))
    colours = {"uniform": "sghmc", "ewsg": "ewsg", "optimal": "svrg-ld"}
    sizes = list(by_n)
    lines = {NAMES[name]: (sizes, [of_n[name].error for of_n in by_n.values()]) for name in NAMES}
    draw_lines(
        ax,
        lines,
        x="rows n",
        y="mean squared error of the selected gradient",
        log="xy",
        marker="o",
        colours={NAMES[name]: colour_of(of) for name, of in colours.items()},
    )
    return figure

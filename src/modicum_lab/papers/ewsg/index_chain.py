"""EWSG paper, Figures 1d to 1i: bias and variance by the length M of the index chain.

The panels as the text describes them: bias (1d) and variance (1e) of the stochastic gradient
against M, divergence against data passes for n = 20, 50 and 100 (1f, 1g, 1h), and which M ends
lowest as the number of batches grows (1i).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from modicum import EWSG
from modicum_lab.papers.ewsg.common import Line, draw_lines, panels, shade
from modicum_lab.papers.ewsg.gaussian import (
    AFAR,
    FRICTION,
    PASSES,
    RAW,
    SETTINGS,
    STEP,
    D,
    Gaussian,
    log_weights,
)
from modicum_lab.papers.experiments import Figure, Result, Scale, Table, claims, experiment, sized

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

LENGTHS: dict[Scale, tuple[int, ...]] = {
    "smoke": (1, 9),
    "laptop": (1, 4, 9, 19, 29, 49),
    "paper": (1, 2, 4, 9, 14, 19, 29, 39, 59),
}
SIZES = (20, 50, 100)
REALISATIONS: dict[Scale, int] = {"smoke": 400, "laptop": 4_000, "paper": 10_000}
STATES: dict[Scale, int] = {"smoke": 200, "laptop": 1_000, "paper": 4_000}
LOCAL_LENGTHS = (0, 1, 2, 4, 9, 19, 29)
PAPER_BEST = {50: "19", 100: "19"}


def local_error(
    target: Gaussian, lengths: tuple[int, ...], states: int, seed: int
) -> dict[int, tuple[float, float]]:
    """Return squared bias and variance (trace) of the selected gradient at stationarity, by M.

    They are exact at each of `states` draws of (theta, r): the law of the index after M steps is
    the uniform law times the M-th power of the chain's transition matrix (eq. 5).
    """
    rng = np.random.default_rng([seed, 5])
    totals = dict.fromkeys(lengths, (0.0, 0.0))
    for _ in range(states):
        theta = target.mean + target.sd * rng.normal(size=D)
        gradients = len(target.centres) * (theta - target.centres)
        chance = _transitions(gradients, rng.normal(size=D))
        law = np.full(len(gradients), 1 / len(gradients))
        for m in range(max(lengths) + 1):
            if m in totals:
                bias, variance = totals[m]
                mean = law @ gradients
                bias += float(np.sum((mean - gradients.mean(axis=0)) ** 2)) / states
                variance += float(law @ np.sum((gradients - mean) ** 2, axis=1)) / states
                totals[m] = bias, variance
            law = law @ chance
    return totals


def _transitions(gradients: np.ndarray, momentum: np.ndarray) -> np.ndarray:
    """Return the transition matrix of the index chain at one state (eq. 5)."""
    log_weight = log_weights(gradients, momentum)
    chance = np.exp(np.minimum(0.0, log_weight[None] - log_weight[:, None])) / len(gradients)
    np.fill_diagonal(chance, 0.0)
    return chance + np.diag(1 - chance.sum(axis=1))


@experiment("ewsg", "figure-1d-1i", "EWSG by the length M of the index chain, Gaussian")
def figure_1d_1i(scale: Scale, seed: int) -> Result:
    """Measure local bias and variance, KL curves for n = 20, 50, 100, and the best M."""
    size = {"realisations": sized(REALISATIONS, scale), "n": SIZES, "M": sized(LENGTHS, scale)}
    result = Result(settings=SETTINGS | size | {"step_size": STEP, "passes": PASSES})
    local = local_error(Gaussian.drawn(20, seed), LOCAL_LENGTHS, sized(STATES, scale), seed)
    curves = {n: _curves(result, Gaussian.drawn(n, seed), scale, seed) for n in SIZES}
    last = {n: {m: float(kl[-1]) for m, (_, kl) in of_n.items()} for n, of_n in curves.items()}
    result.tables += [_local_table(local), _best_table(last), _claims(last, local)]
    result.figures.append(
        Figure(
            "figure-1d-1i",
            lambda: _draw(local, curves, last),
            "Above: squared bias and variance of the selected gradient (M = 0: uniform batches), "
            "and divergence against passes for n = 20. Below: n = 50, n = 100, and the divergence "
            "after all passes against M.",
        )
    )
    return result


def _curves(result: Result, target: Gaussian, scale: Scale, seed: int) -> dict[int, Line]:
    curves = {}
    for m in sized(LENGTHS, scale):
        method = EWSG(step_size=STEP, friction=FRICTION, index_steps=m, **RAW, **AFAR)
        post = target.run(
            *(result, f"EWSG, n = {len(target.centres)}, M = {m}", method),
            passes=PASSES,
            chains=sized(REALISATIONS, scale),
            random_seed=seed,
        )
        curves[m] = target.kl_curve(post)
    return curves


def _local_table(local: dict[int, tuple[float, float]]) -> Table:
    uniform = local[0][1]
    rows = [[m, bias, variance, variance / uniform] for m, (bias, variance) in local.items()]
    ratios = [row[3] for row in rows[1:]]
    note = (
        "At stationarity, exact in the index. The paper has the variance fall with M at the price "
        f"of a bias; here it is {min(ratios):.2f} to {max(ratios):.2f} times that of uniform "
        "batches (M = 0). Theorem 3 as printed says less than 1; where exponential weights help, "
        "it is by adding to friction what batches add to noise."
    )
    columns = ["M", "squared bias of the gradient", "variance of the gradient", "over uniform"]
    return Table("figure-1d-1e", columns, rows, note)


def _best_table(last: dict[int, dict[int, float]]) -> Table:
    lengths = list(next(iter(last.values())))
    rows = [
        [n, *ends.values(), min(ends, key=lambda m: ends[m]), PAPER_BEST.get(n)]
        for n, ends in last.items()
    ]
    columns = ["n", *(f"KL, M = {m}" for m in lengths), "best M", "best M (paper)"]
    note = (
        f"After {PASSES} passes with batches of one row. The paper does not print step sizes for "
        f"n = 50 and 100: h = {STEP:g} and gamma = {FRICTION:g} are those of n = 20, and with them "
        "the gradient's noise is n^2 h / (2 gamma) = 1, 6 and 25 times that of the dynamics. "
        f"{_at_edge(last)}"
    )
    return Table("figure-1f-1i", columns, rows, note)


def _at_edge(last: dict[int, dict[int, float]]) -> str:
    """Return a note on the n for which the best M is the longest that was tried."""
    edge = [str(n) for n, ends in last.items() if min(ends, key=lambda m: ends[m]) == max(ends)]
    if not edge:
        return "No best M is the longest that was tried."
    return f"For n = {', '.join(edge)} the best M is the longest that was tried: it may be longer."


def _claims(last: dict[int, dict[int, float]], local: dict[int, tuple[float, float]]) -> Table:
    best = {n: min(ends, key=lambda m: ends[m]) for n, ends in last.items()}
    text = ", ".join(f"{m} (n = {n})" for n, m in best.items())
    lengths = sorted(local)
    bias, variance = ([local[m][part] for m in lengths] for part in (0, 1))
    falls = variance[-1] < variance[0]
    return claims(
        [
            ("1d: bias grows with M", f"from {bias[1]:.3g} to {bias[-1]:.3g}", "yes",
             bias[-1] > bias[1]),
            ("1e: variance falls with M", f"from {variance[0]:.4g} to {variance[-1]:.4g}", "yes",
             falls),
            ("1f to 1h: best M grows with n", text, "19 for n = 50 and 100",
             best[SIZES[0]] < best[SIZES[-1]]),
        ],
        "To first order exponential weights change the variance of the selected gradient by "
        "Var(|c|^2) / 2 plus a term in the skewness, c the centred gradients: for symmetric ones "
        "it grows. What helps is that the gradient is correlated with the momentum.",
    )  # fmt: skip


def _draw(
    local: dict[int, tuple[float, float]],
    curves: dict[int, dict[int, Line]],
    last: dict[int, dict[int, float]],
) -> MatplotlibFigure:
    figure, axes = panels(6)
    lengths = list(local)
    for ax, part, y in zip(axes, (0, 1), ("squared bias", "variance"), strict=False):
        line = {"ewsg": (lengths, [local[m][part] for m in lengths])}
        titles: dict[str, Any] = {"x": "length M of the index chain", "y": f"{y} of the gradient"}
        draw_lines(ax, line, **titles, title=f"1{'de'[part]}: {y}, n = 20", marker="o")
        ax.set_ylim(bottom=0)
    for ax, letter, (n, of_n) in zip(axes[2:5], "fgh", curves.items(), strict=True):
        named = {f"M = {m}": line for m, line in of_n.items()}
        colours = {name: shade(i, len(named)) for i, name in enumerate(named)}
        titles = {"x": "data passes", "y": "KL divergence", "title": f"1{letter}: n = {n}"}
        draw_lines(ax, named, **titles, log="y", colours=colours)
    ends = {f"n = {n}": (list(of_n), list(of_n.values())) for n, of_n in last.items()}
    colours = {name: shade(i, len(ends)) for i, name in enumerate(ends)}
    titles = {"x": "length M of the index chain", "y": f"KL after {PASSES} passes"}
    draw_lines(axes[5], ends, **titles, title="1i", log="y", marker="o", colours=colours)
    return figure

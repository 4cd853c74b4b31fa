"""EWSG paper, Figures 1j to 1l: the mean squared error of a time average, term by term of eq. 6.

The test function is the variance, phi(theta) = n |theta - mean|^2 / d, whose average is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from modicum.diagnostics import MeanSquaredError, mse
from modicum.papers.ewsg_drawing import draw_lines, panels
from modicum.papers.ewsg_gaussian import SETTINGS, Gaussian
from modicum.papers.ewsg_running import LABELS
from modicum.papers.experiment import Figure, Result, Scale, Table, experiment
from modicum.plots import colour_of

__all__ = ["figure_1j_1l", "slope"]

N = 20
NAMES = ("sghmc", "ewsg")
SPACING = 0.02  # time between recorded states; theta takes 0.5 to forget


@dataclass(frozen=True)
class Size:
    """How long and how often, for the three panels."""

    times: tuple[float, ...]  # 1j: T, at the step `fixed`
    fixed: float
    short: tuple[float, ...]  # 1k: small h, at T = `horizon`
    horizon: float
    long: tuple[float, ...]  # 1l: h, at T = `forever`
    forever: float
    realisations: tuple[int, int, int]


SIZES = {
    "smoke": Size((1, 3, 10), 5e-3, (2e-3, 1e-2), 2.0, (2e-2, 1e-1), 100.0, (500, 500, 60)),
    "laptop": Size(
        (1, 2, 5, 10, 20, 50, 100), 2e-3, (1e-3, 2e-3, 4e-3, 7e-3, 1e-2), 3.0,
        (1e-2, 2e-2, 3e-2, 5e-2, 7e-2, 1e-1), 1000.0, (400, 8_000, 200),
    ),
    "paper": Size(
        (1, 2, 5, 10, 20, 50, 100, 200), 1e-3, (5e-4, 1e-3, 2e-3, 4e-3, 7e-3, 1e-2), 3.0,
        (5e-3, 1e-2, 2e-2, 3e-2, 5e-2, 7e-2, 1e-1), 5000.0, (2_000, 40_000, 1_000),
    ),
}  # fmt: skip


@experiment("ewsg", "figure-1j-1l", "Mean squared error against T and h (Theorem 4), Gaussian")
def figure_1j_1l(scale: Scale, seed: int) -> Result:
    """The three terms of eq. 6: O(1/T), O(h/T) and O(h^2)."""
    size = SIZES[scale]
    start = "a draw of the target, so that no transient adds to the error"
    result = Result(settings=SETTINGS | {"n": N, "start": start, "sizes": size})
    target = Gaussian.drawn(N, seed)
    found = {name: _panels(result, target, name, size, seed) for name in NAMES}
    result.tables += [
        _table_1j(found, size),
        _table_h(found, size, "k"),
        _table_h(found, size, "l"),
    ]
    caption = "Dashed: the slopes of Theorem 4. Bars: Monte Carlo standard errors."
    result.figures.append(Figure("figure-1j-1l", lambda: _draw(found, size), caption))
    return result


def slope(x: Any, y: Any) -> float:
    """Least-squares slope of log y on log x.

    Examples
    --------
    >>> round(slope([1, 2, 4], [3, 12, 48]), 3)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


Panels = dict[str, Any]  # letter of the panel -> MeanSquaredError, one entry a T or an h


def _panels(result: Result, target: Gaussian, name: str, size: Size, seed: int) -> Panels:
    many, more, few = size.realisations

    def at(h: float, horizon: float, chains: int, times: Any = None) -> MeanSquaredError:
        return _error(result, target, name, h, horizon, chains, seed, times)

    return {
        "j": at(size.fixed, size.times[-1], many, size.times),
        "k": [at(h, size.horizon, more) for h in size.short],
        "l": [at(h, size.forever, few) for h in size.long],
    }


def _error(
    result: Result,
    target: Gaussian,
    name: str,
    h: float,
    horizon: float,
    chains: int,
    seed: int,
    times: Any,
) -> MeanSquaredError:
    """Error of averages over a time `horizon`, or up to each of `times`."""
    thin = max(1, round(SPACING / h))
    method = target.underdamped(name, h)
    draws = max(1, round(horizon / (h * thin)))
    post = target.run(
        *(result, name, method), draws=draws, chains=chains, thin=thin, random_seed=seed
    )
    # a realisation's variance about the target's known mean, in units of the target's
    values = np.mean(((post["theta"] - target.mean) / target.sd) ** 2, axis=-1)
    counts = None if times is None else [max(1, round(t / (h * thin))) for t in times]
    return mse(values, 1.0, at=counts)


def _table_1j(found: dict[str, Panels], size: Size) -> Table:
    rows = [
        [LABELS[name], t, float(value), float(error)]
        for name, each in found.items()
        for t, value, error in zip(size.times, each["j"].value, each["j"].error, strict=True)
    ]
    slopes = ", ".join(
        f"{LABELS[name]} {slope(size.times, each['j'].value):.2f}" for name, each in found.items()
    )
    note = (
        f"h = {size.fixed:g}. Theorem 4's first term: slope -1 of log MSE on log T; ours {slopes}."
    )
    return Table("figure-1j", ["method", "T", "MSE", "its error"], rows, note)


def _table_h(found: dict[str, Panels], size: Size, panel: str) -> Table:
    steps = size.short if panel == "k" else size.long
    rows = [
        [LABELS[name], h, one.value, one.error, one.bias]
        for name, each in found.items()
        for h, one in zip(steps, each[panel], strict=True)
    ]
    columns = ["method", "h", "MSE", "its error", "bias"]
    return Table(
        f"figure-1{panel}", columns, rows, (_note_1k if panel == "k" else _note_1l)(found, size)
    )


def _line(steps: Any, errors: list[MeanSquaredError]) -> tuple[float, float, float]:
    """Intercept, slope and the slope's standard error of a weighted line through MSE(h)."""
    weights = 1 / np.array([one.error for one in errors])
    design = np.stack([np.ones(len(steps)), steps], axis=1) * weights[:, None]
    covariance = np.linalg.inv(design.T @ design)
    a, b = covariance @ design.T @ (np.array([one.value for one in errors]) * weights)
    return float(a), float(b), float(np.sqrt(covariance[1, 1]))


def _note_1k(found: dict[str, Panels], size: Size) -> str:
    said = []
    for name, each in found.items():
        a, b, error = _line(np.array(size.short), each["k"])
        said.append(f"{LABELS[name]} {a:.3g} + ({b:.2g} +- {error:.1g}) h")
    return (
        f"T = {size.horizon:g}. Theorem 4's second term grows like h at fixed T, on top of its "
        f"first, which has no h; lines fitted: {'; '.join(said)}."
    )


def _note_1l(found: dict[str, Panels], size: Size) -> str:
    slopes = ", ".join(
        f"{LABELS[name]} {slope(size.long, [one.value for one in each['l']]):.2f}"
        for name, each in found.items()
    )
    return (
        f"T = {size.forever:g}, so that the bias is what is left. Theorem 4's third term: slope 2 "
        f"of log MSE on log h; ours {slopes}. The bias of EWSG is that of a force made too strong "
        "(negative) against that of noise (positive), and where it changes sign the error dips."
    )


def _draw(found: dict[str, Panels], size: Size) -> Any:
    figure, axes = panels(3)
    spans = {"j": size.times, "k": size.short, "l": size.long}
    for ax, (letter, x) in zip(axes, spans.items(), strict=True):
        lines = {name: (x, _values(each[letter])) for name, each in found.items()}
        label = "time T = K h" if letter == "j" else "step size h"
        log = "" if letter == "k" else "xy"
        draw_lines(ax, lines, x=label, y="mean squared error", title=f"1{letter}", log=log)
        for name, (at, values) in lines.items():
            ax.errorbar(
                at, values, _errors(found[name][letter]), fmt="o", ms=3, color=colour_of(name)
            )
    _guide(axes[0], size.times, _values(found["ewsg"]["j"]), -1)
    _guide(axes[2], size.long, _values(found["sghmc"]["l"]), 2)
    axes[1].set_ylim(bottom=0)
    return figure


def _values(errors: Any) -> list[float]:
    return [one.value for one in errors] if isinstance(errors, list) else list(errors.value)


def _errors(errors: Any) -> list[float]:
    return [one.error for one in errors] if isinstance(errors, list) else list(errors.error)


def _guide(ax: Any, x: Any, y: list[float], power: int) -> None:
    """A dashed line of the slope the theorem predicts, below the last point."""
    at = np.array([x[0], x[-1]], float)
    scale = 0.5 * y[0] if power < 0 else 0.5 * y[-1]
    base = at[0] if power < 0 else at[-1]
    ax.plot(at, scale * (at / base) ** power, "--", color="#555555", label=f"slope {power}")
    ax.legend(frameon=False, fontsize="small")

"""EWSG paper, Figures 1a and 1c: divergence from the Gaussian target against data passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from modicum.methods import Method
from modicum.methods.sgmcmc.named import EWSG
from modicum.plots import colour_of
from modicum_lab.papers.ewsg.drawing import Line, draw_lines, panels
from modicum_lab.papers.ewsg.gaussian import (
    AFAR,
    FRICTION,
    PASSES,
    RAW,
    SETTINGS,
    STEP,
    Gaussian,
    methods,
)
from modicum_lab.papers.ewsg.running import LABELS
from modicum_lab.papers.experiment import Figure, Result, Scale, Table, experiment

__all__ = ["divergences", "figure_1a", "figure_1c"]

N = 20
REALISATIONS = {"smoke": 400, "laptop": 10_000, "paper": 10_000}
SETS = {"smoke": 1, "laptop": 5, "paper": 20}  # of centres
FLOOR = "{:.1g} is what as many exact draws give on average"

CHOICES: dict[str, Literal["current", "zero", "one", "rest"]] = {
    "sqrt(h) gamma r / sigma (r' = r)": "current",
    "0": "zero",
    "1": "one",
    "(-1 + h gamma) r / (sigma sqrt(h)) (r' = 0)": "rest",
}
CHOICE_COLOURS = ("#333333", "#9467bd", "#2a7f62")  # beside EWSG's own


@dataclass
class Divergences:
    """KL curves on one set of centres, and where they end on every set."""

    curves: dict[str, Line] = field(default_factory=dict)
    last: dict[str, list[float]] = field(default_factory=dict)

    def table(self, name: str, heading: str, note: str) -> Table:
        """Final divergence on the first set, and over all sets."""
        smallest = [min(at) for at in zip(*self.last.values(), strict=True)]
        rows = [
            [
                LABELS.get(name, name),
                values[0],
                float(np.median(values)),
                f"{sum(v == s for v, s in zip(values, smallest, strict=True))} of {len(values)}",
            ]
            for name, values in self.last.items()
        ]
        columns = [heading, f"KL after {PASSES} passes", "median over centres", "smallest on"]
        return Table(name, columns, rows, note)


def divergences(
    result: Result, given: dict[str, Method], scale: Scale, seed: int, n: int = N
) -> Divergences:
    """Run methods on some sets of centres; curves are of the first."""
    found = Divergences()
    for number in range(SETS[scale]):
        target = Gaussian.drawn(n, seed, number)
        for name, method in given.items():
            post = target.run(
                *(result, name, method),
                passes=PASSES,
                chains=REALISATIONS[scale],
                random_seed=seed + number,
            )
            found.last.setdefault(name, []).append(target.kl(post["theta"][:, -1]))
            if number == 0:
                found.curves[name] = target.kl_curve(post)
    return found


def _new(scale: Scale, **settings: Any) -> Result:
    size = {"n": N, "passes": PASSES, "realisations": REALISATIONS[scale], "sets": SETS[scale]}
    return Result(settings=SETTINGS | size | settings)


def _figure(
    name: str, title: str, curves: dict[str, Line], colours: dict[str, Any] | None, caption: str
) -> Figure:
    def draw() -> Any:
        figure, (ax,) = panels(1, size=(6.0, 4.2))
        labels: dict[str, Any] = {
            "x": "data passes",
            "y": "KL divergence from the target",
            "title": title,
        }
        draw_lines(ax, curves, **labels, log="y", colours=colours)
        return figure

    return Figure(name, draw, caption)


@experiment("ewsg", "figure-1a", "KL divergence of five methods against data passes, Gaussian")
def figure_1a(scale: Scale, seed: int) -> Result:
    """EWSG, SGHMC, SGLD, pSGLD and SVRG-LD at the same number of gradients."""
    chosen = methods()
    result = _new(scale, methods={name: repr(method) for name, method in chosen.items()})
    found = divergences(result, chosen, scale, seed)
    floor = FLOOR.format(5 / (2 * REALISATIONS[scale]))
    result.tables.append(
        found.table(
            "figure-1a",
            "method",
            f"The paper prints no numbers: EWSG ends below SGHMC, SGLD and pSGLD, and SVRG-LD "
            f"ends lowest but falls slowest. Centres are drawn at random, and how far exponential "
            f"weights help depends on them: hence the median over {SETS[scale]} sets. {floor}.",
        )
    )
    caption = "Normal fitted to the realisations against the target; every method's cost counted."
    result.figures.append(_figure("figure-1a", "Gaussian, n = 20", found.curves, None, caption))
    result.notes.append(
        "The paper's h of SGLD, pSGLD and SVRG-LD is taken as that of t <- t - h g + N(0, 2h); "
        "with half that step, Welling and Teh's reading, SGLD's noise is halved."
    )
    return result


@experiment("ewsg", "figure-1c", "EWSG by the choice of x, Gaussian")
def figure_1c(scale: Scale, seed: int) -> Result:
    """The four guesses at the unknown next momentum."""
    given: dict[str, Method] = {
        f"x = {label}": EWSG(step_size=STEP, friction=FRICTION, x=x, **RAW, **AFAR)
        for label, x in CHOICES.items()
    }
    result = _new(scale, step_size=STEP)
    found = divergences(result, given, scale, seed)
    result.tables.append(
        found.table(
            "figure-1c",
            "choice of x",
            "The paper prints no numbers: its choice, the first, ends lowest. "
            f"{FLOOR.format(5 / (2 * REALISATIONS[scale]))}.",
        )
    )
    colours = dict(zip(given, (colour_of("ewsg"), *CHOICE_COLOURS), strict=True))
    caption = "What stands for the unknown next momentum r' in x."
    result.figures.append(
        _figure("figure-1c", "EWSG, n = 20, M = 1", found.curves, colours, caption)
    )
    return result

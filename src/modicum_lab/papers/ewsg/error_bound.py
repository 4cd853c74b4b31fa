"""EWSG paper, Figures 1j to 1l: the mean squared error of a time average, term by term of eq. 6.

The test function is the variance, phi(theta) = n |theta - mean|^2 / d, whose average is 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from modicum.diagnostics import MeanSquaredError, mse
from modicum_lab.papers.ewsg.error_terms import Panel, Panels, draw, table_1j, table_1k, table_1l
from modicum_lab.papers.ewsg.gaussian import SETTINGS, Gaussian
from modicum_lab.papers.experiment import Figure, Result, Scale, experiment

__all__ = ["figure_1j_1l"]

N = 20
NAMES = ("sghmc", "ewsg")

# Theta takes 0.5 to forget, and phi half of that. A panel's runs are thinned alike, so that they
# share compiled code.
SIZES: dict[str, dict[str, Panel]] = {
    "smoke": {
        "j": Panel((5e-3,), (1, 3, 10), 400, 1),
        "k": Panel((5e-3, 1e-2), (15,), 400, 1),
        "l": Panel((2e-2, 1e-1), (150,), 400, 1),
    },
    "laptop": {
        "j": Panel((2e-3,), (1, 2, 5, 10, 20, 50, 100), 400, 10),
        "k": Panel((1e-3, 2e-3, 4e-3, 7e-3, 1e-2), (3,), 8_000, 4),
        "l": Panel((1e-2, 2e-2, 3e-2, 5e-2, 7e-2, 1e-1), (1_000,), 100, 2),
    },
    "paper": {
        "j": Panel((1e-3,), (1, 2, 5, 10, 20, 50, 100, 200), 2_000, 20),
        "k": Panel((5e-4, 1e-3, 2e-3, 4e-3, 7e-3, 1e-2), (3,), 40_000, 4),
        "l": Panel((5e-3, 1e-2, 2e-2, 3e-2, 5e-2, 7e-2, 1e-1), (5_000,), 1_000, 4),
    },
}


@experiment("ewsg", "figure-1j-1l", "Mean squared error against T and h (Theorem 4), Gaussian")
def figure_1j_1l(scale: Scale, seed: int) -> Result:
    """The three terms of eq. 6: O(1/T), O(h/T) and O(h^2)."""
    size = SIZES[scale]
    start = "a draw of the target, so that no transient adds to the error"
    result = Result(settings=SETTINGS | {"n": N, "start": start, "panels": size})
    target = Gaussian.drawn(N, seed)
    found: dict[str, Panels] = {
        name: {
            letter: [_error(result, target, name, h, panel, seed) for h in panel.steps]
            for letter, panel in size.items()
        }
        for name in NAMES
    }
    result.tables += [
        table_1j(found, size["j"]),
        table_1k(found, size["k"]),
        table_1l(found, size["l"]),
    ]
    caption = "Dashed: the slopes of Theorem 4. Bars: Monte Carlo standard errors."
    result.figures.append(Figure("figure-1j-1l", lambda: draw(found, size), caption))
    return result


def _error(
    result: Result, target: Gaussian, name: str, h: float, panel: Panel, seed: int
) -> MeanSquaredError:
    """Error of averages up to each of the panel's times."""
    counts = [max(1, round(t / (h * panel.thin))) for t in panel.times]
    settings: dict[str, Any] = {"chains": panel.realisations, "thin": panel.thin}
    method = target.underdamped(name, h)
    post = target.run(result, name, method, draws=counts[-1], random_seed=seed, **settings)
    # a realisation's variance about the target's known mean, in units of the target's
    values = np.mean(((post["theta"] - target.mean) / target.sd) ** 2, axis=-1)
    return mse(values, 1.0, at=counts)

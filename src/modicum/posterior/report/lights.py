"""Diagnostics as traffic lights: a number, whether it is good, and what it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from modicum.errors import ModicumWarning, is_number
from modicum.posterior.checking.predictive_check import PredictiveCheck
from modicum.posterior.warnings import largest_r_hat, smallest_ess

if TYPE_CHECKING:
    import pandas as pd

Level = Literal["good", "doubtful", "bad"]
BAD_R_HAT = 1.05
MOST_DIVERGING = 0.01  # share of divergent draws above which the light is red


class Light(NamedTuple):
    """One diagnostic."""

    name: str
    figure: str
    level: Level
    meaning: str


def lights(
    summary: pd.DataFrame,
    shape: tuple[int, int],
    stats: Mapping[str, np.ndarray],
    tuning: Mapping[str, object],
    settings: Mapping[str, object],
    warnings: Sequence[ModicumWarning],
) -> list[Light]:
    """Return the diagnostics of a run of `shape` (chains, draws), the most important first."""
    all_lights = [*_summary_lights(summary, *shape)]
    if "diverging" in stats and stats["diverging"].size:
        share = float(np.mean(stats["diverging"]))
        all_lights.append(
            Light(
                "divergences",
                f"{int(np.sum(stats['diverging'])):,} draws",
                _level(share, 0.0, MOST_DIVERGING),
                "trajectories that diverged; there should be none",
            )
        )
    bias = tuning.get("bias_bound")
    bound = bias.get("value") if isinstance(bias, Mapping) else None
    if is_number(bound):
        all_lights.append(
            Light(
                "error of subsampling",
                f"at most {float(bound):.2g} sd",  # type: ignore[arg-type]
                _level(float(bound), 0.1, 0.3),  # type: ignore[arg-type]
                "how far using a subsample of the rows may move a posterior mean, in posterior "
                "standard deviations",
            )
        )
    if settings.get("complete") is False:
        all_lights.append(Light("run", "stopped early", "doubtful", "only the draws so far"))
    count = len(warnings)
    all_lights.append(
        Light(
            "warnings",
            f"{count:,}",
            "good" if count == 0 else "doubtful",
            "reasons to doubt the run, listed below" if count else "no reason to doubt the run",
        )
    )
    return all_lights


def _summary_lights(summary: pd.DataFrame, chains: int, draws: int) -> list[Light]:
    """Judge R-hat and ESS of the worst scalar, by the limits of the warnings."""
    finite = summary[np.isfinite(summary["r_hat"])]
    if not len(finite):
        unknown = "too few draws to tell whether the chains have converged"
        return [Light("R-hat", "unknown", "bad", unknown)]
    agree = "whether chains agree" if chains > 1 else "whether both halves of the chain agree"
    worst, limit = finite["r_hat"].idxmax(), largest_r_hat(chains, draws, len(finite))
    all_lights = [
        Light(
            "R-hat",
            f"{finite['r_hat'].max():.3f}",
            _level(float(finite["r_hat"].max()), limit, max(limit, BAD_R_HAT)),
            f"{agree}: 1 means that they do (worst: {worst})",
        )
    ]
    for column, title, of in (
        ("ess_bulk", "effective draws", "means"),
        ("ess_tail", "effective draws in the tails", "intervals"),
    ):
        sizes = summary[column][np.isfinite(summary[column])]
        if len(sizes):
            smallest = float(sizes.min())
            needed_ess = smallest_ess(chains * draws)
            level = _level(-smallest, -needed_ess, -needed_ess / 4)
            meaning = (
                f"number of independent draws that would give equally precise {of} "
                f"(worst: {sizes.idxmin()})"
            )
            all_lights.append(Light(title, f"{smallest:,.0f}", level, meaning))
    return all_lights


def predictive_light(check: PredictiveCheck | str) -> list[Light]:
    """Judge the predictive check, if there is one."""
    if isinstance(check, str):
        return []
    share = 1 - check.prob
    return [
        Light(
            "predictive check",
            f"{check.outside:.0%} outside",
            "good" if check.outside <= 3 * share else "doubtful",
            f"how often the data lie outside the model's {check.prob:.0%} intervals; much more "
            f"than {share:.0%} means that the model misses something",
        )
    ]


def _level(value: float, good: float, bad: float) -> Level:
    return "good" if value <= good else "doubtful" if value <= bad else "bad"


def overall(all_lights: Sequence[Light]) -> tuple[Level, str]:
    """Return the worst light, and a verdict."""
    levels = {light.level for light in all_lights}
    if "bad" in levels:
        return "bad", "Do not use this fit until the red lights below are understood."
    if "doubtful" in levels:
        return "doubtful", "Usable with care: see the yellow lights and the warnings below."
    return "good", "No reason to doubt this fit was found."

"""What the user of HMC-ECS must be told, before the run from the pilot study and after it.

Each guard is one sentence that names what is wrong and what to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from modicum.diagnostics import ess
from modicum.errors import CrudeControlVariateError, ModicumWarning
from modicum.methods.ecs.tuning import Choice, Pilot
from modicum.run import History

__all__ = ["crude", "look_ahead", "look_back", "remedy", "wandering"]


def look_ahead(method: Any, pilot: Pilot, choice: Choice, rows: int) -> list[ModicumWarning]:
    """Judge the choice of rows before any draw is made.

    Raises
    ------
    CrudeControlVariateError
        If the control variates are so crude that no affordable subsample would do.
    """
    m = choice.subsample
    if method.subsample is None and 2 * m > rows:
        raise CrudeControlVariateError(crude(method, m, rows, 100))
    found = []
    largest, bias = float(np.max(pilot.spread(m))), pilot.bias(m, method.ddof)
    if bias > 2 * method.bias or largest > 10:
        found.append(
            ModicumWarning(
                "subsample-small",
                f"{m:,} rows are too few: the log-likelihood estimate has a variance of up to "
                f"{largest:.3g}, and posterior means may be off by about {min(bias, 99):.2g} "
                "posterior sd",
                f"leave `subsample` out to have it chosen, or {remedy(method)}",
                rows=m,
                variance=largest,
                bias=bias,
            )
        )
    if pilot.tail > 0.7 or pilot.top_share > 0.95:
        found.append(
            ModicumWarning(
                "heavy-tails",
                f"the residuals are heavy-tailed under this design: 1 % of the draws hold "
                f"{pilot.top_share:.0%} of the variance (Pareto k {pilot.tail:.2f}), so a "
                "subsample rarely shows how wrong it is",
                remedy(method),
                top_share=pilot.top_share,
                pareto_k=pilot.tail,
            )
        )
    return found


def crude(method: Any, m: int, rows: int, smallest: int) -> str:
    """Why these rows are not to be subsampled; `smallest` is what a good control variate needs."""
    if m <= smallest:
        return (
            f"{rows:,} rows are too few for subsampling to make sense ({m:,} would be used at "
            "every step); use method='nuts' on all rows."
        )
    return (
        f"the control variates are too crude here: {m:,} of {rows:,} rows would be needed at "
        f"every step; {remedy(method)}, or use method='nuts' on all rows."
    )


def remedy(method: Any) -> str:
    """Return the first thing to try."""
    if method.design == "uniform":
        return 'use design="weighted"'
    if method.order < 2:
        return "use control variates of order 2"
    if method.anchor != "mode":
        return 'anchor at the mode (anchor="mode")'
    return "give a tighter prior, or drop or merge rare columns"


def look_back(kernel: Any, history: History) -> list[ModicumWarning]:
    """Judge the run by what it recorded."""
    stats, found = history.stats, []
    variance = stats["variance_estimate"]
    share = float(np.mean(variance > 3))
    if share > 0.01:
        found.append(
            ModicumWarning(
                "variance-high",
                f"the variance of the log-likelihood estimate exceeded 3 in {share:.0%} of the "
                f"draws (up to {variance.max():.3g}), where the perturbed target is no longer "
                "close to the posterior",
                "use more rows (subsample) or a better anchor",
                share=share,
                largest=float(variance.max()),
            )
        )
    return found + wandering(kernel, history)


def wandering(kernel: Any, history: History) -> list[ModicumWarning]:
    """Judge how the subsample mixed, and how far from the anchor the chains went."""
    stats: dict[str, np.ndarray] = history.stats
    found = []
    accepted = float(stats["acceptance_rate_u"].mean())
    if accepted < 0.2:
        found.append(
            ModicumWarning(
                "refreshes-refused",
                f"only {accepted:.0%} of the subsample refreshes were accepted, so rows hardly "
                "change",
                "use more rows (subsample) or more blocks",
                accepted=accepted,
            )
        )
    distance = float(np.abs(history.position.mean(axis=(0, 1))).max())
    if distance > 1:
        found.append(
            ModicumWarning(
                "anchor-far",
                f"the chains' mean lies {distance:.1f} posterior sd from the anchor, where control "
                "variates are crude",
                'anchor at the mode (anchor="mode")',
                distance=distance,
            )
        )
    trace = stats["difference_estimate"]
    # Residuals that vanish (a quadratic log-likelihood) have nothing to mix.
    if history.position.shape[1] >= 100 and np.ptp(trace) > 0:
        effective = float(np.nanmin(ess(trace[..., None])))
        if effective < 50:
            found.append(
                ModicumWarning(
                    "subsample-slow",
                    f"the subsample mixes slowly: {trace.size} draws saw the equivalent of "
                    f"{effective:.0f} independent subsamples",
                    f"raise `refreshes` (now {kernel.refreshes} of {kernel.blocks} blocks per "
                    "iteration)",
                    ess=effective,
                )
            )
    return found

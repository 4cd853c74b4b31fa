"""What the user of FlyMC must know, before the run and after it, each in one sentence."""

from __future__ import annotations

import numpy as np

from modicum.diagnostics import ess
from modicum.errors import ModicumWarning
from modicum.methods.flymc.pilot import FlyStudy
from modicum.run import History

__all__ = ["look_ahead", "look_back"]


def look_ahead(study: FlyStudy) -> list[ModicumWarning]:
    """Judge the brightness of the rows before any draw is made."""
    ours = study.n * study.rate + study.bright * (study.steps + 2)
    theirs = study.n * study.steps
    if ours <= theirs / 2:
        return []
    remedy = "use method='hmc-ecs', or method='nuts' on all rows"
    if not study.method.tuned:
        remedy = "use tuned=True, or method='nuts' on all rows"
    return [
        ModicumWarning(
            "bright-many",
            f"FlyMC saves little here: {study.share:.0%} of the rows are expected to be bright, "
            f"and an iteration to evaluate {ours:,.0f} rows where all rows would take "
            f"{theirs:,.0f}",
            remedy,
            share=study.share,
        )
    ]


def look_back(capacity: int, history: History) -> list[ModicumWarning]:
    """Judge the run by what it recorded."""
    stats, doubts = history.stats, []
    refused = int(stats["bright_refused"].sum())
    if refused:
        doubts.append(
            ModicumWarning(
                "bright-full",
                f"{refused} of {stats['n_bright'].size} updates of the lights were refused for "
                f"want of room for bright rows, so that parts of the posterior where more than "
                f"{capacity:,} rows are bright are missing",
                "raise `capacity`",
                refused=refused,
                capacity=capacity,
            )
        )
    bright = stats["n_bright"]
    if bright.shape[1] >= 100 and np.ptp(bright) > 0:
        effective = float(np.nanmin(ess(bright[..., None].astype(float))))
        if effective < 50:
            doubts.append(
                ModicumWarning(
                    "lights-slow",
                    f"the lights change slowly: {bright.size} draws saw the equivalent of "
                    f"{effective:.0f} independent counts of bright rows",
                    "raise `rate`, or draw more",
                    ess=effective,
                )
            )
    return doubts

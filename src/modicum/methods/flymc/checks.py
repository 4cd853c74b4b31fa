"""Warnings about a FlyMC run, before it starts and after it ends."""

from __future__ import annotations

import numpy as np

from modicum.diagnostics import ess
from modicum.errors import ModicumWarning
from modicum.methods.flymc.pilot import FlyStudy
from modicum.run import History


def look_ahead(study: FlyStudy) -> list[ModicumWarning]:
    """Warn if so many rows are bright that FlyMC saves little."""
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
            f"and an iteration to evaluate {ours:,.0f} rows, against {theirs:,.0f} for a method on "
            "all rows",
            remedy,
            share=study.share,
        )
    ]


def look_back(capacity: int, history: History) -> list[ModicumWarning]:
    """Warn if bright rows ran out of room, or if the lights changed slowly."""
    stats, doubts = history.stats, []
    refused = int(stats["bright_refused"].sum())
    if refused:
        doubts.append(
            ModicumWarning(
                "bright-full",
                f"{refused} of {stats['n_bright'].size} updates of the lights were refused because "
                f"there is room for only {capacity:,} bright rows, so that parts of the posterior "
                "where more are bright are missing",
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
                    f"the lights change slowly: the number of bright rows has an effective sample "
                    f"size of {effective:.0f} in {bright.size} draws",
                    "raise `rate`, or draw more",
                    ess=effective,
                )
            )
    return doubts

"""What the user of signed HMC-ECS must be told, before the run and after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from modicum.errors import CrudeControlVariateError, ModicumWarning
from modicum.methods.ecs.checks import crude, remedy, wandering
from modicum.methods.ecs.tuning import Pilot, Products
from modicum.methods.ecs.tuning.block_poisson import DEVIATIONS, FEWEST
from modicum.run import History

__all__ = ["look_ahead", "look_back"]

LEAST_SIGN = 0.999  # below it, chains are caught behind sign boundaries


def look_ahead(method: Any, pilot: Pilot, choice: Products, rows: int) -> list[ModicumWarning]:
    """Judge the choice of products before any draw is made.

    Raises
    ------
    CrudeControlVariateError
        If the control variates are so crude that no affordable number of products would do.
    """
    expected = choice.products * choice.batch
    if method.products is None and 2 * expected > rows:
        raise CrudeControlVariateError(crude(method, expected, rows, FEWEST * choice.batch))
    deviation = float(np.quantile(np.sqrt(pilot.variance / choice.batch), 0.9))
    if choice.products < DEVIATIONS * deviation or choice.chain_sign < LEAST_SIGN:
        return [
            ModicumWarning(
                "products-few",
                f"{choice.products} products are too few: factors vary by "
                f"{deviation / choice.products:.0%} of their size ({choice.positive:.1%} of the "
                f"estimates are positive, and a mean sign of {choice.chain_sign:.2f} is to be "
                "expected), so that chains are caught behind sign boundaries",
                f"leave `products` out to have it chosen, or {remedy(method)}",
                products=choice.products,
                positive=choice.positive,
                mean_sign=choice.chain_sign,
            )
        ]
    return []


def look_back(kernel: Any, history: History) -> list[ModicumWarning]:
    """Judge the run by what it recorded."""
    stats, found = history.stats, []
    negative = float(np.mean(stats["sign"] < 0))
    if negative > 0.005:
        found.append(
            ModicumWarning(
                "signs-negative",
                f"{negative:.1%} of the draws have a negative sign, and the chain crosses sign "
                "boundaries only when rows are refreshed",
                "use more products or more rows in each (batch)",
                negative=negative,
            )
        )
    near = float(np.mean(stats["smallest_factor"] < 0.1))
    if near > 0.01:
        found.append(
            ModicumWarning(
                "sign-boundary",
                f"{near:.0%} of the draws lie close to a sign boundary (a factor below 0.1), where "
                "log |Lhat| has no floor and trajectories are turned back",
                "use more products",
                share=near,
            )
        )
    room = kernel.estimator.packed
    full = float(np.mean(stats["factors"] >= 0.9 * room))
    if full > 0.001:
        found.append(
            ModicumWarning(
                "factors-full",
                f"{full:.1%} of the draws used nearly all of the {room} factors there is room for, "
                "which cuts tails of the posterior short",
                "anchor nearer to the mode or use more products",
                share=full,
                room=room,
            )
        )
    return found + wandering(kernel, history)

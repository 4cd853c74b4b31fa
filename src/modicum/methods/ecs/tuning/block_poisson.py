"""How many products, in how many blocks: lambda, a, G and K of the block-Poisson estimator."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np

from modicum.estimators.block_poisson import ROOM, most_factors
from modicum.methods.ecs.tuning.residuals import Pilot
from modicum.methods.ecs.tuning.sign_theory import NormalFactors
from modicum.methods.ecs.tuning.subsample import best_sweep, refresh_acceptance
from modicum.random import Stream, generator

__all__ = ["Products", "choose_products", "pilot_sign"]

FEWEST = 20
DEVIATIONS = 8  # lambda in mini-batch standard deviations, below which chains are caught
SIGN = 0.9993  # mean sign of the pilot's own mini-batches; .995 let one chain in 64 be caught
NOISE = 0.25  # gradient noise, in posterior variances
MOST = 10**6
SHARES = (1, 2, 4, 5, 8, 10, 16, 20)  # numbers of blocks that are considered
BATCHES = 4_000  # pilot mini-batches per draw
PAPER_BATCH = 30
SIZES = (2, 3, 5, 8, 12, 20, 30, 50)  # rows per mini-batch that are considered


@dataclass(frozen=True)
class Products:
    """Lambda, G, K and the centre, with the reasons for them.

    Attributes
    ----------
    products, batch, blocks, refreshes
        Lambda, m_b, G and K.
    centre
        The expected difference l - sum q; a = centre - lambda.
    positive
        Share of positive estimates when rows are drawn afresh, by the pilot study.
    chain_sign
        Mean sign to be expected along the chain, by the pilot study.
    why
        A sentence for each.
    """

    products: int
    batch: int
    blocks: int
    refreshes: int
    centre: float
    positive: float
    chain_sign: float
    why: dict[str, str] = field(default_factory=dict)


def pilot_sign(pilot: Pilot, batch: int, products: int, centre: float) -> tuple[float, float]:
    """Positive share and mean sign from mini-batches of the pilot rows themselves.

    The smallest over the pilot draws' averages; residuals that are skewed make more negative
    factors than the normal theory knows of.
    """
    # the same for every run: what is chosen depends on the pilot alone
    rng = generator(batch, Stream.SIGN_BATCHES)
    chosen = rng.choice(len(pilot.weight), (BATCHES, batch), p=pilot.weight)
    factors = 1 + (pilot.values[:, chosen].mean(axis=2) - centre) / products
    negative = (factors < 0).mean(axis=1)
    below = np.maximum(-factors, 0).mean(axis=1)
    positive = (1 + np.exp(-2 * products * negative)) / 2
    return float(positive.mean()), float(np.exp(-2 * products * below).mean())


def choose_products(
    pilot: Pilot,
    batch: int | None,
    steps: int,
    products: int | None = None,
    blocks: int | None = None,
    refreshes: int | None = None,
    centre: float | None = None,
    fresh: float = 1.0,
) -> Products:
    """Choose what is not set already.

    Parameters
    ----------
    pilot
        Moments and values of the residuals.
    batch
        Rows per factor, m_b; None: as many as need the fewest rows in all.
    steps
        Leapfrog steps expected per iteration, L.
    products, blocks, refreshes
        Lambda, G and K where they are set by hand.
    centre
        The expected difference l - sum q, where it is set by hand.
    fresh
        What a fresh row costs, in evaluations of a row.
    """
    by_hand = "set by hand"
    why = {
        "batch": "with this many per factor, the fewest rows do"
        if batch is None
        else _whose(batch),
        "centre": by_hand
        if centre is not None
        else "the mean of l - sum q over the pilot draws; a = centre - lambda",
    }
    centre = float(pilot.mean.mean()) if centre is None else centre
    if batch is None:
        batch = _batch(pilot, centre, products)
    deviation = np.sqrt(pilot.variance / batch)
    needs = _needs(pilot, batch, centre)
    binding = max(needs, key=lambda name: needs[name])
    least = needs[binding] if products is None else products
    noise = float(np.median(pilot.slope)) / (least * batch)
    spread = float(np.quantile(deviation, 0.9)) ** 2 / least
    accept = max(refresh_acceptance(spread, FEWEST), 1e-3)
    sweep = min(1.0, best_sweep(noise, steps, accept, fresh))
    G, K = _blocks(least, sweep, spread, products is not None, blocks, refreshes)
    number = least if products is not None else G * ceil(least / G)
    positive, sign = pilot_sign(pilot, batch, number, centre)
    why |= {
        "products": by_hand if products is not None else f"the smallest lambda {_REASON[binding]}",
        "blocks": by_hand
        if blocks is not None
        else f"a refresh is then accepted with probability {refresh_acceptance(spread, G):.2f}",
        "refreshes": by_hand
        if refreshes is not None
        else f"balances refreshing rows against gradient noise of {noise:.2g} posterior variances",
        "variance": f"of log |Lhat| about {spread:.2g}; one mini-batch's dhat has a standard "
        f"deviation of {np.median(deviation):.2g} (median) and "
        f"{np.quantile(deviation, 0.9):.2g} (9 of 10 pilot draws)",
        "sign": f"expected mean {sign:.4f} along the chain, {positive:.4f} of the estimates "
        "positive when rows are drawn afresh, by the pilot study",
    }
    return Products(int(number), batch, int(G), int(K), centre, positive, sign, why)


_REASON = {
    "floor": f"of at least {FEWEST}",
    "deviation": f"of {DEVIATIONS} standard deviations of a mini-batch's dhat, below which "
    "chains are caught behind sign boundaries",
    "cost": "that minimises computational time",
    "slope": "with gradient noise of a quarter of the posterior variance",
    "sign": f"with an expected mean sign of {SIGN} among the pilot's own mini-batches",
}


def _whose(batch: int) -> str:
    return "as in the paper" if batch == PAPER_BATCH else "set by hand"


def _batch(pilot: Pilot, centre: float, products: int | None) -> int:
    """The m_b with the fewest rows in all, or the smallest that a lambda set by hand allows."""
    needed = {size: max(_needs(pilot, size, centre).values()) for size in SIZES}
    if products is None:
        return min(SIZES, key=lambda size: size * needed[size])
    return next((size for size in SIZES if needed[size] <= products), SIZES[-1])


def _needs(pilot: Pilot, batch: int, centre: float) -> dict[str, int]:
    """The smallest lambda that each criterion allows."""
    typical = float(np.quantile(np.sqrt(pilot.variance / batch), 0.9))
    needs = {
        "floor": FEWEST,
        "deviation": ceil(DEVIATIONS * typical),
        "cost": _cheapest(typical, float(np.std(pilot.mean))),
        "slope": ceil(float(np.median(pilot.slope)) / (NOISE * batch)),
    }
    products = max(needs.values())
    while products < MOST and pilot_sign(pilot, batch, products, centre)[1] < SIGN:
        products = ceil(1.05 * products)
    return needs | {"sign": products}


def _cheapest(deviation: float, miss: float) -> int:
    """Lambda of the least computational time, by theory, a tenth of the products refreshed."""
    grid = np.unique(np.ceil(max(deviation, 0.1) * np.geomspace(1, 20, 40)).astype(int))
    costs = [NormalFactors(miss, deviation, at, -at).cost(0.1) for at in grid.astype(float)]
    return int(grid[int(np.argmin(costs))])


def _blocks(
    products: int,
    sweep: float,
    spread: float,
    fixed: bool,
    blocks: int | None,
    refreshes: int | None,
) -> tuple[int, int]:
    """The G that fetches the fewest rows for the sweep, with refreshes that are often accepted."""

    def refreshed(G: int) -> int:
        return refreshes if refreshes is not None else int(np.clip(ceil(G * sweep), 1, G))

    if blocks is not None:
        return blocks, refreshed(blocks)
    most = 1.0 if fixed else 1.1  # an equal share of the products per block may cost a few more
    good = [G for G in SHARES if most * products >= G * ceil(products / G)]
    easy = [G for G in good if refresh_acceptance(spread, G) > 0.8] or good[-1:]
    best = min(easy, key=lambda G: refreshed(G) * most_factors(ROOM * products / G))
    return best, refreshed(best)

"""Choose the products of the block-Poisson estimator: lambda, m_b, a, G and K.

They are chosen by the pilot's own mini-batches, with a lower bound that may follow a `Coreset`. A
factor is f = 1 + (dhat - c) / lambda, with dhat from one mini-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from modicum.kernels.likelihood_estimates import ROOM, ROOM_FOLLOWING, BlockPoisson
from modicum.methods.ecs.subsample import NOISE, Tuned, cost_per_draw, refresh_acceptance
from modicum.methods.method import Tuning
from modicum.methods.pilot.coreset import Coreset
from modicum.methods.pilot.pilot_residuals import Pilot, representatives
from modicum.random import Stream, generator

FEWEST = 20
# Lambda, in standard deviations of a mini-batch, below which chains get stuck; for 99 of 100 draws,
# since chains get stuck in the tails.
DEVIATIONS, NEARLY_ALL = 8, 0.99
SIGN = 0.9993  # smallest mean sign of pilot mini-batches; with .995, one chain in 64 got stuck
MOST = 10**6
SHARES = (1, 2, 4, 5, 8, 10, 16, 20)  # numbers of blocks to consider
EASY = 0.8  # acceptance rate of a refresh above which more blocks are not needed
BATCHES, SIGN_DRAWS = 4_000, 32  # pilot mini-batches per draw, and draws
PAPER_BATCH = 30
# Rows per mini-batch to consider. Fewer than five do not average out extreme rows: with one row
# per factor a chain on Covertype got stuck, which the pilot study had not predicted.
SIZES = (5, 8, 12, 20, 30, 50)


@dataclass(frozen=True)
class ProductChoice(Tuned):
    """The estimator, G, K and the centre.

    Attributes
    ----------
    estimator
        The block-Poisson estimator, with lambda and m_b.
    needed
        The smallest lambda that meets all criteria.
    centre
        The expected difference l - sum q over the rows that are drawn, less the coreset's if there
        is one; a = centre - lambda.
    positive
        Share of positive estimates when rows are drawn afresh, predicted by the pilot study.
    chain_sign
        Mean sign along the chain, predicted by the pilot study.
    """

    estimator: BlockPoisson
    needed: int
    centre: float
    positive: float
    chain_sign: float

    @property
    def always(self) -> int:
        """Rows that every evaluation reads besides those of the products."""
        return self.certainty + (0 if self.coreset is None else len(self.coreset))

    @property
    def products(self) -> int:
        """Lambda."""
        return self.estimator.products

    @property
    def batch(self) -> int:
        """m_b."""
        return self.estimator.batch

    @property
    def capacity(self) -> int:
        """Room for rows."""
        return self.estimator.rows

    @property
    def tables(self) -> float:
        """The centre of the lower bound."""
        return self.centre

    @property
    def tuning(self) -> Tuning:
        """All settings with their reasons."""
        coreset = self.coreset
        rows = f"{self.products * self.batch:,} on average, {self.batch} for each of the products"
        if self.certainty:
            rows += f", and {self.certainty:,} certainty rows"
        if coreset is not None:
            rows += f", and {len(coreset)} rows of the coreset"
        chosen = self.explained("products", "batch", "blocks", "refreshes", "centre")
        sentences: Tuning = {name: self.why[name] for name in ("variance", "sign")}
        always = self.explained("certainty")
        if coreset is not None:
            why = (
                "rows with weights whose residuals follow l - sum q, and the lower bound with them"
            )
            always["coreset"] = {"value": len(coreset), "why": why}
        return {"rows per evaluation": rows} | chosen | sentences | always


class MiniBatches:
    """Mini-batches of the pilot rows, at posterior draws."""

    def __init__(self, pilot: Pilot, batch: int) -> None:
        # the same for every run, so that the choice depends on the pilot study alone
        rng = generator(batch, Stream.SIGN_BATCHES)
        places = rng.choice(len(pilot.weight), (BATCHES, batch), p=pilot.weight)
        self.draws = representatives(pilot.share, SIGN_DRAWS)
        thinned = pilot.thinned(SIGN_DRAWS)
        self.dhat = thinned.values[:, places].mean(axis=2)
        # dhat of a mini-batch with one given row and otherwise average rows: a uniform design draws
        # the most influential rows too rarely for a few thousand mini-batches to show.
        away = thinned.values - thinned.mean[:, None]
        self.with_row = thinned.mean[:, None] + away / batch
        self.weight = batch * thinned.weight  # probability that a mini-batch holds the row

    def sign(self, products: int, centre: np.ndarray) -> tuple[float, float]:
        """Return positive share and mean sign, averaged over draws.

        `centre` has one value per pilot draw, or one for all.
        """
        expected = centre[self.draws, None] if centre.ndim else centre
        factors = 1 + (self.dhat - expected) / products
        by_row = 1 + (self.with_row - expected) / products
        negative = np.maximum((factors < 0).mean(axis=1), (by_row < 0) @ self.weight)
        below = np.maximum(
            np.maximum(-factors, 0).mean(axis=1), np.maximum(-by_row, 0) @ self.weight
        )
        positive = (1 + np.exp(-2 * products * negative)) / 2
        return float(positive.mean()), float(np.exp(-2 * products * below).mean())


class LowerBound:
    """The lower bound a = c - lambda: its c at the pilot draws, and far out.

    Without a coreset c is the same everywhere, and points far out are not checked.
    """

    def __init__(self, pilot: Pilot, centre: float | None, coreset: Coreset | None) -> None:
        self.coreset = coreset
        self.room = ROOM if coreset is None else ROOM_FOLLOWING
        following = 0.0 if coreset is None else coreset.at_draws
        remainder = pilot.mean - following
        self.middle = float(pilot.share @ remainder) if centre is None else centre
        self.at_draws = np.asarray(self.middle + following)

    def products_far_out(self, batch: int, least: int) -> int:
        """Return the smallest lambda >= `least` with which chains have no mass far out."""
        if self.coreset is None:
            return least
        far, centre = self.coreset.far, self.middle + self.coreset.at_points
        dhat, products = far.mini_batches(batch), least
        while products < MOST and not far.is_negligible(dhat, products, centre):
            products = ceil(1.05 * products)
        return products


def choose_products(
    pilot: Pilot,
    batch: int | None,
    steps: int,
    centre: float | None = None,
    fresh: float = 1.0,
    certainty: int = 0,
    coreset: Coreset | None = None,
    **fixed: int,
) -> ProductChoice:
    """Choose the settings that the user has not set.

    Parameters
    ----------
    pilot
        Moments and values of the residuals.
    batch
        Rows per factor, m_b; None: the number that makes an effective draw cheapest.
    steps
        Expected leapfrog steps per iteration, L.
    centre
        The expected difference l - sum q, if set by hand.
    fresh
        Cost of a fresh row, in evaluations of a row.
    certainty
        Number of certainty rows, which the pilot's moments leave out.
    coreset
        Rows that the lower bound follows; None: it is the same everywhere.
    fixed
        Lambda, G and K (`products`, `blocks`, `refreshes`), where they are set.
    """
    bound = LowerBound(pilot, centre, coreset)
    sizes = SIZES if batch is None else (batch,)
    candidates = [_with_batch(pilot, size, steps, fresh, certainty, bound, fixed) for size in sizes]
    best = min(candidates, key=lambda candidate: candidate.cost)
    if batch is None and "products" in fixed:  # the smallest m_b for which lambda is enough
        best = next((c for c in candidates if c.needed <= fixed["products"]), candidates[-1])
    by_hand = dict.fromkeys(fixed, "set by hand")
    if centre is not None:
        by_hand["centre"] = "set by hand"
    if batch is not None:
        by_hand["batch"] = "as in the paper" if batch == PAPER_BATCH else "set by hand"
    return replace(best, why=best.why | by_hand)


_CENTRE = {
    True: "the mean of l - sum q over the pilot draws; a = centre - lambda",
    False: "the mean of l - sum q less that of the coreset over the pilot draws; a = centre + "
    "coreset - lambda",
}
_REASON = {
    "floor": f"of at least {FEWEST}",
    "deviation": f"of {DEVIATIONS} standard deviations of a mini-batch's dhat, below which "
    "chains get stuck behind sign boundaries",
    "slope": "with gradient noise of a quarter of the posterior variance",
    "sign": f"with an expected mean sign of {SIGN} among the pilot's own mini-batches",
    "far": "with which chains have no mass far out, where the posterior has none",
}


def _with_batch(
    pilot: Pilot,
    batch: int,
    steps: int,
    fresh: float,
    certainty: int,
    bound: LowerBound,
    fixed: Mapping[str, int],
) -> ProductChoice:
    """Choose the cheapest blocks and refreshes for so many rows per factor.

    Arrays have fixed shapes, so that empty slots cost as much as factors, and so does the whole
    room of the blocks that are refreshed.
    """
    mini_batches = MiniBatches(pilot, batch)
    needs = _needs(pilot, batch, bound, mini_batches)
    binding = max(needs, key=lambda name: needs[name])
    least = fixed.get("products", needs[binding])
    always = certainty + (0 if bound.coreset is None else len(bound.coreset))
    noise = pilot.typical_slope / (least * batch)
    spread = pilot.quantile(pilot.variance, 0.9) / (least * batch)
    options = []
    is_set = "products" in fixed
    for G in (fixed["blocks"],) if "blocks" in fixed else _shares(least, spread, is_set):
        number = least if is_set else G * ceil(least / G)
        estimator = BlockPoisson(number, batch, G, bound.room)
        accept = max(refresh_acceptance(spread, G), 1e-3)
        for K in (fixed["refreshes"],) if "refreshes" in fixed else range(1, G + 1):
            rows, room = estimator.slots * batch + always, K * estimator.parts * batch
            cost = cost_per_draw(rows, room * (1 + fresh), steps, K / G, noise, accept)
            options.append((cost, estimator, K, accept))
    cost, estimator, K, accept = min(options, key=lambda option: option[0])
    positive, sign = mini_batches.sign(estimator.products, bound.at_draws)
    deviation = np.sqrt(pilot.variance / batch)
    why = {
        "batch": "with this many per factor an effective draw takes the fewest evaluations",
        "centre": _CENTRE[bound.coreset is None],
        "products": f"the smallest lambda {_REASON[binding]}",
        "blocks": f"a refresh is then accepted with probability {accept:.2f}",
        "refreshes": f"balances refreshing rows against gradient noise of {noise:.2g} posterior "
        "variances",
        "variance": f"of log |Lhat| about {spread:.2g}; one mini-batch's dhat has a standard "
        f"deviation of {pilot.quantile(deviation, 0.5):.2g} (median) and "
        f"{pilot.quantile(deviation, NEARLY_ALL):.2g} (99 of 100 pilot draws)",
        "sign": f"expected mean {sign:.4f} along the chain, {positive:.4f} of the estimates "
        "positive when rows are drawn afresh, by the pilot study",
    }
    return ProductChoice(
        *(estimator, estimator.blocks, K, needs[binding], bound.middle, positive, sign),
        coreset=bound.coreset,
        certainty=certainty,
        cost=cost,
        why=why,
    )


def _shares(products: int, spread: float, fixed: bool) -> list[int]:
    """Return numbers of blocks that share the products equally and are refreshed easily."""
    most = 1.0 if fixed else 1.1  # equal shares may need a few more products
    fitting = [G for G in SHARES if most * products >= G * ceil(products / G)]
    return [G for G in fitting if refresh_acceptance(spread, G) > EASY] or fitting[-1:]


def _needs(
    pilot: Pilot, batch: int, bound: LowerBound, mini_batches: MiniBatches
) -> dict[str, int]:
    """Return the smallest lambda that each criterion allows."""
    deviation = pilot.quantile(np.sqrt(pilot.variance / batch), NEARLY_ALL)
    needs = {
        "floor": FEWEST,
        "deviation": ceil(DEVIATIONS * deviation),
        "slope": ceil(pilot.typical_slope / (NOISE * batch)),
    }
    products = max(needs.values())
    while products < MOST and mini_batches.sign(products, bound.at_draws)[1] < SIGN:
        products = ceil(1.05 * products)
    return needs | {"sign": products, "far": bound.products_far_out(batch, products)}

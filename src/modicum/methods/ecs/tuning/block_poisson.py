"""Choose the products of the block-Poisson estimator: lambda, m_b, a, G and K."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np

from modicum.estimators.block_poisson import ROOM, ROOM_FOLLOWING, BlockPoisson
from modicum.methods.ecs.tuning.coreset import Coreset
from modicum.methods.ecs.tuning.moments import Pilot, representatives
from modicum.methods.ecs.tuning.sign_theory import NormalFactors
from modicum.methods.ecs.tuning.subsample import NOISE, refresh_acceptance
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
class Products:
    """Lambda, G, K and the centre, with the reasons for them.

    Attributes
    ----------
    products, batch, blocks, refreshes
        Lambda, m_b, G and K.
    centre
        The expected difference l - sum q over the rows that are drawn, less the coreset's if there
        is one; a = centre - lambda.
    positive
        Share of positive estimates when rows are drawn afresh, predicted by the pilot study.
    chain_sign
        Mean sign along the chain, predicted by the pilot study.
    cost
        Predicted evaluations of rows per effective draw.
    why
        The reason for each setting.
    room
        Room for factors, in units of lambda.
    """

    products: int
    batch: int
    blocks: int
    refreshes: int
    centre: float
    positive: float
    chain_sign: float
    cost: float = 0.0
    why: dict[str, str] = field(default_factory=dict)
    room: float = ROOM

    @property
    def estimator(self) -> BlockPoisson:
        """The chosen estimator."""
        return BlockPoisson(self.products, self.batch, self.blocks, self.room)


class MiniBatches:
    """Mini-batches of the pilot rows, at posterior draws."""

    def __init__(self, pilot: Pilot, batch: int) -> None:
        # the same for every run, so that the choice depends on the pilot study alone
        rng = generator(batch, Stream.SIGN_BATCHES)
        places = rng.choice(len(pilot.weight), (BATCHES, batch), p=pilot.weight)
        self.draws = representatives(pilot.share, SIGN_DRAWS)
        thinned = pilot.thinned(SIGN_DRAWS) if len(pilot.mean) > SIGN_DRAWS else pilot
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


def pilot_sign(pilot: Pilot, batch: int, products: int, centre: float) -> tuple[float, float]:
    """Return positive share and mean sign from mini-batches of the pilot rows themselves.

    Skewed residuals make more factors negative than normal theory predicts.
    """
    return MiniBatches(pilot, batch).sign(products, np.asarray(centre))


class Bound:
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
        self.miss = float(np.sqrt(pilot.share @ (pilot.mean - self.at_draws) ** 2))

    def products_far_out(self, batch: int, least: int) -> int:
        """Return the smallest lambda >= `least` with which chains have no mass far out."""
        if self.coreset is None:
            return least
        far, centre = self.coreset.far, self.middle + self.coreset.at_points
        dhat, products = far.mini_batches(batch), least
        while products < MOST and not far.is_negligible(dhat, products, centre):
            products = ceil(1.05 * products)
        return products


@dataclass(frozen=True)
class Work:
    """The work of an iteration that does not depend on its products.

    Attributes
    ----------
    steps
        Expected leapfrog steps, L.
    fresh
        Cost of a fresh row, in evaluations of a row.
    always
        Rows that every evaluation reads besides those of the products.
    """

    steps: int
    fresh: float = 1.0
    always: int = 0

    def cost(self, estimator: BlockPoisson, refreshes: int, noise: float, accept: float) -> float:
        """Predict the evaluations per effective draw.

        Arrays have fixed shapes, so that empty slots cost as much as factors, and so does the whole
        room of the blocks that are refreshed.
        """
        rows = estimator.slots * estimator.batch
        room = refreshes * estimator.parts * estimator.batch
        iteration = (rows + self.always) * (self.steps + 1) + room * (1 + self.fresh)
        sweep = refreshes / estimator.blocks
        return iteration * (1 + 2 * noise / (sweep * accept))


def choose_products(
    pilot: Pilot,
    batch: int | None,
    steps: int,
    products: int | None = None,
    blocks: int | None = None,
    refreshes: int | None = None,
    centre: float | None = None,
    fresh: float = 1.0,
    certainty: int = 0,
    coreset: Coreset | None = None,
) -> Products:
    """Choose the settings that the user has not set.

    Parameters
    ----------
    pilot
        Moments and values of the residuals.
    batch
        Rows per factor, m_b; None: the number that makes an effective draw cheapest.
    steps
        Expected leapfrog steps per iteration, L.
    products, blocks, refreshes
        Lambda, G and K, if set by hand.
    centre
        The expected difference l - sum q, if set by hand.
    fresh
        Cost of a fresh row, in evaluations of a row.
    certainty
        Number of certainty rows, which the pilot's moments leave out.
    coreset
        Rows that the lower bound follows; None: it is the same everywhere.
    """
    bound = Bound(pilot, centre, coreset)
    work = Work(steps, fresh, certainty + (0 if coreset is None else len(coreset)))
    sizes = SIZES if batch is None else (batch,)
    candidates = [
        _with_batch(pilot, size, work, bound, products, blocks, refreshes) for size in sizes
    ]
    if batch is None and products is not None:  # the smallest m_b for which lambda is enough
        allowed = [c for c in candidates if c.needed <= products] or candidates[-1:]
        best = allowed[0]
    else:
        best = min(candidates, key=lambda candidate: candidate.cost)
    estimator = best.estimator
    positive, sign = best.mini_batches.sign(estimator.products, bound.at_draws)
    automatic = _reasons(best, pilot, coreset, positive, sign)
    settings = {"products": products, "blocks": blocks, "refreshes": refreshes, "centre": centre}
    by_hand = {name: "set by hand" for name, value in settings.items() if value is not None}
    if batch is not None:
        by_hand["batch"] = _why(batch)
    why = automatic | by_hand
    return Products(
        estimator.products,
        estimator.batch,
        estimator.blocks,
        best.refreshes,
        bound.middle,
        positive,
        sign,
        best.cost,
        why,
        bound.room,
    )


def _reasons(
    best: _Candidate, pilot: Pilot, coreset: Coreset | None, positive: float, sign: float
) -> dict[str, str]:
    """Return the reason for each automatic setting, and the predicted variance and sign."""
    deviation = np.sqrt(pilot.variance / best.estimator.batch)
    return {
        "batch": "with this many per factor an effective draw takes the fewest evaluations",
        "centre": _CENTRE[coreset is None],
        "products": f"the smallest lambda {_REASON[best.binding]}",
        "blocks": f"a refresh is then accepted with probability {best.accept:.2f}",
        "refreshes": f"balances refreshing rows against gradient noise of {best.noise:.2g} "
        "posterior variances",
        "variance": f"of log |Lhat| about {best.spread:.2g}; one mini-batch's dhat has a standard "
        f"deviation of {pilot.quantile(deviation, 0.5):.2g} (median) and "
        f"{pilot.quantile(deviation, NEARLY_ALL):.2g} (99 of 100 pilot draws)",
        "sign": f"expected mean {sign:.4f} along the chain, {positive:.4f} of the estimates "
        "positive when rows are drawn afresh, by the pilot study",
    }


_CENTRE = {
    True: "the mean of l - sum q over the pilot draws; a = centre - lambda",
    False: "the mean of l - sum q less that of the coreset over the pilot draws; a = centre + "
    "coreset - lambda",
}
_REASON = {
    "floor": f"of at least {FEWEST}",
    "deviation": f"of {DEVIATIONS} standard deviations of a mini-batch's dhat, below which "
    "chains get stuck behind sign boundaries",
    "cost": "that minimises computational time",
    "slope": "with gradient noise of a quarter of the posterior variance",
    "sign": f"with an expected mean sign of {SIGN} among the pilot's own mini-batches",
    "far": "with which chains have no mass far out, where the posterior has none",
}


def _why(batch: int) -> str:
    return "as in the paper" if batch == PAPER_BATCH else "set by hand"


@dataclass(frozen=True)
class _Candidate:
    """The best settings for one number of rows per factor."""

    estimator: BlockPoisson
    refreshes: int
    needed: int  # smallest lambda that meets all criteria
    binding: str
    spread: float
    noise: float
    accept: float
    cost: float
    mini_batches: MiniBatches


def _with_batch(
    pilot: Pilot,
    batch: int,
    work: Work,
    bound: Bound,
    products: int | None,
    blocks: int | None,
    refreshes: int | None,
) -> _Candidate:
    mini_batches = MiniBatches(pilot, batch)
    needs = _needs(pilot, batch, bound, mini_batches)
    binding = max(needs, key=lambda name: needs[name])
    least = needs[binding] if products is None else products
    noise = pilot.typical_slope / (least * batch)
    spread = pilot.quantile(pilot.variance, 0.9) / (least * batch)
    options = []
    for G in (blocks,) if blocks is not None else _shares(least, spread, products is not None):
        number = least if products is not None else G * ceil(least / G)
        estimator = BlockPoisson(number, batch, G, bound.room)
        accept = max(refresh_acceptance(spread, G), 1e-3)
        for K in range(1, G + 1) if refreshes is None else (refreshes,):
            options.append((work.cost(estimator, K, noise, accept), estimator, K, accept))
    cost, estimator, K, accept = min(options, key=lambda option: option[0])
    return _Candidate(
        estimator, K, needs[binding], binding, spread, noise, accept, cost, mini_batches
    )


def _shares(products: int, spread: float, fixed: bool) -> list[int]:
    """Return numbers of blocks that share the products equally and are refreshed easily."""
    most = 1.0 if fixed else 1.1  # equal shares may need a few more products
    fitting = [G for G in SHARES if most * products >= G * ceil(products / G)]
    return [G for G in fitting if refresh_acceptance(spread, G) > EASY] or fitting[-1:]


def _needs(pilot: Pilot, batch: int, bound: Bound, mini_batches: MiniBatches) -> dict[str, int]:
    """Return the smallest lambda that each criterion allows."""
    deviation = np.sqrt(pilot.variance / batch)
    typical = pilot.quantile(deviation, 0.9)
    needs = {
        "floor": FEWEST,
        "deviation": ceil(DEVIATIONS * pilot.quantile(deviation, NEARLY_ALL)),
        "cost": _cheapest(typical, bound.miss),
        "slope": ceil(pilot.typical_slope / (NOISE * batch)),
    }
    products = max(needs.values())
    while products < MOST and mini_batches.sign(products, bound.at_draws)[1] < SIGN:
        products = ceil(1.05 * products)
    return needs | {"sign": products, "far": bound.products_far_out(batch, products)}


def _cheapest(deviation: float, miss: float) -> int:
    """Return the lambda of least computational time in theory, refreshing a tenth of products."""
    grid = np.unique(np.ceil(max(deviation, 0.1) * np.geomspace(1, 20, 40)).astype(int))
    costs = [NormalFactors(miss, deviation, at, -at).cost(0.1) for at in grid.astype(float)]
    return int(grid[int(np.argmin(costs))])

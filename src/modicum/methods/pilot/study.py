"""The pilot study: rows weighted by their expected residuals, and residuals of a sample of them.

It has stages, each made from the one before, and none of them changes. `expand` gives the control
variates about an anchor. `weigh` makes them the `Weights` of all rows, which suffice to weight
draws by a pool of rows. `study_rows` draws rows by these weights and evaluates their residuals at
draws from the normal approximation of the posterior, or at those of short chains if it is far from
normal: a `Study`, from whose moments a method chooses its subsample. Rows and draws of the study
are the same for every seed, so that the choice depends on the data alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TypeAlias

import numpy as np

from modicum.kernels.control_variates import LinearTaylor
from modicum.kernels.designs import (
    DESIGNS,
    CertaintyRows,
    Design,
    Drawn,
    RowFacts,
    Weighted,
    WeightTables,
    certainty_rows,
)
from modicum.kernels.protocols import LevelCurves, Proxy
from modicum.kernels.whitening import Curves
from modicum.methods.method import Task
from modicum.methods.pilot.anchored_proxy import (
    SHARED,
    AnchoredProxy,
    StudySettings,
    expand,
)
from modicum.methods.pilot.coreset import DISTANCES, Coreset, fit_coreset
from modicum.methods.pilot.level_curves import level_curves
from modicum.methods.pilot.pilot_residuals import (
    Pilot,
    Residuals,
    Tails,
    residuals_at,
    residuals_of,
)
from modicum.methods.pilot.short_chains import (
    FAR,
    PilotChains,
    draws_of_short_chains,
    run_pilot_chains,
)
from modicum.methods.weights import (
    SampledRows,
    design_tables,
    ends_near_the_mode,
    expected_residuals,
    sample_on_host,
)
from modicum.passes import Anchor
from modicum.passes.mode import first_bad_row
from modicum.random import Stream, generator, key
from modicum.rows.grouped_rows import as_groups
from modicum.rows.weight_classes import KeptNumbers, extent_of
from modicum.runtime import Pytree, to_device

PILOT_ROWS = 8_192
OTHER_ROWS = 5_000  # for models without a linear predictor, whose rows cost more
SPREAD_DRAWS = 64  # draws of the posterior by which rows are weighted if it is not normal
PILOT_GROUPS, SLOPE_GROUPS = 512, 64  # groups in place of rows, if effects are integrated out
CHAIN_ROWS = 4_096  # pilot rows that pilot chains run on
SHRUNK = 0.05  # share of the normal approximation in a covariance estimated from few draws
MOST_AXES = 64  # most axes along which residuals are evaluated far out
TAIL_AXES, PRINCIPAL = 16, 8  # most axes along which tails are followed: of coordinates, of chains
AXES_AT, AXES_ROWS = 4.0, 1_024  # distance and pilot rows by which these axes are chosen
# Sum of the expected residuals that control variates of rare levels leave, relative to that without
# them, below which they pay: .08 on Covertype, .37 on the flights, .99 on the claims.
PAYS = 0.7
# Sd of log posterior / normal approximation below which no pilot chains are run, and tails are not
# followed.
NORMAL, NEARLY_NORMAL = 0.5, 0.25


# Weights ----------------------------------------------------------------------------------

Expected: TypeAlias = np.ndarray | KeptNumbers  # residuals of all rows


@dataclass(frozen=True, eq=False)
class Weights:
    """All rows, weighted by their expected residuals.

    Attributes
    ----------
    about
        The control variates.
    design, tables
        The design under study, and its tables.
    weight_tables
        Those of the design that draws rows in proportion to their expected residuals.
    """

    about: AnchoredProxy
    design: Design[Pytree]
    tables: Pytree
    weight_tables: WeightTables

    def certain(self, count: int) -> CertaintyRows | None:
        """Return the `count` rows with the largest expected residuals."""
        return certainty_rows(self.weight_tables, count) if count else None

    def probability(self, drawn: Drawn, certainty: int) -> np.ndarray:
        """Return the probability of drawn rows under the design; zero for certainty rows."""
        certain = self.certain(certainty)
        if certain is None:
            return self.design.probability_of(drawn, self.tables)
        tables = self.design.without(certain, self.tables)
        among = certain.probability(drawn)
        probability = self.design.probability_of(Drawn(drawn.row_ids, among), tables)  # type: ignore[arg-type]
        return np.where(among > 0, probability, 0.0)

    def sample(self, rng: np.random.Generator, most: int) -> SampledRows:
        """Draw rows by their weights, whatever the design under study; all if they are fewer."""
        row_ids, chance, expected, certain = sample_on_host(rng, most, self.weight_tables)
        batch = self.about.task.rows.take(row_ids) | {"probability": expected}
        return SampledRows(Drawn(row_ids, chance), batch, certain)  # type: ignore[arg-type]


def weigh(settings: StudySettings, task: Task, anchor: Anchor) -> Weights:
    """Expand the rows about an anchor, and weight them by the residuals to be expected."""
    about, expected = _with_levels(expand(settings, task, anchor))
    return _weights(about, about.straight(about.draws.weighing), about.proxy, expected)


def _weights(
    about: AnchoredProxy,
    draws: np.ndarray,
    proxy: Proxy,
    expected: Expected | None = None,
    stage: str = "design",
    by_draws: bool = False,
) -> Weights:
    """Weight rows by their residuals over the posterior that `draws` and `proxy` describe.

    These may be known already.
    """
    task, design = about.task, DESIGNS[about.settings.design]()

    def compute() -> Expected:
        if expected is not None:
            return expected
        found = expected_residuals(task.sums, about.control_variate, proxy, draws, by_draws)
        if task.grouped:  # larger groups cost more
            found = found / np.sqrt(as_groups(task.rows).index.size)
        return found

    weighted = type(design) is Weighted
    # Four bytes per row, kept only for a user's design, which asks for them a second time.
    kept = cache(compute) if design.needs == "expected" and not weighted else compute
    facts = RowFacts(len(task.rows), PILOT_ROWS, kept)
    by_weight = design_tables(task, Weighted(), facts, stage)
    tables = by_weight if weighted else design_tables(task, design, facts, stage)
    return Weights(about, design, tables, by_weight)


def _with_levels(about: AnchoredProxy) -> tuple[AnchoredProxy, Expected | None]:
    """Give rare levels control variates of their own, if these leave much smaller residuals.

    Return the expected residuals as well, if they were computed on the way.
    """
    form, task = about.linear, about.task
    expected: Expected | None = None
    if form is None or not _may_have_levels(about, form):
        return about, expected

    def find() -> LevelCurves | None:
        nonlocal expected
        levels = level_curves(task.sums, form, about.proxy, about.anchor)
        if levels is None:
            return None
        draws = about.straight(about.draws.weighing)
        without, with_ = (
            expected_residuals(task.sums, form, about.proxy._replace(levels=each), draws)
            for each in (None, levels)
        )
        total, left = (extent_of(each).sums.sum() for each in (without, with_))
        pays = left < PAYS * total
        expected = with_ if pays else without
        return levels if pays else None

    levels: LevelCurves | None = to_device(task.remember("levels", LevelCurves | None, find))
    if levels is None:
        return about, expected
    why = "columns that few rows determine"
    tuning = about.tuning | {"levels": {"value": len(levels.lines), "why": why}}
    return replace(about, proxy=about.proxy._replace(levels=levels), tuning=tuning), expected


def _may_have_levels(about: AnchoredProxy, form: LinearTaylor) -> bool:
    """Whether the model and the settings allow for control variates of rare levels.

    The paper's schedule, and designs other than the weighted one, stay as they are published.
    """
    settings, proxy = about.settings, about.proxy
    published = settings.scheduled or settings.design != "weighted" or settings.order < 2
    plain = proxy.where.warp is None and proxy.bend is None and not about.arrow
    of_rows = form.target.on_numpy and about.task.sums.rest is None
    return settings.levels and not published and settings.anchor != "mean" and plain and of_rows


# Residuals --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Study:
    """Residuals of a sample of rows at draws of the posterior.

    Attributes
    ----------
    weights
        The weights by which the rows were drawn.
    rows, residuals
        The rows, and their residuals.
    curves
        The axes along which the posterior is too skewed for straight trajectories, if any.
    stuck
        Whether short chains got stuck even along curves.
    """

    weights: Weights
    rows: SampledRows
    residuals: Residuals
    curves: Curves | None = None
    stuck: bool = False
    _pilots: dict[int, Pilot] = field(init=False, repr=False, default_factory=dict)

    @property
    def about(self) -> AnchoredProxy:
        """The control variates."""
        return self.weights.about

    @property
    def task(self) -> Task:
        """What to sample."""
        return self.weights.about.task

    def pilot_with(self, certainty: int) -> Pilot:
        """Return moments of the residuals of all rows but the certainty rows."""
        if certainty not in self._pilots:
            self._pilots[certainty] = self.residuals.pilot(self.probability(certainty))
        return self._pilots[certainty]

    def probability(self, certainty: int) -> np.ndarray:
        """Return the probability of each pilot row under the design; zero for certainty rows."""
        return self.weights.probability(self.rows.drawn, certainty)

    def coreset_with(self, certainty: int) -> Coreset | None:
        """Return weighted rows that predict l - sum q of all rows but the certainty rows.

        None for groups, which differ in their number of rows, and for a factor with very many
        effects, which has too many axes to explore.
        """
        if self.task.grouped or self.about.arrow:
            return None
        return fit_coreset(self.residuals, *self.far_out, self.probability(certainty))

    @cached_property
    def far_out(self) -> tuple[Residuals, np.ndarray]:
        """Residuals far out along axes, and the log-posterior there relative to the mean."""
        middle = self.residuals.share @ self.residuals.whitened
        axes = self._skewed_axes(middle)
        far, height = self._heights(middle, _places(axes))
        is_finite = np.isfinite(far.values).all(axis=1) & np.isfinite(height)
        is_finite[0] = False  # drop the mean itself
        finite = replace(far, values=far.values[is_finite], log_ratio=far.log_ratio[is_finite])
        return finite, (height - height[0])[is_finite]

    def _heights(self, middle: np.ndarray, away: np.ndarray) -> tuple[Residuals, np.ndarray]:
        """Return residuals at the posterior's mean and points away, and the log-posterior."""
        points = np.concatenate([middle[None], middle + away])
        residuals = residuals_at(self.about, points, self.rows.batch)
        away = np.sum((points - self.about.centre) ** 2, axis=1) / 2
        return residuals, residuals.log_ratio - away

    def _skewed_axes(self, middle: np.ndarray) -> np.ndarray:
        """Return unit vectors of the whitened coordinates; if there are many, the most relevant."""
        axes = np.eye(len(middle))
        if len(axes) <= MOST_AXES:
            return axes
        rows = self.rows.thinned(AXES_ROWS)
        points = middle + np.concatenate([-AXES_AT * axes, AXES_AT * axes])
        ends = residuals_at(self.about, points, rows)
        size = np.abs(ends.values).sum(axis=1).reshape(2, -1).max(axis=0)
        return np.asarray(axes[np.argsort(-np.nan_to_num(size, nan=np.inf))[:MOST_AXES]])

    def chains(self, certainty: int) -> PilotChains | None:
        """Run short chains on some of the pilot rows; None if the posterior is nearly normal.

        None with a linear predictor too: if its posterior is not normal, the pilot draws already
        come from such chains.
        """
        if self.about.linear or np.std(self.residuals.log_ratio) <= NORMAL:
            return None
        rows = self.rows.thinned(CHAIN_ROWS)
        probability = self.probability(certainty)[: len(rows["probability"])]
        seed_key = key(self.task.seed, Stream.PILOT_CHAINS)
        return run_pilot_chains(self.about, rows, probability, self.about.proxy, seed_key)

    def distance(self, chains: PilotChains | None) -> float:
        """Distance of the posterior's mean from the anchor, in whitened coordinates.

        Parameters of priors do not count. Pilot draws are draws of the posterior itself, as are
        those of the short chains, if there are any.
        """
        likelihood_size = self.task.target.likelihood.size
        if chains is not None:
            return chains.distance(likelihood_size)
        return float(np.abs(self.residuals.draws.mean(axis=0)[:likelihood_size]).max())

    def tails(self, certainty: int, chains: PilotChains | None) -> Tails | None:
        """Follow the posterior far out along the axes on which it is widest; None if it is normal.

        None with a linear predictor too, whose pilot draws and curves go where the posterior goes,
        and for groups and factors of many effects, as for a coreset.
        """
        residuals = self.residuals
        if self.about.linear or self.task.grouped or self.about.arrow:
            return None
        if np.std(residuals.log_ratio) <= NEARLY_NORMAL:
            return None
        draws, share = residuals.whitened, residuals.share
        if chains is not None:
            draws = chains.position.reshape(-1, draws.shape[1])
            share = np.full(len(draws), 1 / len(draws))
        middle = share @ draws
        square = (draws - middle).T @ (share[:, None] * (draws - middle))
        widest = np.argsort(-np.diag(square))[:TAIL_AXES]
        principal = np.linalg.eigh(square)[1].T[::-1][:PRINCIPAL]
        axes = np.concatenate([np.eye(len(middle))[widest], principal])
        far, height = self._heights(middle, _places(axes))
        distance = np.repeat(DISTANCES, 2 * len(axes))
        variance = far.variance(self.probability(certainty))
        return Tails(distance, (height[0] - height)[1:], variance[1:])


def _places(axes: np.ndarray) -> np.ndarray:
    """Return points far out along axes, on both sides."""
    return np.concatenate([t * axes for r in DISTANCES for t in (-r, r)])


def study_rows(weights: Weights) -> Study:
    """Evaluate residuals of rows drawn by their weights, at draws of the posterior."""
    about, task = weights.about, weights.about.task
    seed, stream = (task.seed, Stream.PILOT_ROWS) if task.grouped else (SHARED, Stream.STUDY_ROWS)
    rng = generator(seed, stream)
    number = PILOT_ROWS if about.linear else OTHER_ROWS
    number = PILOT_GROUPS if task.grouped else number
    rows, draws = weights.sample(rng, number), about.draws.study()
    few = rows.first(SLOPE_GROUPS, task.rows) if task.grouped else None
    ratios, log_proxy = draws.proxy_ratios, np.zeros(len(draws.points))
    if ratios is None or about.proxy.bend is not None:
        log_proxy = about.log_ratio(draws.points)
    elif not about.linear:
        log_proxy = ratios
    where = (about, rows.batch, draws.points)
    residuals = residuals_of(*where, log_proxy, few, weighted=ratios is None)
    curves, stuck = None, False
    if about.linear and np.std(residuals.log_ratio) > NORMAL and residuals.finite:
        of_chains, curves, stuck = draws_of_short_chains(about, rows)
        # Chains that go elsewhere show that the expansion is far off, but not what the
        # posterior is like there: the pilot rows were weighted for where it was expected.
        # Chains along curves, which end where the posterior does, do reach it.
        far = np.abs(of_chains.mean(axis=0) - about.centre).max() > FAR
        curved = curves is not None
        if curved or not far:
            if type(weights.design) is Weighted and (about.settings.by_spread or curved):
                weights = _weighed_again(about, of_chains, by_draws=curved)
                rows = weights.sample(rng, number)
            residuals = residuals_of(about, rows.batch, of_chains)
    if not residuals.finite:
        bad = np.flatnonzero(~np.isfinite(residuals.values).all(axis=1))
        t = about.anchor.point + about.anchor.factor @ residuals.whitened[bad[0]]
        raise ends_near_the_mode(task.sums, first_bad_row(task.sums, t))
    return Study(weights, rows, residuals, curves, stuck)


def _weighed_again(about: AnchoredProxy, draws: np.ndarray, by_draws: bool) -> Weights:
    """Weight rows by draws of the posterior itself, or by their spread about the anchor.

    A row's expected residual is then that over the posterior itself: a level whose rows all have
    one outcome has a long tail on one side. Residuals grow from the anchor.
    """
    straight = about.straight(draws)
    if about.arrow or by_draws:
        some = straight[:: max(1, len(straight) // SPREAD_DRAWS)]
        return _weights(about, some, about.proxy, stage="design-again", by_draws=True)
    count, size = straight.shape
    square = straight.T @ straight / count
    square = (1 - SHRUNK) * square + SHRUNK * np.eye(size)  # draws may be fewer than parameters
    factor = to_device(np.asarray(about.proxy.where.factor) @ np.linalg.cholesky(square))
    spread = about.proxy.mapped(factor=factor)
    return _weights(about, np.zeros((1, len(about.centre))), spread, stage="design-again")

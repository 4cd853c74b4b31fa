"""The pilot study before an HMC-ECS run.

A `Study` adds the sampling design to the control variates at the anchor, and measures residuals of
a sample of rows at draws from the normal approximation of the posterior. A method chooses its
subsample from their moments. Rows and draws of the study are the same for every seed, so that the
choice depends on the data alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import ceil

import jax
import numpy as np

from modicum.arrays import as_either
from modicum.errors import SettingError
from modicum.kernels.adaptation import typical_step_size
from modicum.kernels.control_variates import LinearTaylor
from modicum.kernels.designs import (
    DESIGNS,
    CertaintyRows,
    Drawn,
    RowFacts,
    Weighted,
    certainty_rows,
)
from modicum.kernels.protocols import LevelCurves, Proxy
from modicum.kernels.whitening import Curves, along_curves
from modicum.methods.drawn_rows import SampledRows, T, cheapest_certainty, with_reason
from modicum.methods.ecs.anchored_proxy import AnchoredProxy, Expansion, choose_coordinates
from modicum.methods.ecs.level_curves import level_curves
from modicum.methods.ecs.pilot_draws import (
    FAR,
    OF_LEVELS,
    ONE_BY_ONE,
    SHARED,
    SIDE_BY_SIDE,
    PilotChains,
    pilot_draws,
    run_pilot_chains,
)
from modicum.methods.ecs.pilot_residuals import Pilot, Residuals, Tails, evaluate
from modicum.methods.ecs.run_checks import ANCHOR_FAR
from modicum.methods.ecs.settings import EnergyConserving
from modicum.methods.ecs.signed_products import DISTANCES, Coreset, fit_coreset
from modicum.methods.method import Task, Tuning
from modicum.methods.skewed_axes import in_equal_blocks, may_be_curved, skewed_axes
from modicum.methods.weights import (
    cached_rows,
    design_tables,
    ends_near_the_mode,
    expected_residuals,
)
from modicum.models import LinearPredictorModel
from modicum.models.model import Batch
from modicum.passes.no_mode import first_bad_row
from modicum.random import Stream, generator, key
from modicum.rows import Rows
from modicum.rows.grouped_rows import as_groups
from modicum.rows.weight_classes import KeptNumbers, extent_of
from modicum.run.iterations import RowPlacement
from modicum.runtime import Pytree, to_device

PILOT_ROWS = 8_192
OTHER_ROWS = 5_000  # for models without a linear predictor, whose rows cost more
SPREAD_DRAWS = 64  # draws of the posterior by which rows are weighted if it is not normal
PILOT_GROUPS, SLOPE_GROUPS = 512, 64  # groups in place of rows, if effects are integrated out
MOST_CERTAIN = 20_000  # most certainty rows; they are never more than a quarter of the table
COORDINATE_ROWS = 2_048  # for choosing the coordinates of dispersions
CHAIN_ROWS, CHAIN_ROWS_LINEAR = 4_096, 2_048  # pilot rows that pilot chains run on
SCATTER = 0.1  # sd of their starts, since the posterior may lie on one side of the mode
SHRUNK = 0.05  # share of the normal approximation in a covariance estimated from few draws
MOST_AXES = 64  # most axes along which residuals are evaluated far out
TAIL_AXES, PRINCIPAL = 16, 8  # most axes along which tails are followed: of coordinates, of chains
AXES_AT, AXES_ROWS = 4.0, 1_024  # distance and pilot rows by which these axes are chosen
# Share of iterations that move, below which pilot chains have run into walls: it is 0 to 0.3 on
# tables of levels with few events or none, and 0.75 or more for chains that move freely.
STUCK = 0.5
AT_ONCE = 256  # points at which the rows of pilot chains are evaluated at once
# Sum of the expected residuals that control variates of rare levels leave, relative to that without
# them, below which they pay: .08 on Covertype, .37 on the flights, .99 on the claims.
PAYS = 0.7
# Sd of log posterior / normal approximation below which no pilot chains are run, and tails are not
# followed.
NORMAL, NEARLY_NORMAL = 0.5, 0.25


@dataclass
class Study(AnchoredProxy):
    """The pilot study of one run: control variates, design and residual moments."""

    # Whether it is part of the paper's schedule, whose anchor moves and whose chains are straight.
    scheduled: bool = False
    placement: RowPlacement | None = None  # if copying the rows for chains has begun
    # Expected residuals that are known before rows are weighted for the first time.
    _expected: np.ndarray | KeptNumbers | None = field(init=False, default=None)
    _pilots: dict[int, Pilot] = field(init=False, default_factory=dict)
    _coresets: dict[int, Coreset] = field(init=False, default_factory=dict)
    # Set when residuals are evaluated: the axes along which the posterior is too skewed for
    # straight trajectories, and whether short chains got stuck even along curves.
    curves: Curves | None = field(init=False, default=None)
    stuck: bool = field(init=False, default=False)
    # Set when short chains have run on a model without a linear predictor.
    _chains: PilotChains | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        task = self.task
        weighing, self.draws, self._proxy_ratios = pilot_draws(
            self.control_variate, self.proxy, self.centre, task.seed, self._has_kinks()
        )
        self.expansion = self._expansion(weighing)
        if self.expansion.bend is not None:
            self.proxy = self.proxy._replace(bend=self.expansion.bend)
        self.design = DESIGNS[self.method.design]()
        self._add_levels(self.straight(weighing))
        self._weigh(self.straight(weighing), self.proxy)
        self.slope_groups: Batch | None = None

    def _weigh(
        self, draws: np.ndarray, proxy: Proxy, stage: str = "design", by_draws: bool = False
    ) -> None:
        """Weight all rows by their expected residuals, and make the design's tables."""
        facts = self._facts(draws, proxy, by_draws)
        # of the design that draws rows in proportion to their expected residuals
        self.weight_tables = design_tables(self.task, Weighted(), facts, stage)
        self.tables: Pytree = self.weight_tables
        if type(self.design) is not Weighted:
            self.tables = design_tables(self.task, self.design, facts, stage)

    def _add_levels(self, draws: np.ndarray) -> None:
        """Give rare levels control variates of their own, if these leave much smaller residuals."""
        form, task = self.control_variate, self.task
        if not self._may_have_levels() or not isinstance(form, LinearTaylor):
            return

        def compute() -> dict[str, np.ndarray]:
            levels = level_curves(task.sums, form, self.proxy, self.anchor)
            if levels is None:
                return {}
            without, with_ = (
                expected_residuals(task.sums, form, self.proxy._replace(levels=each), draws)
                for each in (None, levels)
            )
            total, left = (extent_of(each).sums.sum() for each in (without, with_))
            pays = left < PAYS * total
            self._expected = with_ if pays else without
            named = levels._asdict() if pays else {}
            return {name: np.asarray(values) for name, values in named.items()}

        def read(arrays: dict[str, np.ndarray]) -> LevelCurves | None:
            return LevelCurves(**to_device(arrays)) if arrays else None

        self.proxy = self.proxy._replace(levels=task.remember("levels", compute, read))

    def _may_have_levels(self) -> bool:
        """Whether the model and the settings allow for control variates of rare levels.

        The paper's schedule, and designs other than the weighted one, stay as they are published.
        """
        method, proxy = self.method, self.proxy
        may_be_fused = method.fused and jax.default_backend() == "gpu"
        if not method.levels or (method.levels == "auto" and may_be_fused):
            return False
        if self.scheduled or type(self.design) is not Weighted or method.order < 2:
            return False
        plain = proxy.warp is None and proxy.bend is None and not self.arrow and not method.at_mean
        form = self.control_variate
        has_derivatives = isinstance(form, LinearTaylor) and form.target.on_numpy
        return plain and has_derivatives and self.task.sums.rest is None

    def explain_levels(self) -> Tuning:
        """Return how many levels have control variates of their own."""
        if self.proxy.levels is None:
            return {}
        number, why = len(self.proxy.levels.lines), "columns that few rows determine"
        return {"levels": {"value": number, "why": why}}

    def _has_kinks(self) -> bool:
        """Whether log-likelihoods of rows may have a kink, which few draws in 100 may cross.

        A kink may be the very reason why a user's model has no mode.
        """
        model = self.task.target.model
        if self.method.at_mean:
            return True
        return isinstance(model, LinearPredictorModel) and not model.has_mode

    def _expansion(self, draws: np.ndarray) -> Expansion:
        """Choose the coordinates of the control variates, by residuals if there is a choice."""
        rows = self.task.rows
        rng = generator(self.task.seed if self.task.grouped else SHARED, Stream.COORDINATE_ROWS)

        def sampled_rows() -> Batch:
            row_ids = np.sort(rng.choice(len(rows), min(len(rows), COORDINATE_ROWS), replace=False))
            return rows.take(row_ids) | {"probability": np.full(len(row_ids), 1 / len(rows))}

        expansion = choose_coordinates(
            self.task.target, self.control_variate, self.anchor, self.proxy, draws, sampled_rows
        )
        if expansion.evaluations:
            self.task.ledger.add("pilot", expansion.evaluations, "density")
        return expansion

    def _facts(self, draws: np.ndarray, proxy: Proxy, by_draws: bool) -> RowFacts:
        def expected() -> np.ndarray | KeptNumbers:
            sums, expected = self.task.sums, self._expected
            self._expected = None
            if expected is None:
                expected = expected_residuals(sums, self.control_variate, proxy, draws, by_draws)
            if sums.rows.grouped:  # larger groups cost more
                assert isinstance(expected, np.ndarray)
                expected = expected / np.sqrt(as_groups(sums.rows).index.size)
            return expected

        # Four bytes per row, kept only for a user's design, which asks for them a second time.
        asked_twice = self.design.needs == "expected" and type(self.design) is not Weighted
        remembered = cache(expected) if asked_twice else expected
        return RowFacts(len(self.task.rows), PILOT_ROWS, remembered, floor=self.method.floor)

    def _take_rows(self, rng: np.random.Generator) -> None:
        """Draw the pilot rows by their weights, whatever the design under study."""
        rows, grouped = self.task.rows, self.task.grouped
        most = PILOT_GROUPS if grouped else PILOT_ROWS if self.linear else OTHER_ROWS
        self.pilot_rows = SampledRows.of(rng, rows, most, self.weight_tables, self.method.floor)
        if grouped:
            self.slope_groups = self.pilot_rows.first(SLOPE_GROUPS, rows)

    @cached_property
    def _residuals(self) -> Residuals:
        """Residuals of the pilot rows at the pilot draws."""
        _ = self._placement  # if copying has not begun, it begins now
        seed, stream = SHARED, Stream.STUDY_ROWS
        if self.task.grouped:
            seed, stream = self.task.seed, Stream.PILOT_ROWS
        rng = generator(seed, stream)
        self._take_rows(rng)
        log_proxy, resampled = self._proxy_ratios, self._proxy_ratios is not None
        if self.linear and resampled:
            log_proxy = None
        elif not resampled or self.proxy.bend is not None:
            log_proxy = self.log_ratio(self.draws)
        evaluated = self._evaluate(log_proxy, resampled)
        if self.linear and np.std(evaluated.log_ratio) > NORMAL and evaluated.finite:
            draws = self._draws_of_short_chains()
            # Chains that go elsewhere show that the expansion is far off, but not what the
            # posterior is like there: the pilot rows were weighted for where it was expected.
            # Chains along curves, which end where the posterior does, do reach it.
            far = np.abs(draws.mean(axis=0) - self.centre).max() > FAR
            if self.curves is not None or not far:
                self.draws = draws
                evaluated = self._evaluate_again(rng)
        if not evaluated.finite:
            bad = np.flatnonzero(~np.isfinite(evaluated.values).all(axis=1))
            t = self.anchor.point + self.anchor.factor @ evaluated.whitened[bad[0]]
            raise ends_near_the_mode(self.task.sums, first_bad_row(self.task.sums, t))
        return evaluated

    def _evaluate_again(self, rng: np.random.Generator) -> Residuals:
        """Return residuals at draws of the posterior itself, of rows weighted by these draws."""
        curved = self.curves is not None
        if isinstance(self.design, Weighted) and (self.method.weighted_by_spread or curved):
            straight = self.straight(self.draws)
            if self.arrow or curved:
                spacing = max(1, len(straight) // SPREAD_DRAWS)
                self._weigh(straight[::spacing], self.proxy, "design-again", by_draws=True)
            else:
                nowhere = np.zeros((1, len(self.centre)))
                self._weigh(nowhere, self._spread_as(straight), stage="design-again")
            self._take_rows(rng)
        return self._evaluate()

    def _evaluate(self, log_proxy: np.ndarray | None = None, resampled: bool = False) -> Residuals:
        """Return the residuals of the pilot rows at the pilot draws."""
        self.task.ledger.add("pilot", self.pilot_rows.number * len(self.draws), "density")
        about = (self.control_variate, self.pilot_rows.batch, self.proxy)
        straight = self.straight(self.draws)
        whitened = self.draws if self.arrow else None
        return evaluate(*about, straight, log_proxy, self.slope_groups, resampled, whitened)

    def _spread_as(self, draws: np.ndarray) -> Proxy:
        """Return the proxy with a factor that gives normal numbers the spread of these draws.

        The spread is about the anchor, from which residuals grow. A row's expected residual is then
        that over the posterior itself: a level whose rows all have one outcome has a long tail on
        one side.
        """
        count, size = draws.shape
        square = draws.T @ draws / count
        square = (1 - SHRUNK) * square + SHRUNK * np.eye(size)  # draws may be fewer than parameters
        factor = np.asarray(self.proxy.factor) @ np.linalg.cholesky(square)
        return self.with_row_factor(self.proxy._replace(factor=to_device(factor)))[0]

    def _draws_of_short_chains(self) -> np.ndarray:
        """Draw from the posterior given the pilot rows, which is far from normal.

        With a linear predictor, a few thousand weighted rows have nearly the posterior of all rows,
        tails and skewed directions included. If chains run into walls, as with levels of few events
        or none, or go so far that a warning would follow, they move along curves instead.
        """
        chains = self._short_chains(SCATTER)
        failed = chains.moved < STUCK or chains.distance(len(self.centre)) > ANCHOR_FAR
        about_mode = self.method.at_mode and not self.scheduled
        if failed and about_mode and may_be_curved(self.task, self.anchor):
            self.curves = self._curves()
            if self.curves is not None:
                chains = self._short_chains(1.0)
        self.stuck = chains.moved < STUCK
        draws = chains.position.reshape(-1, chains.position.shape[2])
        return np.asarray(
            draws if self.curves is None else along_curves(as_either(draws), self.curves)[0]
        )

    def _short_chains(self, scatter: float) -> PilotChains:
        rows = self.pilot_rows.thinned(CHAIN_ROWS_LINEAR)
        chains = run_pilot_chains(
            self.control_variate,
            rows,
            np.asarray(rows["probability"]),
            self.proxy_of_chains,
            self.centre,
            key(SHARED, Stream.PILOT_CHAINS),
            scatter,
            OF_LEVELS if self.arrow else SIDE_BY_SIDE,
        )
        self.task.ledger.add("pilot", chains.evaluations, "gradient")
        return chains

    def _curves(self) -> Curves | None:
        """Return curves along the axes on which the posterior given the chains' rows is skewed."""
        rows = self.pilot_rows.thinned(CHAIN_ROWS_LINEAR)
        whitened = cached_rows(self.control_variate, rows, self.proxy).rows

        def evaluate_block(z: np.ndarray) -> np.ndarray:
            ratio = self._residuals_at(z, rows).log_ratio
            return np.asarray(ratio - np.sum((z - self.centre) ** 2, axis=1) / 2)

        def log_posterior(z: np.ndarray) -> np.ndarray:
            return in_equal_blocks(evaluate_block, z, AT_ONCE)

        about = (np.zeros_like(self.centre), self.anchor, np.asarray(whitened))
        return skewed_axes(log_posterior, *about, finer_at_walls=True)

    @property
    def draws_along_curves(self) -> np.ndarray | None:
        """The pilot draws, if they are draws of the posterior along curves."""
        return None if self.curves is None else self.draws

    @property
    def proxy_of_chains(self) -> Proxy:
        """The proxy with the curves along which chains move, if any."""
        if self.curves is None:
            return self.proxy
        return self.proxy._replace(curves=to_device(self.curves))

    def certain(self, count: int) -> CertaintyRows | None:
        """Return the `count` rows with the largest expected residuals."""
        return certainty_rows(self.weight_tables, count, self.method.floor) if count else None

    def pilot_with(self, certainty: int) -> Pilot:
        """Return moments of the residuals of all rows but the certainty rows."""
        if certainty not in self._pilots:
            self._pilots[certainty] = self._residuals.pilot(self._probability(certainty))
        return self._pilots[certainty]

    def _probability(self, certainty: int) -> np.ndarray:
        """Return the probability of each pilot row under the design; zero for certainty rows."""
        certain, drawn = self.certain(certainty), self.pilot_rows.drawn
        if certain is None:
            return self.design.probability_of(drawn, self.tables)
        tables = self.design.without(certain, self.tables)
        among = certain.probability(drawn)
        probability = self.design.probability_of(Drawn(drawn.row_ids, among), tables)  # type: ignore[arg-type]
        return np.where(among > 0, probability, 0.0)

    def coreset_with(self, certainty: int) -> Coreset | None:
        """Return weighted rows that predict l - sum q of all rows but the certainty rows.

        None for groups, which differ in their number of rows, and for a factor with very many
        effects, which has too many axes to explore.
        """
        if self.task.grouped or self.arrow:
            return None
        if certainty not in self._coresets:
            far, log_posterior = self._far_out
            coreset = fit_coreset(self._residuals, far, log_posterior, self._probability(certainty))
            self._coresets[certainty] = coreset
        return self._coresets[certainty]

    @cached_property
    def _far_out(self) -> tuple[Residuals, np.ndarray]:
        """Residuals far out along axes, and the log-posterior there relative to the mean."""
        residuals = self._residuals
        middle = residuals.share @ residuals.whitened
        axes = self._skewed_axes(middle)
        points = middle + np.concatenate([t * axes for r in DISTANCES for t in (-r, r)])
        points = np.concatenate([middle[None], points])
        far, height = self._heights(points)
        is_finite = np.isfinite(far.values).all(axis=1) & np.isfinite(height)
        is_finite[0] = False  # drop the mean itself
        finite = replace(far, values=far.values[is_finite], log_ratio=far.log_ratio[is_finite])
        return finite, (height - height[0])[is_finite]

    def _heights(self, points: np.ndarray) -> tuple[Residuals, np.ndarray]:
        """Return the residuals of the pilot rows at whitened points, and the log-posterior."""
        residuals = self._residuals_at(points, self.pilot_rows.batch)
        return residuals, residuals.log_ratio - np.sum((points - self.centre) ** 2, axis=1) / 2

    def tails(self, certainty: int) -> Tails | None:
        """Follow the posterior far out along the axes on which it is widest; None if it is normal.

        None with a linear predictor too, whose pilot draws and curves go where the posterior goes,
        and for groups and factors of many effects, as for a coreset.
        """
        residuals = self._residuals
        if self.linear or self.task.grouped or self.arrow:
            return None
        if np.std(residuals.log_ratio) <= NEARLY_NORMAL:
            return None
        draws, share = residuals.whitened, residuals.share
        if self._chains is not None:
            draws = self._chains.position.reshape(-1, draws.shape[1])
            share = np.full(len(draws), 1 / len(draws))
        middle = share @ draws
        square = (draws - middle).T @ (share[:, None] * (draws - middle))
        widest = np.argsort(-np.diag(square))[:TAIL_AXES]
        principal = np.linalg.eigh(square)[1].T[::-1][:PRINCIPAL]
        axes = np.concatenate([np.eye(len(middle))[widest], principal])
        distance = np.repeat([t for r in DISTANCES for t in (-r, r)], len(axes))
        away = distance[:, None] * np.tile(axes, (2 * len(DISTANCES), 1))
        far, height = self._heights(np.concatenate([middle[None], middle + away]))
        variance = far.variance(self._probability(certainty))
        return Tails(np.abs(distance), (height[0] - height)[1:], variance[1:])

    def _skewed_axes(self, middle: np.ndarray) -> np.ndarray:
        """Return unit vectors of the whitened coordinates; if there are many, the most relevant."""
        axes = np.eye(len(middle))
        if len(axes) <= MOST_AXES:
            return axes
        rows = self.pilot_rows.thinned(AXES_ROWS)
        ends = self._residuals_at(middle + np.concatenate([-AXES_AT * axes, AXES_AT * axes]), rows)
        size = np.abs(ends.values).sum(axis=1).reshape(2, -1).max(axis=0)
        return np.asarray(axes[np.argsort(-np.nan_to_num(size, nan=np.inf))[:MOST_AXES]])

    def _residuals_at(self, points: np.ndarray, rows: Batch) -> Residuals:
        """Return the residuals of pilot rows at whitened points."""
        self.task.ledger.add("pilot", len(rows["probability"]) * len(points), "density")
        about = (self.control_variate, rows, self.proxy)
        return evaluate(*about, self.straight(points), self.log_ratio(points), resampled=True)

    @property
    def distance(self) -> float:
        """Distance of the pilot draws' mean from the anchor, in whitened coordinates.

        Parameters of priors do not count. Once residuals have been evaluated, the pilot draws are
        draws of the posterior itself, as are those of the short chains, if there are any.
        """
        likelihood_size = self.task.target.likelihood.size
        if self._chains is not None:
            return self._chains.distance(likelihood_size)
        return float(np.abs(self.straight(self.draws).mean(axis=0)[:likelihood_size]).max())

    def cheapest(self, choose: Callable[[int], T], by_hand: str | None) -> T:
        """Choose the number of certainty rows together with everything that depends on it.

        `by_hand` names the setting that fixes how many rows are drawn, if the user gave it.
        """
        setting, n, why = self.method.certainty, len(self.task.rows), None
        if self.task.grouped:
            if setting not in ("auto", 0):
                raise SettingError(
                    "groups with integrated effects are drawn whole, and have no certainty rows; "
                    "use certainty=0."
                )
            why = "groups are drawn, each with all its rows"
        elif self.method.design != "weighted":
            why = (
                f"rows are drawn by design={self.method.design!r}, not by their expected residuals"
            )
        elif by_hand is not None:
            why = f"{by_hand} is set by hand"
        if setting == "auto" and why is not None:
            return with_reason(choose(0), why)
        if setting != "auto" and setting >= n:
            raise SettingError(
                f"certainty={setting} leaves none of {n:,} rows to draw; use fewer, or "
                "method='nuts' on all rows."
            )
        return cheapest_certainty(choose, setting, self.steps, min(MOST_CERTAIN, n // 4))

    def pilot_chains(self, certainty: int = 0) -> PilotChains | None:
        """Run short chains on some of the pilot rows; None if the posterior is nearly normal.

        None with a linear predictor too: if its posterior is not normal, the pilot draws already
        come from such chains.
        """
        if self.linear:
            return None
        ratios = self._residuals.log_ratio
        if np.std(ratios) <= NORMAL:
            return None
        rows = self.pilot_rows.thinned(CHAIN_ROWS)
        chains = run_pilot_chains(
            self.control_variate,
            rows,
            self._probability(certainty)[: len(rows["probability"])],
            self.proxy,
            self.centre,
            key(self.task.seed, Stream.PILOT_CHAINS),
            extent=OF_LEVELS if self.arrow else ONE_BY_ONE,
        )
        self.task.ledger.add("pilot", chains.evaluations, "gradient")
        self._chains = chains
        return chains

    @property
    def steps(self) -> int:
        """Expected leapfrog steps per iteration."""
        trajectory = self.method.hmc(split=False).trajectory
        return ceil(trajectory / typical_step_size(self.task.target.size))

    @cached_property
    def placed(self) -> Batch | Rows:
        """The rows, on the device or, if there are too many, on the host."""
        return self._placement.result()

    @cached_property
    def _placement(self) -> RowPlacement:
        return self.placement or self.method.start_copying(self.task)


def study_at_own_anchor(method: EnergyConserving, task: Task) -> Study:
    """Return the pilot study at the method's anchor; rows are copied while that is sought."""
    placement = method.start_copying(task)
    return Study(method, task, method.find_anchor(task), placement=placement)

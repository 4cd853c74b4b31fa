"""The pilot study before an HMC-ECS run.

A `Study` holds the control variates at the anchor and the sampling design, and measures residuals
of a sample of rows at draws from the normal approximation of the posterior. From their moments a
method chooses its subsample. Rows and draws of the study are the same for every seed, so that the
choice depends on the data alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import ceil

import numpy as np

from modicum.designs import (
    DESIGNS,
    CertaintyRows,
    Drawn,
    RowFacts,
    Weighted,
    WeightTables,
    certainty_rows,
    sample_on_host,
)
from modicum.errors import ConvergenceError
from modicum.estimators import (
    GroupTaylor,
    LinearTaylor,
    control_variate,
    group_proxy,
    proxy,
    variance_unit,
)
from modicum.estimators.row_factor import MANY, row_factor, share_of_work
from modicum.kernels.base import Proxy, RowDesign
from modicum.methods.base import Chosen, Task, Tuning
from modicum.methods.ecs.base import EnergyConserving
from modicum.methods.ecs.tuning import (
    DISTANCES,
    FAR,
    OF_LEVELS,
    ONE_BY_ONE,
    SIDE_BY_SIDE,
    Coreset,
    Expansion,
    Pilot,
    PilotChains,
    Residuals,
    choose_coordinates,
    evaluate,
    fit_coreset,
    proxy_ratios,
    run_pilot_chains,
    straightened,
)
from modicum.methods.groups import of_groups
from modicum.methods.weights import (
    design_tables,
    ends_near_the_mode,
    expected_residuals,
)
from modicum.models import LinearPredictorModel
from modicum.models.arrow import ArrowFactor
from modicum.models.base import Batch
from modicum.passes import Anchor
from modicum.passes.faults import first_bad_row
from modicum.passes.prior import folded_prior, prior_slope
from modicum.random import Stream, generator, key
from modicum.rows import Rows
from modicum.rows.groups import GroupedRows
from modicum.rows.weight_classes import KeptNumbers
from modicum.run import place_rows
from modicum.runtime import Pytree, to_device

__all__ = ["Study"]

PILOT_DRAWS, PILOT_ROWS = 256, 8_192
OTHER_DRAWS, OTHER_ROWS = 128, 5_000  # for models without a linear predictor, whose rows cost more
CANDIDATES, RESAMPLED = 2_048, 32  # draws, where groups are integrated out
EXPLICIT_CANDIDATES = 4_096  # where effects are held explicitly
MOST_NUMBERS = 2**23  # in all candidates: fewer of them, where effects are many
SPREAD_DRAWS = 64  # by which rows are weighed there, where the posterior is not normal
PILOT_GROUPS, SLOPE_GROUPS = 512, 64  # groups, where they are integrated out
DESIGN_DRAWS, DESIGN_DRAWS_OF_GROUPS = 8, 4  # at which rows are weighted
# Most draws lie on one side of a row's kink, so that eight of them may not cross it and make the
# row look harmless: for a quantile regression with 500 of 20,000 rows, the bound on the bias is 2
# posterior sds with eight draws, and 0.1 with 64.
DESIGN_DRAWS_AT_KINKS = 64
SHARED = 0  # seed of whatever all runs share
MOST_CERTAIN = 20_000  # certainty rows at most, and never more than a quarter of the table
FACTOR_ROWS = 256  # on which the error of whitening in float32 is measured
COORDINATE_ROWS = 2_048  # for choosing the coordinates of dispersions
CHAIN_ROWS, CHAIN_ROWS_LINEAR = 4_096, 2_048  # pilot rows that pilot chains run on
SCATTER = 0.1  # sd of their starts where the posterior may lie on one side of the mode
SHRUNK = 0.05  # share of the normal approximation in a covariance estimated from few draws
MOST_AXES = 64  # along which residuals are looked at far out
AXES_AT, AXES_ROWS = 4.0, 1_024  # distance and pilot rows by which they are chosen
NORMAL = 0.5  # sd of log posterior / normal approximation below which no pilot chains are run


@dataclass
class Study:
    """The pilot study of one run: control variates, design and residual moments."""

    method: EnergyConserving
    task: Task
    anchor: Anchor
    _pilots: dict[int, Pilot] = field(init=False, default_factory=dict)
    _coresets: dict[int, Coreset] = field(init=False, default_factory=dict)
    _ratios: np.ndarray = field(init=False)  # of proxy to normal approximation, at such draws
    _by_proxy: bool = field(
        init=False, default=False
    )  # whether draws come from the proxy's posterior

    def __post_init__(self) -> None:
        task, anchor, order = self.task, self.anchor, self.method.order
        self.control_variate = control_variate(task.target, order, self.method.precision)
        # Normal priors are folded into the proxy's quadratic, without its constant; the proxy of
        # groups evaluates the whole prior itself.
        self.folded_prior = 0.0
        if not isinstance(task.rows, GroupedRows):
            self.folded_prior = folded_prior(task.target, anchor.point)[0]
        self._some_rows: np.ndarray | None = None
        self.proxy, self.whitening = self._with_row_factor(self._proxy())
        # One Newton step from t* is where the posterior is: pilot draws about t* itself would
        # flatter the control variates, whose residuals vanish there. The mean is in its middle.
        self.centre = anchor.factor.T @ (anchor.A + self._prior_slope())
        if self.method.at_mean:
            self.centre = np.zeros_like(self.centre)
        weighing, self.draws = self._pilot_draws()
        self.expansion = self._expansion(weighing)
        if self.expansion.bend is not None:
            self.proxy = self.proxy._replace(bend=self.expansion.bend)
        self.design = DESIGNS[self.method.design]()
        self._weigh(self._straight(weighing), self.proxy)
        self.row_design: RowDesign = self.design
        if isinstance(task.rows, GroupedRows):
            self.row_design, _ = of_groups(self.design, self.tables, task.rows)
        self.slope_groups: Batch | None = None

    def _weigh(
        self, draws: np.ndarray, proxy: Proxy, stage: str = "design", by_draws: bool = False
    ) -> None:
        """Weigh all rows by the residuals to be expected of them, for every design."""
        facts = self._facts(draws, proxy, by_draws)
        self._weighted = design_tables(self.task, Weighted(), facts, stage)
        self.tables: Pytree = self._weighted
        if type(self.design) is not Weighted:
            self.tables = design_tables(self.task, self.design, facts, stage)

    def _proxy(self) -> Proxy:
        """The anchor's sums; those of groups in the coordinates that suit what groups say."""
        target, anchor, order = self.task.target, self.anchor, self.method.order
        if not isinstance(self.task.rows, GroupedRows):
            return proxy(anchor, target, order)
        unit = variance_unit(target.likelihood, anchor.point, self.task.rows)
        return group_proxy(anchor, target, order, unit)

    @property
    def arrow(self) -> bool:
        """Whether the effects of one factor are too many for dense matrices."""
        return isinstance(self.anchor.factor, ArrowFactor)

    def _with_row_factor(self, proxy: Proxy) -> tuple[Proxy, Tuning]:
        """The proxy with a factor by which rows of many columns are whitened faster, and why."""
        form, rows = self.control_variate, self.task.rows
        if not isinstance(form, LinearTaylor) or form.target.coding is not None:
            return proxy, {}
        if form.target.size < MANY or self.method.whitening != "auto":
            return proxy, {}
        if self._some_rows is None:
            at = np.unique(np.linspace(0, len(rows) - 1, FACTOR_ROWS).astype(int))
            self._some_rows = np.asarray(form.matrix(rows.take(at)).densely())
        factor, error = row_factor(np.asarray(proxy.factor)[: form.target.size], self._some_rows)
        why = f"in float32, whitened rows are off by {error:.1g} of their length"
        chosen: Chosen = {"value": str(factor.blocks[0].dtype), "why": why}
        return proxy._replace(row_factor=factor), {"whitening": chosen}

    def _straight(self, draws: np.ndarray) -> np.ndarray:
        """What control variates take of draws in which effects are relative to their scales."""
        if self.proxy.warp is None and not self.arrow:
            return draws
        return np.asarray(straightened(self.proxy, draws))

    def _prior_slope(self) -> np.ndarray:
        """Gradient of the log-prior at t*, or of its normal stand-in where it is not normal."""
        target, point = self.task.target, self.anchor.point
        if target.exact_prior is None:
            return prior_slope(target, point)[1]
        L = self.anchor.factor
        V = L.covariance if isinstance(L, ArrowFactor) else L @ L.T
        exact, numbers = target.exact_prior
        mean, precision = exact.normal_approximation(point, V, numbers)
        return np.asarray(folded_prior(target, point)[1] - precision @ (point - mean))

    def _pilot_draws(self) -> tuple[np.ndarray, np.ndarray]:
        """Approximate posterior draws in whitened coordinates: for weighting rows, and for study.

        They come from the normal approximation. Log standard deviations of groups may be far from
        normal; there, draws are resampled by the proxy, which is nearly exact in them.
        """
        size = len(self.centre)
        if not isinstance(self.control_variate, GroupTaylor):
            linear = isinstance(self.control_variate, LinearTaylor)
            number = PILOT_DRAWS if linear else OTHER_DRAWS
            weighing = self.centre[None]
            if not linear or self.proxy.warp is not None:  # else the spread is known: leverages
                count = DESIGN_DRAWS_AT_KINKS if self._has_kinks() else DESIGN_DRAWS
                rng = generator(SHARED, Stream.PILOT_DRAWS)
                weighing = weighing + rng.standard_normal((count, size))
            shared = generator(SHARED, Stream.STUDY_DRAWS)
            if self.proxy.warp is not None:
                draws = self._resampled(shared, EXPLICIT_CANDIDATES, number)
                if draws is not None:
                    return weighing, draws
            return weighing, self.centre + shared.standard_normal((number, size))
        rng = generator(self.task.seed, Stream.PILOT_DRAWS)
        draws = self._resampled(rng, CANDIDATES, RESAMPLED, least=0)
        assert draws is not None
        return draws[:DESIGN_DRAWS_OF_GROUPS], draws

    def _resampled(
        self, rng: np.random.Generator, candidates: int, count: int, least: int | None = None
    ) -> np.ndarray | None:
        """Draws from the posterior that the proxy implies, by importance resampling.

        None if the effective number of candidates is below `least` (by default `count`).
        """
        candidates = min(candidates, MOST_NUMBERS // len(self.centre))
        draws = self.centre + rng.standard_normal((candidates, len(self.centre)))
        ratios = proxy_ratios(self.control_variate, self.proxy, self.centre, draws)
        weights = np.exp(ratios - np.max(ratios))
        weights /= weights.sum()
        if 1 / np.sum(weights**2) < (count if least is None else least):
            return None
        self._by_proxy = True
        chosen = rng.choice(candidates, count, p=weights)
        self._ratios = ratios[chosen]
        return draws[chosen]

    def _has_kinks(self) -> bool:
        """Whether log-likelihoods of rows have a kink, which only a few draws in 100 may cross.

        A model of one's own without a mode may have one for this very reason.
        """
        model = self.task.target.model
        if self.method.at_mean:
            return True
        return isinstance(model, LinearPredictorModel) and not model.has_mode

    def _expansion(self, draws: np.ndarray) -> Expansion:
        """Choose the coordinates of the control variates, by residuals where there is a choice."""
        rows = self.task.rows
        grouped = isinstance(rows, GroupedRows)
        rng = generator(self.task.seed if grouped else SHARED, Stream.COORDINATE_ROWS)

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
            sums = self.task.sums
            expected = expected_residuals(sums, self.control_variate, proxy, draws, by_draws)
            if isinstance(sums.rows, GroupedRows):  # larger groups cost more
                assert isinstance(expected, np.ndarray)
                expected = expected / np.sqrt(sums.rows.index.size)
            return expected

        # Four bytes per row, which only a design of one's own asks for a second time.
        asked_twice = self.design.needs == "expected" and type(self.design) is not Weighted
        remembered = cache(expected) if asked_twice else expected
        return RowFacts(len(self.task.rows), PILOT_ROWS, remembered, floor=self.method.floor)

    def _take_rows(self, rng: np.random.Generator) -> None:
        """Draw the pilot rows, by their weights whatever the design that is studied."""
        rows, grouped = self.task.rows, isinstance(self.task.rows, GroupedRows)
        linear = isinstance(self.control_variate, LinearTaylor)
        most = PILOT_GROUPS if grouped else PILOT_ROWS if linear else OTHER_ROWS
        row_ids, chance, expected, self._certain_count = sample_on_host(
            rng, most, self._weighted, self.method.floor
        )
        self._drawn = Drawn(row_ids, chance)  # type: ignore[arg-type]
        self.pilot_rows = rows.take(row_ids) | {"probability": expected}
        if grouped:
            first = slice(None, SLOPE_GROUPS)
            self.slope_groups = rows.take(row_ids[first]) | {"probability": expected[first]}

    @cached_property
    def _residuals(self) -> Residuals:
        """Pilot rows evaluated at the pilot draws."""
        grouped = isinstance(self.task.rows, GroupedRows)
        seed = self.task.seed if grouped else SHARED
        rng = generator(seed, Stream.PILOT_ROWS if grouped else Stream.STUDY_ROWS)
        self._take_rows(rng)
        linear = isinstance(self.control_variate, LinearTaylor)
        log_proxy = None
        if not linear or not self._by_proxy:
            known = self._by_proxy and self.proxy.bend is None
            log_proxy = self._ratios if known else self._log_proxy(self.draws)
        evaluated = self._evaluated(log_proxy, resampled=self._by_proxy)
        if linear and np.std(evaluated.log_ratio) > NORMAL and evaluated.finite:
            draws = self._draws_of_short_chains()
            # Chains that go elsewhere say that the expansion is far off, and nothing of what is
            # there: the pilot rows were weighed for where it was thought to be.
            if np.abs(draws.mean(axis=0) - self.centre).max() <= FAR:
                self.draws = draws
                evaluated = self._evaluated_again(rng)
        if not evaluated.finite:
            bad = np.flatnonzero(~np.isfinite(evaluated.values).all(axis=1))
            t = self.anchor.point + self.anchor.factor @ evaluated.whitened[bad[0]]
            raise ConvergenceError(ends_near_the_mode(first_bad_row(self.task.sums, t)))
        return evaluated

    def _evaluated_again(self, rng: np.random.Generator) -> Residuals:
        """Residuals at draws of the posterior as it is, of rows that are weighed by these."""
        if isinstance(self.design, Weighted) and self.method.weighted_by_spread:
            straight = self._straight(self.draws)
            if self.arrow:
                every = max(1, len(straight) // SPREAD_DRAWS)
                self._weigh(straight[::every], self.proxy, "design-again", by_draws=True)
            else:
                nowhere = np.zeros((1, len(self.centre)))
                self._weigh(nowhere, self._spread_as(straight), stage="design-again")
            self._take_rows(rng)
        return self._evaluated()

    def _evaluated(self, log_proxy: np.ndarray | None = None, resampled: bool = False) -> Residuals:
        """Residuals of the pilot rows at the pilot draws."""
        self.task.ledger.add("pilot", len(self._drawn.row_ids) * len(self.draws), "density")
        about = (self.control_variate, self.pilot_rows, self.proxy)
        straight = self._straight(self.draws)
        whitened = self.draws if self.arrow else None
        return evaluate(*about, straight, log_proxy, self.slope_groups, resampled, whitened)

    def _spread_as(self, draws: np.ndarray) -> Proxy:
        """The proxy with a factor that gives standard normal numbers the spread of these draws.

        About the anchor, from which residuals grow. A row's expected residual then is that over
        the posterior as it is: a level of which all rows are alike has a long tail on one side.
        """
        count, size = draws.shape
        square = draws.T @ draws / count
        square = (1 - SHRUNK) * square + SHRUNK * np.eye(size)  # draws may be fewer than parameters
        factor = np.asarray(self.proxy.factor) @ np.linalg.cholesky(square)
        return self._with_row_factor(self.proxy._replace(factor=to_device(factor)))[0]

    def _draws_of_short_chains(self) -> np.ndarray:
        """Draws from the posterior that the pilot rows imply, where it is far from normal.

        With a linear predictor, a few thousand weighted rows have nearly the posterior of all rows,
        tails and skewed directions included.
        """
        rows = self._thinned_rows(CHAIN_ROWS_LINEAR)
        chains = run_pilot_chains(
            self.control_variate,
            rows,
            np.asarray(rows["probability"]),
            self.proxy,
            self.centre,
            key(SHARED, Stream.PILOT_CHAINS),
            SCATTER,
            OF_LEVELS if self.arrow else SIDE_BY_SIDE,
        )
        self.task.ledger.add("pilot", chains.evaluations, "gradient")
        return np.asarray(chains.position.reshape(-1, chains.position.shape[2]))

    def _thinned_rows(self, count: int) -> Batch:
        """The certainty rows of the pilot, and up to `count` of its other rows, reweighted."""
        others = len(self.pilot_rows["probability"]) - self._certain_count
        first = slice(0, self._certain_count + min(count, others))
        batch = {name: values[first] for name, values in self.pilot_rows.items()}
        expected = np.array(batch["probability"])
        expected[self._certain_count :] *= min(count, others) / max(others, 1)
        return batch | {"probability": expected}

    def _log_proxy(self, z: np.ndarray) -> np.ndarray:
        """Log ratio of proxy to normal approximation at these whitened points."""
        proxy = self.proxy
        bent = proxy.warp is not None or proxy.bend is not None
        if bent or proxy.prior is not None or self._has_own_prior():
            return proxy_ratios(self.control_variate, proxy, self.centre, z)
        curved = -z if proxy.B is None else z @ np.asarray(proxy.B)
        away = z - self.centre
        return np.asarray(np.sum(z * (np.asarray(proxy.a) + curved / 2) + away**2 / 2, axis=1))

    def _has_own_prior(self) -> bool:
        """Whether the proxy's quadratic leaves the prior out, as for a model of the user's own."""
        return not isinstance(self.task.target.model, LinearPredictorModel)

    @property
    def weight_tables(self) -> WeightTables:
        """Tables of the design that draws rows in proportion to their expected residual."""
        return self._weighted

    def certain(self, count: int) -> CertaintyRows | None:
        """The `count` rows that are expected to have the largest residuals."""
        return certainty_rows(self._weighted, count, self.method.floor) if count else None

    def pilot_with(self, certainty: int) -> Pilot:
        """Moments of the residuals of all rows but the certainty rows."""
        if certainty not in self._pilots:
            self._pilots[certainty] = self._residuals.pilot(self._probability(certainty))
        return self._pilots[certainty]

    def _probability(self, certainty: int) -> np.ndarray:
        """Probability of each pilot row under the design; zero for certainty rows."""
        certain, drawn = self.certain(certainty), self._drawn
        if certain is None:
            return self.design.probability_of(drawn, self.tables)
        tables = self.design.without(certain, self.tables)
        among = certain.probability(drawn)
        probability = self.design.probability_of(Drawn(drawn.row_ids, among), tables)  # type: ignore[arg-type]
        return np.where(among > 0, probability, 0.0)

    def coreset_with(self, certainty: int) -> Coreset | None:
        """Rows that follow l - sum q over all rows but the certainty rows.

        None for groups, whose rows differ in number, and for the effects of a factor that has too
        many of them: there are too many axes to go out on.
        """
        if isinstance(self.task.rows, GroupedRows) or self.arrow:
            return None
        if certainty not in self._coresets:
            far, log_posterior = self._far_out
            coreset = fit_coreset(self._residuals, far, log_posterior, self._probability(certainty))
            self._coresets[certainty] = coreset
        return self._coresets[certainty]

    @cached_property
    def _far_out(self) -> tuple[Residuals, np.ndarray]:
        """Pilot rows far out along axes, and the log-posterior there, relative to its mean's."""
        residuals = self._residuals
        middle = residuals.share @ residuals.whitened
        axes = self._skewed_axes(middle)
        points = middle + np.concatenate([t * axes for r in DISTANCES for t in (-r, r)])
        points = np.concatenate([middle[None], points])
        far = self._at(points, self.pilot_rows)
        height = far.log_ratio - np.sum((points - self.centre) ** 2, axis=1) / 2
        is_finite = np.isfinite(far.values).all(axis=1) & np.isfinite(height)
        is_finite[0] = False  # the mean itself
        finite = replace(far, values=far.values[is_finite], log_ratio=far.log_ratio[is_finite])
        return finite, (height - height[0])[is_finite]

    def _skewed_axes(self, middle: np.ndarray) -> np.ndarray:
        """Unit vectors of the whitened coordinates: where they are many, those that matter most."""
        axes = np.eye(len(middle))
        if len(axes) <= MOST_AXES:
            return axes
        rows = self._thinned_rows(AXES_ROWS)
        ends = self._at(middle + np.concatenate([-AXES_AT * axes, AXES_AT * axes]), rows)
        size = np.abs(ends.values).sum(axis=1).reshape(2, -1).max(axis=0)
        return np.asarray(axes[np.argsort(-np.nan_to_num(size, nan=np.inf))[:MOST_AXES]])

    def _at(self, points: np.ndarray, rows: Batch) -> Residuals:
        """Residuals of pilot rows at whitened points."""
        self.task.ledger.add("pilot", len(rows["probability"]) * len(points), "density")
        about = (self.control_variate, rows, self.proxy)
        return evaluate(*about, self._straight(points), self._log_proxy(points), resampled=True)

    @property
    def distance(self) -> float:
        """How far from the anchor the pilot draws' mean is, in whitened coordinates that are read.

        After residuals were evaluated they are draws of the posterior as it is.
        """
        read = self.task.target.likelihood.size
        return float(np.abs(self._straight(self.draws).mean(axis=0)[:read]).max())

    @property
    def most_certain(self) -> int:
        """The most certainty rows that are considered."""
        return min(MOST_CERTAIN, len(self.task.rows) // 4)

    def pilot_chains(self, certainty: int = 0) -> PilotChains | None:
        """Run short chains on some of the pilot rows; None where the posterior is nearly normal.

        None with a linear predictor too: where its posterior is not normal, the pilot draws come
        from such chains already.
        """
        if isinstance(self.control_variate, LinearTaylor):
            return None
        ratios = self._residuals.log_ratio
        if np.std(ratios) <= NORMAL:
            return None
        rows = self._thinned_rows(CHAIN_ROWS)
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
        return chains

    @property
    def steps(self) -> int:
        """Leapfrog steps to be expected per iteration."""
        return _expected_steps(self.method.hmc(split=False).trajectory, self.task.target.size)

    @property
    def fresh(self) -> float:
        """Cost of a fresh row, in evaluations of a row."""
        cost, factor = self.control_variate.fresh_cost, self.proxy.row_factor
        return cost if factor is None else 1 + (cost - 1) * share_of_work(factor)

    @cached_property
    def placed(self) -> Batch | Rows:
        """The rows on the device, or where they are."""
        return place_rows(_members(self.task.rows), self.method.memory_limit)


def _members(rows: Rows) -> Rows:
    """The rows behind the units, which row ids refer to."""
    return rows.members if isinstance(rows, GroupedRows) else rows


def _expected_steps(trajectory: float, size: int) -> int:
    """Leapfrog steps: the step size for an acceptance of .8 falls like d^(-1/4)."""
    return max(1, ceil(trajectory / (1.4 * size**-0.25)))

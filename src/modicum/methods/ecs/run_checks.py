"""Checks of an HMC-ECS run: of its plan, using the pilot study, and of its record afterwards.

Each warning says what is wrong and gives a remedy that applies in that case. Checks of the
perturbed method come first, then those of the signed method, then what they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from modicum.diagnostics import ess
from modicum.errors import CrudeControlVariateError, ModicumWarning, listed
from modicum.methods.ecs.signed_products import DEVIATIONS, FEWEST, NEARLY_ALL, ProductChoice
from modicum.methods.ecs.subsample import NOISY, Choice, seldom_exceeded
from modicum.methods.method import Tuning
from modicum.methods.pilot.anchored_proxy import StudySettings
from modicum.methods.pilot.pilot_residuals import Pilot, Tails
from modicum.methods.pilot.short_chains import ANCHOR_FAR, FAR, PilotChains
from modicum.methods.pilot.study import Study
from modicum.models import Target
from modicum.run.runner import History

# Warnings of the pilot study that draws would not come from the posterior.
UNFIT = frozenset({"posterior-not-normal", "mode-not-typical", "not-concave", "other-modes"})
# Those among them that an anchor at the mean may avoid.
MISLED = frozenset({"posterior-not-normal", "mode-not-typical", "not-concave"})
# Warnings that using all rows would cost less than subsampling.
COSTLY = frozenset({"groups-uneven"})
# Warnings that the run would end with doubts about its numbers.
DOUBTED = frozenset({"heavy-tails", "subsample-small", "tails-noisy"})
# Warnings that invalidate the bound on the bias of the perturbation.
BOUND_FALLS = UNFIT | {
    "subsample-small",
    "heavy-tails",
    "tails-noisy",
    "variance-high",
    "refreshes-refused",
    "anchor-far",
    "subsample-slow",
    "not-finite",
    "chains-stuck",
    "chain-rested",
    "divergences",
    "r-hat",
}
ALL_ROWS = "use method='nuts' on all rows"  # the remedy that always works
NOISY_SHARE = 0.05  # largest share of noisy draws in pilot chains; real tables have up to .01
# Noise of an estimate, as a share of the log-posterior's fall, at which chains may run off, and the
# fall beyond which they do not come. On inverse Gaussian tables with a rare level they ran off on
# half of the tables with a share of .5 and more, and on none with less.
CAUGHT_UP, REACHED = 0.5, 20.0
# Rows per step above which reading a quarter of all rows saves nothing: they are scattered in
# memory, while a pass over all rows is one product.
MANY = 10_000
LEAST_SIGN = 0.999  # mean sign below which chains get stuck behind sign boundaries


@dataclass(frozen=True)
class Case:
    """What remedies depend on: settings, target and number of rows."""

    settings: StudySettings
    target: Target
    n: int
    along_curves: np.ndarray | None = None  # whitened pilot draws, if they follow curves

    @classmethod
    def of(cls, study: Study) -> Case:
        """Return the case that was studied."""
        along_curves = None if study.curves is None else study.residuals.draws
        return cls(study.about.settings, study.task.target, len(study.task.rows), along_curves)

    @property
    def at_point(self) -> bool:
        """Whether control variates are expanded about a point that the user gave."""
        return self.settings.anchor == "anchor"

    @property
    def units(self) -> str:
        """What is subsampled: "rows" or "groups"."""
        return "groups" if self.target.model.integrated_group else "rows"

    @property
    def remedy(self) -> str:
        """The first thing to try if control variates are too crude."""
        if self.settings.design == "uniform":
            return 'use design="weighted"'
        if self.settings.order < 2:
            return "use control variates of order 2"
        if self.at_point:
            return 'anchor at the mode (anchor="mode")'
        if self.target.model.has_predictors:
            return "give a tighter prior, or drop or merge rare columns"
        return "give tighter priors, or reparametrise so that the posterior is closer to normal"

    def more_rows(self, m: int, factor: float) -> str:
        """Advise using `factor` times `m` rows, if there are enough of them."""
        subsample = ceil(m * factor / 100) * 100
        if 2 * subsample > self.n:
            return f"{self.remedy}, or {ALL_ROWS}"
        return f"use more {self.units}: method=mo.HMCECS(subsample={subsample})"

    @property
    def remedy_if_far(self) -> str:
        """The remedy if chains are far from the anchor."""
        return 'anchor at the mode (anchor="mode")' if self.at_point else ALL_ROWS


# The perturbed method ----------------------------------------------------------------------


@listed
def look_ahead(
    case: Case,
    pilot: Pilot,
    choice: Choice,
    bias: float,
    chosen: bool,
    advice: str | None,
) -> Iterator[ModicumWarning]:
    """Check the size of the subsample before the run.

    `chosen` says whether the pilot study chose m; `advice`, if not None, is what to do about too
    small an m besides the usual remedy.

    Raises
    ------
    CrudeControlVariateError
        If the control variates are too crude for any affordable subsample.
    """
    m = choice.subsample
    read = m + choice.certainty
    if chosen and 2 * read > case.n:
        raise _crude(case, read, 100)
    yield from _more_than_all(case, read)
    largest = seldom_exceeded(pilot) / m
    expected = choice.bias_bound
    if expected > 2 * bias or largest > 2 * NOISY:
        yield ModicumWarning(
            "subsample-small",
            f"{m:,} {case.units} are too few: the log-likelihood estimate has a variance of "
            f"up to {largest:.3g}, and posterior means may be off by about "
            f"{min(expected, 99):.2g} posterior sd",
            case.remedy if advice is None else f"{advice}, or {case.remedy}",
            rows=m,
            variance=largest,
            bias=expected,
        )
    if pilot.tail > 0.7 or pilot.top_share > 0.95:
        yield ModicumWarning(
            "heavy-tails",
            f"the residuals are heavy-tailed under this design: 1 % of the draws hold "
            f"{pilot.top_share:.0%} of the variance (Pareto k {pilot.tail:.2f}), so that a "
            "subsample rarely reveals its own error",
            case.remedy,
            top_share=pilot.top_share,
            pareto_k=pilot.tail,
        )


@listed
def check_pilot_chains(case: Case, chains: PilotChains, m: int) -> Iterator[ModicumWarning]:
    """Check with short chains whether the posterior lies where the pilot study looked."""
    variance = chains.variance / m
    share = float(np.mean(variance > NOISY))
    distance = chains.distance(case.target.likelihood.size)
    if distance > FAR:
        yield ModicumWarning(
            "mode-not-typical",
            f"short chains on {chains.rows:,} {case.units} moved {distance:.1f} posterior sd "
            f"away from the {case.settings.anchor}, so that the pilot study there does not "
            "describe the posterior",
            case.remedy_if_far,
            distance=distance,
        )
    elif share > NOISY_SHARE:
        yield ModicumWarning(
            "posterior-not-normal",
            f"the posterior is far from normal: with {m:,} {case.units} the log-likelihood "
            f"estimate had a variance above {NOISY:g} in {share:.0%} of the draws of short chains "
            f"on {chains.rows:,} {case.units} (up to {variance.max():.3g}), where draws do not "
            "follow the posterior",
            f"{case.remedy}, or {ALL_ROWS}",
            share=share,
            largest=float(variance.max()),
        )


@listed
def check_tails(case: Case, tails: Tails | None, m: int) -> Iterator[ModicumWarning]:
    """Check whether estimates are noisier far out than the log-posterior falls.

    Chains that get there meet a subsample by whose estimate the log-posterior rises, and run off.
    """
    if tails is None:
        return
    noise, fall = np.sqrt(tails.variance / m), np.maximum(tails.fall, 1.0)
    ratio = np.nan_to_num(np.where(fall < REACHED, noise / fall, 0.0), nan=0.0)
    worst = int(np.argmax(ratio))
    if not ratio[worst] > CAUGHT_UP:
        return
    yield ModicumWarning(
        "tails-noisy",
        f"{tails.distance[worst]:.0f} posterior sd from the posterior's mean, on one side, the "
        f"log-posterior has fallen by {tails.fall[worst]:.1f} only, and its estimate by {m:,} "
        f"rows has a standard deviation of {noise[worst]:.1f} there, so that chains may run "
        "off",
        f"{case.remedy}, or {ALL_ROWS}",
        distance=tails.distance[worst],
        fall=tails.fall[worst],
        noise=noise[worst],
    )


@listed
def check_short_chains(case: Case, stuck: bool) -> Iterator[ModicumWarning]:
    """Check whether the short chains whose draws the choice of rows rests on moved at all."""
    if not stuck:
        return
    yield ModicumWarning(
        "posterior-not-normal",
        "the posterior is far from normal: short chains on some of the rows hardly moved, so "
        "that the number of rows that a step needs is unknown, and chains may not move either",
        f"{case.remedy}, or {ALL_ROWS}",
    )


@listed
def look_back(
    case: Case, m: int, blocks: int, refreshes: int, history: History
) -> Iterator[ModicumWarning]:
    """Check the run by its recorded statistics."""
    variance = history.stats["variance_estimate"]
    share = float(np.mean(variance > NOISY))
    if share > 0.01:
        factor = float(np.quantile(variance, 0.99)) / NOISY
        yield ModicumWarning(
            "variance-high",
            f"the variance of the log-likelihood estimate exceeded {NOISY:g} in {share:.0%} of "
            f"the draws (up to {variance.max():.3g}), where the perturbed target is no longer "
            "close to the posterior",
            case.more_rows(m, 1.2 * factor),
            share=share,
            largest=float(variance.max()),
        )
    advice = case.more_rows(m, 2) + (" or more blocks" if blocks < m else "")
    yield from _wandering(case, blocks, refreshes, history, advice)


def withdraw_bound(tuning: Tuning, doubts: Sequence[ModicumWarning]) -> None:
    """Withdraw the bias bound if the run gave a reason to distrust it."""
    reasons = [doubt for doubt in doubts if doubt.code in BOUND_FALLS]
    if reasons and "bias_bound" in tuning:
        tuning["bias_bound"] = {
            "value": None,
            "why": f"withdrawn, since {reasons[0].sentence}",
        }


# The signed method -------------------------------------------------------------------------


@listed
def look_ahead_signed(
    case: Case, pilot: Pilot, choice: ProductChoice, chosen: bool
) -> Iterator[ModicumWarning]:
    """Check the number of products before the run; `chosen` says whether the study chose it.

    Raises
    ------
    CrudeControlVariateError
        If the control variates are too crude for any affordable number of products.
    """
    expected = choice.products * choice.batch + choice.always
    too_many = 4 if expected > MANY else 2
    if chosen and too_many * expected > case.n:
        raise _crude(case, expected, FEWEST * choice.batch + choice.always)
    yield from _more_than_all(case, expected)
    deviation = pilot.quantile(np.sqrt(pilot.variance / choice.batch), NEARLY_ALL)
    if choice.products < DEVIATIONS * deviation or choice.chain_sign < LEAST_SIGN:
        advice = case.remedy if chosen else f"leave `products` out, or {case.remedy}"
        yield ModicumWarning(
            "products-few",
            f"{choice.products} products are too few: factors vary by "
            f"{deviation / choice.products:.0%} of their size ({choice.positive:.1%} of the "
            f"estimates are positive, and the expected mean sign is {choice.chain_sign:.2f}), "
            "so that chains get stuck behind sign boundaries",
            advice,
            products=choice.products,
            positive=choice.positive,
            mean_sign=choice.chain_sign,
        )


@listed
def look_back_signed(
    case: Case, room: int, blocks: int, refreshes: int, history: History
) -> Iterator[ModicumWarning]:
    """Check the run by its recorded statistics; `room` is the capacity for factors."""
    stats = history.stats
    negative = float(np.mean(stats["sign"] < 0))
    if negative > 0.005:
        yield ModicumWarning(
            "signs-negative",
            f"{negative:.1%} of the draws have a negative sign, and the chain crosses sign "
            "boundaries only when rows are refreshed",
            "use more products or more rows in each (batch)",
            negative=negative,
        )
    near = float(np.mean(stats["smallest_factor"] < 0.1))
    if near > 0.01:
        yield ModicumWarning(
            "sign-boundary",
            f"{near:.0%} of the draws lie close to a sign boundary (a factor below 0.1), where "
            "log |Lhat| is unbounded below and trajectories are turned back",
            "use more products",
            share=near,
        )
    full = float(np.mean(stats["factors"] >= 0.9 * room))
    if full > 0.001:
        anchor = 'anchor at the mode (anchor="mode") or ' if case.at_point else ""
        yield ModicumWarning(
            "factors-full",
            f"{full:.1%} of the draws used nearly all of the {room} factors that there is room "
            "for, which truncates the tails of the posterior",
            f"{anchor}use more products",
            share=full,
            room=room,
        )
    advice = "use more products or more blocks"
    yield from _wandering(case, blocks, refreshes, history, advice)


# Both methods ------------------------------------------------------------------------------


def _crude(case: Case, m: int, smallest: int) -> CrudeControlVariateError:
    """Say why these rows should not be subsampled; `smallest` is the smallest sensible size."""
    if m <= smallest:
        return CrudeControlVariateError(
            f"{case.n:,} {case.units} are too few for subsampling to pay ({m:,} would be "
            "used at every step)",
            ALL_ROWS,
        )
    needed = f"{m:,} of {case.n:,} {case.units} would be needed at every step"
    if m > case.n:
        needed = f"more would be needed at every step than the {case.n:,} {case.units} there are"
    return CrudeControlVariateError(
        f"the control variates are too crude here: {needed}", f"{case.remedy}, or {ALL_ROWS}"
    )


def _more_than_all(case: Case, m: int) -> Iterator[ModicumWarning]:
    if m <= case.n:
        return
    yield ModicumWarning(
        "subsample-exceeds-rows",
        f"a subsample of {m:,} is larger than the data set of {case.n:,} {case.units}, so that "
        "a step costs more than one on all rows, which would be exact",
        ALL_ROWS,
        subsample=m,
        rows=case.n,
    )


def _wandering(
    case: Case, blocks: int, refreshes: int, history: History, if_refused: str
) -> Iterator[ModicumWarning]:
    """Check how the subsample mixed, and how far the chains went from the anchor."""
    accepted = float(history.stats["acceptance_rate_u"].mean())
    if accepted < 0.2:
        yield ModicumWarning(
            "refreshes-refused",
            f"only {accepted:.0%} of the subsample refreshes were accepted, so rows hardly change",
            if_refused,
            accepted=accepted,
        )
    yield from _far(case, history)
    trace = history.stats["difference_estimate"]
    # Residuals that vanish (a quadratic log-likelihood) have nothing to mix.
    if history.position.shape[1] >= 100 and np.ptp(trace) > 0:
        effective = float(np.nanmin(ess(trace[..., None])))
        if effective < 50:
            yield ModicumWarning(
                "subsample-slow",
                f"the subsample mixes slowly: {trace.size} draws are worth "
                f"{effective:.0f} independent subsamples",
                f"raise `refreshes` (now {refreshes} of {blocks} blocks per iteration)"
                if refreshes < blocks
                else "use more draws (every block is refreshed at every iteration already)",
                ess=effective,
            )


def _far(case: Case, history: History) -> Iterator[ModicumWarning]:
    """Check how far the chains went from where residuals were studied, usually the anchor.

    With curves, pilot draws lie where the posterior does, however far from the anchor, and rows
    were chosen by their residuals there.
    """
    # Parameters of priors come last, and are not expanded about the anchor.
    likelihood_size = case.target.likelihood.size
    mean = history.position.mean(axis=(0, 1))[:likelihood_size]
    where = f"{case.settings.anchor}, about which control variates are expanded: they are crude"
    if case.along_curves is not None:
        looked_at = case.along_curves[:, :likelihood_size]
        mean = (mean - looked_at.mean(axis=0)) / np.maximum(looked_at.std(axis=0), 1.0)
        where = "pilot draws by which rows were chosen: the pilot study does not hold"
    distance = float(np.abs(mean).max())
    if not distance > ANCHOR_FAR:
        return
    yield ModicumWarning(
        "anchor-far",
        f"the chains' mean lies {distance:.1f} posterior sd from the {where} there",
        case.remedy_if_far,
        distance=distance,
    )

"""The anchor: everything computed at the expansion point t*."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, eigh

from modicum.errors import ConvergenceError, ModicumWarning, NoModeError, NoNoiseError, listed
from modicum.linalg.arrow import ArrowFactor, ArrowMatrix, Factor, Symmetric, diagonal
from modicum.models import Target
from modicum.models.model import DENSE_LIMIT
from modicum.models.priors.resolved import prior_warnings
from modicum.passes.curvature import (
    Curvature,
    curvature,
    flat_prior,
    parameter_name,
    whitening,
    whitening_factor,
)
from modicum.passes.hyperparameters import group_notes, settle, with_scale_widths
from modicum.passes.mode import (
    TOLERANCE,
    EndlessError,
    ModeRecord,
    find_mode,
    is_remote,
    quasi_newton_on_subset,
    require_noise,
    require_proper,
)
from modicum.passes.other_modes import Modes, Starts, find_modes
from modicum.passes.sums import Sums

# Thresholds for suspecting separation, which is then checked at the cost of a pass:
LIKELY = -0.2  # log-likelihood per row above which outcomes are predicted well
VAGUE = 0.1  # posterior sd, in prior sds, along a separated direction
WIDE = 5.0  # posterior sd of a coefficient: much for a level, however wide its prior is
# Thresholds for other warnings:
COLLINEAR = 1e-6  # below this share the data do not inform the direction at all
CANCELS = 0.1  # share of the columns' information left along a collinear direction
DULL = 0.1  # share of the prior's information below which the data are uninformative
SILENT = 1e150  # sd that stands for one without a bound


@dataclass(frozen=True)
class Anchor:
    """Sums over all rows at t*, and the factor that whitens the posterior there.

    Attributes
    ----------
    point
        The expansion point t*.
    C, A, B
        Log-likelihood at t*, its gradient and Hessian (A and B: HMC-ECS paper, below eq. 4.7).
    factor
        L with t = t* + L z: in z the posterior is close to standard normal. L L' is the inverse of
        minus the Hessian of the log-posterior.
    record
        How the mode was found; None for an anchor elsewhere.
    notes
        Warnings: directions the data do not inform, a Hessian that had to be repaired, other modes.
    modes
        All modes that are not negligible, this one first; None if no others were searched for.
    """

    point: np.ndarray
    C: float
    A: np.ndarray
    B: Symmetric
    factor: Factor
    record: ModeRecord | None = None
    notes: list[ModicumWarning] = field(default_factory=list)
    modes: Modes | None = None

    @property
    def sd(self) -> np.ndarray:
        """Posterior standard deviations of the Laplace approximation."""
        return ArrowFactor.of(self.factor).sd

    @property
    def dense_factor(self) -> np.ndarray:
        """The factor, which must be dense."""
        assert isinstance(self.factor, np.ndarray)
        return self.factor

    @property
    def dense_hessian(self) -> np.ndarray:
        """B, which must be dense."""
        assert isinstance(self.B, np.ndarray)
        return self.B

    def whiten(self, t: np.ndarray) -> np.ndarray:
        """Return the coordinates z of `t`, of shape (..., d)."""
        away = t - self.point
        lines = ArrowFactor.of(self.factor).lines_whitened(away.reshape(-1, len(self.point)))
        return lines.reshape(away.shape)


def anchor_at(sums: Sums, t: np.ndarray) -> Anchor:
    """Build the anchor at any point, in one pass."""
    flat = flat_prior(sums.target)
    at = curvature(sums, np.asarray(t, np.float64), "anchor", flat)
    if flat is not None:
        at, _ = settle(at, sums.target)
    return _from_curvature(at, None, (), sums)


def anchor_at_mode(
    sums: Sums,
    start: np.ndarray,
    names: tuple[str, ...] = (),
    seed: int = 0,
    within: float = TOLERANCE,
    starts: Starts | None = None,
) -> Anchor:
    """Find the posterior mode, to `within` standard deviations, and build the anchor there.

    With `starts`, other modes are searched for, and the anchor is at the heaviest.

    Models of more than 2,000 parameters form no Hessian, unless all but 2,500 are effects of one
    factor: their anchor is the point that L-BFGS reaches on a subset, with a factor that only sets
    the scale. Networks of fewer parameters are anchored at that point too, with a factor from the
    absolute curvature there: they have many modes, which may lie on a kink.
    """
    if sums.target.size > DENSE_LIMIT and sums.target.arrow is None:
        point = quasi_newton_on_subset(sums, start, seed)
        value, gradient = sums.gradient(point, "anchor")
        return Anchor(point, value, gradient, np.zeros((0, 0)), np.ones(len(point)), None, [])
    if not sums.target.model.has_mode:
        return _absolute(sums, start, seed)
    start, (at, record) = _first_mode(sums, start, starts or Starts(), seed, within)
    require_proper(sums, at, names)
    modes = None
    if starts is not None and starts.more_than_first:
        (at, *_), modes = find_modes(sums, at, start, starts, within, seed)
        record = replace(record, gradient_norm=at.gradient_norm)
    anchor = replace(_from_curvature(at, record, names, sums), modes=modes)
    anchor = replace(anchor, notes=_notes_of_mode(sums, anchor, names))
    if modes is not None:
        anchor.notes.extend(modes.unvisited_warnings(1, names))
    return anchor


def _notes_of_mode(sums: Sums, anchor: Anchor, names: tuple[str, ...]) -> list[ModicumWarning]:
    """Warn if data and prior disagree, or if the data are uninformative, and say why.

    Separation explains a dominating or a conflicting prior; a conflicting prior explains data that
    seem uninformative. Only the cause is reported.
    """
    # Effects cannot be too far from their prior, since its scale is sampled.
    whole = ArrowFactor.of(anchor.factor)
    factor, places = np.asarray(whole.corner), np.asarray(whole.border)
    distances = sums.target.prior_distances(anchor.point, places)
    if distances is None:
        return anchor.notes
    away, slope = distances
    spread = np.sqrt(np.sum((slope @ factor) ** 2, axis=1))  # in prior sds
    called = tuple(parameter_name(names, int(i)) for i in places)
    causes = prior_warnings(called, away, spread, sums.target.has_normal_prior[places])
    per_row = anchor.C / len(sums.rows)
    vague = np.any(spread > VAGUE) or np.any(np.linalg.norm(factor, axis=1) > WIDE)
    doubtful = causes or per_row > LIKELY or vague
    # Group effects have their own priors, and a sample of rows need not contain all groups.
    if doubtful and not sums.target.model.has_groups and sums.rest is None:
        model = sums.target.model
        theta = model.coefficients(sums.target.unravel(anchor.point))
        separated, passes = model.separation(sums.rows, theta)
        sums.enter("separation", passes, "density", passes)
        causes = causes if separated is None else [separated]
    return with_causes(causes, anchor.notes)


def with_causes(causes: list[ModicumWarning], notes: list[ModicumWarning]) -> list[ModicumWarning]:
    """Add warnings about priors to others, less those that they explain."""
    if not causes:
        return notes
    silent = [n for n in notes if n.code == "prior-decides"]
    collinear = [n for n in silent if abs(n.numbers["information"]) < COLLINEAR]
    return causes + [n for n in notes if n not in silent] + collinear


def _first_mode(
    sums: Sums, start: np.ndarray, starts: Starts, seed: int, within: float
) -> tuple[np.ndarray, tuple[Curvature, ModeRecord]]:
    """Return the first start from which a mode is reached, and that mode."""
    try:
        return start, find_mode(sums, start, seed, within=within)
    except ConvergenceError as fault:
        for other in starts.points:
            with suppress(ConvergenceError):
                return other, find_mode(sums, other, seed, within=within)
        if _may_have_none(sums, start, fault):
            reason = str(fault).removesuffix(".")
            raise NoModeError(f"{reason}; or use method='nuts', which needs no mode.") from fault
        raise


def _may_have_none(sums: Sums, start: np.ndarray, fault: ConvergenceError) -> bool:
    """Whether the posterior may be proper although no mode was found.

    A kink or a funnel of a user's model is valid, and so is a family's posterior that Newton does
    not climb, unless it needs a mode: quadrature nodes and digests are placed at it, it shows
    whether flat priors leave the posterior improper, and an outcome of too few digits is sampled no
    better than it is climbed. A start with a NaN is not valid, nor is an unbounded log-posterior.
    """
    if isinstance(fault, EndlessError | NoNoiseError):
        return False
    model = sums.target.model
    placed = model.integrated_group is not None or sums.rest is not None
    needed = placed or model.has_flat_prior or is_remote(sums)
    if needed and not model.users_functions:
        return False
    return curvature(sums, start, "mode", flat_prior(sums.target)).finite


def _from_curvature(
    at: Curvature, record: ModeRecord | None, names: tuple[str, ...], sums: Sums
) -> Anchor:
    notes: list[ModicumWarning] = []
    at = with_scale_widths(at, sums.target)
    factor, mended = whitening(at.precision)
    if mended:
        notes.append(
            ModicumWarning(
                "not-concave",
                "the log-posterior is not concave at the anchor (its Hessian is not negative "
                "definite), so the mass matrix was built from the absolute curvature instead",
            )
        )
    notes.extend(_prior_decides(at, names, sums))
    if sums.target.exact_prior is not None:
        covariance = ArrowFactor.of(factor).covariance
        notes.extend(group_notes(sums.target, at.point, covariance, names))
    return Anchor(at.point, at.C, at.A, at.B, factor, record, notes)


@listed
def _prior_decides(at: Curvature, names: tuple[str, ...], sums: Sums) -> Iterator[ModicumWarning]:
    """Warn if the prior dominates the data along some direction, and say why."""
    information, prior, names, entries = _compared(at, names, sums.target)
    if sums.target.model.has_predictors:
        yield from prior_decides(information, prior, names)
        return
    dull = Dull.of(information, prior, names)
    if dull is None:
        return
    full_direction = np.zeros(len(at.point))
    full_direction[entries] = dull.direction
    # Of a model without columns, the second derivative may hide what the data say. So the
    # information is that of a quadratic with the same fall of the log-likelihood at one prior sd.
    ends = sums.values(np.stack([at.point + full_direction, at.point - full_direction]), "anchor")
    told = float(-(ends.sum() - 2 * at.C))
    if not told < 1:  # also if NaN, which tells nothing
        yield ModicumWarning(
            "not-quadratic",
            f"along {dull.along} the log-likelihood has almost no second derivative at the "
            "mode and falls nevertheless (it has a kink there, or its curvature changes fast), "
            "so the Laplace approximation and Taylor proxies do not hold",
            "use method='nuts', or write the likelihood with a smooth function",
            information=told,
        )
    else:
        yield ModicumWarning(
            "prior-decides",
            f"the data add next to nothing to what the prior says about {dull.along}, so the "
            "posterior there is the prior",
            "choose that prior with care; in a hierarchical model, where the scale of an effect's "
            "prior is a parameter, this may be as intended",
            information=told,
        )


class Dull(NamedTuple):
    """The direction, one standard deviation of the prior, about which the data say least."""

    ratio: float  # information of the data over that of the prior
    direction: np.ndarray
    top: list[int]  # the entries that matter most
    along: str  # their names

    @classmethod
    def of(cls, information: np.ndarray, prior: np.ndarray, names: tuple[str, ...]) -> Dull | None:
        """Find it; None if the data say enough about all of them."""
        with suppress(np.linalg.LinAlgError, ValueError):
            cholesky(information - DULL * prior)  # all ratios exceed DULL: a tenth of eigh's time
            return None
        try:
            ratios, vectors = eigh(information, prior, subset_by_index=[0, 0])
        except (np.linalg.LinAlgError, ValueError):
            return None  # an improper or non-concave prior: nothing to compare with
        if not len(ratios) or ratios[0] > DULL:
            return None
        direction = vectors[:, 0]
        share = np.abs(direction) / _marginal_sds(prior)  # independent of the columns' units
        order = np.argsort(-np.round(share / share.max(), 6), kind="stable")  # ties as in the table
        top = [int(i) for i in order[:3] if share[i] > 0.3 * share[order[0]]]
        along = ", ".join(parameter_name(names, i) for i in top)
        return cls(float(ratios[0]), direction, top, along)


@listed
def prior_decides(
    information: np.ndarray, prior: np.ndarray, names: tuple[str, ...]
) -> Iterator[ModicumWarning]:
    """Warn if the prior of coefficients dominates the data along some direction, and say why."""
    dull = Dull.of(information, prior, names)
    if dull is None:
        return
    alone = np.sum(dull.direction**2 * np.diag(information))  # if columns were orthogonal
    if len(dull.top) > 1 and dull.ratio < CANCELS * alone:
        yield ModicumWarning(
            "prior-decides",
            f"the data say next to nothing about {dull.along} (or a combination of them), so "
            "the posterior there is the prior: these columns are collinear, or nearly so",
            "drop a column, merge levels, or choose that prior with care",
            information=dull.ratio,
        )
        return
    i = dull.top[0]
    prior_sd, data_sd = float(_marginal_sds(prior)[i]), float(_marginal_sds(information)[i])
    told = f"that of the likelihood alone is {data_sd:.2g}"
    told = told if data_sd < SILENT else "the likelihood does not depend on it"
    yield ModicumWarning(
        "prior-decides",
        f"the prior decides about {dull.along}: its standard deviation for "
        f"{parameter_name(names, i)} is {prior_sd:.2g}, and {told}",
        "if that prior is narrower than you believe, widen it (prior_scale); otherwise the "
        "data say little about it: few rows of a level, or a level without both outcomes",
        information=dull.ratio,
        prior_sd=prior_sd,
        data_sd=data_sd,
    )


def _compared(
    at: Curvature, names: tuple[str, ...], target: Target
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], np.ndarray]:
    """Return the information of data and prior, with names and indices of the entries compared.

    Entries with a flat prior, or one meant to decide where the data are silent (a horseshoe), are
    not compared: a Schur complement marginalises them out of the data's information.
    """
    B, prior_hessian = ArrowMatrix.of(at.B), ArrowMatrix.of(at.prior_hessian)
    places = np.asarray(B.border)  # effects are marginalised, as data and prior know them
    information = (-replace(B, blocks=B.blocks + prior_hessian.blocks)).border_alone()
    information, prior = (information + information.T) / 2, -np.asarray(prior_hessian.corner)
    left_out = (target.not_compared | (-prior_hessian.diagonal() <= 0))[places]
    if not left_out.any():
        return information, prior, names, places
    own = np.flatnonzero(~left_out)
    kept_names = tuple(parameter_name(names, int(i)) for i in places[own])
    total = information + np.where(left_out[:, None] & left_out[None, :], prior, 0.0)
    across, others = total[np.ix_(own, left_out)], total[np.ix_(left_out, left_out)]
    explained = across @ np.linalg.lstsq(others, across.T, rcond=None)[0]
    information = total[np.ix_(own, own)] - explained
    return (information + information.T) / 2, prior[np.ix_(own, own)], kept_names, places[own]


def _marginal_sds(precision: np.ndarray) -> np.ndarray:
    """Return the marginal sds of a normal distribution; conditional sds if it is improper."""
    try:
        inverse = cho_solve(cho_factor(precision), np.eye(len(precision)))
        return np.asarray(np.sqrt(np.diag(inverse)))
    except np.linalg.LinAlgError:
        return np.asarray(1 / np.sqrt(np.maximum(np.diag(precision), SILENT**-2)))


def _absolute(sums: Sums, start: np.ndarray, seed: int) -> Anchor:
    point = quasi_newton_on_subset(sums, start, seed)
    require_noise(sums, point, converged=False)
    at = curvature(sums, point, "anchor")
    # no wider than the prior anywhere: at a saddle the two curvatures may cancel
    least = float(np.min(-diagonal(at.prior_hessian)))
    factor, _ = whitening_factor(at.dense_precision, least=least)
    return Anchor(at.point, at.C, at.A, at.B, factor, None, [])

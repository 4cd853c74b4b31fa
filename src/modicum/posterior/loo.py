"""Leave-one-out cross-validation without refitting, from a few thousand of the rows.

With r_s = 1 / p(y_i | theta_s), Pareto-smoothed and normalised, the log predictive density of row i
given all others is

    e_i = log sum_s r_s p(y_i | theta_s)                          (Vehtari, Gelman and Gabry 2017)

The sum over all rows needs no array of draws x rows: one pass gives an approximation a_i of every
e_i from a few draws, and m rows, drawn with probabilities q_i in proportion to the likely error of
a_i, correct the sum (difference estimator; Magnusson, Andersen, Jonasson and Vehtari 2019, 2020):

    elpd = sum_i a_i + (1/m) sum_j (e_j - a_j) / q_j.

Signs s of draws (eq. 5.3 of the HMC-ECS paper) enter numerator and denominator: e_i is then the log
of sum_s s r_s p(y_i | theta_s) / sum_s s r_s.

The error of a_i grows with the variance of the row's log-likelihood over the draws, which is about
the row's share of the effective number of parameters. If effects are integrated out, the unit left
out is a group.

No weights help if the draws do not cover the posterior without the row. Newton's method finds that
posterior's mode, from the mode with the row, in a few passes; and the row's predictive density is
the ratio of two normalising constants, Z with the row and Z_i without it,

    log p(y_i | y_-i) = log Z - log Z_i,

each an average of importance weights at points of a normal fitted to its posterior, with all rows
evaluated at all points in one pass. Pareto k shows whether the normals fit. (Paananen,
Piironen, Bürkner and Vehtari 2021 move the draws until their moments match, in passes per row.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from modicum.arguments import FromTwo, at_least
from modicum.diagnostics.convergence import ess_mean
from modicum.diagnostics.weighted import kish_share, rows_smoothed
from modicum.errors import ModicumWarning, SettingError, too_few, warn_of
from modicum.ledger import Ledger
from modicum.libraries import arviz_stats
from modicum.libraries import xarray as xr
from modicum.linalg.arrow import plus
from modicum.models.model import DENSE_LIMIT
from modicum.passes import LocalEngine, Sums
from modicum.passes.curvature import curvature
from modicum.passes.sums import LeftOut, approximately_left_out, log_likelihoods
from modicum.posterior.evidence import NormalProposal, average, log_joint
from modicum.posterior.fit_rows import RowsLike
from modicum.posterior.fitted import FittedDraws, evenly_spaced, sums_at, thinned
from modicum.posterior.group_effects import group_levels
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.grouped_rows import as_groups
from modicum.rows.reading import whole_field

EVEN = 0.1  # share of the sample that is drawn uniformly


class SumEstimate(NamedTuple):
    """An estimated sum over all rows, and its variance due to sampling rows."""

    value: float
    variance: float


@dataclass(frozen=True)
class RowSample:
    """Distinct rows that were drawn with replacement, or all rows.

    Attributes
    ----------
    row_ids
        Indices of the rows (or groups), ascending, in the order that all models share.
    times
        How often each was drawn; None if the sample is all rows.
    probability
        Probability of each row in one draw.
    """

    row_ids: np.ndarray
    times: np.ndarray | None
    probability: np.ndarray

    @classmethod
    def drawn(cls, size: np.ndarray, number: int, seed: int) -> RowSample:
        """Draw rows with probability proportional to `size`, and a few uniformly."""
        total = size.sum(dtype=float)
        even = EVEN if total > 0 else 1.0
        share = even / len(size) + (1 - even) * size.astype(float) / (total or 1.0)
        edges = np.cumsum(share)
        uniform = generator(seed, Stream.LEFT_OUT_ROWS).random(number) * edges[-1]
        ids = np.searchsorted(edges, uniform, side="right")
        row_ids, times = np.unique(np.minimum(ids, len(size) - 1), return_counts=True)
        return cls(row_ids, times, share[row_ids] / edges[-1])

    def total(self, rest: np.ndarray) -> SumEstimate:
        """Estimate the sum of `rest` over all rows from its values at the sample."""
        if self.times is None:
            return SumEstimate(float(rest.sum()), 0.0)
        m = int(self.times.sum())
        expanded = rest / self.probability
        value = float(self.times @ expanded) / m
        return SumEstimate(value, float(self.times @ (expanded - value) ** 2) / (m * max(m - 1, 1)))


POINTS = 1_000  # at which all rows are evaluated, per row that is left out
WORST_TAIL = 1 - 1 / np.log10(POINTS)  # largest reliable Pareto k for this number of points
MOST_UNITS = 20  # rows left out this way; if more need it, the model is at fault
STEPS = 50  # most Newton steps, including halved ones
CLOSE = 1e-3  # Newton's method stops at a step this long, in posterior standard deviations
ROUNDING = 1e-12  # relative decrease of a log-density that counts as rounding


Subject: TypeAlias = tuple[FittedDraws, Rows, np.ndarray | None]
"""A fit, its rows, and the index of each in the table; None if they are in the table's order."""


def leave_out_anew(
    sums: Sums,
    mean: np.ndarray,
    row_ids: np.ndarray,
    share: np.ndarray,
    random_seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Leave out a `share` of each of these rows (or groups), given the posterior mean.

    Return their log predictive densities and Pareto k, which is infinite where that fails.
    """
    elpd, pareto_k = np.full(len(row_ids), np.nan), np.full(len(row_ids), np.inf)
    if len(mean) > DENSE_LIMIT:
        return elpd, pareto_k
    units = [(int(row), float(part)) for row, part in zip(row_ids, share, strict=True)]
    about = NormalProposal.expanding(curvature(sums, mean, "leave-one-out"))
    if about is None:
        return elpd, pareto_k
    rng = generator(random_seed, Stream.LEFT_OUT_POINTS)
    without = [(k, _normal_without(sums, about.mean, *unit)) for k, unit in enumerate(units)]
    placed = [(k, normal) for k, normal in without if normal is not None]
    normals = [about, *(normal for _, normal in placed)]
    drawn = np.stack([normal.draw(rng, POINTS) for normal in normals])
    log_ratio = log_joint(sums, drawn.reshape(-1, len(mean)), "leave-one-out").reshape(-1, POINTS)
    log_ratio -= [normal.log_density(at) for normal, at in zip(normals, drawn, strict=True)]
    for (k, _), points, ratio in zip(placed, drawn[1:], log_ratio[1:], strict=True):
        row, part = units[k]
        above, tail = average(log_ratio[0] + (1 - part) * _row_values(sums, row, drawn[0]))
        below, tail_below = average(ratio - part * _row_values(sums, row, points))
        elpd[k] = above.value - below.value
        pareto_k[k] = max(tail, tail_below)
    return elpd, pareto_k


def _normal_without(sums: Sums, start: np.ndarray, row: int, share: float) -> NormalProposal | None:
    """Return the normal at the mode of the posterior without a row; None if there is no mode."""
    alone = sums.rows.subset(np.array([row]))
    weight = share
    if "weight" in alone.fields:
        weight = share / float(alone.slice(0, 1)["weight"][0])
    own = Sums(sums.target, alone, LocalEngine(progressbar=False), Ledger(rows=1))
    best, base, step = -np.inf, start, np.zeros_like(start)
    for _ in range(STEPS):
        at = base + step
        with_row = curvature(sums, at, "leave-one-out")
        C, A, B = own.hessian(at, "leave-one-out")
        without = replace(
            with_row,
            C=with_row.C - weight * C,
            A=with_row.A - weight * A,
            B=plus(with_row.B, -weight * B),
        )
        if not without.log_posterior >= best - ROUNDING * abs(best):  # overshot: halve the step
            step = step / 2
            continue
        normal = NormalProposal.expanding(without)
        if normal is None:
            return None
        best, base, step = without.log_posterior, at, normal.mean - at
        if np.linalg.norm(np.linalg.solve(normal.factor, step)) < CLOSE:
            return normal
    return None


def _row_values(sums: Sums, row: int, points: np.ndarray) -> np.ndarray:
    (values,) = log_likelihoods(sums.target, sums.rows, np.array([row]), points)
    return values[:, 0]


EXACT = 4_000  # up to this many rows, each is left out
SAMPLED = 2_000  # rows drawn if there are more
FEW_POINTS = 64  # draws from which every row is approximated
FEWEST = 100  # draws needed to see the tail of their weights
Enough: TypeAlias = Annotated[int, at_least(FEWEST)]
ALIKE = 0.9  # effective share of the draws above which their weights are nearly even
MOST_SCALARS = 200  # scalars whose effective sample size is averaged


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out results of one model.

    Attributes
    ----------
    sample
        The rows that were left out.
    weight
        Frequency weight of every row.
    approximate
        Approximation for every row.
    elpd, lpd, pareto_k
        For the rows of the sample: log predictive density with the row left out and with it, and
        Pareto k of its weights.
    draws
        Number of posterior draws used.
    unit
        What was left out: "row" or "group".
    called
        Names of the rows of the sample: their indices in the table, or names of groups.
    matched
        Whether moment matching was tried for rows with a bad Pareto k.
    """

    sample: RowSample
    weight: np.ndarray
    approximate: LeftOut
    elpd: np.ndarray
    lpd: np.ndarray
    pareto_k: np.ndarray
    draws: int
    unit: str
    called: np.ndarray
    matched: bool = False

    @property
    def good_k(self) -> float:
        """Largest reliable Pareto k for this number of draws."""
        return min(1 - 1 / float(np.log10(self.draws)), 0.7)

    def total(self, power: int = 1, other: LeaveOneOut | None = None) -> SumEstimate:
        """Estimate the sum over all rows of elpd_i (minus that of another model) to a power."""
        ids, near, left_out = self.sample.row_ids, self.approximate.elpd, self.elpd
        near = near.astype(float)
        if other is not None:
            near, left_out = near - other.approximate.elpd, left_out - other.elpd
        rest = self.weight[ids] * (left_out**power - near[ids] ** power)
        estimate = self.sample.total(rest)
        return SumEstimate(float(self.weight @ near**power) + estimate.value, estimate.variance)

    def error(self, other: LeaveOneOut | None = None) -> float:
        """Return the standard error of the sum (or difference) as an estimate for new rows.

        Like R's loo it divides squared deviations by n - 1, and so does ArviZ from version 1 on.
        """
        total, squares = self.total(1, other), self.total(2, other).value
        n = float(self.weight.sum())
        # subtract the variance by which the squared estimate exceeds the squared sum on average
        deviations = max(squares - (total.value**2 - total.variance) / n, 0.0)
        return float(np.sqrt(deviations * n / (n - 1))) if n > 1 else 0.0

    def result(self) -> arviz_stats.utils.ELPDData:
        """Return ArviZ's ELPDData; `elpd_i` and `pareto_k` are those of the rows left out."""
        utils = arviz_stats.utils
        ids, total, times = self.sample.row_ids, self.total(), self.sample.times
        at = {self.unit: self.called}
        fields: dict[str, object] = {
            "elpd": total.value,
            "se": self.error(),
            "p": self._parameters(),
            "n_samples": self.draws,
            "n_data_points": len(self.weight),
            "scale": "log",
            "warning": bool((self.pareto_k > self.good_k).any()),
            "good_k": self.good_k,
            "elpd_i": xr.DataArray(self.elpd, at, [self.unit], name="elpd_i"),
            "pareto_k": xr.DataArray(self.pareto_k, at, [self.unit], name="pareto_k"),
        }
        if times is not None:
            fields |= {
                "subsampling_se": float(np.sqrt(total.variance)),
                "subsample_size": int(times.sum()),
                "loo_subsample_observations": ids,
                "elpd_loo_approx": xr.DataArray(self.approximate.elpd, dims=[self.unit]),
            }
        if not hasattr(utils, "ELPDDataLOO"):  # arviz_stats before 1.0 has one class for all
            return utils.ELPDData(kind="loo", **fields)
        kind = utils.ELPDDataLOO if times is None else utils.ELPDDataLOOSubsample
        return kind(**fields)

    def _parameters(self) -> float:
        """Return the effective number of parameters: the sum of lpd_i - elpd_i."""
        ids = self.sample.row_ids
        added = self.approximate.lpd.astype(float) - self.approximate.elpd
        rest = self.sample.total(self.weight[ids] * (self.lpd - self.elpd - added[ids]))
        return float(self.weight @ added) + rest.value

    def warn(self, name: str = "") -> ModicumWarning | None:
        """Warn if Pareto k is too large for some rows, so that they are not left out reliably."""
        bad = self.pareto_k > self.good_k
        if not bad.any():
            return None
        worst = int(np.argmax(self.pareto_k))
        of = f" of {name!r}" if name else ""
        more = "" if self.good_k >= 0.7 else "draw more, "
        match = "" if self.matched else "use moment_match=True, which evaluates new points, "
        return warn_of(
            "left-out-uncertain",
            f"{int(bad.sum()):,} of the {len(bad):,} {self.unit}s left out{of} "
            f"{'moves' if bad.sum() == 1 else 'move'} the posterior too much for its draws to "
            f"tell what it would be without {'it' if bad.sum() == 1 else 'them'} (Pareto "
            f"k {self.pareto_k[worst]:.2f} in {self.unit} {self.called[worst]}, and "
            f"up to {self.good_k:.2f} is fine), so elpd is too high or too low by an unknown "
            "amount",
            f"{more}{match}look at these {self.unit}s (result.pareto_k), fit without them to "
            "see what they do, or use a family with heavier tails",
            units=int(bad.sum()),
            left_out=len(bad),
            pareto_k=float(self.pareto_k[worst]),
            good_k=self.good_k,
        )


class _Prepared(NamedTuple):
    """A subject's draws as flat points, with the sums over the units to leave out."""

    sums: Sums
    points: np.ndarray
    log_weight: np.ndarray
    log_times: np.ndarray  # that a chain stayed at each draw: copies are no tail of ratios
    sign: np.ndarray  # of each draw; 1 except for signed samplers
    efficiency: float  # effective over actual draws
    order: np.ndarray  # of the units, by their indices in the table
    called: np.ndarray  # their names in that order: indices in the table, or names of groups

    @property
    def mean(self) -> np.ndarray:
        """The posterior mean."""
        weight = self.log_weight + self.log_times
        return np.average(self.points, axis=0, weights=self.sign * np.exp(weight - weight.max()))


def loo(
    post: FittedDraws,
    data: RowsLike | None = None,
    subsample: FromTwo | None = None,
    draws: Enough = 4000,
    random_seed: int = 0,
    progressbar: bool = True,
    moment_match: bool = False,
) -> arviz_stats.utils.ELPDData:
    """Estimate how well the model predicts rows it has not seen, without fitting again.

    Pareto-smoothed importance sampling leaves each row out (Vehtari, Gelman and Gabry 2017).
    If there are many rows, one pass approximates every row from a few draws, and `subsample`
    rows, drawn in proportion to the likely error of the approximation, correct it (difference
    estimator; Magnusson et al. 2019), so that no array of draws x rows is held. In a model
    with explicit effects of groups, single rows are left out; if effects were integrated out,
    whole groups are. A row of weight w counts w times: one of its repetitions is left out, or
    the whole row if its weight is below 1.

    Parameters
    ----------
    data
        The rows the posterior was sampled with, or their table; other rows are refused. By
        default the rows that the posterior holds.
    subsample
        Rows to draw, with replacement; by default all rows up to 4,000, and 2,000 of more.
    draws
        The most posterior draws to use, evenly spaced.
    random_seed
        Seed of the subsample.
    progressbar
        Whether to show progress on a long pass.
    moment_match
        Whether to evaluate all rows at new points for up to 20 rows with the largest Pareto k,
        if it is too large: without such a row, the posterior lies beyond the reach of its
        draws. Each takes a few passes, and 1,000 evaluations of every row.

    Returns
    -------
    arviz_stats.utils.ELPDData
        `elpd`; `se`, its standard error as an estimate for new data; `p`, the effective number
        of parameters; with `subsample`, `subsampling_se`, the part due to it; and `elpd_i`
        and `pareto_k` of the rows that were left out, by their index in the table (from 0), or
        of groups by their names.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> rows = mo.Rows(x=np.ones((500, 1)), y=rng.normal(0.3, 1, size=500))
    >>> mean = rows.slice(0, 500)["y"].mean()  # under a flat prior
    >>> draws = {"beta": rng.normal(mean, 500**-0.5, size=(4, 500, 1))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=500), rows=rows)
    >>> model = mo.models.Gaussian(scale=1.0, intercept=False)
    >>> post.predictor = mo.models.over_draws.ModelPredictor(model)
    >>> left_out = post.loo()
    >>> round(left_out.elpd), round(left_out.p)
    (-669, 1)
    """
    rows = post.rows_of_fit(data, "leaving rows out")
    numbers = post.table_numbers(data, rows)
    (left_out,) = leave_one_out(
        [(post, rows, numbers)], subsample, draws, random_seed, progressbar, moment_match
    )
    left_out.warn()
    return left_out.result()


def leave_one_out(
    subjects: Sequence[Subject],
    subsample: int | None,
    draws: int,
    random_seed: int,
    progressbar: bool,
    moment_match: bool,
) -> list[LeaveOneOut]:
    """Leave the same rows out of all subjects, which share their rows; see `loo`."""
    prepared = [_prepare(*subject, draws, progressbar) for subject in subjects]
    (number,) = {len(model.order) for model in prepared}  # the caller compares like with like
    weight = _weights(prepared[0])
    if number <= (EXACT if subsample is None else subsample):
        near = [LeftOut(*np.zeros((3, number)))] * len(prepared)  # no approximation is needed
        sample = RowSample(np.arange(number), None, np.ones(number))
    else:
        near = [_approximation(model) for model in prepared]
        size = weight * sum(np.nan_to_num(part.variance.astype(float)) for part in near)
        sample = RowSample.drawn(size, subsample or SAMPLED, random_seed)
    results = [
        _leave_out(model, sample, weight, part) for model, part in zip(prepared, near, strict=True)
    ]
    if not moment_match:
        return results
    return [
        _moment_matched(left_out, model, random_seed)
        for left_out, model in zip(results, prepared, strict=True)
    ]


def _prepare(
    source: FittedDraws,
    rows: Rows,
    numbers: np.ndarray | None,
    draws: int,
    progressbar: bool,
) -> _Prepared:
    subset, (weights,) = thinned(source, draws, "leaving rows out")
    counts = weights != 0
    if counts.sum() < FEWEST:
        raise SettingError(
            f"{too_few(int(counts.sum()), 'draw')} to leave rows out, since the tail of the "
            f"weights cannot be judged; sample at least {FEWEST}."
        )
    subset = {name: x[counts] for name, x in subset.items()}
    sums, points = sums_at(source, rows, subset, progressbar)
    # and not a copy of the one before; a chain may stay where its estimate's sign changes
    moved = np.r_[True, np.any(np.diff(np.c_[points, weights[counts]], axis=0), axis=1)]
    times = np.diff(np.append(np.flatnonzero(moved), len(points)))
    points, weights = points[moved], weights[counts][moved]
    log_weight, sign = np.log(np.abs(weights)), np.sign(weights)
    order = called = np.arange(len(sums.rows))
    if sums.rows.grouped:
        called = group_levels(as_groups(sums.rows))
    elif numbers is not None:
        order, called = np.argsort(numbers), np.sort(numbers)
    efficiency = _efficiency(source, len(points))
    return _Prepared(sums, points, log_weight, np.log(times), sign, efficiency, order, called)


def _efficiency(source: FittedDraws, count: int) -> float:
    """Return effective over actual draws, averaged over parameters as in ArviZ."""
    if source.chains == 1:
        return 1.0
    flat = [x.reshape(*x.shape[:2], -1) for x in source.draws.values()]
    scalars = np.concatenate(flat, axis=2)
    share = np.nanmean(ess_mean(scalars[:, :, :: -(-scalars.shape[2] // MOST_SCALARS)])) / count
    return float(share) if np.isfinite(share) and share > 0 else 1.0


def _weights(subject: _Prepared) -> np.ndarray:
    """Return the frequency weight of each unit."""
    units = subject.sums.rows
    if units.unit == "group" or "weight" not in units.fields:
        return np.ones(len(units))
    return whole_field(units, "weight").astype(float)[subject.order]


def _approximation(subject: _Prepared) -> LeftOut:
    """Approximate every row from a few draws, shifted so that their mean is that of all draws.

    Without the shift, a row's log-likelihood would be off by its gradient times the difference of
    the means, which is far larger than the curvature that determines the effect of leaving it out.
    """
    spaced = evenly_spaced(len(subject.points), FEW_POINTS)
    points, log_weight = subject.points[spaced], subject.log_weight[spaced]
    mean = np.average(points, axis=0, weights=np.exp(log_weight - log_weight.max()))
    moved = points + subject.mean - mean
    near = approximately_left_out(subject.sums, moved, log_weight)
    return LeftOut(*(part[subject.order] for part in near))


def _leave_out(
    subject: _Prepared, sample: RowSample, weight: np.ndarray, near: LeftOut
) -> LeaveOneOut:
    """Run PSIS-LOO on the rows of the sample, a piece at a time."""
    parts, first = [], 0
    units, called = subject.sums.rows, subject.called[sample.row_ids]
    places, unit = subject.order[sample.row_ids], units.unit
    for values in log_likelihoods(subject.sums.target, units, places, subject.points):
        piece = slice(first, first + values.shape[1])
        _require_numbers(values, unit, called[piece])
        share = np.minimum(weight[sample.row_ids[piece]], 1.0)
        parts.append(_smoothed(values, share, subject))
        first += values.shape[1]
    elpd, lpd, pareto_k = np.concatenate(parts, axis=1)
    bad = ~np.isfinite(elpd + lpd)
    if bad.any():
        raise SettingError(
            f"the signs of the draws cancel when {unit} {called[np.argmax(bad)]} is left out, so "
            "that its predictive density would be negative; sample more, or with a larger "
            "subsample, so that fewer signs are negative."
        )
    draws = len(subject.points)
    return LeaveOneOut(sample, weight, near, elpd, lpd, pareto_k, draws, unit, called)


def _moment_matched(left_out: LeaveOneOut, subject: _Prepared, seed: int) -> LeaveOneOut:
    """Leave out the worst rows with new points, and keep the results whose Pareto k is good."""
    worst = np.argsort(-left_out.pareto_k)[:MOST_UNITS]
    bad = np.sort(worst[left_out.pareto_k[worst] > left_out.good_k])
    if not len(bad):
        return left_out
    row_ids = left_out.sample.row_ids[bad]
    share = np.minimum(left_out.weight[row_ids], 1.0)
    places = subject.order[row_ids]
    new_elpd, new_k = leave_out_anew(subject.sums, subject.mean, places, share, seed)
    elpd, pareto_k = left_out.elpd.copy(), left_out.pareto_k.copy()
    better = new_k <= min(WORST_TAIL, left_out.good_k)
    elpd[bad[better]], pareto_k[bad[better]] = new_elpd[better], new_k[better]
    return replace(left_out, elpd=elpd, pareto_k=pareto_k, matched=True)


def _require_numbers(values: np.ndarray, unit: str, called: np.ndarray) -> None:
    """Refuse rows whose log-likelihood is not finite at some draw."""
    bad = ~np.isfinite(values).all(axis=0)
    if bad.any():
        raise SettingError(
            f"the log-likelihood of {unit} {called[np.argmax(bad)]} is not finite at some of the "
            f"draws, so that the {unit} cannot be left out; rescale the columns of the rows, or "
            f"use a family under which the {unit} is possible."
        )


def _smoothed(values: np.ndarray, share: np.ndarray, subject: _Prepared) -> np.ndarray:
    """Return elpd, lpd and Pareto k (3, rows) from log-likelihoods (draws, rows)."""
    log_weight, ratio = subject.log_weight, -(share * values).T
    # The draws' weights were smoothed and judged when they were computed. Even if nearly equal they
    # have a tail, whose k would show in every row: then the row's own ratio is smoothed alone.
    alone = kish_share(np.exp(log_weight - log_weight.max())) > ALIKE
    smoothed, pareto_k = rows_smoothed(ratio if alone else ratio + log_weight, subject.efficiency)
    apart = subject.log_times + (log_weight if alone else 0)
    elpd = _log_average(values.T, smoothed + apart, subject.sign)
    lpd = _log_average(values.T, log_weight + subject.log_times, subject.sign)
    return np.stack([elpd, lpd, pareto_k])


def _log_average(values: np.ndarray, log_weight: np.ndarray, sign: np.ndarray) -> np.ndarray:
    """Return the log of the signed weighted average of exp(values) over draws, the last axis."""
    return _log_sum(log_weight + values, sign) - _log_sum(log_weight, sign)


def _log_sum(terms: np.ndarray, sign: np.ndarray) -> np.ndarray:
    """Return the log of the sum of sign * exp(terms) over the last axis."""
    top = terms.max(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):  # a sum <= 0 is not finite: refused later
        return np.asarray(top + np.log(np.exp(terms - top[..., None]) @ sign))

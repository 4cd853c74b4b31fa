"""Sampling again: with other priors, rows or settings, or with some of the rows left out.

K-fold cross-validation fits the model K times, each time without a fold of the rows, and sums the
log predictive densities of the rows that were left out. Priors stay as they were in the fit, so
that folds differ by their rows alone. Where whole groups are left out, their effects come from the
distribution of effects, as those of new groups do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from modicum.diagnostics.weighted import normalised
from modicum.errors import DataError, SettingError, whole_number
from modicum.posterior.fit_rows import AlignedRows, RowsLike
from modicum.posterior.fitted import FittedDraws, thinned
from modicum.posterior.outcomes import OutcomeDraws, density_pieces
from modicum.posterior.population import column_values, holds_column
from modicum.posterior.predict import log_mean
from modicum.progress import phase
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.reading import whole_field

F = TypeVar("F", bound=FittedDraws)
MOST_FITS = 100  # of one cross-validation, unless their number was given


def update(post: F, **changes: Any) -> F:  # arguments of `mo.fit`, of any type
    """Fit again, with some arguments of the call changed.

    Parameters
    ----------
    changes
        Arguments of `mo.fit`, or of `mo.sample` if that made this posterior: ``priors={...}``,
        ``data=...`` for other rows, in place of the former ones, ``family=``, ``formula=``,
        ``draws=``. All others stay as they were, except that a `checkpoint` or `store` is not
        used again.

    Returns
    -------
    Posterior
        A new one; this one stays as it is.

    Examples
    --------
    >>> import numpy as np, pandas as pd, modicum as mo
    >>> table = pd.DataFrame({"dose": np.arange(50.0), "pain": np.arange(50) % 7})
    >>> quiet = {"random_seed": 1, "progressbar": False}
    >>> post = mo.fit("pain ~ dose", table, mo.models.Gaussian(scale=2.0), **quiet)
    >>> post.update(priors={"common": mo.priors.Normal(0, 1)}).tuning["priors"]["beta"]
    'normal(0, 1)'
    """
    if post.rerun is None or post.rerun.call is None:
        raise SettingError(
            "this posterior, made by hand or loaded from a file, does not know the call that made "
            "it: call mo.fit or mo.sample again."
        )
    again: F = post.rerun.call(**changes)
    return again


@dataclass(frozen=True, eq=False)
class CrossValidation:
    """How well a model predicts rows that it was not fitted to, by fitting it without them.

    Parameters
    ----------
    elpd
        Sum over rows of the log predictive density of each when its fold is left out.
    se
        Standard error of `elpd` as an estimate for new rows, or new groups if these were left out.
    p
        Effective number of parameters: the same sum with all rows in the fit, minus `elpd`.
    elpd_i, fold
        Log predictive density and fold of each row, in the order of the rows of the fit.
    unit
        What was left out: "row", or the column whose values stay together.
    units
        Which unit each row is in, and `weight`, its frequency weight.
    """

    elpd: float
    se: float
    p: float
    elpd_i: np.ndarray
    fold: np.ndarray
    unit: str
    units: np.ndarray
    weight: np.ndarray

    def __repr__(self) -> str:
        folds = f"{int(self.fold.max()) + 1} folds of {len(self.fold):,} rows"
        whole = "" if self.unit == "row" else f", each {self.unit} in one"
        return f"<CrossValidation, {folds}{whole}: elpd {self.elpd:.1f}, error {self.se:.1f}>"

    def minus(self, other: CrossValidation) -> tuple[float, float]:
        """Return how much higher this `elpd` is than another, and the error of the difference.

        Both must have left out the same folds: the same rows, and the same seed.
        """
        if not np.array_equal(self.fold, other.fold):
            raise SettingError(
                "the two cross-validations left out different folds, so that their rows cannot be "
                "compared in pairs: use the same rows, folds and random_seed for both."
            )
        apart = self.weight * (self.elpd_i - other.elpd_i)
        return float(apart.sum()), _error(apart, self.units, self.weight)


def kfold(
    post: FittedDraws,
    data: RowsLike | None = None,
    folds: int | None = None,
    group: str | None = None,
    random_seed: int = 0,
    progressbar: bool = True,
) -> CrossValidation:
    """Fit again without each fold of the rows, and predict the rows that were left out.

    Use it where `loo` warns that rows cannot be left out from the draws alone, or to leave out
    whole groups: how well are patients of a new hospital predicted?

    Parameters
    ----------
    data
        The rows of the fit, or their table; by default the rows that the posterior holds.
    folds
        Number of folds, to which rows (or groups) are assigned at random: 10 by default, and with
        `group` one for each group, at most 100.
    group
        A column whose values stay together: whole groups are left out (leave-one-group-out).
    random_seed
        Seed of the folds and of the fits.
    progressbar
        Whether to show which fold is being fitted.

    Returns
    -------
    CrossValidation
        `elpd`, `se`, `p`, and `elpd_i` of each row; `minus` compares two of them.

    Examples
    --------
    >>> import numpy as np, pandas as pd, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> table = pd.DataFrame({"dose": rng.normal(size=100), "ward": np.arange(100) % 5})
    >>> table["pain"] = 2 * table["dose"] + rng.normal(size=100)
    >>> quiet = {"random_seed": 1, "progressbar": False}
    >>> with_dose = mo.fit("pain ~ dose", table, mo.models.Gaussian(scale=1.0), **quiet)
    >>> without = with_dose.update(formula="pain ~ 1")
    >>> better, error = with_dose.kfold(folds=5, progressbar=False).minus(
    ...     without.kfold(folds=5, progressbar=False)
    ... )
    >>> better > 4 * error
    True
    """
    rows = post.rows_of_fit(data, "cross-validation")
    if post.rerun is None:
        raise SettingError(
            "cross-validation fits again, and this posterior, made by hand or loaded from a file, "
            "does not know how it was sampled: call mo.fit or mo.sample again."
        )
    units = np.arange(len(rows))
    if group is not None:
        numbers = None if holds_column(rows, group) else post.table_numbers(data, rows)
        values = column_values(rows, post.table if data is None else data, group, units, numbers)
        units = np.unique(values, return_inverse=True)[1]
    fold = _folds(units, folds, group, random_seed)
    number = int(fold.max()) + 1
    elpd = np.empty(len(rows))
    with phase("folds", number, progressbar, "fits") as going:
        for k in range(number):
            left_out = np.flatnonzero(fold == k)
            kept = rows.subset(np.flatnonzero(fold != k))
            fit = post.rerun.on_rows(post.fitted_model(), kept, random_seed + k)
            elpd[left_out] = _log_predictive(fit, rows.subset(left_out), random_seed)
            going.advance(1)
    weight = np.ones(len(rows))
    if "weight" in rows.fields:
        weight = whole_field(rows, "weight").astype(float)
    total, all_in = weight @ elpd, weight @ _log_predictive(post, rows, random_seed)
    return CrossValidation(
        elpd=float(total),
        se=_error(weight * elpd, units, weight),
        p=float(all_in - total),
        elpd_i=elpd,
        fold=fold,
        unit="row" if group is None else group,
        units=units,
        weight=weight,
    )


def _folds(units: np.ndarray, folds: int | None, group: str | None, seed: int) -> np.ndarray:
    """Assign units at random to folds of nearly equal numbers; return the fold of each row."""
    count = int(units.max()) + 1
    if folds is None:
        folds = min(10, count) if group is None else count
        if folds > MOST_FITS:
            raise SettingError(
                f"{group!r} has {count:,} groups, and as many fits: give the number of folds into "
                "which to divide them, such as folds=10."
            )
    whole_number("folds", folds, 2)
    if folds > count:
        noun = "rows" if group is None else f"groups of {group!r}"
        raise SettingError(f"{count:,} {noun} cannot be divided into {folds:,} folds: use fewer.")
    order = generator(seed, Stream.FOLDS).permutation(count)
    if group is not None and folds == count:
        order = np.arange(count)  # the k-th group is fold k
    return np.asarray((order % folds)[units])


def _error(values: np.ndarray, units: np.ndarray, weight: np.ndarray) -> float:
    """Return the standard error of a sum over units, as an estimate for as many new ones.

    A row of weight k counts as k rows with the same value; rows of a group are added up first.
    """
    if len(values) == units.max() + 1:  # rows by themselves
        n, each = weight.sum(), np.divide(values, weight, where=weight > 0, out=0 * values)
        return float(np.sqrt(n / (n - 1) * (weight @ (each - values.sum() / n) ** 2)))
    sums = np.bincount(units, values)
    return float(np.sqrt(len(sums)) * sums.std(ddof=1))


def _log_predictive(fit: FittedDraws, rows: Rows, seed: int) -> np.ndarray:
    """Return the log predictive density of each row; groups that the fit lacks are new ones."""
    subset, weights = thinned(fit, None, "cross-validation")
    left_out, group = AlignedRows.of(rows), fit.fitted_model().integrated_group
    if group is not None and fit.rows is not None:
        left_out = replace(left_out, known={group: np.unique(whole_field(fit.rows, group))})
    source = OutcomeDraws.of(fit, left_out, subset, weights, seed)
    share = normalised(weights[0])
    found = np.concatenate([log_mean(each, share)[1] for each in density_pieces(source)])
    if not np.isfinite(found).all():
        raise DataError(
            "the predictive density of some rows that were left out is 0 or not a number: look "
            "for outcomes that the model rules out."
        )
    return found

"""Methods of a posterior about outcomes: predictions, scores, effects of columns and groups."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from modicum.arguments import names_checked
from modicum.errors import SettingError
from modicum.files import require_writable
from modicum.models.over_draws import ModelPredictor
from modicum.posterior.draws import affordable, check_interval, thinned
from modicum.posterior.fit_rows import Groups, RowsLike, aligned
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.group_effects import effects, intraclass
from modicum.posterior.marginal import (
    Comparison,
    averages,
    contrast,
    marginal,
    require_chances,
)
from modicum.posterior.predict import (
    Evaluation,
    NewGroups,
    OutcomeDraws,
    Prediction,
    known_effects,
    normal_scores,
    outcome_array,
    outcome_draws,
    predict,
    rows_behind,
    with_groups,
)
from modicum.posterior.score import Score, score
from modicum.rows import Rows
from modicum.rows.formula import NewLevels
from modicum.rows.sources import is_table, library

if TYPE_CHECKING:
    import pandas as pd


class OutcomesMixin(FittedDraws):
    """Methods about outcomes; see `Posterior`."""

    @names_checked
    def predict(
        self,
        rows: RowsLike,
        draws: int | None = None,
        prob: float = 0.9,
        newlevels: NewLevels = "refuse",
        groups: Groups | None = None,
        newgroups: NewGroups | None = None,
    ) -> Prediction:
        """Predict the expected outcome of each row, with an interval of probability `prob`.

        Rows are visited a chunk at a time, so that memory stays small however many there are.

        Parameters
        ----------
        rows
            Modicum rows, whose columns are matched with those of the fit by name; a pandas, polars
            or Arrow table (after `mo.fit` also a file), which is encoded as the rows of the fit
            were, with columns in any order and extra columns ignored; or a dict of arrays such
            as ``{"x": X}`` with the columns in the fit's order.
        draws
            Posterior draws to use, evenly spaced. By default all, or of many rows as many as take
            about 10^8 evaluations of a row, but at least 200; the result says how many they were,
            and the Monte Carlo error of its means.
        prob
            Posterior probability of the equal-tailed interval of the expected outcome.
        newlevels
            How to treat a level that the fit did not have, in a table given to a posterior of
            `mo.fit`: "refuse" it, or treat it as the "reference" level.
        groups
            For a model with groups: "known" uses the effects of the rows' own groups, which the fit
            must have had; "new" takes all groups as new; "any", for a table, is "known" for groups
            that the fit had and "new" for the others. By default groups must be known, and factors
            that the rows do not name are averaged over.
        newgroups
            What the interval of a new group is about: "one" such group, so that it includes the
            spread between groups, or the "average" over all of them. The mean is the same. By
            default "one" with groups="new" or "any", else "average".
        """
        check_interval(prob)
        if newgroups not in (None, "one", "average"):
            raise SettingError(f"newgroups must be 'one' or 'average', not {newgroups!r}.")
        predictor = self.restore_predictor()
        if predictor is None:
            raise SettingError(
                "this posterior cannot predict because it has no model: it was made without one, "
                "or loaded from a file, which does not keep a custom model; use "
                "Posterior.load(path, model=...), or compute from posterior.draws."
            )
        new = aligned(rows, self.fit_rows, False, newlevels, groups)
        evaluate: Evaluation
        if isinstance(predictor, ModelPredictor):
            new = with_groups(new, predictor.model, groups)
            subset, weights = thinned(self, affordable(self, rows_behind(self, new), draws))
            drawn = OutcomeDraws(subset, predictor, known_effects(self, subset, new))
            one = newgroups == "one" or (newgroups is None and groups is not None)
            evaluate = partial(drawn.expected, scores=normal_scores(weights.size) if one else None)
        else:
            custom = predictor
            subset, weights = thinned(self, affordable(self, len(new), draws))
            evaluate = lambda batch: (np.asarray(custom(subset, batch), float),) * 2  # noqa: E731
        predicted = predict(evaluate, weights, new, prob)
        is_frame = library(rows) == "pandas" and is_table(rows)
        index = getattr(rows, "index", None) if is_frame else None
        return replace(predicted, classes=self.class_names(), index=index)

    def score(
        self, rows: RowsLike, draws: int | None = None, newlevels: NewLevels = "refuse"
    ) -> Score:
        """Score predictions against observed outcomes: accuracy and log predictive density.

        Both are given for the average prediction of all draws, and for single draws, averaged by
        chain. Rows are weighted by their `weight`, if they have one, and draws by their signs or
        weights. The groups of a row must be known: their effects are part of its prediction.

        Parameters
        ----------
        rows
            Modicum rows, whose columns are matched with those of the fit by name; a pandas, polars
            or Arrow table (after `mo.fit` also a file), which is encoded as the rows of the fit
            were, with columns in any order and extra columns ignored; or a dict of arrays such
            as ``{"x": X, "y": y}`` with the columns in the fit's order.
        draws
            Posterior draws to use, evenly spaced: equally many of each chain, and at least one.
            By default as many as in `predict`.
        newlevels
            As in `predict`.
        """
        predictor = self.restore_predictor()
        if not isinstance(predictor, ModelPredictor):
            raise SettingError(
                "this posterior cannot score outcomes because it has no model: it was made without "
                "one, or loaded from a file, which does not keep a custom model; use "
                "Posterior.load(path, model=...), or compute from posterior.draws."
            )
        return score(self, predictor, aligned(rows, self.fit_rows, True, newlevels), draws)

    @names_checked
    def predictive(
        self,
        data: RowsLike | None = None,
        draws: int = 100,
        random_seed: int = 0,
        newlevels: NewLevels = "refuse",
        groups: Groups | None = None,
        prior: bool = False,
        out: str | os.PathLike[str] | None = None,
    ) -> np.ndarray:
        """Draw outcomes from the posterior predictive distribution.

        While `predict` gives the expected outcome and its uncertainty, this draws outcomes
        themselves, including noise. Rows are visited a chunk at a time.

        Parameters
        ----------
        data
            Rows or a table, as `predict` takes them; the rows of the fit by default.
        draws
            Outcomes per row, each from a different posterior draw.
        random_seed
            Seed of the outcomes.
        newlevels, groups
            As in `predict`. All rows of a new group share its effects; where the rows do not name a
            factor, every row is in a different group.
        prior
            Whether to draw the parameters from their prior instead (prior predictive).
        out
            A .npy file to write the outcomes to and map into memory, if they exceed memory.

        Returns
        -------
        ndarray
            Outcomes (draws, rows), coded as in the rows.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> draws = {"beta": np.full((1, 100, 1), 2.0), "intercept": np.zeros((1, 100))}
        >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=3))
        >>> post.predictor = mo.models.over_draws.ModelPredictor(mo.models.Logistic())
        >>> post.predictive({"x": [[-9.0], [0.0], [9.0]]}, draws=50).mean(axis=0).round(1)
        array([0. , 0.5, 1. ])
        """
        if out is not None:
            require_writable(out)
        new = self.rows_or_own(data, False, newlevels, groups)
        source, new = outcome_draws(self, new, draws, random_seed, groups, prior)
        return outcome_array(source, new, random_seed, out)

    def marginal(
        self,
        column: str,
        data: RowsLike | None = None,
        at: Sequence[object] | None = None,
        slope: bool = False,
        draws: int | None = None,
        prob: float = 0.9,
        subsample: int = 5_000,
        random_seed: int = 0,
        groups: Groups | None = None,
    ) -> pd.DataFrame:
        """Tabulate the expected outcome as a column varies, all other columns being as they are.

        The column is set to one value at a time in all rows of a sample, and predictions are
        averaged. After `mo.fit` it is a column of the table, so that splines, interactions and
        levels follow.

        Parameters
        ----------
        column
            A column of the table, of x, or a factor.
        data
            Rows or a table to average over; the rows of the fit by default.
        at
            Value or values to set; by default the levels of a factor, all values if they are few,
            or a grid of twenty from the 1st to the 99th percentile.
        slope
            Whether to give marginal effects instead: derivatives with respect to the column,
            averaged over the rows as they are, or with the column at each value of `at`.
        draws
            Posterior draws to use, evenly spaced; by default as many as in `predict`.
        prob
            Posterior probability of the equal-tailed interval.
        subsample
            The most rows to average over; if there are more, a random sample of them, whose error
            is part of `sd` and of the interval.
        random_seed
            Seed of the sample of rows.
        groups
            As in `predict`; new groups are averaged over.

        Returns
        -------
        DataFrame
            By value: `mean`, `sd`, the ends of the interval, and `mcse_mean`, the error of the mean
            because of the number of draws and the sample of rows; `attrs` says how many "draws" and
            "rows" were used. `mo.plots.effect` plots it.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> rng = np.random.default_rng(1)
        >>> rows = mo.Rows(x=rng.normal(size=(100, 2)), y=np.zeros(100), columns=["dose", "age"])
        >>> draws = {"beta": np.tile([2.0, -1.0], (1, 100, 1)), "intercept": np.zeros((1, 100))}
        >>> model = mo.models.Gaussian(scale=1.0)
        >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=100), rows=rows)
        >>> post.predictor = mo.models.over_draws.ModelPredictor(model)
        >>> post.marginal("dose", slope=True)["mean"].round(3).to_dict()
        {'dose': 2.0}
        """
        check_interval(prob)
        averaged = averages(self, column, data, draws, subsample, random_seed, groups, at)
        return marginal(averaged, column, at, slope, prob, self.class_names())

    def contrast(
        self,
        column: str,
        between: Sequence[object] | None = None,
        data: RowsLike | None = None,
        comparison: Comparison = "difference",
        draws: int | None = None,
        prob: float = 0.9,
        subsample: int = 5_000,
        random_seed: int = 0,
        groups: Groups | None = None,
    ) -> pd.DataFrame:
        """Compare expected outcomes at values of a column, all others being as they are.

        Parameters
        ----------
        column
            As in `marginal`.
        between
            Two values or more; each is compared with the first. By default, each level is compared
            with the reference level, and a number plus one with the number itself.
        data
            Rows or a table to average over; the rows of the fit by default.
        comparison
            "difference", "ratio" or "odds ratio" of the average predictions.
        draws, prob, subsample, random_seed, groups
            As in `marginal`.

        Returns
        -------
        DataFrame
            By contrast, as in `marginal`.
        """
        if isinstance(between, str):
            raise SettingError(
                f"between must be a list of values, such as [{between!r}, ...], not one string."
            )
        check_interval(prob)
        if comparison == "odds ratio":
            require_chances(self.fit().model)
        averaged = averages(self, column, data, draws, subsample, random_seed, groups, between)
        return contrast(averaged, column, between, comparison, prob, self.class_names())

    def effects(
        self,
        group: str | None = None,
        levels: Sequence[object] | None = None,
        rows: RowsLike | None = None,
        draws: int | None = None,
        prob: float = 0.9,
    ) -> pd.DataFrame:
        """Tabulate the effects of groups: mean, sd, interval, and number of rows.

        Effects that were integrated out are computed now, given draws of all other parameters, from
        the rows of the requested groups.

        Parameters
        ----------
        group
            The field the rows are grouped by; may be left out if there is only one.
        levels
            Groups to tabulate, by their values; all by default.
        rows
            The rows the posterior was sampled with, or their table; needed for integrated effects
            if the posterior was loaded from a file without its rows.
        draws
            Posterior draws to use for integrated effects, evenly spaced: by default all, or as many
            as take about 10^8 evaluations of a row, but at least 100. Explicit effects use all.
        prob
            Posterior probability of the equal-tailed interval.

        Returns
        -------
        DataFrame
            Indexed by level, or by level and effect if a group has several; `mcse_mean` is the
            Monte Carlo error of the mean, and `attrs` says how many "draws" were used.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> rng = np.random.default_rng(1)
        >>> g = np.repeat(np.arange(30), 20)
        >>> y = rng.random(600) < 1 / (1 + np.exp(-rng.normal(size=30)[g]))
        >>> rows = mo.Rows(x=rng.normal(size=(600, 1)), y=y, codes={"clinic": g})
        >>> model = mo.models.Logistic(groups="clinic")
        >>> post = mo.sample(model, rows, method="nuts", draws=200, tune=200, chains=2,
        ...                  random_seed=1, progressbar=False)
        >>> list(post.effects("clinic", levels=[3, 4]).columns)
        ['mean', 'sd', '5%', '95%', 'mcse_mean', 'rows']
        """
        fit_rows = self._given_or_held(rows, "a table of effects")
        return effects(self, self.fit(), fit_rows, group, levels, draws, prob)

    def _given_or_held(self, rows: RowsLike | None, purpose: str) -> Rows | None:
        """Return the rows of the fit: the given ones, or by default those the posterior holds."""
        return self.held_rows() if rows is None else self.subject(rows, purpose).rows

    def icc(self, rows: RowsLike | None = None, prob: float = 0.9) -> pd.DataFrame:
        """Tabulate intraclass correlations: the share of the variance that is between groups.

        On the scale of the linear predictor, given the common columns, this is the variance of a
        group's effects divided by the sum of the variances of all groups' effects and of a row's
        noise. The noise has variance pi^2/3 for the logit (of ordered classes too), 1 for the
        probit, the square of a Gaussian's scale, and log(1 + 1/mean) for Poisson counts. If slopes
        vary by group, their variance is averaged over the rows.

        Parameters
        ----------
        rows
            The rows the posterior was sampled with, or their table; needed for varying slopes and
            counts if the posterior was loaded from a file without its rows.
        prob
            Posterior probability of the equal-tailed interval.

        Returns
        -------
        DataFrame
            One line per grouping factor, and one for all of them if there are several.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> g = np.repeat(np.arange(30), 20)
        >>> rng = np.random.default_rng(1)
        >>> y = rng.normal(size=30)[g] + rng.normal(size=600)
        >>> rows = mo.Rows(x=rng.normal(size=(600, 1)), y=y, codes={"ward": g})
        >>> model = mo.models.Gaussian(scale=1.0, groups="ward")
        >>> post = mo.sample(model, rows, draws=200, tune=200, random_seed=1, progressbar=False)
        >>> bool(0.3 < post.icc().loc["ward", "mean"] < 0.7)
        True
        """
        fit_rows = self._given_or_held(rows, "an intraclass correlation")
        return intraclass(self, self.fit().model, fit_rows, prob)

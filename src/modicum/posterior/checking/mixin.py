"""The methods of a posterior that check the model, the prior and the draws."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from modicum.errors import SettingError, whole_number
from modicum.ledger import Ledger
from modicum.posterior.alignment import AlignedRows, RowsLike, rows_of_fit
from modicum.posterior.checking.columns import (
    column_values,
    counted_rows,
    holds_column,
    table_sample,
)
from modicum.posterior.checking.evidence import Evidence, log_evidence
from modicum.posterior.checking.leave_one_out import leave_one_out
from modicum.posterior.checking.predictive import outcome_draws
from modicum.posterior.checking.predictive_check import PredictiveCheck, predictive_check
from modicum.posterior.checking.sensitivity import sensitivity
from modicum.posterior.correction import correct, exact_log_posterior, require_correctable
from modicum.posterior.draws import check_interval
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.guards import Warnings
from modicum.posterior.resampling import equal_places, require_positive
from modicum.posterior.stein import PURPOSE, SteinDiscrepancy, stein_discrepancy
from modicum.rows.reading import is_tabular, source_of

if TYPE_CHECKING:
    import pandas as pd
    from arviz_stats.utils import ELPDData

__all__ = ["ChecksMixin"]


class ChecksMixin(FittedDraws):
    """Methods that say how far a posterior can be trusted; see `Posterior`."""

    def ppc(
        self,
        data: RowsLike | None = None,
        by: str | None = None,
        draws: int = 100,
        bins: int = 10,
        prob: float = 0.9,
        subsample: int = 50_000,
        random_seed: int = 0,
        prior: bool = False,
    ) -> PredictiveCheck:
        """Lay outcomes that were seen beside outcomes that the model draws.

        Outcomes of 0 and 1 are checked for calibration, in bins of their predicted probability;
        counts by how often each occurs, zeros included (a rootogram); numbers by their distribution
        function. With `by`, mean outcomes are compared in bins of a column instead, whether the
        model knows that column or not. A row whose `weight` is a whole number is drawn as often;
        other weights weigh its one outcome.

        Parameters
        ----------
        data
            Rows or a table with outcomes; None: those of the fit.
        by
            A column of the rows, or of the table, to look for residuals by.
        draws
            Predictive draws.
        bins
            Bins of rows.
        prob
            Probability of the intervals.
        subsample
            The most rows to check, each as often as it counts; random ones of more.
        random_seed
            Of rows and outcomes.
        prior
            Whether to draw the parameters from their prior instead.

        Returns
        -------
        PredictiveCheck
            With a `table` of numbers, and `plot()`.
        """
        check_interval(prob)
        whole_number("bins", bins, 2)
        whole_number("subsample", subsample, 1)
        if data is None and by is not None:
            data = self._table_with(by, subsample, random_seed)
        table = data if data is not None else self.table
        all_rows = self.rows_or_own(data, True, "refuse")
        self._require_outcomes(all_rows)
        ids, mass = counted_rows(all_rows.rows, subsample, random_seed)
        checked = replace(all_rows, rows=all_rows.rows.subset(ids))
        values = None if by is None else (by, column_values(all_rows.rows, table, by, ids))
        source, checked = outcome_draws(
            self, checked, draws, random_seed, None, prior, averaged=True
        )
        return predictive_check(
            source, checked, mass, values, bins, prob, random_seed, self.class_names()
        )

    def _table_with(self, column: str, most: int, seed: int) -> RowsLike | None:
        """Random rows of the table of the fit, for a column that its rows do not hold.

        Rows need not be in the table's order, nor as many: a store of groups is sorted, and rows
        with missing values may have been left out.
        """
        encoding = self.fit_rows.encoding if self.fit_rows is not None else None
        if self.rows is None or encoding is None or holds_column(self.rows, column):
            return None
        if not is_tabular(self.table) or column not in source_of(self.table).names:
            return None  # refused where the column is looked for
        needed = dict.fromkeys([*encoding.needed(outcome=True), column])
        return table_sample(self.table, list(needed), most, seed)

    def _require_outcomes(self, rows: AlignedRows) -> None:
        """Refuse rows without the outcomes that a check is of."""
        field = self.fit().model.outcome_field
        if field in rows.fields:
            return
        if self.rows is not None and field not in self.rows.fields:
            raise SettingError(
                f"which field holds the outcomes is not known: the rows of the fit hold "
                f"{', '.join(sorted(self.rows.fields))}; say so with mo.Model(outcome=...)."
            )
        raise SettingError(f"a check needs outcomes: give rows with the field {field!r}.")

    def loo(
        self,
        data: RowsLike | None = None,
        subsample: int | None = None,
        draws: int = 4000,
        random_seed: int = 0,
        progressbar: bool = True,
        moment_match: bool = False,
    ) -> ELPDData:
        """Estimate how well the model predicts rows it has not seen, without fitting again.

        Pareto-smoothed importance sampling leaves each row out (Vehtari, Gelman and Gabry 2017).
        Of many rows, a pass approximates every one from a few draws, and `subsample` rows, drawn by
        how much the approximation may miss, make up for it (difference estimator; Magnusson and
        others 2019), so that no array of draws x rows is held. Rows of a model with effects of
        groups are left out given the effects of the others; where effects were integrated out,
        whole groups are left out.

        Parameters
        ----------
        data
            The rows the posterior was sampled with, or the table they were made of; others are
            refused. None: those the posterior still holds.
        subsample
            Rows to draw, with replacement. None: all rows up to 4,000, and 2,000 of more.
        draws
            The most posterior draws to use, evenly spaced.
        random_seed
            Of the rows that are drawn.
        progressbar
            Whether to show progress on a long pass.
        moment_match
            Whether rows that move the posterior too far to be left out by weighing its draws
            (Pareto k too large) are left out by points of their own, at which all rows are
            evaluated: a few passes, and 1,000 evaluations per row, for each of the 20 worst.

        Returns
        -------
        arviz_stats.utils.ELPDData
            `elpd`; `se`, its standard error as an estimate for new data; `p`, the effective number
            of parameters; `subsampling_se`, the part of the error that drawing rows causes; and
            `elpd_i` and `pareto_k` of the rows that were left out, by their numbers in the table
            (from 0), or of groups by their names.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> rng = np.random.default_rng(1)
        >>> rows = mo.Rows(x=np.ones((500, 1)), y=rng.normal(0.3, 1, size=500))
        >>> mean = rows.slice(0, 500)["y"].mean()  # under a flat prior
        >>> draws = {"beta": rng.normal(mean, 500**-0.5, size=(4, 500, 1))}
        >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=500), rows=rows)
        >>> model = mo.models.Gaussian(scale=1.0, intercept=False)
        >>> post.predictor = mo.models.prediction.ModelPredictor(model)
        >>> left_out = post.loo()
        >>> round(left_out.elpd), round(left_out.p)
        (-669, 1)
        """
        subject = self.subject(data, "leaving rows out")
        numbers = self.table_numbers(data, subject.rows)
        (left_out,) = leave_one_out(
            [subject], subsample, draws, random_seed, progressbar, moment_match, [numbers]
        )
        left_out.warn()
        return left_out.result()

    def log_evidence(
        self,
        data: RowsLike | None = None,
        points: int = 500,
        random_seed: int = 0,
        progressbar: bool = True,
    ) -> Evidence:
        """Integrate the likelihood over the prior: how probable the rows were, by this model.

        The difference of two models' log evidences is the log of their Bayes factor. It depends on
        the priors even where the posteriors do not, and for a model of one's own it is right if
        `log_prior` and `log_likelihood` include their constants.

        All rows are evaluated at `points` draws of the normal distribution with the posterior's
        mean and covariance, in one pass, and the importance weights are Pareto-smoothed. Where
        their tail is too heavy, bridge sampling with the posterior's draws follows, in one more.

        Parameters
        ----------
        data
            The rows the posterior was sampled with, or the table they were made of; others are
            refused. None: those the posterior still holds.
        points
            Points to evaluate all rows at.
        random_seed
            Of the points.
        progressbar
            Whether to show progress on a long pass.

        Returns
        -------
        Evidence
            A named tuple: `value`, the log evidence, and `error`, its Monte Carlo standard error.
        """
        subject = self.subject(data, "the evidence")
        return log_evidence(subject, points, random_seed, progressbar)

    def sensitivity(self, data: RowsLike | None = None, progressbar: bool = True) -> pd.DataFrame:
        """Say how much prior and likelihood each decide, by raising either to a power.

        Effects of groups belong to the model: the prior is that of all else, their standard
        deviations included. Draws with weights are resampled by them.

        Parameters
        ----------
        data
            The rows of the fit, or their table: for a pass at all draws. None: the log-density
            that the chain recorded is used, which costs nothing; methods that record none need
            the rows.
        progressbar
            Whether to show progress on that pass.

        Returns
        -------
        DataFrame
            Of each scalar: sensitivity to the `prior` and to the `likelihood`, and ArviZ's
            `diagnosis`. Above 0.05 something matters: a prior sensitivity alone says that the
            prior is strong, or the data weak; both say that prior and data may disagree.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> rng = np.random.default_rng(1)
        >>> draws = rng.normal(0, 1, size=(2, 500, 1))  # of the prior: the data said nothing
        >>> log_density = -0.5 * draws[..., 0] ** 2
        >>> post = mo.Posterior({"beta": draws}, {"lp": log_density}, mo.Ledger(rows=1))
        >>> model = mo.models.Logistic(prior_scale=1.0, intercept=False)
        >>> post.predictor = mo.models.prediction.ModelPredictor(model)
        >>> post.sensitivity()["prior"].item() > 0.05
        True
        """
        model = self.fit().model
        require_positive(self.weights, "a sensitivity")
        alike = self.resample()
        if data is None and "lp" in self.stats:
            return sensitivity(alike, model, alike.stats["lp"])
        _, fit, rows = self.subject(data, "a sensitivity")
        ledger = Ledger(rows=len(rows))
        exact = exact_log_posterior(ledger, fit, rows, alike.draws, progressbar)
        return sensitivity(alike, model, exact)

    def stein_discrepancy(
        self,
        rows: RowsLike,
        draws: int = 500,
        subsample: int | None = None,
        random_seed: int = 0,
        progressbar: bool = True,
    ) -> SteinDiscrepancy:
        """Measure how far the draws are from the posterior, without a reference to compare with.

        The kernel Stein discrepancy (Gorham and Mackey 2017) needs the gradient of the
        log-posterior at each draw. From all rows that is one pass with `draws` gradients per row;
        from a subsample it is one pass for control variates, and `subsample` rows per draw.

        Parameters
        ----------
        rows
            The rows the posterior was sampled with (after `mo.fit`, the table); others are refused.
        draws
            The most draws to use, evenly spaced.
        subsample
            Rows for the gradient at each draw; None: all.
        random_seed
            Of the subsamples.
        progressbar
            Whether to show progress on a long pass.
        """
        same = rows_of_fit(rows, self.fit_rows, PURPOSE)
        return stein_discrepancy(self, self.fit(), same, draws, subsample, random_seed, progressbar)

    def correct(self, rows: RowsLike, draws: int = 1000, progressbar: bool = True) -> Self:
        """Make the draws of a subsampling method exact by importance weights, in one pass.

        A perturbed chain samples a density close to the posterior; the ratio of the two at each
        draw is its weight. The full log-likelihood is evaluated at up to `draws` evenly spaced
        draws, and the weights are Pareto-smoothed. The result's summaries use the weights, and
        ``result.tuning["correction"]`` says how far off the perturbed answer was.

        Parameters
        ----------
        rows
            The rows the posterior was sampled with (after `mo.fit`, the table); others are refused.
        draws
            The most draws to keep.
        progressbar
            Whether to show progress on a long pass.
        """
        require_correctable(self)
        same = rows_of_fit(rows, self.fit_rows, "a correction")
        weighted = correct(self, self.fit(), same, draws, progressbar)
        doubts = self.warnings if weighted.warning is None else [*self.warnings, weighted.warning]
        return replace(
            self,
            draws=weighted.draws,
            stats=weighted.stats,
            weights=weighted.weights,
            ledger=weighted.ledger,
            warnings=Warnings(doubts),
            tuning=self.tuning | {"correction": weighted.report},
        )

    def resample(self, random_seed: int = 0) -> Self:
        """Turn weights into repetition: as many draws, which count alike.

        Each draw comes up as often as its weight says, but for rounding (systematic resampling),
        so that what knows nothing of weights, such as ArviZ, says the right thing. Draws that count
        alike already are returned as they are; those with negative signs are refused.

        Parameters
        ----------
        random_seed
            Of where the resampling starts.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> draws = {"beta": np.array([[0.0, 1.0, 2.0, 3.0]])}
        >>> weights = np.array([[2.0, 0.0, 0.0, 2.0]])
        >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=1), weights=weights)
        >>> post.resample()["beta"]
        array([[0., 0., 3., 3.]])
        """
        require_positive(self.weights, "resampling")
        if self.weights is None or not self.weighted:
            return self
        shape, number = self.weights.shape, self.weights.size
        at = equal_places(self.weights.reshape(-1), number, number, random_seed, "resampling")

        def resampled(x: np.ndarray) -> np.ndarray:
            return np.asarray(x.reshape(-1, *x.shape[2:])[at].reshape(*shape, *x.shape[2:]))

        draws = {name: resampled(x) for name, x in self.draws.items()}
        stats = {name: resampled(x) for name, x in self.stats.items()}
        return replace(self, draws=draws, stats=stats, weights=None)

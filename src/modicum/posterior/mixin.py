"""Methods of a posterior that check the model, the prior and the draws."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from modicum.errors import SettingError, whole_number
from modicum.ledger import Ledger
from modicum.posterior.doubts import Warnings
from modicum.posterior.draws import check_interval, equal_places, require_positive
from modicum.posterior.evidence import Evidence, log_evidence
from modicum.posterior.exactness import (
    PURPOSE,
    SteinDiscrepancy,
    correct,
    exact_log_posterior,
    require_correctable,
    sensitivity,
    stein_discrepancy,
)
from modicum.posterior.fit_rows import AlignedRows, RowsLike, rows_of_fit
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.loo import leave_one_out
from modicum.posterior.population import (
    column_values,
    counted_rows,
    holds_column,
    table_sample,
)
from modicum.posterior.ppc import PredictiveCheck, predictive_check
from modicum.posterior.predict import outcome_draws
from modicum.rows.reading import is_tabular, source_of

if TYPE_CHECKING:
    import pandas as pd
    from arviz_stats.utils import ELPDData


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
        """Check the model by comparing observed outcomes with outcomes that it predicts.

        Binary outcomes are checked for calibration, in bins of their predicted probability; counts
        by how often each occurs, zeros included (a rootogram); other numbers by their distribution
        function. With `by`, mean outcomes are compared in bins of a column instead, whether or not
        the model uses that column. A row with an integer `weight` k gets k predicted outcomes; any
        other weight multiplies a single one.

        Parameters
        ----------
        data
            Rows or a table with outcomes; the rows of the fit by default.
        by
            A column of the rows, or of the table, by which to bin residuals.
        draws
            Number of predictive draws.
        bins
            Number of bins.
        prob
            Probability of the intervals.
        subsample
            The most rows to check, repeated by their weights; if there are more, a random sample.
        random_seed
            Seed of the sample of rows and of the outcomes.
        prior
            Whether to draw the parameters from their prior instead.

        Returns
        -------
        PredictiveCheck
            Has a `table` of the numbers, and `plot()`.
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
        """Return random rows of the fit's table if only the table, not the rows, has the column.

        The rows cannot be matched with the table by position: a store of groups is sorted, and
        rows with missing values may have been left out.
        """
        encoding = self.fit_rows.encoding if self.fit_rows is not None else None
        if self.rows is None or encoding is None or holds_column(self.rows, column):
            return None
        if not is_tabular(self.table) or column not in source_of(self.table).names:
            return None  # `column_values` raises the error
        needed = dict.fromkeys([*encoding.needed(outcome=True), column])
        return table_sample(self.table, list(needed), most, seed, encoding, fitted=self.rows)

    def _require_outcomes(self, rows: AlignedRows) -> None:
        """Refuse rows without outcomes."""
        field = self.fit().model.outcome_field
        if field in rows.fields:
            return
        if self.rows is not None and field not in self.rows.fields:
            raise SettingError(
                f"it is not known which field holds the outcomes: the rows of the fit have "
                f"{', '.join(sorted(self.rows.fields))}; name it with mo.Model(outcome=...)."
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
        If there are many rows, one pass approximates every row from a few draws, and `subsample`
        rows, drawn in proportion to the likely error of the approximation, correct it (difference
        estimator; Magnusson et al. 2019), so that no array of draws x rows is held. In a model
        with explicit effects of groups, single rows are left out; if effects were integrated out,
        whole groups are.

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
        """Estimate the log evidence (marginal likelihood): the likelihood averaged over the prior.

        The difference of two models' log evidences is the log of their Bayes factor. It depends on
        the priors even if the posteriors do not. For a custom model it is correct only if
        `log_prior` and `log_likelihood` include their normalising constants.

        All rows are evaluated at `points` draws of the normal distribution with the posterior's
        mean and covariance, in one pass, and the importance weights are Pareto-smoothed. If their
        tail is too heavy, bridge sampling with the posterior's draws follows, in another pass.

        Parameters
        ----------
        data
            The rows the posterior was sampled with, or their table; other rows are refused. By
            default the rows that the posterior holds.
        points
            Number of points at which to evaluate all rows.
        random_seed
            Seed of the points.
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
        """Measure how sensitive the posterior is to prior and likelihood, by power-scaling each.

        Effects of groups count as part of the model: the prior is that of all other parameters,
        standard deviations of effects included. Weighted draws are resampled first.

        Parameters
        ----------
        data
            The rows of the fit, or their table, for a pass that evaluates the log-density at all
            draws. By default the log-density that the chain recorded is used, at no cost; methods
            that record none need the rows.
        progressbar
            Whether to show progress on that pass.

        Returns
        -------
        DataFrame
            For each scalar its sensitivity to the `prior` and to the `likelihood`, and ArviZ's
            `diagnosis`. Values above 0.05 matter: sensitivity to the prior alone means that the
            prior is strong or the data are weak; to both, that prior and data may disagree.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> rng = np.random.default_rng(1)
        >>> draws = rng.normal(0, 1, size=(2, 500, 1))  # the prior: the data are uninformative
        >>> log_density = -0.5 * draws[..., 0] ** 2
        >>> post = mo.Posterior({"beta": draws}, {"lp": log_density}, mo.Ledger(rows=1))
        >>> model = mo.models.Logistic(prior_scale=1.0, intercept=False)
        >>> post.predictor = mo.models.over_draws.ModelPredictor(model)
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
        log-posterior at each draw. From all rows this takes one pass with `draws` gradients per
        row; from a subsample, one pass for control variates and `subsample` rows per draw.

        Parameters
        ----------
        rows
            The rows the posterior was sampled with (after `mo.fit`, the table); others are refused.
        draws
            The most draws to use, evenly spaced.
        subsample
            Rows for the gradient at each draw; all by default.
        random_seed
            Seed of the subsamples.
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
        """Resample weighted draws into as many equally weighted ones.

        Each draw is repeated in proportion to its weight, up to rounding (systematic resampling),
        so that software that ignores weights, such as ArviZ, gives correct results. Equally
        weighted draws are returned unchanged; draws with negative signs are refused.

        Parameters
        ----------
        random_seed
            Seed of the starting point of the resampling.

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

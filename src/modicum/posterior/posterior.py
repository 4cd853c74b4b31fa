"""The result of a run: draws, what they cost, and how far they can be trusted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from modicum.errors import DataError, ModicumError, SettingError, is_number, whole_number
from modicum.ledger import Ledger
from modicum.models import IntegratedEffects
from modicum.models.base import BaseModel
from modicum.models.own import Model
from modicum.models.prediction import ModelPredictor, rebuild
from modicum.models.prior_draws import log_priors, prior_draws
from modicum.posterior.alignment import (
    AlignedRows,
    Batch,
    FitRows,
    RowsLike,
    aligned,
    require_rows_of_fit,
    rows_of_fit,
)
from modicum.posterior.checking.columns import column_values, random_rows
from modicum.posterior.checking.evidence import Evidence, log_evidence
from modicum.posterior.checking.leave_one_out import (
    Subject,
    leave_one_out,
    require_positive_sum,
)
from modicum.posterior.checking.marginal import Comparison, Expected, contrast, marginal
from modicum.posterior.checking.population import Population
from modicum.posterior.checking.population import population as population_of
from modicum.posterior.checking.predictive import (
    OutcomeDraws,
    density_array,
    equal_draws,
    outcome_array,
)
from modicum.posterior.checking.predictive_check import PredictiveCheck, predictive_check
from modicum.posterior.checking.sensitivity import sensitivity
from modicum.posterior.correction import (
    Fit,
    correct,
    exact_log_posterior,
    require_correctable,
)
from modicum.posterior.datatree import (
    MOST_DRAWS,
    PRIOR_DRAWS,
    SampledGroups,
    add_groups,
    to_datatree,
    weight_name,
    write_netcdf,
)
from modicum.posterior.draws import Draws, check_interval, require_finite, thinned
from modicum.posterior.effects import (
    effects,
    group_names,
    known_effects,
    known_groups,
    with_groups,
)
from modicum.posterior.guards import Warnings
from modicum.posterior.prediction import Prediction, Predictor, predict
from modicum.posterior.report import Reported, report_page
from modicum.posterior.report.words import code_for, model_name, posterior_box
from modicum.posterior.resampling import equal_places, require_positive
from modicum.posterior.score import Score, score
from modicum.posterior.stein import PURPOSE, SteinDiscrepancy, stein_discrepancy
from modicum.posterior.storage import Contents, load, save
from modicum.posterior.summary import Statistic, learning_curve, summarise
from modicum.posterior.variation import intraclass
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.formula import NewLevels
from modicum.run import within_disk

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from arviz_stats.utils import ELPDData

__all__ = ["Posterior"]

MOST_COLUMNS = 8  # whose effects a report shows


@dataclass(repr=False, eq=False)
class Posterior(Draws):
    """Draws from a posterior, with their signs or weights, their cost and their warnings.

    Every estimate respects the signs of a signed sampler and importance weights.

    Parameters
    ----------
    draws
        Name to array (chain, draw, *shape).
    stats
        Name to array (chain, draw), by ArviZ's names: ``acceptance_rate``, ``diverging`` ...
    ledger
        Count of the row evaluations.
    labels
        Name to one sequence of labels (or ``None``) for each axis of its shape.
    weights
        Sign or importance weight of each draw (chain, draw); ``None``: all equal.
    warnings
        The reasons to doubt these draws, each a `ModicumWarning`; they print as sentences.
    tuning
        Settings that were chosen by the sampler, each with an explanation.
    settings
        Method, seed, number of rows, wall time, versions.
    predictor
        From draws and a batch of rows to expected outcomes; see `predict`. It is saved with the
        posterior where it has a ``to_dict`` method.
    fit_rows
        Names, levels, reference levels and fingerprint of the rows of the fit, which other rows
        are compared with; ``None``: rows are taken as they are.
    rows
        The rows of the fit themselves, which checks and effects are computed from; not saved.
    table
        The table that `mo.fit` made them of; not saved.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> draws = {"beta": rng.normal([1.0, 2.0], 0.1, size=(4, 250, 2))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=1_000), labels={"beta": ("age", "income")})
    >>> post
    <Posterior: 4 chains of 250 draws; beta (2,); 0.0 passes over 1,000 rows>
    >>> post.summary()[["mean", "sd"]].round(1)
                  mean   sd
    beta[age]      1.0  0.1
    beta[income]   2.0  0.1
    """

    warnings: Warnings = field(default_factory=Warnings)
    tuning: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    predictor: Predictor | None = None
    predictor_spec: dict[str, Any] | None = None
    fit_rows: FitRows | None = None
    rows: Rows | None = None
    table: object = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.warnings = Warnings(self.warnings)
        describe = getattr(self.predictor, "to_dict", None)
        if self.predictor_spec is None and describe is not None:
            self.predictor_spec = describe()

    def summary(self, names: Sequence[str] | str | None = None, prob: float = 0.9) -> pd.DataFrame:
        """Tabulate every scalar: mean, sd, interval, Monte Carlo error, ESS, R-hat.

        The interval is equal-tailed with posterior probability `prob`; its two columns bear the
        names of their quantiles, such as ``5%`` and ``95%``. With signs or weights, `mcse_mean`,
        `ess_bulk`, `ess_tail` and `r_hat` are of the ratio estimate (delta method, batch means),
        and ``attrs`` holds the mean weight and the weights' own R-hat.
        """
        return summarise(self, names, prob)

    def to_datatree(self, sample: int = 500, random_seed: int = 0) -> xr.DataTree:
        """Convert to an ArviZ DataTree, with dimensions named and labelled.

        Groups: `posterior`, `sample_stats`; where the model is known `log_prior`, and `prior` if
        it can be drawn from; where the rows are at hand, of a random sample of them,
        `observed_data`, `log_likelihood`, `posterior_predictive` and `prior_predictive`.

        Parameters
        ----------
        sample
            Rows of the sample; 0: posterior and statistics alone, which takes no time.
        random_seed
            Of the sample, and of what is drawn.
        """
        whole_number("sample", sample, 0)
        tree = to_datatree(self, self.settings, self.warnings)
        if sample and self.restore_predictor() is not None:
            add_groups(tree, self._sampled_groups(sample, random_seed))
        return tree

    def to_netcdf(self, path: str | os.PathLike[str], sample: int = 500) -> None:
        """Write the DataTree to a netCDF file, which ArviZ reads; see `to_datatree`.

        It needs h5netcdf or netCDF4.
        """
        write_netcdf(self.to_datatree(sample), path)

    def _sampled_groups(self, sample: int, seed: int) -> SampledGroups:
        fit = self._fit()
        every = max(1, -(-self.chains * self.num_draws // MOST_DRAWS))
        kept = {name: x[:, ::every] for name, x in self.draws.items()}
        groups = SampledGroups(kept, every)
        groups.log_prior = log_priors(fit.model, kept)
        shapes = {name: x.shape[2:] for name, x in self.draws.items()}
        with suppress(SettingError):  # of a flat prior, say
            rng = generator(seed, Stream.PRIOR_DRAWS)
            groups.prior = prior_draws(fit.model, shapes, PRIOR_DRAWS, rng)
        if self.rows is None or "y" not in self.rows.fields:
            return groups
        ids = np.sort(random_rows(len(self.rows), sample, seed))
        some = AlignedRows(self.rows.subset(ids), tuple(self.rows.fields))
        groups.observed, groups.row_ids = some.rows.slice(0, len(ids))["y"], ids
        whole = {name: x.reshape(-1, *x.shape[2:]) for name, x in kept.items()}
        predictor = ModelPredictor(fit.model)
        if not isinstance(fit.model, IntegratedEffects):  # of which groups have likelihoods
            groups.log_likelihood = density_array(predictor, whole, some)
        with suppress(SettingError):  # of a model that draws no outcomes
            some, known = with_groups(some, fit.model, None)
            effects = None
            if known and isinstance(fit.model, IntegratedEffects):
                effects = known_effects(whole, fit, self.rows, some)
            source = OutcomeDraws(whole, predictor, effects)
            groups.posterior_predictive = outcome_array(source, some, seed, None)
            if groups.prior is not None:
                before = OutcomeDraws(groups.prior, predictor)
                groups.prior_predictive = outcome_array(before, some, seed, None)
        return groups

    def predict(
        self,
        rows: RowsLike,
        draws: int = 200,
        prob: float = 0.9,
        newlevels: NewLevels = "refuse",
        groups: Literal["known", "new"] | None = None,
    ) -> Prediction:
        """Predict the expected outcome of each row, with an interval of probability `prob`.

        Rows are visited a chunk at a time, and an evenly spaced subset of `draws` draws is used,
        so that memory stays small however many rows there are.

        Parameters
        ----------
        rows
            Modicum rows, whose columns are matched with those of the fit by name; a pandas, polars
            or Arrow table (after `mo.fit` also a file), which is encoded as the rows of the fit
            were: columns in any order, others are left alone; or a dict of arrays such
            as ``{"x": X}`` with the columns in the fit's order.
        draws
            Posterior draws to use.
        prob
            Posterior probability of the equal-tailed interval of the expected outcome.
        newlevels
            What becomes of a level that the fit did not have, in a table given to a posterior of
            `mo.fit`: "refuse" it, or take it for the "reference" level.
        groups
            Of a model with groups: "known" takes the effects of the rows' own groups, which must
            be among those of the fit, "new" averages over the groups there may be. None: known
            where the rows say which group they are in, else new.
        """
        if groups not in (None, "new", "known"):
            raise SettingError(f"groups must be 'new' or 'known', not {groups!r}.")
        predictor = self.restore_predictor()
        if predictor is None:
            raise SettingError(
                "This posterior cannot predict because it has no model: it was made without one, "
                "or its file, which keeps no model of one's own, was loaded without it; use "
                "Posterior.load(path, model=...), or compute from posterior.draws."
            )
        new = aligned(rows, self.fit_rows, False, newlevels)
        if isinstance(predictor, ModelPredictor):
            new, known = with_groups(new, predictor.model, groups)
            if known and isinstance(predictor.model, IntegratedEffects):
                predictor = known_groups(self, self._fit(), self._rows_of_fit(None), new, draws)
        return predict(self, predictor, new, draws, prob)

    def score(self, rows: RowsLike, draws: int = 200, newlevels: NewLevels = "refuse") -> Score:
        """Score predictions of outcomes that were seen: accuracy and log predictive density.

        Both are given for the averaged prediction of the draws of all chains, and for draws by
        themselves, chain by chain. Rows count by their `weight`, if they have one, and draws by
        their signs or weights.

        Parameters
        ----------
        rows
            Modicum rows, whose columns are matched with those of the fit by name; a pandas, polars
            or Arrow table (after `mo.fit` also a file), which is encoded as the rows of the fit
            were: columns in any order, others are left alone; or a dict of arrays such
            as ``{"x": X, "y": y}`` with the columns in the fit's order.
        draws
            Posterior draws to use, evenly spaced: as many of each chain, and at least one.
        newlevels
            As in `predict`.
        """
        predictor = self.restore_predictor()
        if not isinstance(predictor, ModelPredictor):
            raise SettingError(
                "this posterior cannot score outcomes because it has no model: it was made without "
                "one, or its file, which keeps no model of one's own, was loaded without it; use "
                "Posterior.load(path, model=...), or compute from posterior.draws."
            )
        return score(self, predictor, aligned(rows, self.fit_rows, True, newlevels), draws)

    def restore_predictor(self) -> Predictor | None:
        """Return the predictor, rebuilt from its description where the posterior was loaded."""
        if self.predictor is None and self.predictor_spec is not None:
            self.predictor = rebuild(self.predictor_spec)
        return self.predictor

    def _fit(self) -> Fit:
        predictor = self.restore_predictor()
        if not isinstance(predictor, ModelPredictor):
            raise SettingError(
                "this posterior was made or loaded without its model, and a file keeps no model of "
                "one's own; use Posterior.load(path, model=...)."
            )
        # Modicum's own models cannot change; another JAX may write one's own otherwise.
        comparable = self.predictor_spec is None and self.settings.get("jax") == version("jax")
        identity = self.settings.get("model") if comparable else None
        return Fit(predictor.model, self.fit_rows, identity)

    def correct(self, rows: RowsLike, draws: int = 1000, progressbar: bool = True) -> Posterior:
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
        weighted = correct(self, self._fit(), same, draws, progressbar)
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

    def resample(self, random_seed: int = 0) -> Posterior:
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
        shape = self.weights.shape
        at = equal_places(
            self.weights.reshape(-1), self.weights.size, self.weights.size, random_seed, "it"
        )

        def taken(x: np.ndarray) -> np.ndarray:
            return np.asarray(x.reshape(-1, *x.shape[2:])[at].reshape(*shape, *x.shape[2:]))

        draws = {name: taken(x) for name, x in self.draws.items()}
        stats = {name: taken(x) for name, x in self.stats.items()}
        return replace(self, draws=draws, stats=stats, weights=None)

    def effects(
        self,
        group: str,
        levels: Sequence[Any] | None = None,
        rows: Rows | None = None,
        draws: int = 200,
        prob: float = 0.9,
    ) -> pd.DataFrame:
        """Tabulate the effects of groups: mean, sd, interval, and rows of each.

        Effects that were integrated out are drawn now, given draws of everything else, from the
        rows of the groups asked for.

        Parameters
        ----------
        group
            The field the rows are grouped by.
        levels
            Groups to tabulate, by their values; None: all.
        rows
            The rows the posterior was sampled with; needed for integrated effects where it was
            loaded from a file.
        draws
            Posterior draws to use for integrated effects, evenly spaced; explicit ones use all.
        prob
            Posterior probability of the equal-tailed interval.

        Returns
        -------
        DataFrame
            Indexed by level; by level and effect where a group has several.

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
        ['mean', 'sd', '5%', '95%', 'rows']
        """
        known = self.rows if rows is None else rows
        return effects(self, self._fit(), known, group, levels, draws, prob)

    def icc(self, rows: Rows | None = None, prob: float = 0.9) -> pd.DataFrame:
        """Tabulate intraclass correlations: how much of the variation is between groups.

        On the scale of the predictor, given the common columns: the variance of a group's effects
        over that of all groups and of a row's own noise, which is pi^2/3 for the logit, 1 for the
        probit, the square of a Gaussian's scale, and log(1 + 1/mean) for Poisson counts. Where
        slopes vary, their part is averaged over the rows.

        Parameters
        ----------
        rows
            The rows the posterior was sampled with; needed for slopes and counts where it was
            loaded from a file.
        prob
            Posterior probability of the equal-tailed interval.

        Returns
        -------
        DataFrame
            One line per group, and one for all of them where there are several.

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
        return intraclass(self, self._fit().model, self.rows if rows is None else rows, prob)

    def _rows_of_fit(self, rows: Rows | None) -> Rows:
        known = self.rows if rows is None else rows
        if known is None:
            raise SettingError(
                "predictions for known groups need the rows of the fit where effects were "
                "integrated out, and a file does not keep them; predict for new groups "
                "(groups='new')."
            )
        return known

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
        return stein_discrepancy(
            self, self._fit(), same, draws, subsample, random_seed, progressbar
        )

    def loo(
        self,
        data: RowsLike | None = None,
        subsample: int | None = None,
        draws: int = 4000,
        random_seed: int = 0,
        progressbar: bool = True,
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

        Returns
        -------
        arviz_stats.utils.ELPDData
            `elpd`; `se`, its standard error as an estimate for new data; `p`, the effective number
            of parameters; `subsampling_se`, the part of the error that drawing rows causes; and
            `elpd_i` and `pareto_k` of the rows that were left out.

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
        (left_out,) = leave_one_out([subject], subsample, draws, random_seed, progressbar)
        left_out.warn(stacklevel=4)
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

    def predictive(
        self,
        data: RowsLike | None = None,
        draws: int = 100,
        random_seed: int = 0,
        newlevels: NewLevels = "refuse",
        groups: Literal["known", "new"] | None = None,
        prior: bool = False,
        out: str | os.PathLike[str] | None = None,
    ) -> np.ndarray:
        """Draw outcomes from the posterior predictive distribution.

        Where `predict` says what outcome to expect, with the uncertainty of that expectation, this
        draws outcomes themselves, noise included. Rows are visited a chunk at a time.

        Parameters
        ----------
        data
            Rows or a table, as `predict` takes them; None: the rows of the fit.
        draws
            Outcomes per row, each from a posterior draw of its own.
        random_seed
            Of the outcomes.
        newlevels, groups
            As in `predict`; every row of a new group is of a group of its own.
        prior
            Whether to draw the parameters from their prior instead (prior predictive).
        out
            A .npy file to write the outcomes to, for more than memory holds; it is mapped.

        Returns
        -------
        ndarray
            Outcomes (draws, rows), in the numbers that the rows hold.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> draws = {"beta": np.full((1, 100, 1), 2.0), "intercept": np.zeros((1, 100))}
        >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=3))
        >>> post.predictor = mo.models.prediction.ModelPredictor(mo.models.Logistic())
        >>> post.predictive({"x": [[-9.0], [0.0], [9.0]]}, draws=50).mean(axis=0).round(1)
        array([0. , 0.5, 1. ])
        """
        new = self._rows_to_draw(data, False, newlevels)
        source, new = self._outcome_draws(new, draws, random_seed, groups, prior)
        return outcome_array(source, new, random_seed, out)

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
        model knows that column or not.

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
            The most rows to check; random ones of more.
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
        table = data if data is not None else self.table
        every = self._rows_to_draw(data, True, "refuse")
        ids = random_rows(len(every), subsample, random_seed)
        some = replace(every, rows=every.rows.subset(ids))
        if "y" not in some.fields:
            raise SettingError("a check needs outcomes: give rows with the field 'y'.")
        values = None if by is None else (by, column_values(every.rows, table, by, ids))
        source, some = self._outcome_draws(some, draws, random_seed, None, prior, averaged=True)
        return predictive_check(source, some, values, bins, prob, random_seed, self._class_names())

    def marginal(
        self,
        column: str,
        data: RowsLike | None = None,
        at: Sequence[Any] | None = None,
        slope: bool = False,
        draws: int = 200,
        prob: float = 0.9,
        subsample: int = 5_000,
        random_seed: int = 0,
        groups: Literal["known", "new"] | None = None,
    ) -> pd.DataFrame:
        """Say what a column does to the expected outcome, all other columns being as they are.

        The column is set to each value in turn, in all rows of a sample, and predictions are
        averaged. After `mo.fit` it is a column of the table, so that splines, interactions and
        levels follow.

        Parameters
        ----------
        column
            A column of the table, of x, or a factor.
        data
            Rows or a table to average over; None: those of the fit.
        at
            Values to set, or one; None: levels, few values, or a grid of twenty between the 1st and
            the 99th percentile.
        slope
            Whether to give marginal effects instead: derivatives with respect to the column,
            averaged over the rows as they are, or with the column at each value of `at`.
        draws
            Posterior draws to use, evenly spaced.
        prob
            Posterior probability of the equal-tailed interval.
        subsample
            The most rows to average over; random ones of more.
        random_seed
            Of the rows.
        groups
            As in `predict`.

        Returns
        -------
        DataFrame
            By value: `mean`, `sd` and the ends of the interval. `mo.plots.effect` draws it.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> rng = np.random.default_rng(1)
        >>> rows = mo.Rows(x=rng.normal(size=(100, 2)), y=np.zeros(100), columns=["dose", "age"])
        >>> draws = {"beta": np.tile([2.0, -1.0], (1, 100, 1)), "intercept": np.zeros((1, 100))}
        >>> model = mo.models.Gaussian(scale=1.0)
        >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=100), rows=rows)
        >>> post.predictor = mo.models.prediction.ModelPredictor(model)
        >>> post.marginal("dose", slope=True)["mean"].round(3).to_dict()
        {'dose': 2.0}
        """
        check_interval(prob)
        rows, expected, weights = self._averages(
            column, data, draws, subsample, random_seed, groups
        )
        return marginal(rows, expected, weights, column, at, slope, prob, self._class_names())

    def contrast(
        self,
        column: str,
        between: Sequence[Any] | None = None,
        data: RowsLike | None = None,
        comparison: Comparison = "difference",
        draws: int = 200,
        prob: float = 0.9,
        subsample: int = 5_000,
        random_seed: int = 0,
        groups: Literal["known", "new"] | None = None,
    ) -> pd.DataFrame:
        """Compare expected outcomes at values of a column, all others being as they are.

        Parameters
        ----------
        column
            As in `marginal`.
        between
            Two values or more: each is compared with the first. None: levels with the reference
            level, and numbers with themselves plus one.
        data
            Rows or a table to average over; None: those of the fit.
        comparison
            "difference", "ratio" or "odds ratio" of the average predictions.
        draws, prob, subsample, random_seed, groups
            As in `marginal`.

        Returns
        -------
        DataFrame
            By contrast: `mean`, `sd` and the ends of the interval.
        """
        check_interval(prob)
        rows, expected, weights = self._averages(
            column, data, draws, subsample, random_seed, groups
        )
        return contrast(
            rows, expected, weights, column, between, comparison, prob, self._class_names()
        )

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
        model = self._fit().model
        require_positive(self.weights, "a sensitivity")
        alike = self.resample()
        if data is None and "lp" in self.stats:
            return sensitivity(alike, model, alike.stats["lp"])
        _, fit, rows = self.subject(data, "a sensitivity")
        ledger = Ledger(rows=len(rows))
        exact = exact_log_posterior(ledger, fit, rows, alike.draws, progressbar)
        return sensitivity(alike, model, exact)

    def report(
        self,
        path: str | os.PathLike[str],
        title: str | None = None,
        prob: float = 0.9,
    ) -> Path:
        """Write a page that says what was fitted, whether to trust it, and what it says.

        One HTML file that loads nothing: the model, data and priors, diagnostics with traffic
        lights, coefficients, effects, what columns do, calibration, cost against full data,
        warnings in words, and how to do it again. What needs the rows is left out where the
        posterior, loaded from a file, does not hold them.

        Parameters
        ----------
        path
            The file to write.
        title
            Its heading; the formula, or the model, by default.
        prob
            Posterior probability of the intervals.

        Returns
        -------
        Path
            Where it is.
        """
        check_interval(prob)
        page = report_page(self._reported(title, prob))
        with within_disk(path):
            Path(path).write_text(page, encoding="utf-8")
        return Path(path)

    def _reported(self, title: str | None, prob: float) -> Reported:
        predictor = self.restore_predictor()
        model = predictor.model if isinstance(predictor, ModelPredictor) else None
        name = model_name(model)
        check: PredictiveCheck | str = "The rows of the fit are not at hand, so this is not known."
        columns: dict[str, pd.DataFrame | str] = {}
        groups: dict[str, pd.DataFrame] = {}
        if model is not None and self.rows is not None:
            try:
                check = self.ppc(draws=100, prob=prob)
            except ModicumError as fault:
                check = str(fault)
            for column in self._columns_to_report():
                try:
                    columns[column] = self.marginal(column, draws=100, prob=prob, subsample=1000)
                except ModicumError as fault:
                    columns[column] = str(fault)
            for group in group_names(model):
                groups[group] = self.effects(group, prob=prob)
        return Reported(
            title=title or str(self.settings.get("formula", name)),
            summary=self.summary(prob=prob),
            stats=self.stats,
            tuning=self.tuning,
            settings=self.settings,
            warnings=self.warnings,
            ledger=self.ledger,
            fit_rows=self.fit_rows,
            model=name,
            chains=self.chains,
            draws=self.num_draws,
            code=code_for(self.settings, name, self.chains, self.num_draws),
            check=check,
            columns=columns,
            groups=groups,
        )

    def _columns_to_report(self) -> list[str]:
        """Columns as a user knows them, the first few; groups have a section of their own."""
        assert self.rows is not None
        encoding = None if self.fit_rows is None else self.fit_rows.encoding
        if encoding is not None:
            grouped = {name for group in encoding.groupings for name in group.columns}
            names = encoding.needed(outcome=False, fields=()) if self.table is not None else ()
            return [name for name in names if name not in grouped][:MOST_COLUMNS]
        rows = self.rows
        places = range(len(rows.columns)) if rows.coding is None else rows.coding.dense
        coded = () if rows.coding is None else rows.coding.fields
        return [*(rows.columns[k] for k in places), *coded][:MOST_COLUMNS]

    def _repr_html_(self) -> str:
        return posterior_box(self, repr(self), self.warnings)

    def _class_names(self) -> tuple[str, ...]:
        """What the outcome's classes are called; empty where they are numbers."""
        known = self.settings.get("outcome_levels")
        levels = known or (() if self.rows is None else self.rows.outcome_levels)
        return tuple(map(str, levels))

    def _averages(
        self,
        column: str,
        data: RowsLike | None,
        draws: int,
        subsample: int,
        seed: int,
        groups: Literal["known", "new"] | None,
    ) -> tuple[Population, Expected, np.ndarray]:
        """Rows to average over, what to average, and the weights of the draws."""
        whole_number("draws", draws)
        whole_number("subsample", subsample)
        fit = self._fit()
        by_formula = self.fit_rows is not None and self.fit_rows.encoding is not None
        rows = None
        if not by_formula and (data is not None or self.rows is not None):
            rows = self._rows_to_draw(data, False, "refuse")
        table = self.table if data is None else data
        population = population_of(table, rows, self.fit_rows, subsample, seed)
        subset, weights = thinned(self, draws)
        there, known = with_groups(population.as_it_is, fit.model, groups)
        predictor: Predictor = ModelPredictor(fit.model)
        if known and isinstance(fit.model, IntegratedEffects):
            if column == fit.model.group:
                raise SettingError(
                    f"the effects of {column!r} are tabulated by post.effects({column!r})."
                )
            predictor = known_groups(self, fit, self._rows_of_fit(None), there, draws)
        left_out = set(population.as_it_is.fields) - set(there.fields)

        def expected(batch: Batch) -> np.ndarray:
            kept = {name: values for name, values in batch.items() if name not in left_out}
            return np.asarray(predictor(subset, kept), float)

        return population, expected, weights

    def _rows_to_draw(
        self, data: RowsLike | None, outcome: bool, newlevels: NewLevels
    ) -> AlignedRows:
        if data is not None:
            return aligned(data, self.fit_rows, outcome, newlevels)
        if self.rows is None:
            raise SettingError(
                "this posterior, made by hand or loaded from a file, does not hold its rows; give "
                "them, or their table."
            )
        return AlignedRows(self.rows, tuple(self.rows.fields))

    def _outcome_draws(
        self,
        rows: AlignedRows,
        draws: int,
        seed: int,
        groups: Literal["known", "new"] | None,
        prior: bool,
        averaged: bool = False,
    ) -> tuple[OutcomeDraws, AlignedRows]:
        """What outcomes are drawn from, and the rows with their groups if those count.

        Draws count alike, unless they are averaged, which signs are for.
        """
        whole_number("draws", draws)
        fit = self._fit()
        predictor = ModelPredictor(fit.model)
        rows, known = with_groups(rows, fit.model, groups)
        if prior:
            shapes = {name: x.shape[2:] for name, x in self.draws.items()}
            drawn = prior_draws(fit.model, shapes, draws, generator(seed, Stream.PRIOR_DRAWS))
            return OutcomeDraws(drawn, predictor), rows
        signs = None
        if averaged and self.weights is not None and (self.weights < 0).any():
            require_finite(self.draws, "a check")
            subset, (signs,) = thinned(self, draws)
            require_positive_sum(signs, "a check")
        else:
            subset = equal_draws(self, draws, seed, "drawing outcomes")
        effects = None
        if known and isinstance(fit.model, IntegratedEffects):
            effects = known_effects(subset, fit, self._rows_of_fit(None), rows)
        return OutcomeDraws(subset, predictor, effects, signs), rows

    def subject(self, data: RowsLike | None, purpose: str) -> Subject:
        """Return what was fitted to which rows, those of `data` if they are the same."""
        rows = self.rows if data is None else rows_of_fit(data, self.fit_rows, purpose)
        if rows is None:
            raise SettingError(
                f"{purpose} needs the rows of the fit, which this posterior, made by hand or "
                "loaded from a file, does not hold; give them, or their table."
            )
        if rows is not self.rows:
            number = self.ledger.rows if self.ledger.unit == "row" else None
            require_rows_of_fit(rows, self.fit_rows, number, purpose)
        return Subject(self, self._fit(), rows)

    def learning_curve(
        self,
        statistic: Statistic,
        at: Sequence[float] | None = None,
    ) -> pd.DataFrame:
        """Follow a statistic of the chains, taken as independent realisations, along the run.

        Parameters
        ----------
        statistic
            From the chains' current draws, name to array (chain, *shape), to a number or a dict
            of numbers.
        at
            Passes over the rows at which to evaluate it, counted for each chain from its start;
            by default 50 moments from the first draw to the last.

        Returns
        -------
        DataFrame
            Indexed by passes; the column ``value``, or one for each entry of the dict.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> rng = np.random.default_rng(1)
        >>> draws = {"beta": np.cumsum(rng.normal(size=(200, 30)), axis=1)}
        >>> stats = {"rows_touched": np.full((200, 30), 50)}
        >>> post = mo.Posterior(draws, stats, mo.Ledger(rows=100))
        >>> post.learning_curve(lambda now: now["beta"].var(), at=[0.5, 15]).round(1)
                value
        passes
        0.5       1.0
        15.0     30.7
        """
        before = self.settings.get("warmup_rows", 0)
        return learning_curve(self, statistic, at, before if is_number(before) else 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to one file, whole or not at all; nothing in it is executable.

        Raises
        ------
        ResourceError
            If the disk is full; a file that was there before is as it was.
        """
        contents = Contents(
            self.draws, self.stats, self.weights, self.labels, self.ledger, self.warnings,
            self.tuning, self.settings, self.predictor_spec, self.fit_rows,
        )  # fmt: skip
        with within_disk(path):
            save(contents, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: BaseModel | None = None) -> Posterior:
        """Load what `save` saved; a damaged or foreign file is a `DataError`.

        Parameters
        ----------
        path
            The file.
        model
            The model, where it is one of your own: a file keeps Modicum's models only.
        """
        contents = load(path)
        values = dict(vars(contents))
        try:
            post = cls(predictor_spec=values.pop("predictor"), **values)
        except (TypeError, ValueError, AttributeError) as fault:
            raise DataError(
                f"{path} is not a posterior saved by Modicum, or it is damaged ({fault})."
            ) from fault
        if model is not None:
            post._take_model(model)
        return post

    def _take_model(self, model: BaseModel) -> None:
        """Predict by a model that the file did not keep, if its parameters are those drawn."""
        if not isinstance(model, BaseModel):
            raise SettingError(
                f"model must be a model such as mo.Model(...), not {type(model).__name__}."
            )
        if self.predictor_spec is not None:
            raise SettingError("the file keeps the model of this posterior: leave `model` out.")
        if isinstance(model, Model):
            kinds = {} if self.fit_rows is None else self.fit_rows.schema.kinds
            model = model.of_draws({name: x.shape[2:] for name, x in self.draws.items()}, kinds)
        self.predictor = ModelPredictor(model)

    def __repr__(self) -> str:
        chains = f"{self.chains} chain" + "s" * (self.chains != 1)
        names = ", ".join(f"{k} {v.shape[2:]}" if v.ndim > 2 else k for k, v in self.draws.items())
        parts = [f"{chains} of {self.num_draws:,} draws", names]
        if self.weights is not None and self.weighted:
            parts.append(f"mean {weight_name(self.weights)} {self.weights.mean():.3g}")
        units = f"{self.ledger.rows:,} {self.ledger.unit}s"
        parts.append(f"{self.ledger.passes:,.1f} passes over {units}")
        if self.warnings:
            parts.append(f"{len(self.warnings)} warning" + "s" * (len(self.warnings) != 1))
        method = f" {self.settings['method']}" if "method" in self.settings else ""
        return f"<Posterior{method}: {'; '.join(parts)}>"

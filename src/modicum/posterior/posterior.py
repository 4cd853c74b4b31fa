"""The result of a run: draws, their cost, and reasons to doubt them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modicum.arguments import names_checked
from modicum.errors import DataError, ModicumError, SettingError, is_number, whole_number
from modicum.files import require_writable, whole_file
from modicum.models.model import BaseModel
from modicum.models.over_draws import ModelPredictor
from modicum.models.own import Model
from modicum.posterior.archive import Contents, load, save
from modicum.posterior.datatree import (
    add_groups,
    netcdf_engine,
    sampled_groups,
    to_datatree,
    weight_name,
)
from modicum.posterior.draws import check_interval
from modicum.posterior.fit_rows import RowsLike, require_rows_of_fit, rows_of_fit
from modicum.posterior.report import Reportable, contents_of, report_page
from modicum.posterior.summary import Statistic, learning_curve, posterior_box, summarise
from modicum.rows import Rows
from modicum.rows.reading import TableFiles

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

SUMMARY = 'post.summary("beta"), or post["beta"] for the draws'
DRAWS = 'post.draws, name to array (chain, draw, ...), or post["beta"]'
DATATREE = "post.to_datatree()"

INSTEAD = {
    # brms, rstanarm, lme4
    "fixef": SUMMARY,
    "ranef": "post.effects(group)",
    "VarCorr": 'post.summary(["group_sd", "group_cor"])',
    "coef": SUMMARY,
    "hypothesis": "the draws: (post['beta[a]'] > post['beta[b]']).mean(), or post.contrast(column)",
    "conditional_effects": "post.marginal(column), and plots.effect",
    "pp_check": "post.ppc()",
    "posterior_predict": "post.predictive(table)",
    "posterior_epred": "post.predict(table)",
    "as_draws_df": DRAWS,
    "waic": "post.loo()",
    "bridge_sampler": "post.log_evidence()",
    "prior_summary": 'post.tuning["priors"]',
    # PyMC, bambi, CmdStanPy, NumPyro
    "posterior": DRAWS + ", or " + DATATREE,
    "sample_posterior_predictive": "post.predictive(table)",
    "posterior_predictive": "post.predictive(table)",
    "prior_predictive": "post.predictive(table, prior=True)",
    "to_inference_data": DATATREE,
    "to_arviz": DATATREE,
    "to_inferencedata": DATATREE,
    "idata": DATATREE,
    "get_samples": DRAWS,
    "samples": DRAWS,
    "stan_variable": DRAWS,
    "stan_variables": DRAWS,
    "print_summary": "print(post.summary())",
    "plot_trace": "arviz_plots.plot_trace(" + DATATREE + ")",
    "plot": "modicum.plots, such as plots.forest(post)",
    # scikit-learn, statsmodels
    "params": SUMMARY,
    "coef_": SUMMARY,
    "intercept_": 'post.mean("intercept")',
    "bse": 'post.sd("beta")',
    "conf_int": "post.summary(prob=0.95)",
    "predict_proba": "post.predict(table).mean",
    "get_prediction": "post.predict(table)",
    "resid": 'post.ppc(by="column")',
}


def missing_attribute(name: str) -> str:
    """Return the error about a missing attribute, with Modicum's name for it if there is one."""
    hint = f": use {INSTEAD[name]}" if name in INSTEAD else ""
    return f"a posterior has no attribute {name!r}{hint}."


@dataclass(repr=False, eq=False)
class Posterior(Reportable):
    """Draws from a posterior, with their signs or weights, their cost and their warnings.

    Every estimate uses the importance weights, or the signs of a signed sampler.

    Parameters
    ----------
    draws
        Arrays (chain, draw, *shape) by parameter name.
    stats
        Arrays (chain, draw) under ArviZ's names: ``acceptance_rate``, ``diverging`` ...
    ledger
        Count of the row evaluations.
    labels
        By parameter name, one sequence of labels (or ``None``) for each axis of its shape.
    weights
        Sign or importance weight of each draw (chain, draw); ``None`` if all are equal.
    warnings
        The reasons to doubt these draws, each a `ModicumWarning`; they print as sentences.
    tuning
        Settings that were chosen by the sampler, each with an explanation.
    settings
        Method, seed, number of rows, wall time, versions.
    predictor
        Function of draws and a batch of rows that returns expected outcomes; see `predict`. It is
        saved with the posterior if it has a ``to_dict`` method.
    fit_rows
        Names, levels, reference levels and fingerprint of the rows of the fit, with which other
        rows are compared; with ``None``, rows are taken as they are.
    rows
        The rows of the fit, from which checks and effects are computed. They are not saved, but
        `load` takes them.
    table
        The table from which `mo.fit` made the rows; not saved either.

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

    @names_checked
    def summary(self, names: Sequence[str] | str | None = None, prob: float = 0.9) -> pd.DataFrame:
        """Tabulate every scalar: mean, sd, interval, Monte Carlo error, ESS, R-hat.

        The interval is equal-tailed with posterior probability `prob`; its two columns are named
        after their quantiles, such as ``5%`` and ``95%``. With signs or weights, `mcse_mean`,
        `ess_bulk`, `ess_tail` and `r_hat` are those of the ratio estimate (delta method, batch
        means), and ``attrs`` holds the mean weight and the R-hat of the weights. If chains share
        starting points (`superchains` of `mo.sample`), there is a column `nested_r_hat`. Effects of
        groups come last; `names` selects parameters (``"beta"``) or single lines (``"beta[age]"``).
        """
        return summarise(self, names, prob, self.settings.get("superchains"))

    def learning_curve(
        self,
        statistic: Statistic,
        at: Sequence[float] | None = None,
    ) -> pd.DataFrame:
        """Follow a statistic across chains, taken as independent realisations, along the run.

        Parameters
        ----------
        statistic
            Function of the chains' current draws, arrays (chain, *shape) by name, that returns a
            number or a dict of numbers.
        at
            Passes over the rows at which to evaluate it, counted for each chain from its start;
            by default 50 points from the first draw to the last.

        Returns
        -------
        DataFrame
            Indexed by passes; a column ``value``, or one for each entry of the dict.

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

    def to_datatree(self, sample: int = 500, random_seed: int = 0) -> xr.DataTree:
        """Convert to an ArviZ DataTree, with dimensions named and labelled.

        The groups are `posterior` and `sample_stats`; if the model is known, `log_prior`, and
        `prior` if it can be sampled; and if the posterior holds its rows, for a random sample of
        them, `observed_data`, `log_likelihood`, `posterior_predictive` and `prior_predictive`.

        Parameters
        ----------
        sample
            Number of rows to sample; with 0, only `posterior` and `sample_stats`, which is instant.
        random_seed
            Seed of the sample of rows, and of the predictive draws.
        """
        whole_number("sample", sample, 0)
        tree = to_datatree(self, self.settings, self.warnings)
        if sample and self.restore_predictor() is not None:
            add_groups(tree, sampled_groups(self, sample, random_seed))
        return tree

    def to_netcdf(self, path: str | os.PathLike[str], sample: int = 500) -> None:
        """Write the DataTree of `to_datatree` atomically to a netCDF file, which ArviZ reads.

        This needs h5netcdf or netCDF4.
        """
        require_writable(path)
        engine = netcdf_engine()
        tree = self.to_datatree(sample)
        content = tree.to_netcdf(engine=engine)  # in memory: HDF5 crashes where a disk is full
        with whole_file(path) as part:
            part.write_bytes(content)

    def report(
        self,
        path: str | os.PathLike[str],
        title: str | None = None,
        prob: float = 0.9,
        data: RowsLike | None = None,
    ) -> Path:
        """Write an HTML report: what was fitted, whether to trust it, and the estimates.

        The report is one self-contained file with the model, data and priors, diagnostics with
        traffic lights, coefficients, effects of groups and columns, calibration, the cost compared
        with full data, the warnings, and code to run the fit again. Sections that need the rows say
        so if the posterior was loaded without them and `data` is not given.

        Parameters
        ----------
        path
            The file to write.
        title
            Heading of the report; by default the formula or the model.
        prob
            Posterior probability of the intervals.
        data
            Rows or a table with outcomes, for the predictive check and the effects of columns and,
            if they are the rows of the fit, for integrated effects; the rows of the fit by default.

        Returns
        -------
        Path
            The file written.
        """
        check_interval(prob)
        require_writable(path)
        post = self if data is None or self.rows is not None else self._with_rows(data)
        other_rows = data if post is self else None
        page = report_page(contents_of(post, self.summary(prob=prob), title, prob, other_rows))
        with whole_file(path) as part:
            part.write_text(page, encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        return posterior_box(self, repr(self), self.warnings)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save atomically to one file, which holds no executable code.

        Raises
        ------
        ResourceError
            If the disk is full; an existing file is left unchanged.
        SettingError
            If the file cannot be written, for instance because its folder does not exist.
        """
        contents = Contents(
            self.draws, self.stats, self.weights, self.labels, self.ledger, self.warnings,
            self.tuning, self.settings, self.predictor_spec, self.fit_rows,
        )  # fmt: skip
        save(contents, path)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: BaseModel | None = None,
        data: RowsLike | None = None,
    ) -> Posterior:
        """Load a posterior that `save` wrote; any other file, or a damaged one, is a `DataError`.

        Parameters
        ----------
        path
            The file.
        model
            The model, if it is a custom one: a file keeps only Modicum's own models.
        data
            The rows of the fit, or their table, which a file does not keep: checks, comparisons,
            reports and integrated effects need them. Other rows are refused.
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
        if data is not None:
            post._take_rows(data)
        return post

    def _with_rows(self, data: RowsLike) -> Posterior:
        """Return a copy that holds the rows of its fit, or itself if these are other rows."""
        held = copy(self)
        try:
            held._take_rows(data)
        except ModicumError:
            return self
        return held

    def _take_rows(self, data: RowsLike) -> None:
        """Attach rows, after checking that they are the rows of the fit."""
        purpose = "a posterior that holds its rows"
        rows = rows_of_fit(data, self.fit_rows, purpose)
        number = self.ledger.rows if self.ledger.unit == "row" else None
        require_rows_of_fit(rows, self.fit_rows, number, purpose)
        self.rows = rows
        self.table = None if isinstance(data, Rows) else TableFiles.of(data)

    def _take_model(self, model: BaseModel) -> None:
        """Attach a custom model, after checking that it has the parameters of the draws."""
        if not isinstance(model, BaseModel):
            raise SettingError(
                f"model must be a model such as mo.Model(...), not {type(model).__name__}."
            )
        if self.predictor_spec is not None:
            raise SettingError("the file holds the model of this posterior: leave `model` out.")
        if isinstance(model, Model):
            kinds = {} if self.fit_rows is None else self.fit_rows.schema.kinds
            model = model.of_draws({name: x.shape[2:] for name, x in self.draws.items()}, kinds)
        self.predictor = ModelPredictor(model)

    if not TYPE_CHECKING:  # so that type checkers still find misspelt names

        def __getattr__(self, name: str) -> None:
            """Raise an error that translates names used by other libraries."""
            raise AttributeError(missing_attribute(name), name=name, obj=self)

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

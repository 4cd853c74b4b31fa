"""The result of a run: draws, what they cost, and how far they can be trusted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modicum.arguments import names_checked
from modicum.errors import DataError, ModicumError, SettingError, is_number, whole_number
from modicum.models import IntegratedEffects
from modicum.models.base import BaseModel
from modicum.models.own import Model
from modicum.models.prediction import ModelPredictor
from modicum.posterior.alignment import RowsLike, require_rows_of_fit, rows_of_fit
from modicum.posterior.checking.mixin import ChecksMixin
from modicum.posterior.checking.predictive_check import PredictiveCheck
from modicum.posterior.datatree import (
    add_groups,
    netcdf_engine,
    sampled_groups,
    to_datatree,
    weight_name,
)
from modicum.posterior.draws import check_interval
from modicum.posterior.effects import group_names, terms_of
from modicum.posterior.elsewhere import name_elsewhere
from modicum.posterior.outcomes import OutcomesMixin
from modicum.posterior.report import GroupEffects, Reported, report_page
from modicum.posterior.report.words import code_for, model_name, posterior_box
from modicum.posterior.storage import Contents, load, save
from modicum.posterior.summary import Statistic, learning_curve, summarise
from modicum.posterior.unpooled import Shrinkage, shrinkage
from modicum.rows import Rows
from modicum.run import require_writable, within_disk

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = ["Posterior"]

MOST_COLUMNS = 8  # whose effects a report shows
MOST_ROWS_PER_LEVEL = 2_000_000  # beyond which a report does not fit levels by themselves


@dataclass(repr=False, eq=False)
class Posterior(OutcomesMixin, ChecksMixin):
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
        The rows of the fit themselves, which checks and effects are computed from; not saved, but
        `load` takes them.
    table
        The table that `mo.fit` made them of; not saved either.

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

        The interval is equal-tailed with posterior probability `prob`; its two columns bear the
        names of their quantiles, such as ``5%`` and ``95%``. With signs or weights, `mcse_mean`,
        `ess_bulk`, `ess_tail` and `r_hat` are of the ratio estimate (delta method, batch means),
        and ``attrs`` holds the mean weight and the weights' own R-hat. Where chains share starts
        (`superchains` of `mo.sample`), there is a column `nested_r_hat`. Effects of groups come
        last; `names` asks for parameters, or lines, of one's own choice.
        """
        return summarise(self, names, prob, self.settings.get("superchains"))

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
            add_groups(tree, sampled_groups(self, sample, random_seed))
        return tree

    def to_netcdf(self, path: str | os.PathLike[str], sample: int = 500) -> None:
        """Write the DataTree to a netCDF file, which ArviZ reads; see `to_datatree`.

        It needs h5netcdf or netCDF4.
        """
        require_writable(path)
        engine = netcdf_engine()
        tree = self.to_datatree(sample)
        with within_disk(path):
            tree.to_netcdf(path, engine=engine)

    def report(
        self,
        path: str | os.PathLike[str],
        title: str | None = None,
        prob: float = 0.9,
        data: RowsLike | None = None,
    ) -> Path:
        """Write a page that says what was fitted, whether to trust it, and what it says.

        One HTML file that loads nothing: the model, data and priors, diagnostics with traffic
        lights, coefficients, effects, what columns do, calibration, cost against full data,
        warnings in words, and how to run it again. A posterior that was loaded from a file without
        its rows lacks what needs them, and says so, unless `data` has them.

        Parameters
        ----------
        path
            The file to write.
        title
            Its heading; the formula, or the model, by default.
        prob
            Posterior probability of the intervals.
        data
            Rows or a table with outcomes, for the predictive check and for what columns do, and
            for effects that were integrated out, if they are those of the fit; None: those of the
            fit.

        Returns
        -------
        Path
            Where it is.
        """
        check_interval(prob)
        require_writable(path)
        page = report_page(self._reported(title, prob, data))
        with within_disk(path):
            Path(path).write_text(page, encoding="utf-8")
        return Path(path)

    def _reported(self, title: str | None, prob: float, data: RowsLike | None) -> Reported:
        predictor = self.restore_predictor()
        model = predictor.model if isinstance(predictor, ModelPredictor) else None
        name = model_name(model)
        check: PredictiveCheck | str = (
            "The rows of the fit are not at hand, so this is not known, nor what each column does; "
            "post.report(path, data=...) takes the rows, or their table."
        )
        columns: dict[str, pd.DataFrame | str] = {}
        if model is not None and (self.rows is not None or data is not None):
            try:
                check = self.ppc(data, draws=100, prob=prob)
            except ModicumError as fault:
                check = str(fault)
            for column in self._columns_to_report(data):
                try:
                    columns[column] = self.marginal(
                        column, data, draws=100, prob=prob, subsample=1000
                    )
                except ModicumError as fault:
                    columns[column] = str(fault)
        encoding = None if self.fit_rows is None else self.fit_rows.encoding
        fields = {} if encoding is None else encoding.fields
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
            code=code_for(self.settings, fields, name, self.chains, self.num_draws),
            check=check,
            columns=columns,
            prob=prob,
            groups={} if model is None else self._groups_to_report(model, prob, data),
        )

    def _groups_to_report(
        self, model: BaseModel, prob: float, data: RowsLike | None
    ) -> dict[str, GroupEffects | str]:
        """Effects of every group, or why they are not known."""
        groups: dict[str, GroupEffects | str] = {}
        rows, why = self.rows, "no rows were given"
        if rows is None and data is not None and group_names(model):
            try:
                rows = self.subject(data, "a table of effects").rows
            except ModicumError as fault:
                why = str(fault).rstrip(".")
        for group in group_names(model):
            if rows is None and isinstance(model, IntegratedEffects) and group == model.group:
                groups[group] = (
                    f"These effects were integrated out and are drawn from the rows of the fit, "
                    f"which a file does not keep ({why}); post.report(path, data=...) takes the "
                    "rows, or their table."
                )
                continue
            table = self.effects(group, rows=rows, prob=prob)
            groups[group] = GroupEffects(table, self._shrinkages(model, group, table, rows))
        return groups

    def _shrinkages(
        self, model: BaseModel, group: str, table: pd.DataFrame, rows: Rows | None
    ) -> dict[str, Shrinkage]:
        """How far each effect of a group is pulled, where there are rows to tell, and not many."""
        if rows is None or len(rows) > MOST_ROWS_PER_LEVEL:
            return {}
        names = [name for term in terms_of(model, group) for name in term.sd_names]
        fit = self.fit()
        return {name: shrinkage(self, fit, rows, group, name, table) for name in names}

    def _columns_to_report(self, data: RowsLike | None) -> list[str]:
        """Columns as a user knows them, the first few; groups have a section of their own."""
        encoding = None if self.fit_rows is None else self.fit_rows.encoding
        if encoding is not None:
            grouped = {name for group in encoding.groupings for name in group.columns}
            has_table = self.table is not None or data is not None
            names = encoding.needed(outcome=False, fields=()) if has_table else ()
            return [name for name in names if name not in grouped][:MOST_COLUMNS]
        schema = self.rows.schema if self.fit_rows is None and self.rows is not None else None
        schema = schema or (None if self.fit_rows is None else self.fit_rows.schema)
        if schema is None:
            return []
        places = range(len(schema.columns)) if schema.coding is None else schema.coding.dense
        coded = () if schema.coding is None else schema.coding.fields
        return [*(schema.columns[k] for k in places), *coded][:MOST_COLUMNS]

    def _repr_html_(self) -> str:
        return posterior_box(self, repr(self), self.warnings)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to one file, whole or not at all; nothing in it is executable.

        Raises
        ------
        ResourceError
            If the disk is full; a file that was there before is unchanged.
        SettingError
            If the file cannot be written: its folder does not exist, say.
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
        """Load what `save` saved; a damaged or foreign file is a `DataError`.

        Parameters
        ----------
        path
            The file.
        model
            The model, where it is one of your own: a file keeps Modicum's models only.
        data
            The rows of the fit, or their table, which a file does not keep: checks, comparisons,
            reports and effects that were integrated out need them. Others are refused.
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

    def _take_rows(self, data: RowsLike) -> None:
        """Hold rows that the file did not keep, if they are those of the fit."""
        purpose = "a posterior that holds its rows"
        rows = rows_of_fit(data, self.fit_rows, purpose)
        number = self.ledger.rows if self.ledger.unit == "row" else None
        require_rows_of_fit(rows, self.fit_rows, number, purpose)
        self.rows = rows
        self.table = None if isinstance(data, Rows) else data

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

    if not TYPE_CHECKING:  # which should go on finding misspelt names

        def __getattr__(self, name: str) -> None:
            """Refuse an attribute that is not there; of other libraries' names, say what is."""
            raise AttributeError(name_elsewhere(name), name=name, obj=self)

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

"""The contents of a report, gathered from a posterior and, if there are any, its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import ModicumError, ModicumWarning
from modicum.ledger import Ledger
from modicum.models import IntegratedEffects
from modicum.models.base import BaseModel
from modicum.models.prediction import ModelPredictor
from modicum.posterior.alignment import FitRows, RowsLike
from modicum.posterior.checking.mixin import ChecksMixin
from modicum.posterior.checking.predictive_check import PredictiveCheck
from modicum.posterior.effects import group_names, terms_of
from modicum.posterior.outcomes import OutcomesMixin
from modicum.posterior.report.fit_code import code_for, model_name
from modicum.posterior.unpooled import Shrinkage, shrinkage
from modicum.rows import Rows

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 100  # draws of the predictive check, and of the effects of columns
COLUMN_ROWS = 1_000  # rows over which the effects of columns are averaged
MOST_COLUMNS = 8  # columns whose effects a report shows
MOST_SHRINKAGE_ROWS = 2_000_000  # beyond this, a report does not compute unpooled effects
NO_ROWS = (
    "This check and the effects of columns need the rows of the fit, which this posterior does not "
    "hold; give the rows or their table: post.report(path, data=...)."
)


class Reportable(OutcomesMixin, ChecksMixin):
    """Draws that can be checked, and predict outcomes and effects: all that a report needs."""


@dataclass
class GroupEffects:
    """Effects of a group's levels.

    Attributes
    ----------
    table
        As `Posterior.effects` tabulates them.
    shrinkage
        By name of the effect, its unpooled estimates, if they were computed.
    """

    table: pd.DataFrame
    shrinkage: Mapping[str, Shrinkage] = field(default_factory=dict)


@dataclass
class ReportContents:
    """The contents of a report.

    Attributes
    ----------
    title
        Heading of the page.
    summary, stats, tuning, settings, warnings, ledger, fit_rows
        As in the posterior; `summary` is the table.
    model
        The model's name.
    chains, draws
        Number of chains, and of draws per chain.
    code
        Code that repeats the fit.
    check
        The predictive check, or why there is none.
    columns
        Average predictions by column, or why there are none.
    groups
        Effects by grouping factor, or why there are none.
    prob
        Posterior probability of the intervals.
    """

    title: str
    summary: pd.DataFrame
    stats: Mapping[str, np.ndarray]
    tuning: Mapping[str, object]
    settings: Mapping[str, object]
    warnings: Sequence[ModicumWarning]
    ledger: Ledger
    fit_rows: FitRows | None
    model: str
    chains: int
    draws: int
    code: str
    check: PredictiveCheck | str
    columns: Mapping[str, pd.DataFrame | str] = field(default_factory=dict)
    groups: Mapping[str, GroupEffects | str] = field(default_factory=dict)
    prob: float = 0.9


def contents_of(
    post: Reportable, summary: pd.DataFrame, title: str | None, prob: float, data: RowsLike | None
) -> ReportContents:
    """Return the contents of a report; what cannot be computed is a sentence that says why.

    The arguments are those of `Posterior.report`; `summary` has intervals of probability `prob`.
    """
    predictor = post.restore_predictor()
    model = predictor.model if isinstance(predictor, ModelPredictor) else None
    name = model_name(model)
    has_rows = model is not None and (post.rows is not None or data is not None)
    encoding = None if post.fit_rows is None else post.fit_rows.encoding
    fields = {} if encoding is None else encoding.fields
    return ReportContents(
        title=title or str(post.settings.get("formula", name)),
        summary=summary,
        stats=post.stats,
        tuning=post.tuning,
        settings=post.settings,
        warnings=post.warnings,
        ledger=post.ledger,
        fit_rows=post.fit_rows,
        model=name,
        chains=post.chains,
        draws=post.num_draws,
        code=code_for(post.settings, fields, name, post.chains, post.num_draws),
        check=_check(post, prob, data) if has_rows else NO_ROWS,
        columns=_columns(post, prob, data) if has_rows else {},
        prob=prob,
        groups={} if model is None else _groups(post, model, prob, data),
    )


def _check(post: Reportable, prob: float, data: RowsLike | None) -> PredictiveCheck | str:
    try:
        return post.ppc(data, draws=DRAWS, prob=prob)
    except ModicumError as fault:
        return str(fault)


def _columns(post: Reportable, prob: float, data: RowsLike | None) -> dict[str, pd.DataFrame | str]:
    """Return average predictions by column."""
    columns: dict[str, pd.DataFrame | str] = {}
    for column in _column_names(post, data):
        try:
            columns[column] = post.marginal(
                column, data, draws=DRAWS, prob=prob, subsample=COLUMN_ROWS
            )
        except ModicumError as fault:
            columns[column] = str(fault)
    return columns


def _column_names(post: Reportable, data: RowsLike | None) -> list[str]:
    """Return the first few columns, as the user named them; groups have their own section."""
    encoding = None if post.fit_rows is None else post.fit_rows.encoding
    if encoding is not None:
        grouped = {name for group in encoding.groupings for name in group.columns}
        has_table = post.table is not None or data is not None
        names = encoding.needed(outcome=False, fields=()) if has_table else ()
        return [name for name in names if name not in grouped][:MOST_COLUMNS]
    schema = post.rows.schema if post.fit_rows is None and post.rows is not None else None
    schema = schema or (None if post.fit_rows is None else post.fit_rows.schema)
    if schema is None:
        return []
    places = range(len(schema.columns)) if schema.coding is None else schema.coding.dense
    coded = () if schema.coding is None else schema.coding.fields
    return [*(schema.columns[k] for k in places), *coded][:MOST_COLUMNS]


def _groups(
    post: Reportable, model: BaseModel, prob: float, data: RowsLike | None
) -> dict[str, GroupEffects | str]:
    """Return the effects of every group."""
    groups: dict[str, GroupEffects | str] = {}
    rows, why = post.held_rows(), "no rows were given"
    if rows is None and data is not None and group_names(model):
        try:
            rows = post.subject(data, "a table of effects").rows
        except ModicumError as fault:
            why = str(fault).rstrip(".")
    for group in group_names(model):
        if rows is None and isinstance(model, IntegratedEffects) and group == model.group:
            groups[group] = (
                f"These effects were integrated out and are drawn from the rows of the fit, "
                f"which a file does not keep ({why}); give the rows or their table: "
                "post.report(path, data=...)."
            )
            continue
        table = post.effects(group, rows=rows, prob=prob)
        groups[group] = GroupEffects(table, _shrinkages(post, model, group, table, rows))
    return groups


def _shrinkages(
    post: Reportable, model: BaseModel, group: str, table: pd.DataFrame, rows: Rows | None
) -> dict[str, Shrinkage]:
    """Return the shrinkage of each effect of a group, if there are rows and not too many."""
    if rows is None or len(rows) > MOST_SHRINKAGE_ROWS:
        return {}
    names = [name for term in terms_of(model, group) for name in term.sd_names]
    fit = post.fit()
    return {name: shrinkage(post, fit, rows, group, name, table) for name in names}

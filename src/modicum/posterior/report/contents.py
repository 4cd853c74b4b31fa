"""The contents of a report, gathered from a posterior and, if there are any, its rows.

Diagnostics are traffic lights: a number, whether it is good, and what it means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from modicum.errors import ModicumError, ModicumWarning, is_number
from modicum.ledger import Ledger
from modicum.models import FAMILIES, BaseModel, IntegratedEffects
from modicum.models.over_draws import ModelPredictor
from modicum.posterior.doubts import largest_r_hat, smallest_ess
from modicum.posterior.fit_rows import FitRows, RowsLike
from modicum.posterior.group_effects import Shrinkage, group_names, shrinkage, terms_of
from modicum.posterior.mixin import ChecksMixin
from modicum.posterior.outcomes import OutcomesMixin
from modicum.posterior.ppc import PredictiveCheck
from modicum.rows import Rows

if TYPE_CHECKING:
    import pandas as pd


def model_name(model: BaseModel | None) -> str:
    """Return the name of a model."""
    if model is None:
        return "an unknown model"
    if isinstance(model, IntegratedEffects):
        return f"{model_name(model.family)}, with effects of {model.group} integrated out"
    return type(model).__name__


def code_for(
    settings: Mapping[str, object],
    fields: Mapping[str, tuple[str, ...]],
    model: str,
    chains: int,
    draws: int,
) -> str:
    """Return Python code that repeats the fit on the same data, without priors and settings.

    `fields` are those that the formula's encoding adds to the outcome.
    """
    names = {kind.__name__: name for name, kind in FAMILIES.items()}
    first = model.split(",")[0]
    arguments = f"draws={draws}, tune={settings.get('tune')}, chains={chains}"
    if settings.get("thin", 1) != 1:
        arguments += f", thin={settings['thin']}"
    arguments += f", random_seed={settings.get('seed')}"
    method = f'method="{settings.get("method")}"'
    if "formula" in settings:
        formula = str(settings["formula"])
        family = f'family="{names[first]}"' if first in names else "family=..."
        for argument, field in (("offset", "offset"), ("weights", "weight")):
            for column in fields.get(field, ()):
                if f"{field}({column})" not in formula.replace(" ", ""):
                    family += f", {argument}={column!r}"
        call = f"mo.fit({formula!r}, data, {family}, {method},\n              {arguments})"
    else:
        model_code = f"mo.models.{first}()" if first in names else "model"
        call = f"mo.sample({model_code}, rows, {method},\n                 {arguments})"
    note = "# with the priors and settings above, where they are not the defaults"
    return f"import modicum as mo\n\n{note}\npost = {call}"


Level = Literal["good", "doubtful", "bad"]
BAD_R_HAT = 1.05
MOST_DIVERGING = 0.01  # share of divergent draws above which the light is red


class Light(NamedTuple):
    """One diagnostic."""

    name: str
    figure: str
    level: Level
    meaning: str


def lights(
    summary: pd.DataFrame,
    shape: tuple[int, int],
    stats: Mapping[str, np.ndarray],
    tuning: Mapping[str, object],
    settings: Mapping[str, object],
    warnings: Sequence[ModicumWarning],
) -> list[Light]:
    """Return the diagnostics of a run of `shape` (chains, draws), the most important first."""
    all_lights = [*_summary_lights(summary, *shape)]
    if "diverging" in stats and stats["diverging"].size:
        share = float(np.mean(stats["diverging"]))
        all_lights.append(
            Light(
                "divergences",
                f"{int(np.sum(stats['diverging'])):,} draws",
                _level(share, 0.0, MOST_DIVERGING),
                "trajectories that diverged; there should be none",
            )
        )
    bias = tuning.get("bias_bound")
    bound = bias.get("value") if isinstance(bias, Mapping) else None
    if is_number(bound):
        all_lights.append(
            Light(
                "error of subsampling",
                f"at most {float(bound):.2g} sd",  # type: ignore[arg-type]
                _level(float(bound), 0.1, 0.3),  # type: ignore[arg-type]
                "how far using a subsample of the rows may move a posterior mean, in posterior "
                "standard deviations",
            )
        )
    if settings.get("complete") is False:
        all_lights.append(Light("run", "stopped early", "doubtful", "only the draws so far"))
    count = len(warnings)
    all_lights.append(
        Light(
            "warnings",
            f"{count:,}",
            "good" if count == 0 else "doubtful",
            "reasons to doubt the run, listed below" if count else "no reason to doubt the run",
        )
    )
    return all_lights


def _summary_lights(summary: pd.DataFrame, chains: int, draws: int) -> list[Light]:
    """Judge R-hat and ESS of the worst scalar, by the limits of the warnings."""
    finite = summary[np.isfinite(summary["r_hat"])]
    if not len(finite):
        unknown = "too few draws to tell whether the chains have converged"
        return [Light("R-hat", "unknown", "bad", unknown)]
    agree = "whether chains agree" if chains > 1 else "whether both halves of the chain agree"
    worst, limit = finite["r_hat"].idxmax(), largest_r_hat(chains, draws, len(finite))
    all_lights = [
        Light(
            "R-hat",
            f"{finite['r_hat'].max():.3f}",
            _level(float(finite["r_hat"].max()), limit, max(limit, BAD_R_HAT)),
            f"{agree}: 1 means that they do (worst: {worst})",
        )
    ]
    for column, title, of in (
        ("ess_bulk", "effective draws", "means"),
        ("ess_tail", "effective draws in the tails", "intervals"),
    ):
        sizes = summary[column][np.isfinite(summary[column])]
        if len(sizes):
            smallest = float(sizes.min())
            needed_ess = smallest_ess(chains * draws)
            level = _level(-smallest, -needed_ess, -needed_ess / 4)
            meaning = (
                f"number of independent draws that would give equally precise {of} "
                f"(worst: {sizes.idxmin()})"
            )
            all_lights.append(Light(title, f"{smallest:,.0f}", level, meaning))
    return all_lights


def predictive_light(check: PredictiveCheck | str) -> list[Light]:
    """Judge the predictive check, if there is one."""
    if isinstance(check, str):
        return []
    share = 1 - check.prob
    return [
        Light(
            "predictive check",
            f"{check.outside:.0%} outside",
            "good" if check.outside <= 3 * share else "doubtful",
            f"how often the data lie outside the model's {check.prob:.0%} intervals; much more "
            f"than {share:.0%} means that the model misses something",
        )
    ]


def _level(value: float, good: float, bad: float) -> Level:
    return "good" if value <= good else "doubtful" if value <= bad else "bad"


def overall(all_lights: Sequence[Light]) -> tuple[Level, str]:
    """Return the worst light, and a verdict."""
    levels = {light.level for light in all_lights}
    if "bad" in levels:
        return "bad", "Do not use this fit until the red lights below are understood."
    if "doubtful" in levels:
        return "doubtful", "Usable with care: see the yellow lights and the warnings below."
    return "good", "No reason to doubt this fit was found."


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

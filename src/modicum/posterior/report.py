"""The report: what was fitted, whether to trust it, and the estimates, as one HTML page.

Diagnostics are traffic lights: a number, whether it is good, and what it means. The page is
self-contained, light and dark, for screens, phones and print (`report.css`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from modicum.errors import ModicumError, is_number
from modicum.files import require_writable, whole_file
from modicum.markup import Markup, table, tag
from modicum.models import FAMILIES, BaseModel
from modicum.models.over_draws import ModelPredictor
from modicum.posterior.charts import Band, band_chart, bar_chart, forest, shrinkage_chart
from modicum.posterior.doubts import largest_r_hat, smallest_ess
from modicum.posterior.fit_rows import FitRows, RowsLike
from modicum.posterior.fitted import FittedDraws, check_interval
from modicum.posterior.group_effects import effect_names, effects, group_names, shrinkage
from modicum.posterior.marginal import by_class, marginal
from modicum.posterior.ppc import PredictiveCheck, ppc
from modicum.posterior.smooth_curves import smooth_table, smooths_of
from modicum.posterior.summary import is_pooled, summary
from modicum.rows import Rows

if TYPE_CHECKING:
    import pandas as pd

Level = Literal["good", "doubtful", "bad"]
BAD_R_HAT = 1.05
MOST_DIVERGING = 0.01  # share of divergent draws above which the light is red
DRAWS = 100  # draws of the predictive check, and of the effects of columns
COLUMN_ROWS = 1_000  # rows over which the effects of columns are averaged
MOST_COLUMNS = 8  # columns whose effects a report shows
MOST_SHRINKAGE_ROWS = 2_000_000  # beyond this, a report does not compute unpooled effects
NO_ROWS = (
    "This check and the effects of columns need the rows of the fit, which this posterior does not "
    "hold; give the rows or their table: post.report(path, data=...)."
)
MOST_LINES = 60  # of a table or a chart
WORDS = {"good": "fine", "doubtful": "look", "bad": "wrong"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def report(
    post: FittedDraws,
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
    holder, other = post, data
    if data is not None and post.rows is None:
        with suppress(ModicumError):  # where these are not the rows of the fit
            holder = copy(post)
            holder.take_rows(data)
            other = None
    page = report_page(holder, title, prob, other)
    with whole_file(path) as part:
        part.write_text(page, encoding="utf-8")
    return Path(path)


def model_name(model: BaseModel | None) -> str:
    """Return the name of a model."""
    if model is None:
        return "an unknown model"
    of_groups = model.integrated_group
    more = "" if of_groups is None else f", with effects of {of_groups} integrated out"
    return f"{type(model.row_model).__name__}{more}"


def code_for(post: FittedDraws, model: BaseModel | None) -> str:
    """Return Python code that repeats the fit on the same data, without priors and settings."""
    settings, first = post.settings, model_name(model).split(",")[0]
    encoding = None if post.fit_rows is None else post.fit_rows.encoding
    fields = {} if encoding is None else encoding.fields
    names = {kind.__name__: name for name, kind in FAMILIES.items()}
    arguments = f"draws={post.num_draws}, tune={settings.get('tune')}, chains={post.chains}"
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


class Light(NamedTuple):
    """One diagnostic."""

    name: str
    figure: str
    level: Level
    meaning: str


def lights(
    post: FittedDraws, summary: pd.DataFrame, check: PredictiveCheck | None = None
) -> Iterator[Light]:
    """Yield the diagnostics of a run, the most important first."""
    yield from _summary_lights(summary, post.chains, post.num_draws)
    diverging = post.stats.get("diverging", np.empty(0))
    if diverging.size:
        yield Light(
            "divergences",
            f"{int(np.sum(diverging)):,} draws",
            _level(float(np.mean(diverging)), 0.0, MOST_DIVERGING),
            "trajectories that diverged; there should be none",
        )
    bias = post.tuning.get("bias_bound")
    bound = bias.get("value") if isinstance(bias, Mapping) else None
    if is_number(bound):
        yield Light(
            "error of subsampling",
            f"at most {float(bound):.2g} sd",  # type: ignore[arg-type]
            _level(float(bound), 0.1, 0.3),  # type: ignore[arg-type]
            "how far using a subsample of the rows may move a posterior mean, in posterior "
            "standard deviations",
        )
    if post.settings.get("complete") is False:
        yield Light("run", "stopped early", "doubtful", "only the draws so far")
    if check is not None:
        share = 1 - check.prob
        yield Light(
            "predictive check",
            f"{check.outside:.0%} outside",
            "good" if check.outside <= 3 * share else "doubtful",
            f"how often the data lie outside the model's {check.prob:.0%} intervals; much more "
            f"than {share:.0%} means that the model misses something",
        )
    count = len(post.warnings)
    yield Light(
        "warnings",
        f"{count:,}",
        "good" if count == 0 else "doubtful",
        "reasons to doubt the run, listed below" if count else "no reason to doubt the run",
    )


def _summary_lights(summary: pd.DataFrame, chains: int, draws: int) -> Iterator[Light]:
    """Judge R-hat and ESS of the worst scalar, by the limits of the warnings."""
    finite = summary[np.isfinite(summary["r_hat"])]
    if not len(finite):
        unknown = "too few draws to tell whether the chains have converged"
        yield Light("R-hat", "unknown", "bad", unknown)
        return
    agree = "whether chains agree" if chains > 1 else "whether both halves of the chain agree"
    worst, limit = finite["r_hat"].idxmax(), largest_r_hat(chains, draws, len(finite))
    yield Light(
        "R-hat",
        f"{finite['r_hat'].max():.3f}",
        _level(float(finite["r_hat"].max()), limit, max(limit, BAD_R_HAT)),
        f"{agree}: 1 means that they do (worst: {worst})",
    )
    for column, title, of in (
        ("ess_bulk", "effective draws", "means"),
        ("ess_tail", "effective draws in the tails", "intervals"),
    ):
        sizes = summary[column][np.isfinite(summary[column])]
        if len(sizes):
            needed_ess = smallest_ess(chains * draws)
            yield Light(
                title,
                f"{sizes.min():,.0f}",
                _level(-float(sizes.min()), -needed_ess, -needed_ess / 4),
                f"number of independent draws that would give equally precise {of} "
                f"(worst: {sizes.idxmin()})",
            )


def _level(value: float, good: float, bad: float) -> Level:
    return "good" if value <= good else "doubtful" if value <= bad else "bad"


def overall(all_lights: Iterable[Light]) -> tuple[Level, str]:
    """Return the worst light, and a verdict."""
    levels = {light.level for light in all_lights}
    if "bad" in levels:
        return "bad", "Do not use this fit until the red lights below are understood."
    if "doubtful" in levels:
        return "doubtful", "Usable with care: see the yellow lights and the warnings below."
    return "good", "No reason to doubt this fit was found."


def report_page(post: FittedDraws, title: str | None, prob: float, data: RowsLike | None) -> str:
    """Return the page as one HTML document; what cannot be computed says why."""
    predictor = post.restore_predictor()
    model = predictor.model if isinstance(predictor, ModelPredictor) else None
    title = title or str(post.settings.get("formula", model_name(model)))
    estimates = summary(post, prob=prob)
    check, why, columns = None, NO_ROWS, []
    if model is not None and (post.rows is not None or data is not None):
        columns = _column_names(post, data)
        try:
            check = ppc(post, data, draws=DRAWS, prob=prob)
        except ModicumError as fault:
            why = str(fault)
    traffic_lights = list(lights(post, estimates, check))
    level, verdict = overall(traffic_lights)
    sections = [
        _section("What was fitted", _fitted(post, model)),
        _section("Can it be trusted?", _trust(traffic_lights), _warnings(post)),
        _section("Coefficients", _coefficients(estimates)),
        *([] if model is None else _groups(post, model, prob, data)),
        *_smooths(post, prob),
        _section("What each column does", _columns(post, columns, prob, data)) if columns else None,
        _section("Does it look like the data?", _note(why) if check is None else _check(check)),
        _section("What it cost", _cost(post)),
        _section("Priors", _priors(post)),
        _section("How it was sampled, and why", _method(post)),
        _section("How to run it again", _how_to_repeat(post, model)),
    ]
    css = (files(__package__) / "report.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", title),
        tag("style", Markup("\n" + css)),
    )
    top = tag("header", tag("h1", title), tag("p", _light(level), " ", verdict))
    body = tag("body", tag("main", top, sections))
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _section(title: str, *parts: object) -> Markup:
    return tag("section", tag("h2", title), *parts)


def _light(level: str) -> Markup:
    """Return a traffic light that a word tells apart as well as its colour."""
    return tag("span", WORDS[level], class_=f"light {level}")


def _facts(pairs: Sequence[tuple[str, object]]) -> Markup:
    return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in pairs])


def _note(text: str) -> Markup:
    return tag("p", text, class_="note")


def _wide(markup: Markup) -> Markup:
    return tag("div", markup, class_="scroll")


def _fitted(post: FittedDraws, model: BaseModel | None) -> Markup:
    settings = post.settings
    pairs: list[tuple[str, object]] = []
    if "formula" in settings:
        pairs.append(("formula", tag("code", settings["formula"])))
    pairs.append(("model", model_name(model)))
    rows, ledger = settings.get("rows", post.ledger.rows), post.ledger
    in_units = f" in {ledger.rows:,} {ledger.unit}s" if ledger.unit != "row" else ""
    pairs.append(("data", f"{rows:,} rows{in_units}"))
    if ledger.collapsed is not None:
        pairs.append(("distinct rows", f"{ledger.collapsed[0]:,}"))
    if settings.get("dropped_rows"):
        pairs.append(("left out", f"{settings['dropped_rows']:,} rows with missing values"))
    if post.fit_rows is not None:
        schema = post.fit_rows.schema
        if schema.outcome:
            pairs.append(("outcome", tag("code", schema.outcome)))
        pairs += _other_fields(post.fit_rows)
        pairs.append(("columns of the model", f"{len(schema.columns):,}"))
        for name, levels in list(schema.levels.items())[:12]:
            listed = ", ".join(str(level) for level in levels[:6])
            more = f" and {len(levels) - 6:,} more" if len(levels) > 6 else ""
            pairs.append((f"levels of {name}", listed + more))
    classes = settings.get("outcome_levels")
    if isinstance(classes, Mapping):
        pairs.append(("outcomes", ", ".join(f"{name} is {code}" for name, code in classes.items())))
    method = settings.get("method", "draws from another program")
    pairs.append(("method", f"{method}: {post.chains} chains of {post.num_draws:,} draws"))
    return _facts(pairs)


def _other_fields(fit_rows: FitRows) -> list[tuple[str, object]]:
    """Return the other fields that the model reads, such as offset, weight or trials."""
    if fit_rows.encoding is not None:
        fields = fit_rows.encoding.fields.items()
        return [(name, tag("code", " + ".join(made_of))) for name, made_of in fields]
    names = [name for name in ("offset", "weight") if name in fit_rows.schema.fields]
    return [(name, "a field of the rows") for name in names]


def _trust(traffic_lights: Sequence[Light]) -> Markup:
    lines = [
        tag(
            "div",
            _light(light.level),
            tag("strong", light.name),
            tag("span", light.figure, class_="figure"),
            tag("small", light.meaning),
            class_="check",
        )
        for light in traffic_lights
    ]
    return tag("div", lines, class_="checks")


def _warnings(post: FittedDraws) -> Markup | None:
    if not post.warnings:
        return None
    lines = [
        tag("li", tag("strong", doubt.sentence + "."), " ", doubt.remedy and doubt.remedy + ".",
            " ", tag("code", doubt.code))
        for doubt in post.warnings
    ]  # fmt: skip
    return tag("ul", lines, class_="warnings")


def _coefficients(estimates: pd.DataFrame) -> list[Markup]:
    effects = [name for name in estimates.index if is_pooled(str(name))]
    rest = estimates.drop(index=effects)
    first = rest.head(MOST_LINES)
    low, high = first.columns[2], first.columns[3]
    parts = [
        _note(f"Mean and interval from {low} to {high} of the posterior."),
        forest(list(first.index), Band.of(first, low, "mean", high)),
    ]
    if len(rest) > len(first):
        parts.append(_note(f"These are the first {len(first)} of {len(rest):,}."))
    columns = ["mean", "sd", low, high, "ess_bulk", "r_hat"]
    lines = [
        [name, *(f"{line[c]:.3g}" for c in columns[:4]), f"{line['ess_bulk']:,.0f}",
         f"{line['r_hat']:.3f}"]
        for name, line in first.iterrows()
    ]  # fmt: skip
    body = _wide(table(["", *columns], lines))
    return [*parts, tag("details", tag("summary", "the same as a table"), body)]


def _groups(
    post: FittedDraws, model: BaseModel, prob: float, data: RowsLike | None
) -> Iterator[Markup]:
    """Yield a section for the effects of every group."""
    rows, why = post.held_rows(), "no rows were given"
    if rows is None and data is not None and group_names(model):
        try:
            rows = post.rows_of_fit(data, "a table of effects")
        except ModicumError as fault:
            why = str(fault).rstrip(".")
    for group in group_names(model):
        if rows is None and group == model.integrated_group:
            shown = [
                _note(
                    f"These effects were integrated out and are drawn from the rows of the fit, "
                    f"which a file does not keep ({why}); give the rows or their table: "
                    "post.report(path, data=...)."
                )
            ]
        else:
            frame = effects(post, group, rows=rows, prob=prob)
            shown = [*_effects(frame), *_shrinkages(post, group, frame, rows, prob)]
        yield _section(f"Effects of {group}", shown)


def _smooths(post: FittedDraws, prob: float) -> Iterator[Markup]:
    """Yield a section for every smooth of one variable."""
    for name, smooth in smooths_of(post).items():
        if len(smooth.variables) > 1:
            continue
        table, (variable,) = smooth_table(post, smooth, prob=prob), smooth.variables
        parts = {"": table} if smooth.by is None else dict(iter(table.groupby(level=0)))
        shown = [
            _effect(str(level), variable, part.droplevel(0) if level else part, "predictor")
            for level, part in parts.items()
        ]
        about = "The predictor minus its average over the rows of the fit."
        yield _section(f"Smooth {name}", [_note(about), *shown])


def _effects(frame: pd.DataFrame) -> list[Markup]:
    """Show effects sorted by mean; of many, the largest and smallest."""
    ordered = frame.sort_values("mean", ascending=False)
    low, high = ordered.columns[2], ordered.columns[3]
    unit = f"What each level adds to the predictor: mean and interval from {low} to {high}."
    parts = [_note(unit)]
    if len(ordered) > MOST_LINES:
        half = MOST_LINES // 2
        parts.append(_note(f"The {half} largest and the {half} smallest of {len(ordered):,}."))
        ordered = ordered.take(np.r_[:half, -half:0])
    labels = [_label(level) for level in ordered.index]
    return [*parts, forest(labels, Band.of(ordered, low, "mean", high))]


def _shrinkages(
    post: FittedDraws, group: str, frame: pd.DataFrame, rows: Rows | None, prob: float
) -> list[Markup]:
    """Show the shrinkage of each effect of a group, if there are rows and not too many."""
    if rows is None or len(rows) > MOST_SHRINKAGE_ROWS:
        return []
    words = (
        "Filled: the effects above. Hollow: estimates from the rows of each level alone "
        "(triangles: beyond the edge). The fewer rows a level has, the more it borrows from "
        f"the others. Grey: where {prob:.0%} of levels that are not in the data would lie."
    )
    pictures = []
    for name in effect_names(post.fitted_model(), group):
        picture = shrinkage_chart(shrinkage(post, rows, group, name, frame), group, prob)
        pictures.append(tag("figure", tag("figcaption", name), picture))
    return [_note(words), tag("div", pictures, class_="figures")]


def _label(level: object) -> str:
    """Format a level, or a level with its effect or class."""
    if isinstance(level, tuple):
        return ", ".join(map(_label, level))
    return f"{level:.3g}" if isinstance(level, float) else str(level)


def _columns(
    post: FittedDraws, names: Sequence[str], prob: float, data: RowsLike | None
) -> list[Markup]:
    """Show average predictions by column."""
    intro = (
        "Average predictions: the column is set to one value at a time in all rows, which are "
        "otherwise left as they are."
    )
    parts = []
    for name in names:
        try:
            effect = marginal(post, name, data, draws=DRAWS, prob=prob, subsample=COLUMN_ROWS)
        except ModicumError as fault:
            parts.append(tag("p", tag("strong", name), ": ", str(fault), class_="note"))
            continue
        for of_class, part in by_class(effect).items():
            parts.append(_effect(f"{name}, {of_class}" if of_class else name, name, part))
    return [_note(intro), tag("div", parts, class_="figures")]


def _column_names(post: FittedDraws, data: RowsLike | None) -> list[str]:
    """Return the first few columns, as the user named them; groups have their own section."""
    fit = post.fit_rows if post.fit_rows is not None else post.rows
    if fit is None:
        return []
    schema = fit.schema
    if schema.encoding is not None and post.fit_rows is not None:
        grouped = {name for group in schema.encoding.groupings for name in group.columns}
        has_table = post.table is not None or data is not None
        names = schema.encoding.needed(outcome=False, fields=()) if has_table else ()
        return [name for name in names if name not in grouped][:MOST_COLUMNS]
    places = range(len(schema.columns)) if schema.coding is None else schema.coding.dense
    coded = () if schema.coding is None else schema.coding.fields
    return [*(schema.columns[k] for k in places), *coded][:MOST_COLUMNS]


def _effect(caption: str, name: str, table: pd.DataFrame, up: str = "expected outcome") -> Markup:
    band = Band.of(table, table.columns[2], "mean", table.columns[3])
    if table.index.dtype.kind in "fiu" and len(table) > 2:
        picture = band_chart(table.index.to_numpy(float), band, name, up)
    else:
        picture = forest([f"{name} = {_label(level)}" for level in table.index], band)
    return tag("figure", tag("figcaption", caption), picture)


def _check(check: PredictiveCheck) -> list[Markup]:
    frame = check.table
    band = Band.of(frame, "lower", "predicted", "upper")
    observed = frame["observed"].to_numpy(float)
    if check.kind == "calibration":
        picture = band_chart(band.middle, band, "predicted probability", "share of ones", observed)
    elif check.kind == "ecdf":
        x = frame.index.to_numpy(float)
        picture = band_chart(x, band, "outcome", "share of rows up to it", observed)
    else:
        picture = bar_chart(list(frame.index), observed, band, "outcome", "rows")
    expected = 1 - check.prob
    marks = "Points" if check.kind in ("calibration", "ecdf") else "Bars"
    words = (
        f"{marks}: observed in {check.rows:,} rows. Blue: what the model expects, with "
        f"{check.prob:.0%} intervals. {check.outside:.0%} of the bins lie outside their intervals; "
        f"{expected:.0%} would by chance."
    )
    return [_note(words), tag("figure", picture)]


def _cost(post: FittedDraws) -> list[Markup]:
    ledger = post.ledger
    lines = [
        [purpose, kind, f"{n:,}", f"{n / ledger.rows:,.1f}"]
        for (purpose, kind), n in ledger.counts.items()
    ]
    text = f"{ledger.evaluations:,} {ledger.unit} evaluations: {ledger.passes:,.1f} passes"
    if ledger.share is not None:
        text += f", {ledger.share:.2%} of what HMC on all rows with the same trajectories costs"
    seconds = post.settings.get("seconds")
    if isinstance(seconds, int | float):
        text += f"; {seconds:,.0f} seconds"
    head = ["for", "what", "evaluations", "passes"]
    return [tag("p", text + "."), _wide(table(head, lines))]


def _priors(post: FittedDraws) -> Markup:
    priors = post.tuning.get("priors")
    if not isinstance(priors, Mapping) or not priors:
        return _note("The priors of this model were not recorded.")
    items = list(priors.items())
    lines = [[name, prior] for name, prior in items[:MOST_LINES]]
    body = _wide(table(["parameter", "prior"], lines))
    if len(items) <= 8:
        return body
    title = f"{len(items):,} priors"
    return tag("details", tag("summary", title), body)


def _method(post: FittedDraws) -> Markup:
    pairs: list[tuple[str, object]] = []
    for name, entry in post.tuning.items():
        if name == "priors":
            continue
        if isinstance(entry, Mapping) and "why" in entry:
            value = entry.get("value")
            figure = f"{value:.4g}" if isinstance(value, float) else str(value)
            pairs.append((name, (tag("strong", figure), f": {entry['why']}")))
        elif isinstance(entry, Mapping):
            text = "; ".join(f"{k} {v}" for k, v in entry.items())
            pairs.append((name, text))
        else:
            pairs.append((name, str(entry)))
    if "settings" in post.settings:
        pairs.append(("settings", tag("code", post.settings["settings"])))
    return _facts(pairs) if pairs else _note("Nothing was tuned.")


def _how_to_repeat(post: FittedDraws, model: BaseModel | None) -> list[Markup]:
    versions: list[tuple[str, object]] = [
        (k, post.settings[k]) for k in ("modicum", "jax", "backend") if k in post.settings
    ]
    if post.fit_rows is not None:
        versions.append(("fingerprint of the rows", post.fit_rows.fingerprint))
    return [tag("pre", tag("code", code_for(post, model))), _facts(versions)]

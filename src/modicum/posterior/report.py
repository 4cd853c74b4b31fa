"""The report: what was fitted, whether to trust it, what each variable does, and the check of fit.

Effects are in the units of the outcome, and everything else is folded away at the end. The page is
self-contained, light and dark, for screens, phones, print and screen readers (`report.css`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from importlib.resources import files
from pathlib import Path

import numpy as np

from modicum.arguments import Share
from modicum.errors import ModicumError, first_few
from modicum.files import require_writable, whole_file
from modicum.libraries import pandas as pd
from modicum.markup import Markup, table, tag
from modicum.models import FAMILIES, BaseModel
from modicum.posterior.charts import Band, Picture, by_class, effect_picture, svg
from modicum.posterior.display import (
    SMALLEST_P,
    WORDS,
    Light,
    family_name,
    lights,
    overall,
    what_was_fitted,
    written,
)
from modicum.posterior.fit_rows import FitRows, RowsLike
from modicum.posterior.fitted import FittedDraws, evenly_spaced
from modicum.posterior.group_effects import effect_names, effects, group_names, one_effect
from modicum.posterior.marginal import marginal
from modicum.posterior.ppc import PredictiveCheck, ppc, survival_picture, survival_table
from modicum.posterior.summary import added_words, interval_words, is_pooled, prob_of, summary
from modicum.rows.formula import FormulaEncoding
from modicum.rows.formula.expressions import Expression

DRAWS = 100  # draws of the predictive check
EFFECT_DRAWS = 250  # of effects, whose bands are drawn
CHECKED_ROWS = 10_000  # rows of the predictive check: what they do not show is small
COLUMN_ROWS = 1_000  # rows over which the effects of columns are averaged
MOST_COLUMNS = 8  # columns whose effects a report shows
MOST_CURVES = 4  # levels of the second column of an interaction
MOST_LINES = 60  # of a table
NO_ROWS = (
    "This check and the effects of columns need the rows of the fit, which this posterior does not "
    "hold; give the rows or their table: post.report(path, data=...)."
)
TITLES = {
    "calibration": "Calibration",
    "classes": "Classes",
    "counts": "Rootogram",
    "quantiles": "Quantile residuals",
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def report(
    post: FittedDraws,
    path: str | os.PathLike[str],
    title: str | None = None,
    prob: Share = 0.9,
    data: RowsLike | None = None,
) -> Path:
    """Write an HTML report: what was fitted, whether to trust it, and the estimates.

    The report is one self-contained file. It opens with one sentence of what was fitted and
    whether to trust it; then come the effects of columns and groups in the units of the outcome,
    and the check of fit. Coefficients, diagnostics, priors, cost, settings and the code to run
    the fit again are folded away at the end. Sections that need the rows say so if the posterior
    was loaded without them and `data` is not given.

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
    require_writable(path)
    holder, other, why = copy(post), data, "no rows were given"
    if data is not None and post.rows is None:
        try:
            holder.take_rows(data)
            other = None
        except ModicumError as fault:  # these are not the rows of the fit
            why = str(fault).rstrip(".")
    page = report_page(holder, title, prob, other, why)
    with whole_file(path) as part:
        part.write_text(page, encoding="utf-8")
    return Path(path)


def _model_name(model: BaseModel | None) -> str:
    """Return the name of a model, and what was integrated out."""
    if model is None:
        return "an unknown model"
    of_groups = model.integrated_group
    more = "" if of_groups is None else f", with effects of {of_groups} integrated out"
    return f"{type(model.row_model).__name__}{more}"


def code_for(post: FittedDraws, model: BaseModel | None) -> str:
    """Return Python code that repeats the fit on the same data, without priors and settings."""
    settings, first = post.settings, "" if model is None else family_name(model)
    fields = {} if post.encoding is None else post.encoding.fields
    arguments = f"draws={post.num_draws}, tune={settings.get('tune')}, chains={post.chains}"
    if settings.get("thin", 1) != 1:
        arguments += f", thin={settings['thin']}"
    arguments += f", random_seed={settings.get('seed')}"
    method = f'method="{settings.get("method")}"'
    if "formula" in settings:
        formula = str(settings["formula"])
        family = f'family="{first}"' if first in FAMILIES else "family=..."
        for argument, field in (("offset", "offset"), ("weights", "weight")):
            for column in fields.get(field, ()):
                if f"{field}({column})" not in formula.replace(" ", ""):
                    family += f", {argument}={column!r}"
        call = f"mo.fit({formula!r}, data, {family}, {method},\n              {arguments})"
    else:
        kind = FAMILIES.get(first)
        model_code = "model" if kind is None else f"mo.models.{kind.__name__}()"
        call = f"mo.sample({model_code}, rows, {method},\n                 {arguments})"
    note = "# with the priors and settings above, where they are not the defaults"
    return f"import modicum as mo\n\n{note}\npost = {call}"


def report_page(
    post: FittedDraws, title: str | None, prob: float, data: RowsLike | None, not_taken: str
) -> str:
    """Return the page as one HTML document; what cannot be computed says why.

    `not_taken` says why the posterior could not take its rows, where it has none.
    """
    predictor = post.predictor_if_any()
    model = None if predictor is None else predictor.model
    estimates, check, why = summary(post, prob=prob), None, NO_ROWS
    has_rows = model is not None and (post.rows is not None or data is not None)
    if has_rows:
        try:
            check = ppc(post, data, draws=DRAWS, prob=prob, subsample=CHECKED_ROWS)
        except ModicumError as fault:
            why = str(fault)
    traffic_lights = list(lights(post, estimates, check))
    level, verdict = overall(traffic_lights)
    sentence = what_was_fitted(post)
    effect_figures = _effects(post, prob, data) if has_rows else []
    body = [
        tag(
            "header",
            tag("h1", title or sentence.rstrip(".")),
            tag("p", sentence) if title else None,
            tag("p", _light(level), " ", verdict),
            _warnings(post),
        ),
        _section("What each variable does", tag("div", effect_figures, class_="figures"))
        if effect_figures
        else None,
        *([] if model is None else _groups(post, model, prob, data, not_taken)),
        _section(
            "Does it look like the data?",
            _note(why) if check is None else tag("p", _judged(check)),
            tag(
                "div",
                None if check is None else _check(check),
                _survival(post, prob) if has_rows and data is None else None,
                class_="figures",
            ),
        ),
        _section(
            "Details",
            _folded("Diagnostics", _trust(traffic_lights)),
            _folded("Coefficients", _coefficients(estimates)),
            _folded("Model and data", _fitted(post, model)),
            _folded("Priors", _priors(post)),
            _folded("How it was sampled, and why", _method(post)),
            _folded("What it cost", _cost(post)),
            _folded("How to run it again", _how_to_repeat(post, model)),
        ),
    ]
    css = (files(__package__) / "report.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", title or sentence),
        tag("style", Markup("\n" + css)),
    )
    page = tag("html", head, tag("body", tag("main", body)), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _section(title: str, *parts: object) -> Markup:
    return tag("section", tag("h2", title), *parts)


def _folded(title: str, *parts: object) -> Markup:
    return tag("details", tag("summary", title), *parts)


def _light(level: str) -> Markup:
    """Return a traffic light that a word tells apart as well as its colour."""
    return tag("span", WORDS[level], class_=f"light {level}")


def _figure(title: str, words: str, picture: Picture, numbers: pd.DataFrame) -> Markup:
    """Return a picture with a title, words on what is drawn, and its numbers for all readers."""
    names = [str(name or "") for name in numbers.index.names]
    shown = numbers.iloc[evenly_spaced(len(numbers), MOST_LINES)]
    lines = [
        [*(_cell(value) for value in (key if isinstance(key, tuple) else (key,))),
         *(_cell(value) for value in line)]
        for key, line in zip(shown.index, shown.to_numpy(object), strict=True)
    ]  # fmt: skip
    body = _wide(table([*names, *shown.columns], lines), f"numbers of {title}")
    caption = tag("figcaption", tag("strong", title), tag("small", words))
    return tag("figure", caption, svg(picture), _folded("numbers", body))


def _cell(value: object) -> str:
    """Format a number of a table, or anything else."""
    if isinstance(value, float | np.floating):
        return f"{value:,.0f}" if abs(float(value)) >= 1_000 else f"{value:.4g}"
    return str(value)


def _wide(markup: Markup, name: str) -> Markup:
    """Return what may be wider than a phone, where a keyboard can scroll it."""
    return tag("div", markup, class_="scroll", tabindex=0, role="region", aria_label=name)


def _facts(pairs: Sequence[tuple[str, object]]) -> Markup:
    return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in pairs])


def _note(text: str) -> Markup:
    return tag("p", text, class_="note")


# What the fit says ---------------------------------------------------------------------------


def _effects(post: FittedDraws, prob: float, data: RowsLike | None) -> list[Markup]:
    """Show average predictions by column, and by two columns where the formula has a product.

    Parameters with formulas of their own are shown by the columns of these.
    """
    names, given = _column_names(post, data), _unit_of_exposure(post)
    parameters = ("", *post.explained_parameters())
    asked: dict[tuple[frozenset[str], str], tuple[str, ...]]
    asked = {(frozenset([name]), ""): (name,) for name in names}
    for columns, parameter in () if post.encoding is None else _terms(post.encoding):
        if 1 <= len(columns) <= 2 and set(columns) <= set(names) and parameter in parameters:
            asked.setdefault((frozenset(columns), parameter), columns)
    pictures = []
    for (_, parameter), columns in asked.items():
        title = " and ".join(columns) + (f", {parameter}" if parameter else "")
        try:
            known = {} if post.fit_rows is None else post.fit_rows.schema.levels
            many = [name for name in columns[1:] if len(known.get(name, ())) > MOST_CURVES]
            at = {name: known[name][:MOST_CURVES] for name in many}
            found = marginal(
                post, columns, data, at=at or None, given=given, parameter=parameter or None,
                draws=EFFECT_DRAWS, prob=prob, subsample=COLUMN_ROWS,
            )  # fmt: skip
        except ModicumError as fault:
            pictures.append(tag("p", tag("strong", title), ": ", str(fault), class_="note"))
            continue
        several = by_class(found) if found.index.nlevels > 2 else {"": found}
        for of_class, part in several.items():
            name, picture = f"{title}, {of_class}" if of_class else title, effect_picture(part)
            pictures.append(_figure(name, picture.words, picture, part.iloc[:, :4]))
    return pictures


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


def _unit_of_exposure(post: FittedDraws) -> dict[str, object]:
    """Return columns that occur in offsets alone, with values at which these are 0.

    Expected counts are then those of one unit of exposure.
    """
    encoding = post.encoding
    if encoding is None:
        return {}
    elsewhere = encoding.needed(outcome=False, fields=())
    units: dict[str, object] = {}
    for text in encoding.fields.get("offset", ()):
        offset = Expression(text)
        if len(offset.names) == 1 and offset.names[0] not in elsewhere:
            (name,) = offset.names
            if offset.bare == name:
                units[name] = 0
            elif text.replace(" ", "") == f"log({name})":
                units[name] = 1
    return units


def _terms(encoding: FormulaEncoding) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the columns that each term joins, numbers first, and the parameter it explains."""
    for term in encoding.terms:
        for part in term.parts:
            texts = [Expression(encoding.factors[k].expression) for k, _ in part]
            columns = dict.fromkeys(name for text in texts for name in text.names)
            numbers = [name for name in columns if encoding.kinds.get(name) == "number"]
            yield tuple(dict.fromkeys([*numbers, *columns])), term.parameter


def _groups(
    post: FittedDraws, model: BaseModel, prob: float, data: RowsLike | None, not_taken: str
) -> Iterator[Markup]:
    """Yield a section for the effects of every group."""
    for group in group_names(model):
        if post.held_rows() is None and group == model.integrated_group:
            yield _section(
                f"Effects of {group}",
                _note(
                    "These effects were integrated out and are drawn from the rows of the fit, "
                    f"which a file does not keep ({not_taken}); give the rows or their table: "
                    "post.report(path, data=...)."
                ),
            )
            continue
        frame = effects(post, group, prob=prob)
        names = effect_names(model, group)
        pictures = {name: _caterpillar(post, name, one_effect(frame, name)) for name in names}
        with suppress(ModicumError):  # several columns, too many levels, or integrated effects
            found = marginal(post, group, data, draws=EFFECT_DRAWS, prob=prob,
                             subsample=COLUMN_ROWS, given=_unit_of_exposure(post))  # fmt: skip
            if found.index.nlevels == 1:  # nothing of outcomes that are classes
                pictures[group] = _caterpillar(post, group, found)
        yield _section(f"Effects of {group}", tag("div", list(pictures.values()), class_="figures"))


def _caterpillar(post: FittedDraws, name: str, frame: pd.DataFrame) -> Markup:
    """Show levels sorted by mean."""
    quantity = frame.attrs.get("quantity") or added_words(post, name)
    frame = frame.sort_values("mean", ascending=False)
    levels = [str(level) for level in frame.index]
    words, bands = interval_words(prob_of(frame)), {"": Band.of_estimates(frame)}
    picture = Picture("levels", levels, bands, name, quantity, words)
    words += f"; largest for {levels[0]}, smallest for {levels[-1]}"
    return _figure(name, words, picture, frame.drop(columns="mcse_mean"))


def _judged(check: PredictiveCheck) -> str:
    """Say whether the data look like data of the model, and where they differ most."""
    frame = check.table
    gap = (frame["observed"] - frame["predicted"]).abs()
    at = int(np.argmax(gap / (frame["upper"] - frame["lower"]).clip(lower=1e-9)))
    line, across = frame.iloc[at], check.across

    def number(value: float) -> str:
        return f"{value:.1%}" if check.kind == "calibration" else _cell(value)

    where = f"{check.labels[0]} is {frame.index[at] if across is None else number(across[at])}"
    verdict = "look like data" if check.p >= SMALLEST_P else "do not look like data"
    return (
        f"The data {verdict} drawn from this model: of {check.draws} data sets drawn from it, "
        f"{check.p:.0%} differ as much from what it expects (p = {check.p:.2g}; below "
        f"{SMALLEST_P:g} it would miss something). The largest gap is where {where}: "
        f"{number(line['observed'])} observed, {number(line['lower'])} to {number(line['upper'])} "
        "expected."
    )


def _check(check: PredictiveCheck) -> Markup:
    """Show a predictive check."""
    drawn, picture = "bars" if check.across is None else "points", check.picture
    caption = f"{drawn}: observed in {check.rows:,} rows; blue: {picture.words}"
    return _figure(TITLES[check.kind], caption, picture, check.table)


def _survival(post: FittedDraws, prob: float) -> Markup | None:
    """Show the survival curve of censored times beside the Kaplan-Meier estimate."""
    if not {"event", "cens"} & set(post.fitted_model().row_model.observed):
        return None
    try:
        frame = survival_table(post, draws=DRAWS, prob=prob)
    except ModicumError as fault:
        return _note(str(fault))
    picture = survival_picture(frame, post.outcome_name(), prob)
    words = f"blue: {picture.words}; black: Kaplan-Meier estimate"
    return _figure("Survival", words, picture, frame)


# Folded away ---------------------------------------------------------------------------------


def _fitted(post: FittedDraws, model: BaseModel | None) -> Markup:
    settings = post.settings
    pairs: list[tuple[str, object]] = []
    if "formula" in settings:
        pairs.append(("formula", tag("code", settings["formula"])))
    pairs.append(("model", _model_name(model)))
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
            pairs.append((f"levels of {name}", first_few(levels, 6)))
    classes = settings.get("outcome_levels")
    if isinstance(classes, Mapping):
        pairs.append(("outcomes", ", ".join(f"{name} is {code}" for name, code in classes.items())))
    method = settings.get("method", "draws from another program")
    pairs.append(("method", f"{method}: {post.drawn}"))
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
    rest = estimates.loc[[name for name in estimates.index if not is_pooled(str(name))]]
    body = _wide(table(*written(rest.head(MOST_LINES))), "coefficients")
    if len(rest) <= MOST_LINES:
        return [body]
    return [body, _note(f"These are the first {MOST_LINES} of {len(rest):,}.")]


def _cost(post: FittedDraws) -> list[Markup]:
    ledger = post.ledger
    _, *lines = ledger.lines()
    text = f"{ledger.evaluations:,} {ledger.unit} evaluations: {ledger.passes:,.1f} passes"
    if ledger.share is not None:
        text += f", {ledger.share:.2%} of what HMC on all rows with the same trajectories costs"
    seconds = post.settings.get("seconds")
    if isinstance(seconds, int | float):
        text += f"; {seconds:,.0f} seconds"
    head = ["for", "what", "evaluations", "passes"]
    return [tag("p", text + "."), _wide(table(head, lines), "cost")]


def _priors(post: FittedDraws) -> Markup:
    priors = post.tuning.get("priors")
    if not isinstance(priors, Mapping) or not priors:
        return _note("The priors of this model were not recorded.")
    lines = [[name, prior] for name, prior in list(priors.items())[:MOST_LINES]]
    return _wide(table(["parameter", "prior"], lines), "priors")


def _method(post: FittedDraws) -> Markup:
    pairs: list[tuple[str, object]] = []
    for name, entry in post.tuning.items():
        if name == "priors":
            continue
        if isinstance(entry, Mapping) and "why" in entry:
            pairs.append((name, (tag("strong", _cell(entry.get("value"))), f": {entry['why']}")))
        elif isinstance(entry, Mapping):
            pairs.append((name, "; ".join(f"{k} {v}" for k, v in entry.items())))
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

"""The report as one self-contained HTML page, light and dark, for screens, phones and print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from modicum.markup import Markup, table, tag
from modicum.posterior.fit_rows import FitRows
from modicum.posterior.ppc import PredictiveCheck
from modicum.posterior.report.charts import Band, band_chart, bar_chart, forest, shrinkage_chart
from modicum.posterior.report.contents import (
    GroupEffects,
    Light,
    ReportContents,
    lights,
    overall,
    predictive_light,
)

if TYPE_CHECKING:
    import pandas as pd

CSS = """
:root { color-scheme: light dark; --ink: #1a2230; --soft: #5b6675; --paper: #ffffff;
  --card: #f5f7fa; --edge: #dde3ea; --blue: #0b5fa5; --good: #1a7f4b; --doubtful: #9a6700;
  --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa6b5; --paper: #12161c;
  --card: #1b212a; --edge: #2f3843; --blue: #6cb6ff; --good: #4ac58a; --doubtful: #e3b341;
  --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .75rem; }
section { background: var(--card); border: 1px solid var(--edge); border-radius: 10px;
  padding: 1rem; margin: 1rem 0; }
.note, small { color: var(--soft); }
code, pre { font: .875em/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--paper); border: 1px solid var(--edge);
  border-radius: 6px; padding: .75rem; white-space: pre-wrap; }
dl { display: grid; grid-template-columns: minmax(7rem, 12rem) 1fr; gap: .3rem 1rem; margin: 0; }
dt { color: var(--soft); overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
.light { display: inline-block; min-width: 3.4rem; text-align: center; border-radius: 1rem;
  padding: 0 .6rem; font-size: .8rem; font-weight: 600; border: 1.5px solid currentColor; }
.good { color: var(--good); } .doubtful { color: var(--doubtful); } .bad { color: var(--bad); }
.checks { display: grid; gap: .6rem; }
.check { display: grid; grid-template-columns: 4.5rem minmax(9rem, 14rem) 7rem 1fr;
  gap: .2rem .8rem; align-items: baseline; }
.figure { font-variant-numeric: tabular-nums; }
.warnings { margin: 1rem 0 0; padding-left: 1.2rem; } .warnings li { margin: .4rem 0; }
.forest { display: grid; gap: .15rem; }
.line { display: grid; grid-template-columns: minmax(0, 14rem) 1fr 4.6rem; gap: .6rem;
  align-items: center; font-size: .875rem; }
.label { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.line .figure { text-align: right; white-space: nowrap; }
.track { position: relative; height: 1.1rem; display: block; }
.zero { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--soft); opacity: .6; }
.bar { position: absolute; top: .42rem; height: .26rem; border-radius: .2rem;
  background: var(--blue); opacity: .55; }
.dot { position: absolute; top: .3rem; width: .5rem; height: .5rem; margin-left: -.25rem;
  border-radius: 50%; background: var(--blue); }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(18rem, 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; max-width: 30rem; } figcaption { font-weight: 600; }
.figures .line { grid-template-columns: minmax(0, 8rem) 1fr 4.6rem; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--soft); }
.grid { stroke: var(--edge); } .band { fill: var(--blue); opacity: .25; }
.curve { fill: none; stroke: var(--blue); stroke-width: 1.6; } .seen { fill: var(--ink); }
.seen-bar { fill: var(--soft); opacity: .45; }
.expected { stroke: var(--blue); stroke-width: 3; opacity: .7; }
.expected-dot { fill: var(--blue); }
.new { fill: var(--soft); opacity: .15; } .pull { stroke: var(--blue); opacity: .45; }
.mean { fill: var(--blue); } .own { fill: var(--card); stroke: var(--blue); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem .2rem 0; text-align: right; border-bottom: 1px solid var(--edge); }
th:first-child { text-align: left; font-weight: 500; }
summary { cursor: pointer; color: var(--blue); margin: .6rem 0 .3rem; }
@media (max-width: 36rem) {
  main { padding: .6rem; } section { padding: .8rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  .check { grid-template-columns: 4.2rem 1fr auto; } .check small { grid-column: 1 / -1; }
  .line { grid-template-columns: minmax(0, 8.5rem) 1fr 4.4rem; gap: .4rem; }
  .label { white-space: normal; overflow-wrap: anywhere; line-height: 1.2; }
}
@media print { section { break-inside: avoid; } }
"""


MOST_LINES = 60  # of a table or a chart
WORDS = {"good": "fine", "doubtful": "look", "bad": "wrong"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def report_page(report: ReportContents) -> str:
    """Return the page as one HTML document."""
    shape = (report.chains, report.draws)
    traffic_lights = lights(
        report.summary, shape, report.stats, report.tuning, report.settings, report.warnings
    )
    traffic_lights[-1:-1] = predictive_light(report.check)  # before the warnings
    level, verdict = overall(traffic_lights)
    sections = [
        _section("What was fitted", _fitted(report)),
        _section("Can it be trusted?", _trust(traffic_lights), _warnings(report)),
        _section("Coefficients", _coefficients(report)),
        *[
            _section(f"Effects of {name}", _effects(effects, name, report.prob))
            for name, effects in report.groups.items()
        ],
        _section("What each column does", _columns(report)) if report.columns else None,
        _section("Does it look like the data?", _check(report.check)),
        _section("What it cost", _cost(report)),
        _section("Priors", _priors(report)),
        _section("How it was sampled, and why", _method(report)),
        _section("How to run it again", _how_to_repeat(report)),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", report.title),
        tag("style", Markup(CSS)),
    )
    top = tag("header", tag("h1", report.title), tag("p", _light(level), " ", verdict))
    body = tag("body", tag("main", top, [part for part in sections if part is not None]))
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _section(title: str, *parts: object) -> Markup:
    return tag("section", tag("h2", title), *parts)


def _light(level: str) -> Markup:
    """Return a traffic light that a word tells apart as well as its colour."""
    return tag("span", WORDS[level], class_=f"light {level}")


def _facts(pairs: Sequence[tuple[str, object]]) -> Markup:
    return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in pairs])


def _wide(markup: Markup) -> Markup:
    return tag("div", markup, class_="scroll")


def _fitted(report: ReportContents) -> Markup:
    settings = report.settings
    pairs: list[tuple[str, object]] = []
    if "formula" in settings:
        pairs.append(("formula", tag("code", settings["formula"])))
    pairs.append(("model", report.model))
    units = f"{report.ledger.rows:,} {report.ledger.unit}s"
    rows = settings.get("rows", report.ledger.rows)
    row_count = f"{rows:,} rows" + (f" in {units}" if report.ledger.unit != "row" else "")
    pairs.append(("data", row_count))
    if settings.get("dropped_rows"):
        pairs.append(("left out", f"{settings['dropped_rows']:,} rows with missing values"))
    if report.fit_rows is not None:
        schema = report.fit_rows.schema
        if schema.outcome:
            pairs.append(("outcome", tag("code", schema.outcome)))
        pairs += _other_fields(report.fit_rows)
        pairs.append(("columns of the model", f"{len(schema.columns):,}"))
        for name, levels in list(schema.levels.items())[:12]:
            listed = ", ".join(str(level) for level in levels[:6])
            more = f" and {len(levels) - 6:,} more" if len(levels) > 6 else ""
            pairs.append((f"levels of {name}", listed + more))
    classes = settings.get("outcome_levels")
    if isinstance(classes, Mapping):
        pairs.append(("outcomes", ", ".join(f"{name} is {code}" for name, code in classes.items())))
    method = settings.get("method", "draws from another program")
    pairs.append(("method", f"{method}: {report.chains} chains of {report.draws:,} draws"))
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


def _warnings(report: ReportContents) -> Markup | None:
    if not report.warnings:
        return None
    lines = [
        tag("li", tag("strong", doubt.sentence + "."), " ", doubt.remedy and doubt.remedy + ".",
            " ", tag("code", doubt.code))
        for doubt in report.warnings
    ]  # fmt: skip
    return tag("ul", lines, class_="warnings")


def _coefficients(report: ReportContents) -> list[Markup]:
    effects = [name for name in report.summary.index if "|" in str(name).split("[")[0]]
    rest = report.summary.drop(index=effects)
    first = rest.head(MOST_LINES)
    low, high = first.columns[2], first.columns[3]
    unit = tag("p", f"Mean and interval from {low} to {high} of the posterior.", class_="note")
    picture = forest(list(first.index), Band.of(first, low, "mean", high))
    parts = [unit, picture]
    if len(rest) > len(first):
        parts.append(tag("p", f"These are the first {len(first)} of {len(rest):,}.", class_="note"))
    columns = ["mean", "sd", low, high, "ess_bulk", "r_hat"]
    lines = [
        [name, *(f"{line[c]:.3g}" for c in columns[:4]), f"{line['ess_bulk']:,.0f}",
         f"{line['r_hat']:.3f}"]
        for name, line in first.iterrows()
    ]  # fmt: skip
    body = _wide(table(["", *columns], lines))
    return [*parts, tag("details", tag("summary", "the same as a table"), body)]


def _effects(effects: GroupEffects | str, group: str, prob: float) -> list[Markup]:
    """Show effects sorted by mean (of many, the largest and smallest), and their shrinkage."""
    import pandas as pd

    if isinstance(effects, str):
        return [tag("p", effects, class_="note")]
    ordered = effects.table.sort_values("mean", ascending=False)
    low, high = ordered.columns[2], ordered.columns[3]
    unit = f"What each level adds to the predictor: mean and interval from {low} to {high}."
    parts = [tag("p", unit, class_="note")]
    if len(ordered) > MOST_LINES:
        half = MOST_LINES // 2
        parts.append(
            tag("p", f"The {half} largest and the {half} smallest of {len(ordered):,}.",
                class_="note")
        )  # fmt: skip
        ordered = pd.concat([ordered.head(half), ordered.tail(half)])
    labels = [_label(level) for level in ordered.index]
    parts.append(forest(labels, Band.of(ordered, low, "mean", high)))
    pictures = [
        tag("figure", tag("figcaption", name), shrinkage_chart(shrinkage, group, prob))
        for name, shrinkage in effects.shrinkage.items()
    ]
    if pictures:
        words = (
            "Filled: the effects above. Hollow: estimates from the rows of each level alone "
            "(triangles: beyond the edge). The fewer rows a level has, the more it borrows from "
            f"the others. Grey: where {prob:.0%} of levels that are not in the data would lie."
        )
        parts += [tag("p", words, class_="note"), tag("div", pictures, class_="figures")]
    return parts


def _label(level: object) -> str:
    """Format a level, or a level with its effect or class."""
    if isinstance(level, tuple):
        return ", ".join(map(_label, level))
    return f"{level:.3g}" if isinstance(level, float) else str(level)


def _columns(report: ReportContents) -> list[Markup]:
    intro = (
        "Average predictions: the column is set to one value at a time in all rows, which are "
        "otherwise left as they are."
    )
    parts = [tag("p", intro, class_="note")]
    for name, effect in report.columns.items():
        if isinstance(effect, str):
            parts.append(tag("p", tag("strong", name), ": ", effect, class_="note"))
            continue
        parts += [_effect(f"{name}{of_class}", name, part) for of_class, part in _by_class(effect)]
    return [parts[0], tag("div", parts[1:], class_="figures")]


def _by_class(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split the table by class of the outcome, if it has classes."""
    if table.index.nlevels == 1:
        return [("", table)]
    classes = table.index.get_level_values(-1)
    return [(f", class {k}", table[classes == k].droplevel(-1)) for k in dict.fromkeys(classes)]


def _effect(caption: str, name: str, table: pd.DataFrame) -> Markup:
    band = Band.of(table, table.columns[2], "mean", table.columns[3])
    if table.index.dtype.kind in "fiu" and len(table) > 2:
        picture = band_chart(table.index.to_numpy(float), band, name, "expected outcome")
    else:
        picture = forest([f"{name} = {_label(level)}" for level in table.index], band)
    return tag("figure", tag("figcaption", caption), picture)


def _check(check: PredictiveCheck | str) -> list[Markup]:
    if isinstance(check, str):
        return [tag("p", check, class_="note")]
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
    return [tag("p", words, class_="note"), tag("figure", picture)]


def _cost(report: ReportContents) -> list[Markup]:
    ledger = report.ledger
    lines = [
        [purpose, kind, f"{n:,}", f"{n / ledger.rows:,.1f}"]
        for (purpose, kind), n in ledger.counts.items()
    ]
    text = f"{ledger.evaluations:,} {ledger.unit} evaluations: {ledger.passes:,.1f} passes"
    if ledger.share is not None:
        text += f", {ledger.share:.2%} of what HMC on all rows with the same trajectories costs"
    seconds = report.settings.get("seconds")
    if isinstance(seconds, int | float):
        text += f"; {seconds:,.0f} seconds"
    head = ["for", "what", "evaluations", "passes"]
    return [tag("p", text + "."), _wide(table(head, lines))]


def _priors(report: ReportContents) -> Markup:
    priors = report.tuning.get("priors")
    if not isinstance(priors, Mapping) or not priors:
        return tag("p", "The priors of this model were not recorded.", class_="note")
    items = list(priors.items())
    lines = [[name, prior] for name, prior in items[:MOST_LINES]]
    body = _wide(table(["parameter", "prior"], lines))
    if len(items) <= 8:
        return body
    title = f"{len(items):,} priors"
    return tag("details", tag("summary", title), body)


def _method(report: ReportContents) -> Markup:
    pairs: list[tuple[str, object]] = []
    for name, entry in report.tuning.items():
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
    if "settings" in report.settings:
        pairs.append(("settings", tag("code", report.settings["settings"])))
    return _facts(pairs) if pairs else tag("p", "Nothing was tuned.", class_="note")


def _how_to_repeat(report: ReportContents) -> list[Markup]:
    versions = [
        (k, report.settings[k]) for k in ("modicum", "jax", "backend") if k in report.settings
    ]
    if report.fit_rows is not None:
        versions.append(("fingerprint of the rows", report.fit_rows.fingerprint))
    return [tag("pre", tag("code", report.code)), _facts(versions)]

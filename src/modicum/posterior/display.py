"""How a posterior shows itself: what was fitted, whether to trust it, and a summary with a picture.

A diagnostic is a traffic light: a number, whether it is good, and what it means. The sentence of
the worst lights opens notebooks, terminals and the report alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from shutil import get_terminal_size
from textwrap import fill
from typing import Literal, NamedTuple

import numpy as np

from modicum.errors import is_number
from modicum.libraries import pandas as pd
from modicum.markup import Markup, box, table, tag
from modicum.models import FAMILIES, BaseModel
from modicum.posterior.doubts import largest_r_hat, smallest_ess
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.ppc import PredictiveCheck
from modicum.posterior.summary import interval_words, is_pooled, prob_of, summary

Level = Literal["good", "doubtful", "bad"]
WORDS = {"good": "fine", "doubtful": "look", "bad": "wrong"}
BAD_R_HAT = 1.05
MOST_DIVERGING = 0.01  # share of divergent draws above which the light is red
SMALLEST_P = 0.01  # of a predictive check, below which data like these are unexpected
FEW_DRAWS = 100  # effective draws below which nothing is called fine, however good the chain
SHOWN = 12  # scalars shown
WIDTH = 100  # of a text, where no terminal says it
PLACES = 25  # letters of a picture of an interval, at most
FEWEST_LETTERS = 12  # of a name
MOST_NAMES = 8  # columns that a sentence names
PEOPLE = {"gaussian", "laplace", "mises", "poisson", "student", "tweedie", "weibull"}  # in names


def family_name(model: BaseModel) -> str:
    """Return the name of a family as users write it; the class of another model."""
    name = type(model.row_model).__name__
    return {kind.__name__: called for called, kind in FAMILIES.items()}.get(name, name)


def what_was_fitted(post: FittedDraws) -> str:
    """Return one sentence of the model, its outcome and columns, and the number of rows."""
    predictor = post.predictor_if_any()
    rows = f"{post.settings.get('rows', post.ledger.rows):,} rows"
    if predictor is None:
        return f"Draws of {', '.join(post.draws)}, from {rows}."
    name = family_name(predictor.model)
    kind = "regression" if name in FAMILIES else "model"
    written = "-".join(part.title() if part in PEOPLE else part for part in name.split("-"))
    text = f"{'An' if name[0] in 'aeio' else 'A'} {written} {kind}"
    if post.encoding is not None:
        columns = post.encoding.needed(outcome=False, fields=())
        explained = post.explained_parameters()
        text += f" of {_listed((post.outcome_name(), *map('its {}'.format, explained)))}"
        text += f" on {_listed(columns)}" if columns else ""
    groups = dict.fromkeys(term.field for term in predictor.model.group_terms)
    text += f", with effects of {_listed(tuple(groups))}" if groups else ""
    return f"{text}, fitted to {rows}."


def _listed(names: tuple[str, ...]) -> str:
    """Return names as a list in words; of many, the first."""
    if len(names) > MOST_NAMES:
        return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES:,} more columns"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


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
    yield from _summary_lights(post, summary)
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
        yield Light(
            "predictive check",
            f"p = {check.p:.2g}",
            "good" if check.p >= SMALLEST_P else "doubtful",
            "how often data drawn from the model differ from what it expects as much as these data "
            "do; near 0 means that the model misses something",
        )
    count = len(post.warnings)
    yield Light(
        "warnings",
        f"{count:,}",
        "good" if count == 0 else "doubtful",
        "reasons to doubt the run" if count else "no reason to doubt the run",
    )


def _summary_lights(post: FittedDraws, summary: pd.DataFrame) -> Iterator[Light]:
    """Judge R-hat and ESS of the worst scalar, by the limits of the warnings."""
    chains, draws = post.chains, post.num_draws
    finite = summary[np.isfinite(summary["r_hat"])]
    if not len(finite):
        unknown = "too few draws to tell whether they have converged"
        yield Light("R-hat", "unknown", "bad", unknown)
        return
    if post.settings.get("independent"):
        agree = "whether parts of the draws agree"
    else:
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
                _level(-float(sizes.min()), -max(needed_ess, FEW_DRAWS), -needed_ess / 4),
                f"number of independent draws that would give equally precise {of} "
                f"(worst: {sizes.idxmin()})",
            )


def _level(value: float, good: float, bad: float) -> Level:
    return "good" if value <= good else "doubtful" if value <= bad else "bad"


def overall(all_lights: Iterable[Light]) -> tuple[Level, str]:
    """Return the worst light, and a verdict with the figures that it rests on."""
    found = list(all_lights)
    levels: tuple[Level, ...] = ("bad", "doubtful", "good")
    worst = next(level for level in levels if level in {light.level for light in found})
    none = ("0", "0 draws")  # which say nothing
    telling = [light for light in found if light.level == worst and light.figure not in none]
    figures = ", ".join(f"{light.name} {light.figure}" for light in telling)
    words = {
        "bad": "Do not use this fit until this is understood",
        "doubtful": "Usable with care",
        "good": "No reason to doubt this fit was found",
    }[worst]
    return worst, f"{words}: {figures}."


def written(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return the head and the lines of a summary's table, as text."""
    lines = [
        [str(name), *(f"{line[c]:.4g}" for c in frame.columns[:4]), f"{line['ess_bulk']:,.0f}",
         f"{line['r_hat']:.3f}"]
        for name, line in frame.iterrows()
    ]  # fmt: skip
    return ["", *frame.columns[:4], "ess_bulk", "r_hat"], lines


class Shown(NamedTuple):
    """What a notebook and a terminal show of a posterior."""

    fitted: str
    level: Level
    verdict: str
    head: list[str]
    lines: list[list[str]]
    pictures: list[tuple[float, float, float] | None]  # ends and middle, as shares of the axis
    zero: float
    more: str

    @classmethod
    def of(cls, post: FittedDraws) -> Shown:
        """Summarize the first scalars; only coefficients of columns share the picture's axis."""
        # the first parameters, enough for `SHOWN` scalars; effects of groups come last
        ordered = sorted(post.draws, key=is_pooled)
        before = np.cumsum([0, *(post.draws[name][0, 0].size for name in ordered)])
        names = [name for name, count in zip(ordered, before, strict=False) if count < SHOWN]
        whole = summary(post, names)
        level, verdict = overall(lights(post, whole))
        frame = whole.head(SHOWN)
        low, high = frame.columns[2:4]
        head, lines = written(frame)
        drawn = frame.index.str.match(r"beta\b")
        drawn |= not drawn.any()
        ends = frame.loc[drawn, [low, high]].to_numpy()
        ends = ends[np.isfinite(ends).all(axis=1)]
        start, stop = (min(ends.min(), 0.0), max(ends.max(), 0.0)) if len(ends) else (0.0, 0.0)
        span = stop - start if stop > start else 1.0
        shares = (frame[[low, "mean", high]].to_numpy() - start) / span
        pictures = [
            (float(a), float(m), float(b)) if here and np.isfinite([a, m, b]).all() else None
            for here, (a, m, b) in zip(drawn, shares, strict=True)
        ]
        total = sum(x[0, 0].size for x in post.draws.values())
        more = f"{total - len(frame):,} more scalars: post.summary()" * (total > len(frame))
        head.append(f"{interval_words(prob_of(frame))}, {start:.2g} to {stop:.2g}")
        return cls(
            what_was_fitted(post), level, verdict, head, lines, pictures, -start / span, more
        )


def posterior_box(post: FittedDraws) -> str:
    """Return a box for a notebook: what was fitted, the verdict, the summary with a picture."""
    shown = Shown.of(post)
    pictures = [_drawn(at, shown.zero) for at in shown.pictures]
    lines = [[*line, picture] for line, picture in zip(shown.lines, pictures, strict=True)]
    doubts = [tag("li", str(doubt)) for doubt in post.warnings]
    return box(
        tag("div", shown.fitted),
        tag("div", tag("b", WORDS[shown.level]), f": {shown.verdict}"),
        table(shown.head, lines),
        tag("div", shown.more) if shown.more else None,
        tag("ul", doubts) if doubts else None,
        tag("small", repr(post).strip("<>")),
    )


def _drawn(at: tuple[float, float, float] | None, zero: float) -> Markup | None:
    """Draw an interval in the colour of the text."""
    if at is None:
        return None
    low, middle, high = (4 + 132 * share for share in at)
    axis, ink = 4 + 132 * zero, {"stroke": "currentColor"}
    return tag(
        "svg",
        tag("line", x1=axis, x2=axis, y1=0, y2=16, stroke_opacity=0.3, **ink),
        tag("line", x1=f"{low:.1f}", x2=f"{high:.1f}", y1=8, y2=8, stroke_width=2, **ink),
        tag("circle", cx=f"{middle:.1f}", cy=8, r=3.5, fill="currentColor"),
        width=140,
        height=16,
        role="img",
        aria_label="interval",
    )


def posterior_text(post: FittedDraws) -> str:
    """Return what a terminal prints: what was fitted, the verdict, the summary with a picture.

    Lines are as long as the terminal is wide: pictures may have no place, and names be cut.
    """
    shown, (width, _) = Shown.of(post), get_terminal_size((WIDTH, 0))
    cells = [shown.head[:-1], *shown.lines]
    longest, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    room = width - sum(widths) - 2 * len(widths)
    first = min(longest, max(room, FEWEST_LETTERS))
    ends, places = shown.head[-1].rpartition(", ")[2], min(room - first - 2, PLACES)
    pictures = [ends, *(_typed(at, shown.zero, places) for at in shown.pictures)]
    if places < len(ends):
        pictures = [""] * len(cells)
    body = [
        "  ".join([line[0][:first].ljust(first), *map(str.rjust, line[1:], widths), picture])
        for line, picture in zip(cells, pictures, strict=True)
    ]
    rest = [text for text in (shown.more, *map(str, post.warnings)) if text]
    texts = [shown.fitted, f"{WORDS[shown.level]}: {shown.verdict}", *rest, repr(post).strip("<>")]
    filled = [fill(text, width, break_long_words=False) for text in texts]
    return "\n".join(line.rstrip() for line in (*filled[:2], "", *body, *filled[2:]))


def _typed(at: tuple[float, float, float] | None, zero: float, places: int) -> str:
    """Draw an interval in so many letters."""
    if at is None or places < 1:
        return ""
    low, middle, high, axis = (round((places - 1) * share) for share in (*at, zero))
    line = ["\N{BOX DRAWINGS LIGHT VERTICAL}" if k == axis else " " for k in range(places)]
    line[low : high + 1] = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (high + 1 - low)
    if low <= axis <= high:
        line[axis] = "\N{BOX DRAWINGS LIGHT VERTICAL AND HORIZONTAL}"
    line[middle] = "\N{BLACK CIRCLE}"
    return "".join(line)

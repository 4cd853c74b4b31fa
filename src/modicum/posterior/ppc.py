"""Predictive checks: compare observed outcomes with those that the model predicts.

Every check accumulates a few numbers per draw over batches of rows: sums of drawn outcomes in bins
of the rows, counts of them in bins of their values or of their quantiles, or the chances to survive
beyond some times, which are compared with the Kaplan-Meier estimate. Outcomes are judged by how
often drawn ones are as far from what is expected as the observed ones, with the squared distance

    T = sum over bins of (value - mean)^2 / variance,

whose moments are over observed and drawn values alike, so that all of them have equal chances to be
the farthest if the model is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Literal

import numpy as np

from modicum.arguments import Count, FromTwo, Share
from modicum.diagnostics.weighted import ends_of, weighted_mean, weighted_quantile
from modicum.errors import DataError, SettingError
from modicum.libraries import pandas as pd
from modicum.posterior.charts import PREDICTED, Band, Picture, draw
from modicum.posterior.fit_rows import AlignedRows, Batch, RowsLike
from modicum.posterior.fitted import FittedDraws, evenly_spaced
from modicum.posterior.marginal import Average
from modicum.posterior.outcomes import OutcomeDraws, outcome_draws, outcomes
from modicum.posterior.population import (
    column_values,
    counted_rows,
    holds_column,
    table_sample,
)
from modicum.posterior.predict import survival_predictor
from modicum.posterior.summary import interval_words, percent
from modicum.random import Stream, generator
from modicum.rows.reading import is_tabular, source_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = Literal["calibration", "classes", "counts", "ecdf", "quantiles", "residuals"]
FEWEST = 5  # rows that a bar of a rootogram is expected to hold; fewer share a bar
MOST_COUNTS = 30  # bars of a rootogram; larger counts share bars
GRID = 60  # points of a distribution function
FEW_VALUES = 12  # up to this many distinct values of a column, each is a bin


@dataclass(frozen=True, eq=False)
class PredictiveCheck:
    """Observed outcomes, compared with outcomes drawn from the model.

    Attributes
    ----------
    kind
        "calibration" (of outcomes 0 and 1, in bins of their predicted probability), "classes" (how
        often each occurs), "counts" (how often each occurs: a rootogram), "quantiles" (of numbers:
        how many rows lie in each part of their own predictive distribution), "ecdf" (the
        distribution function of numbers, against the prior), or "residuals" (means in bins of a
        column).
    table
        One line per bin: `observed`, `predicted` (the mean over draws), the interval from `lower`
        to `upper` in which the model expects the observed value, and, for bins of rows, `rows`. For
        bins of a column, `at` is the bin's value; for outcomes that are classes there is a line
        per bin and `class`, with the share of the class in the bin.
    name
        The column by which rows are binned; empty if there is none.
    rows, draws, prob
        Number of rows and of predictive draws, and the probability of the intervals.
    p
        Chance that outcomes drawn from the model are as far from what it expects, in all bins
        together, as the observed ones: near 0 where the model misses something.
    outcome
        Name of the outcome.
    """

    kind: Kind
    table: pd.DataFrame
    name: str
    rows: int
    draws: int
    prob: float
    p: float
    outcome: str = "outcome"

    @property
    def outside(self) -> float:
        """Share of bins whose observed value lies outside its interval; 1 - prob is expected."""
        observed = self.table["observed"]
        beyond = (observed < self.table["lower"]) | (observed > self.table["upper"])
        return float(beyond.mean())

    def __repr__(self) -> str:
        by = f" by {self.name}" if self.name else ""
        return (
            f"<PredictiveCheck {self.kind}{by}: {len(self.table)} bins of {self.rows:,} rows, "
            f"{self.outside:.0%} outside their {self.prob:.0%} intervals, p = {self.p:.2g} "
            f"({self.draws} draws)>"
        )

    @property
    def labels(self) -> tuple[str, str]:
        """What a plot has on its two axes."""
        up = "share of rows" if "class" in self.table else f"mean {self.outcome}"
        return {
            "calibration": (f"predicted chance of {self.outcome}", "observed share of rows"),
            "classes": (self.outcome, "rows"),
            "counts": (self.outcome, "rows, on a square-root scale"),
            "ecdf": (self.outcome, "share of rows up to it"),
            "quantiles": (f"quantile of {self.outcome} among its predictions", "rows"),
            "residuals": (self.name, f"{up} minus predicted"),
        }[self.kind]

    @property
    def across(self) -> np.ndarray | None:
        """Where the bins lie on an axis of numbers; None if they are named."""
        if self.kind == "calibration":
            return self.table["predicted"].to_numpy(float)
        return self.table.index.to_numpy(float) if self.kind in ("ecdf", "quantiles") else None

    @property
    def picture(self) -> Picture:
        """Observed values, and what the model expects; of residuals, the differences."""
        table, words, (across, up) = self.table, expected_words(self.prob), self.labels
        values = table[["lower", "predicted", "upper", "observed"]]
        at = table.index.to_numpy() if self.across is None else self.across
        if self.kind == "counts":
            values = values**0.5
        elif self.kind == "residuals":
            values, at = values.sub(table["predicted"], axis=0), table["at"].unique()
        parts = {words: values}
        if "class" in table:
            parts = {f"class {name!s}": part for name, part in values.groupby(table["class"])}
        return Picture(
            kind="curves" if at.dtype.kind == "f" or len(parts) > 1 else "bars",
            at=at,
            bands={name: Band.of(part, *values.columns[:3]) for name, part in parts.items()},
            across=across,
            up=up,
            words=words,
            seen={name: part["observed"].to_numpy(float) for name, part in parts.items()},
            least=0.0 if self.kind == "quantiles" else np.inf,
            is_root=self.kind == "counts",
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the check: observed values in black, what the model expects in blue."""
        return draw(self.picture, ax, None if "class" in self.table else PREDICTED)


def expected_words(prob: float) -> str:
    """Say what a check draws beside the observed values."""
    return f"expected, with {percent(prob)} interval"


def ppc(
    post: FittedDraws,
    data: RowsLike | None = None,
    by: str | None = None,
    draws: Count = 100,
    bins: FromTwo = 10,
    prob: Share = 0.9,
    subsample: Count = 50_000,
    random_seed: int = 0,
    prior: bool = False,
) -> PredictiveCheck:
    """Check the model by comparing observed outcomes with outcomes that it predicts.

    Binary outcomes are checked for calibration, in bins of their predicted probability; counts
    by how often each occurs, zeros included (a rootogram); other numbers by their quantiles among
    the outcomes predicted for the same row without knowing its own, which are uniform if the model
    is right (a censored outcome has a random one of those that it may have), or against the prior
    by their distribution function. With `by`, mean outcomes are compared in bins of a column
    instead, whether or not the model uses that column. A row with an integer `weight` k gets k
    predicted outcomes; any other weight multiplies a single one.

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
        Has a `table` of the numbers, a chance `p` of as large differences, and `plot()`.
    """
    if data is None and by is not None:
        data = _table_with(post, by, subsample, random_seed)
    origin = data if data is not None else post.table
    all_rows = post.rows_or_own(data, True, "refuse")
    field = post.fitted_model().outcome_field
    if field not in all_rows.fields:
        if post.rows is not None and field not in post.rows.fields:
            raise SettingError(
                f"it is not known which field holds the outcomes: the rows of the fit have "
                f"{', '.join(sorted(post.rows.fields))}; name it with mo.Model(outcome=...)."
            )
        raise SettingError(f"a check needs outcomes: give rows with the field {field!r}.")
    ids, mass = counted_rows(all_rows.rows, subsample, random_seed)
    checked = replace(all_rows, rows=all_rows.rows.subset(ids))
    column = None if by is None else (by, column_values(all_rows.rows, origin, by, ids))
    source = outcome_draws(post, checked, draws, random_seed, None, prior, averaged=True)
    known = None if data is None or post.fit_rows is None else post.fit_rows.fingerprint
    is_fitted = not prior and (data is None or known == all_rows.rows.fingerprint())
    check = _compared(source, mass, column, bins, prob, random_seed, prior, is_fitted)
    table = _with_class_names(check, post.class_names())
    return replace(check, table=table, outcome=post.outcome_name())


def _table_with(post: FittedDraws, column: str, most: int, seed: int) -> RowsLike | None:
    """Return random rows of the fit's table if only the table, not the rows, has the column.

    The rows cannot be matched with the table by position: a store of groups is sorted, and
    rows with missing values may have been left out.
    """
    encoding = post.encoding
    if post.rows is None or encoding is None or holds_column(post.rows, column):
        return None
    if not is_tabular(post.table) or column not in source_of(post.table).names:
        return None  # `column_values` raises the error
    needed = dict.fromkeys([*encoding.needed(outcome=True), column])
    return table_sample(post.table, list(needed), most, seed, encoding, fitted=post.rows)


def _compared(
    source: OutcomeDraws,
    mass: np.ndarray,
    by: tuple[str, np.ndarray] | None,
    bins: int,
    prob: float,
    seed: int,
    prior: bool,
    is_fitted: bool,
) -> PredictiveCheck:
    """Check rows in memory, in random order, against drawn outcomes.

    `mass` is the weight of each row's outcome, and `is_fitted` says that the fit had these rows.
    """
    model = source.predictor.model
    number, fewest = source.weights.size, ceil(1 / (1 - prob) - 1e-9)
    if number < fewest:
        raise SettingError(
            f"intervals of {prob:.0%} need at least {fewest} predictive draws, and there "
            f"{'is' if number == 1 else 'are'} {number}."
        )
    rows = source.rows.rows
    fields = rows.slice(0, len(rows))
    y = np.asarray(fields[model.outcome_field], float)
    censored = _censored(y, {name: fields[name] for name in model.row_model.observed})
    _require_comparable(y, censored is not None and (by is not None or prior))
    natural = _natural_kind(source, y, prior)
    kind: Kind = "residuals" if by is not None else natural if censored is None else "quantiles"
    of_rows = kind in ("calibration", "residuals")
    edges = np.empty(0) if of_rows else _edges(kind, y, bins)
    classes = int(y.max()) + 1 if kind == "residuals" and natural == "classes" else 0
    bin_of_row, at = np.zeros(len(y), int), np.arange(bins)
    if kind == "calibration":
        bin_of_row = _bins_of_chances(source, bins)
    elif by is not None:
        bin_of_row, at = _bins(by[1], bins)
    total, first, rng = np.zeros(()), 0, generator(seed, Stream.QUANTILES)
    for batch, drawn in outcomes(source, seed):
        part = slice(first, first + drawn.shape[1])
        summed = _sums_of(kind, edges, classes, bin_of_row[part], mass[part], len(at))
        values = np.concatenate([y[None, part], drawn])
        if kind == "quantiles":
            weights = _left_out_weights(source, batch) if is_fitted else np.ones_like(drawn)
            ends = None if censored is None else censored[:, part]
            values = _quantiles(values, weights, ends, rng)
        total = total + np.stack([summed(x) for x in values])
        first = part.stop
    if kind == "counts":
        # let the largest counts share a bin, so that it is expected to hold some rows
        beyond = np.cumsum(total[1:, :0:-1].mean(axis=0))[::-1]
        kept = np.r_[0, 1 + np.flatnonzero(beyond[1:] >= FEWEST)]
        edges, total = edges[kept], np.add.reduceat(total, [0, *kept + 1], axis=1)
    if len(edges):
        table = _value_table(kind, edges, total, prob, source.weights)
    else:
        in_bins = np.stack([np.bincount(bin_of_row, w, len(at)) for w in (None, mass)])
        table = _row_table(total, in_bins, classes, prob, source.weights)
    if by is not None:
        table = table.assign(at=at[table.index])
    if "rows" in table:
        table = table[table["rows"] > 0]
    name, chance = "" if by is None else by[0], _chance_of_as_far(total, source.weights)
    return PredictiveCheck(kind, table, name, len(rows), number, prob, chance)


def _chance_of_as_far(total: np.ndarray, weights: np.ndarray) -> float:
    """Return the chance p of a distance as large as that of the first line, the observed one."""
    weights = np.r_[1.0, weights.reshape(-1)]
    away = (total - np.average(total, axis=0, weights=weights)) ** 2
    variance = np.average(away, axis=0, weights=weights)
    distance = np.sum(away / np.where(variance > 0, variance, 1.0), axis=1)
    return float(np.clip(np.average(distance >= distance[0], weights=weights), 0.0, 1.0))


def _left_out_weights(source: OutcomeDraws, batch: Batch) -> np.ndarray:
    """Return weights of draws (draws, rows) by which the fit did not have the row, as in `loo`.

    A fit leans towards each of its outcomes, which thus lie nearer to the middle of what is
    predicted than new ones: with a parameter for every five rows, visibly so. Weights in proportion
    to 1 / density take this back; none counts for more than the square root of their number.
    """
    density = np.nan_to_num(source.outcome(batch)[1], nan=-1e300, neginf=-1e300, posinf=1e300)
    ratio = np.exp(density.min(axis=0) - density)
    return np.asarray(np.minimum(ratio, np.sqrt(len(ratio)) * ratio.mean(axis=0)))


def _quantiles(
    values: np.ndarray, weights: np.ndarray, ends: np.ndarray | None, rng: np.random.Generator
) -> np.ndarray:
    """Return the quantile of each value in its column, ties in random order.

    The first line is that of the observed outcomes, among drawn ones with these weights; those
    between the `ends` (2, rows) have a random quantile between theirs.
    """
    order = np.lexsort((rng.random(values.shape), values), axis=0)
    found = (np.argsort(order, axis=0) + rng.random(values.shape)) / len(values)
    share = weights / weights.sum(axis=0) * (len(values) - 1) / len(values)
    observed, drawn = values[0], values[1:]
    below, equal = ((share * side).sum(axis=0) for side in (drawn < observed, drawn == observed))
    found[0] = below + (equal + 1 / len(values)) * rng.random(len(observed))
    if ends is not None:
        low, high = (np.average(drawn <= end, axis=0, weights=share) for end in ends)
        between = low + (high - low) * rng.random(len(low))
        found[0] = np.where(ends[0] < ends[1], between, found[0])
    return found


def _censored(y: np.ndarray, fields: Batch) -> np.ndarray | None:
    """Return the ends between which each outcome lies, equal where it was observed."""
    kind = np.where(fields.get("event", 1) == 0, 1, fields.get("cens", 0))
    if not kind.any():
        return None
    low = np.where(kind == -1, -np.inf, y)
    high = np.select([kind == 1, kind == 2], [np.inf, fields.get("y2", np.inf)], y)
    return np.stack(np.broadcast_arrays(low, high))


def _require_comparable(y: np.ndarray, hidden: bool) -> None:
    """Refuse vector outcomes, and censored ones whose values are to be compared."""
    if y.ndim > 1:
        raise SettingError(
            f"each outcome of these rows has the shape {y.shape[1:]}, and a check needs one number "
            "per row; compare the outcomes with post.predictive(...) yourself."
        )
    if hidden:
        raise DataError(
            "some of these outcomes are censored, but predicted ones are not, so that the two "
            "cannot be compared; do not leave out the censored rows, since observed events are "
            "earlier than average, but compare their quantiles by post.ppc(), or with a "
            "Kaplan-Meier curve by modicum.plots.survival(post)."
        )


def _with_class_names(check: PredictiveCheck, names: Sequence[str]) -> pd.DataFrame:
    """Replace class numbers in the table by their names, if there are any."""
    table = check.table
    if names and "class" in table:
        return table.assign(**{"class": [names[k] for k in table["class"]]})
    if not names or check.kind != "classes":
        return table
    called = [names[int(k)] for k in table.index]
    return table.set_axis(pd.Index(called, name=table.index.name))


def _natural_kind(source: OutcomeDraws, y: np.ndarray, prior: bool) -> Kind:
    """Choose the kind of check from the model's predictions and the outcomes."""
    family = source.predictor.model.row_model
    first = next(iter(source.rows.chunks(2)))
    try:
        expected = source.predictor({k: v[:1] for k, v in source.draws.items()}, first)
    except SettingError:  # a custom model need not predict, but only simulate
        expected = None
    if expected is not None and family.decide(expected) is not None:
        return "classes" if expected.ndim == 3 else "calibration"
    _, drawn = next(outcomes(source, 0))
    _require_comparable(drawn[0], False)  # counts of several classes are not one number either
    if family.simulates and expected is not None and expected.ndim == 2:
        chances = np.all((expected >= 0) & (expected <= 1))
        if chances and all(np.isin(values, (0, 1)).all() for values in (y, drawn)):
            return "calibration"
    are_whole = bool(np.all(y == np.floor(y)) and np.all(drawn == np.floor(drawn)))
    return "counts" if are_whole and y.min() >= 0 else "ecdf" if prior else "quantiles"


def _edges(kind: Kind, y: np.ndarray, bins: int) -> np.ndarray:
    """Return the lower ends of the bins of outcomes; the last bin has no upper end."""
    if kind == "quantiles":
        return np.arange(bins) / bins
    if kind == "ecdf":
        return np.unique(np.quantile(y, np.linspace(0, 1, GRID)))
    top = int(y.max()) + 1
    if kind == "classes" or top <= MOST_COUNTS:
        return np.arange(top + (kind == "counts"), dtype=float)
    fine = np.arange(MOST_COUNTS // 2)
    wide = np.quantile(y[y >= len(fine)], np.linspace(0, 1, MOST_COUNTS // 2))
    return np.unique(np.r_[fine, np.floor(wide)]).astype(float)


def _bins(values: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bin of each value, and the label of each bin: a level, or a mean."""
    levels, places = np.unique(values, return_inverse=True)
    if values.dtype.kind not in "fiu" or len(levels) <= FEW_VALUES:
        return places, levels.astype(float) if values.dtype.kind in "fiu" else levels
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1))[1:-1])
    places = np.searchsorted(edges, values, side="right")
    count = np.bincount(places, minlength=len(edges) + 1)
    total = np.bincount(places, values, minlength=len(edges) + 1)
    return places, np.divide(total, count, out=np.zeros(len(count)), where=count > 0)


def _bins_of_chances(source: OutcomeDraws, bins: int) -> np.ndarray:
    """Bin rows by their mean probability of a one, as many rows in each bin."""
    pieces = source.pieces(lambda batch: source.predictor(source.draws, batch))
    chance = np.concatenate([weighted_mean(x[None], source.weights) for _, x in pieces])
    edges = np.quantile(chance, np.linspace(0, 1, bins + 1)[1:-1])
    return np.searchsorted(edges, chance, side="right")


def _sums_of(
    kind: Kind, edges: np.ndarray, classes: int, place: np.ndarray, mass: np.ndarray, bins: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Return what is added up: outcomes in bins of values, or of rows; or classes in these.

    `place` and `mass` are the bin and the weight of each row.
    """

    def summed(outcome: np.ndarray) -> np.ndarray:
        if len(edges):
            # bin = number of edges below the value; "right" also counts an edge equal to it
            cell = np.searchsorted(edges, outcome, side="left" if kind == "ecdf" else "right")
            return np.bincount(cell, mass, minlength=len(edges) + 1)
        if not classes:
            return np.bincount(place, mass * outcome, minlength=bins)
        is_class = outcome < classes  # classes that were never observed are not tabulated
        cell = place[is_class] * classes + outcome[is_class].astype(int)
        return np.bincount(cell, mass[is_class], minlength=bins * classes)

    return summed


def _row_table(
    total: np.ndarray, in_bins: np.ndarray, classes: int, prob: float, weights: np.ndarray
) -> pd.DataFrame:
    """Tabulate means of outcomes in bins of rows, or shares of their classes."""
    width, (rows, mass) = classes or 1, in_bins
    means = total / np.repeat(np.where(mass > 0, mass, 1.0), width)
    index = np.repeat(np.arange(len(rows)), width)
    table = _frame(means, prob, index, weights).assign(rows=np.repeat(rows, width).astype(int))
    if not classes:
        return table
    return table.assign(**{"class": np.tile(np.arange(width), len(rows))})


def _value_table(
    kind: Kind, edges: np.ndarray, total: np.ndarray, prob: float, weights: np.ndarray
) -> pd.DataFrame:
    """Tabulate counts of outcomes in bins of their values, or their distribution function."""
    if kind == "ecdf":  # values up to and including each edge
        return _frame(np.cumsum(total, axis=-1)[..., :-1] / total[0].sum(), prob, edges, weights)
    if kind == "quantiles":
        return _frame(total[:, 1:], prob, edges + 0.5 / len(edges), weights)
    ends = [*edges[1:] - 1, np.inf]
    names = [
        f"{a:.0f}" if a == b else f"{a:.0f}+" if b == np.inf else f"{a:.0f}-{b:.0f}"
        for a, b in zip(edges, ends, strict=True)
    ]
    if kind == "classes":
        names[-1] = f"{edges[-1]:.0f}"
    return _frame(total[:, 1:], prob, names, weights)


def _frame(
    total: np.ndarray, prob: float, index: Sequence[object] | np.ndarray, weights: np.ndarray
) -> pd.DataFrame:
    """Tabulate what was observed, the first line of `total`, and what was drawn."""
    drawn = total[None, 1:]
    low, high = weighted_quantile(drawn, weights, ends_of(prob))
    mean = weighted_mean(drawn, weights)
    columns = {"observed": total[0], "predicted": mean, "lower": low, "upper": high}
    return pd.DataFrame(columns, index=pd.Index(index, name="bin"))


DRAWS, TIMES = 200, 60  # by default
MOST_ROWS = 2_000  # over which a curve is averaged, evenly spaced among all


def survival_table(
    post: FittedDraws, times: np.ndarray | None = None, draws: int = DRAWS, prob: Share = 0.9
) -> pd.DataFrame:
    """Return the chance that an outcome of a row of the fit is larger than each time.

    The table has, for each time, its posterior mean and interval, averaged over the rows (at most
    `MOST_ROWS`), and the Kaplan-Meier estimate from all outcomes, which may be right-censored.
    """
    rows = post.rows_or_own(None, True, "refuse")
    observed = post.fitted_model().row_model.observed
    if set(observed) - {"event", "cens"}:
        raise SettingError(
            "a Kaplan-Meier curve is that of outcomes observed completely or right-censored, and "
            f"these rows also have {', '.join(sorted(set(observed) - {'event', 'cens'}))}; predict "
            "chances with post.predict(rows, kind='survival', times=...)."
        )
    fields = rows.rows.slice(0, len(rows.rows))
    y = np.asarray(fields["y"], float)
    ends = _censored(y, {name: fields[name] for name in observed})
    low, high = (y, y) if ends is None else ends
    if np.any((low != y) | ((high != y) & (high < np.inf))):
        raise DataError(
            "some outcomes are censored from the left or in intervals, and a Kaplan-Meier curve is "
            "that of right-censored ones: predict chances with post.predict(rows, kind='survival', "
            "times=...)."
        )
    at = np.linspace(0, y.max(), TIMES) if times is None else np.asarray(times, float)
    weight = np.asarray(fields.get("weight", np.ones(len(y))), float)
    averaged = AlignedRows.of(rows.rows.subset(evenly_spaced(len(y), MOST_ROWS)))
    source = OutcomeDraws.affordable(post, averaged, draws)
    source = source._replace(predictor=survival_predictor(post, "survival", at.tolist()))
    chances = Average.over(averaged.chunks, source.weights, lambda b: source.expected(b)[0])
    seen = kaplan_meier(y, high == y, weight, at)
    table = _frame(np.vstack([seen, chances.by_draw]), prob, at, source.weights)
    names = {"predicted": "mean", "lower": "lower", "upper": "upper", "observed": "kaplan_meier"}
    return table[list(names)].rename(columns=names).rename_axis("time")


def kaplan_meier(
    y: np.ndarray, is_event: np.ndarray, weight: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """Return the Kaplan-Meier estimate of the chance to survive beyond each time.

    Examples
    --------
    >>> y, ones = np.array([1.0, 2.0, 3.0, 4.0]), np.ones(4)
    >>> kaplan_meier(y, np.array([True, False, True, True]), ones, np.array([0.5, 1.0, 3.5]))
    array([1.   , 0.75 , 0.375])
    >>> kaplan_meier(y, ones == 1, np.array([1.0, 1.0, 0.0, 0.0]), np.array([1.5, 3.5, 9.0]))
    array([0.5, 0. , 0. ])
    """
    moments, place = np.unique(y, return_inverse=True)
    died = np.bincount(place, weight * is_event, len(moments))
    left = np.cumsum(np.bincount(place, weight, len(moments))[::-1])[::-1]  # at risk
    share = np.divide(died, left, out=np.zeros_like(died), where=left > 0)  # 0 where none counts
    curve = np.r_[1.0, np.cumprod(1 - share)]
    return np.asarray(curve[np.searchsorted(moments, times, side="right")])


def survival_picture(table: pd.DataFrame, outcome: str, prob: float) -> Picture:
    """Show a survival table: the curve of the model, and the Kaplan-Meier estimate."""
    words, at = interval_words(prob), table.index.to_numpy(float)
    bands = {words: Band.of(table, "lower", "mean", "upper")}
    seen = {words: table["kaplan_meier"].to_numpy()}
    titles = outcome, "chance of survival", words
    return Picture("curves", at, bands, *titles, seen, "Kaplan-Meier", least=0.0)

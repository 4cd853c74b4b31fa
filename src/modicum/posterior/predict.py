"""Expected outcomes of rows, or chances of survival, with their posterior uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from modicum.arguments import names_checked
from modicum.errors import SettingError, is_number, warn_of
from modicum.models import BaseModel
from modicum.models.over_draws import ModelPredictor, length_of
from modicum.posterior.fit_rows import AlignedRows, Batch, Groups, RowsLike, aligned
from modicum.posterior.fitted import FittedDraws, affordable, check_interval, thinned
from modicum.posterior.outcomes import OutcomeDraws, in_pieces, with_groups
from modicum.posterior.weighted import (
    normalised,
    unequal,
    weighted_mcse,
    weighted_mean,
    weighted_quantile,
)
from modicum.random import Stream, generator
from modicum.rows.formula import NewLevels
from modicum.rows.sources import is_table, library

if TYPE_CHECKING:
    import pandas as pd

Evaluation: TypeAlias = Callable[[Batch], tuple[np.ndarray, np.ndarray]]
"""Maps a batch to expected outcomes (draws, rows, ...), for the mean and for the interval."""
NewGroups: TypeAlias = Literal["one", "average"]
PredictionKind: TypeAlias = Literal["mean", "survival"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """The expected outcome of each row, with its posterior uncertainty.

    The interval is that of the expected outcome (a probability, a mean), not of a new
    observation.

    Parameters
    ----------
    mean, lower, upper
        Arrays with one entry (or one line of entries) per row.
    prob
        Posterior probability of the equal-tailed interval from `lower` to `upper`.
    draws
        Posterior draws used.
    classes
        Names of the classes whose probabilities are predicted; if empty, they are 0, 1, ...
    index
        Index of the pandas frame that was predicted, for `to_frame`.
    mcse_mean
        Monte Carlo error of each `mean`, from the number of draws used.
    quantiles
        Further quantiles of the expected outcome, by their probabilities.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> draws = {"beta": np.full((1, 9, 1), 2.0), "intercept": np.zeros((1, 9))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=1))
    >>> model = mo.models.Gaussian(scale=1.0)
    >>> post.predictor = mo.models.over_draws.ModelPredictor(model)
    >>> post.predict({"x": np.array([[0.5], [1.0]])}).to_frame()
       mean  lower  upper
    0   1.0    1.0    1.0
    1   2.0    2.0    2.0
    """

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    prob: float
    draws: int
    classes: tuple[str, ...] = ()
    index: pd.Index | None = field(default=None, repr=False)
    mcse_mean: np.ndarray | None = None
    quantiles: dict[float, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.mean)

    def columns(self) -> dict[str, np.ndarray]:
        """Return mean, ends of the interval and quantiles ("2.5%"), of each class if several."""
        ends = {"mean": self.mean, "lower": self.lower, "upper": self.upper}
        ends |= {f"{100 * p:g}%": values for p, values in self.quantiles.items()}
        if self.mean.ndim == 1:
            return ends
        count = self.mean.shape[1]
        names = self.classes if len(self.classes) == count else tuple(map(str, range(count)))
        return {
            f"{end}[{name}]": values[:, k]
            for k, name in enumerate(names)
            for end, values in ends.items()
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame with one line per row, indexed like the frame that was predicted."""
        import pandas as pd

        return pd.DataFrame(self.columns(), index=self.index)


@names_checked
def predict(
    post: FittedDraws,
    rows: RowsLike,
    draws: int | None = None,
    prob: float = 0.9,
    newlevels: NewLevels = "refuse",
    groups: Groups | None = None,
    newgroups: NewGroups | None = None,
    kind: PredictionKind = "mean",
    times: Sequence[float] | float | None = None,
    quantiles: Sequence[float] | float = (),
) -> Prediction:
    """Predict the expected outcome of each row, with an interval of probability `prob`.

    Expected are outcomes that are neither censored nor truncated, also if those of the fit were.

    Rows are visited a chunk at a time, so that memory stays small however many there are.

    Parameters
    ----------
    rows
        Modicum rows, whose columns are matched with those of the fit by name; a pandas, polars
        or Arrow table (after `mo.fit` also a file), which is encoded as the rows of the fit
        were, with columns in any order and extra columns ignored; or a dict of arrays such
        as ``{"x": X}`` with the columns in the fit's order.
    draws
        Posterior draws to use, evenly spaced. By default all, or of many rows as many as take
        about 10^8 evaluations of a row, but at least 200; the result says how many they were,
        and the Monte Carlo error of its means.
    prob
        Posterior probability of the equal-tailed interval of the expected outcome.
    newlevels
        How to treat a level that the fit did not have, in a table given to a posterior of
        `mo.fit`: "refuse" it, or treat it as the "reference" level.
    groups
        For a model with groups: "known" uses the effects of the rows' own groups, which the fit
        must have had; "new" takes all groups as new; "any", for a table, is "known" for groups
        that the fit had and "new" for the others. By default groups must be known, and factors
        that the rows do not name are averaged over.
    newgroups
        What the interval of a new group is about: "one" such group, so that it includes the
        spread between groups, or the "average" over all of them. The mean is the same. By
        default "one" with groups="new" or "any", else "average".
    kind
        "mean" for expected outcomes, or "survival" for the chances that outcomes are larger than
        each of the `times`: the result then has a column per time.
    times
        Times, or other values of the outcome, for kind="survival".
    quantiles
        Probabilities of further quantiles of the expected outcome, such as [0.025, 0.5, 0.975].
    """
    predictor, names = None, post.class_names()
    if kind != "mean" or times is not None:
        predictor = survival_predictor(post, kind, times)
        names = tuple(f"{time:g}" for time in predictor.times or ())
    prepared = Prepared.of(post, rows, draws, newlevels, groups, newgroups, predictor)
    return mixed_prediction([prepared], [1.0], prob, rows, names, quantiles)


class Prepared(NamedTuple):
    """Rows as a fit reads them, what it expects of them, and the weights of its draws."""

    rows: AlignedRows
    evaluate: Evaluation
    weights: np.ndarray  # (1, draws)

    @classmethod
    def of(
        cls,
        post: FittedDraws,
        rows: RowsLike,
        draws: int | None,
        newlevels: NewLevels,
        groups: Groups | None,
        newgroups: NewGroups | None,
        given: ModelPredictor | None = None,
    ) -> Prepared:
        """Align rows with those of the fit, and choose draws."""
        if newgroups not in (None, "one", "average"):
            raise SettingError(f"newgroups must be 'one' or 'average', not {newgroups!r}.")
        predictor = given or post.restore_predictor() or post.model_predictor()
        new = aligned(rows, post.fit_rows, False, newlevels, groups)
        if isinstance(predictor, ModelPredictor):
            new = with_groups(new, predictor.model, groups)
            drawn = OutcomeDraws.affordable(post, new, draws, predictor=predictor)
            one = newgroups == "one" or (newgroups is None and groups is not None)
            along = predictor.model.predictors_of_groups
            scores = _normal_scores(drawn.weights.size, len(along)) if one else None
            return cls(new, partial(drawn.expected, scores=scores), drawn.weights)
        subset, weights = thinned(post, affordable(post, len(new), draws))

        def evaluate(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
            outcome = np.asarray(predictor(subset, batch), float)
            return outcome, outcome

        return cls(new, evaluate, weights)

    def pieces(self, draws: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield expected outcomes, in pieces such that those of `draws` draws fit in memory."""
        count = self.weights.size
        for piece, (average, single) in in_pieces(self.rows, draws, self.evaluate):
            if average.ndim < 2 or average.shape[:2] != (count, length_of(piece)):
                raise SettingError(
                    f"The predictor returned shape {average.shape} for {count} draws and "
                    f"{length_of(piece)} rows; it must return one value per draw and row."
                )
            yield average, single


def mixed_prediction(
    fits: Sequence[Prepared],
    shares: Sequence[float],
    prob: float,
    rows: RowsLike,
    classes: tuple[str, ...],
    quantiles: Sequence[float] | float = (),
) -> Prediction:
    """Predict each row by a mixture of fits with these shares: mean, interval and error."""
    check_interval(prob)
    probabilities = np.atleast_1d(quantiles).tolist()
    if not all(is_number(p) and 0 <= p <= 1 for p in probabilities):
        raise SettingError(f"quantiles must be probabilities from 0 to 1, not {quantiles!r}.")
    total, parts = sum(fit.weights.size for fit in fits), []
    at, weights = [(1 - prob) / 2, (1 + prob) / 2, *probabilities], [fit.weights for fit in fits]
    mixed = [share * normalised(w) for share, w in zip(shares, weights, strict=True)]
    joined = weights[0] if len(fits) == 1 else np.concatenate(mixed, axis=1)
    differing = unequal(joined)
    for pieces in zip(*(fit.pieces(total) for fit in fits), strict=True):
        if len({average.shape[1:] for average, _ in pieces}) > 1:
            raise SettingError("the models predict different classes: average those of one kind.")
        averages, singles = (np.concatenate(each) for each in zip(*pieces, strict=True))
        each = [weighted_mcse(a[None], w) for (a, _), w in zip(pieces, weights, strict=True)]
        error = np.sqrt(sum((s * e) ** 2 for s, e in zip(shares, each, strict=True)))
        ends = weighted_quantile(singles[None], differing, at)
        parts.append(np.stack([weighted_mean(averages[None], differing), error, *ends]))
    mean, error, lower, upper, *asked = np.concatenate(parts, axis=1)
    check_finite(mean, joined)
    is_frame = library(rows) == "pandas" and is_table(rows)
    index = getattr(rows, "index", None) if is_frame else None
    by_probability = dict(zip(probabilities, asked, strict=True))
    return Prediction(mean, lower, upper, prob, total, classes, index, error, by_probability)


def check_finite(mean: np.ndarray, weights: np.ndarray) -> None:
    """Warn if predictions are not finite, because of the draws, their weights or the rows."""
    bad = ~np.isfinite(mean).all(axis=tuple(range(1, mean.ndim)))
    if not bad.any():
        return
    reason = f"the first is row {int(np.argmax(bad))}"
    remedy = "look for draws that are not finite and for rows far from those of the fit"
    if not weights.sum() > 0:
        reason = "the weights of the draws used do not add up to more than 0"
        remedy = "predict with more draws, or sample again with signs that cancel less"
    warn_of(
        "not-finite",
        f"the predictions of {int(bad.sum()):,} of {len(bad):,} rows are not finite ({reason})",
        remedy,
        rows=int(bad.sum()),
    )


def _normal_scores(number: int, predictors: int) -> np.ndarray:
    """Return standard normal quantiles in random order, with less noise than random draws.

    The shape is (number, predictors).
    """
    from scipy.special import ndtri  # slow to import

    rng = generator(0, Stream.NEW_GROUPS)
    orders = np.stack([rng.permutation(number) for _ in range(predictors)], axis=1)
    return np.asarray(ndtri((orders + 0.5) / number))


def survival_predictor(
    post: FittedDraws, kind: str, times: Sequence[float] | float | None
) -> ModelPredictor:
    """Return a predictor of the chances that outcomes are larger than these times."""
    if kind != "survival":
        raise SettingError(
            f"kind must be 'mean' or 'survival', not {kind!r}; times are those of 'survival'."
        )
    values = np.atleast_1d(np.asarray([] if times is None else times, float))
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise SettingError(
            "chances of survival are those to be beyond some times: give them, as in "
            "times=[30, 90, 365]."
        )
    predictor = post.model_predictor()
    family = predictor.model.row_model
    if type(family).log_tails is BaseModel.log_tails:
        raise SettingError(
            f"{type(family).__name__} has no distribution function, so that there are no chances "
            "of survival; predict with kind='mean'."
        )
    return replace(predictor, times=tuple(map(float, values)))

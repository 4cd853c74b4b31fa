"""Predict rows a chunk at a time, from all draws or as many as are affordable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from modicum.errors import ModicumWarning, SettingError, warn
from modicum.models.prediction import length_of
from modicum.posterior.alignment import AlignedRows, Batch
from modicum.posterior.weighted import (
    are_equal,
    weighted_mcse,
    weighted_mean,
    weighted_quantile,
)

if TYPE_CHECKING:
    import pandas as pd

Predictor: TypeAlias = Callable[[dict[str, np.ndarray], Batch], ArrayLike]
"""Maps draws ``name -> (S, *shape)`` and a batch of rows to expected outcomes (S, rows, ...)."""

Evaluation: TypeAlias = Callable[[Batch], tuple[np.ndarray, np.ndarray]]
"""Maps a batch to expected outcomes (draws, rows, ...), for the mean and for the interval."""
CHUNK_BYTES = 32 * 2**20  # for the outcomes of a chunk; sorting them needs a few times as much
FIRST_ROWS = 1024  # rows of the first piece, whose outcomes show how many numbers a row has


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

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> draws = {"beta": np.full((1, 9, 1), 2.0), "intercept": np.zeros((1, 9))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=1))
    >>> model = mo.models.Gaussian(scale=1.0)
    >>> post.predictor = mo.models.prediction.ModelPredictor(model)
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

    def __len__(self) -> int:
        return len(self.mean)

    def columns(self) -> dict[str, np.ndarray]:
        """Return mean and ends of the interval by name, for each class if there are several."""
        ends = {"mean": self.mean, "lower": self.lower, "upper": self.upper}
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


def predict(
    evaluate: Evaluation, weights: np.ndarray, rows: AlignedRows, prob: float
) -> Prediction:
    """Predict each row's expected outcome from draws with these weights, chunk by chunk."""
    count, parts = weights.size, []
    ends = [(1 - prob) / 2, (1 + prob) / 2]

    def summarised(piece: Batch) -> np.ndarray:
        average, single = evaluate(piece)
        if average.ndim < 2 or average.shape[:2] != (count, length_of(piece)):
            raise SettingError(
                f"The predictor returned shape {average.shape} for {count} draws and "
                f"{length_of(piece)} rows; it must return one value per draw and row."
            )
        error = np.asarray(weighted_mcse(average[None], weights))
        parts.append(np.stack([*_mean_and_ends(average, single, weights, ends), error]))
        return average

    for _ in in_pieces(rows, count, summarised):
        pass
    mean, lower, upper, error = np.concatenate(parts, axis=1)
    _check_finite(mean, weights)
    return Prediction(mean, lower, upper, prob, count, mcse_mean=error)


def in_pieces(
    rows: AlignedRows, draws: int, evaluate: Callable[[Batch], np.ndarray]
) -> Iterator[tuple[Batch, np.ndarray]]:
    """Visit all rows in order, in pieces whose outcomes (draws, rows, ...) fit in memory."""
    most = max(1, CHUNK_BYTES // (8 * draws))
    step = min(most, FIRST_ROWS)
    for batch in rows.chunks(most):
        size, start = length_of(batch), 0
        while start < max(1, size):  # the outcomes of no rows have a shape, too
            piece = {k: v[start : start + step] for k, v in batch.items()}
            start += step
            outcome = evaluate(piece)
            # outcomes of several classes have more than one number per row
            step = max(1, most // max(1, int(np.prod(outcome.shape[2:], dtype=int))))
            yield piece, outcome


def _mean_and_ends(
    average: np.ndarray, single: np.ndarray, weights: np.ndarray, ends: list[float]
) -> tuple[np.ndarray, ...]:
    if are_equal(weights):
        by_row = np.moveaxis(single, 0, -1).copy()  # contiguous: a quarter faster
        return average.mean(axis=0), *np.quantile(by_row, ends, axis=-1, overwrite_input=True)
    return weighted_mean(average[None], weights), *weighted_quantile(single[None], weights, ends)


def _check_finite(mean: np.ndarray, weights: np.ndarray) -> None:
    """Warn if predictions are not finite, because of the draws, their weights or the rows."""
    bad = ~np.isfinite(mean).all(axis=tuple(range(1, mean.ndim)))
    if not bad.any():
        return
    if not weights.sum() > 0:
        reason, remedy = (
            "the weights of the draws used do not add up to more than 0",
            ("predict with more draws, or sample again with signs that cancel less"),
        )
    else:
        reason, remedy = (
            f"the first is row {int(np.argmax(bad))}",
            ("look for draws that are not finite and for rows far from those of the fit"),
        )
    warn(
        ModicumWarning(
            "not-finite",
            f"the predictions of {int(bad.sum()):,} of {len(bad):,} rows are not finite ({reason})",
            remedy,
            rows=int(bad.sum()),
        ),
    )

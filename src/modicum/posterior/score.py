"""Score predictions against observed outcomes: accuracy and log predictive density."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modicum.errors import DataError, ModicumWarning, SettingError, warn
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.model import BaseModel
from modicum.models.outcome_checks import class_fault
from modicum.posterior.draws import affordable, thinned
from modicum.posterior.fit_rows import Batch, RowsLike, aligned
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.predict import OutcomeDraws, in_pieces, known_effects, rows_behind
from modicum.posterior.weighted import normalised, weighted_mcse, weighted_mean
from modicum.rows.formula import NewLevels


@dataclass(frozen=True, eq=False)
class Score:
    """How well a posterior predicts outcomes, for the average prediction and for single draws.

    The Bayesian prediction averages the predictions of all draws, and is scored as a whole. The
    average score of single draws shows the worth of one draw; its log density is never better.

    Parameters
    ----------
    accuracy, log_density
        Scores of the average prediction over draws and chains: the share of rows whose most
        probable class is the observed one (``nan`` if outcomes are not classes), and the mean over
        rows of the log predictive density.
    single_accuracy, single_log_density
        Scores of single draws, averaged over all draws.
    accuracy_by_chain, log_density_by_chain
        Scores of single draws, averaged over the draws of each chain.
    rows, draws
        Rows scored, and posterior draws used.
    mcse_log_density
        Monte Carlo error of `log_density`, from the number of draws used.
    """

    accuracy: float
    log_density: float
    single_accuracy: float
    single_log_density: float
    accuracy_by_chain: np.ndarray
    log_density_by_chain: np.ndarray
    rows: int
    draws: int
    mcse_log_density: float = np.nan

    def __repr__(self) -> str:
        def text(accuracy: float, density: float) -> str:
            share = "" if np.isnan(accuracy) else f"accuracy {accuracy:.4f}, "
            return f"{share}log density {density:.4f}"

        return (
            f"<Score of {self.rows:,} rows: {text(self.accuracy, self.log_density)}; one draw by "
            f"itself: {text(self.single_accuracy, self.single_log_density)} ({self.draws} draws)>"
        )


def score(
    post: FittedDraws, rows: RowsLike, draws: int | None = None, newlevels: NewLevels = "refuse"
) -> Score:
    """Score predictions against observed outcomes: accuracy and log predictive density.

    Both are given for the average prediction of all draws, and for single draws, averaged by
    chain. Rows are weighted by their `weight`, if they have one, and draws by their signs or
    weights. The groups of a row must be known: their effects are part of its prediction.

    Parameters
    ----------
    rows
        Modicum rows, whose columns are matched with those of the fit by name; a pandas, polars
        or Arrow table (after `mo.fit` also a file), which is encoded as the rows of the fit
        were, with columns in any order and extra columns ignored; or a dict of arrays such
        as ``{"x": X, "y": y}`` with the columns in the fit's order.
    draws
        Posterior draws to use, evenly spaced: equally many of each chain, and at least one.
        By default as many as in `predict`.
    newlevels
        As in `predict`.
    """
    predictor = post.model_predictor()
    new = aligned(rows, post.fit_rows, True, newlevels)
    field = predictor.model.outcome_field
    if field not in new.fields:
        raise SettingError(f"scoring needs outcomes: give rows with the field {field!r}.")
    chains = post.chains
    number = affordable(post, rows_behind(post, new), draws)
    per_chain = min(post.num_draws, max(1, number // chains))
    subset, weights = thinned(post, chains * per_chain)
    drawn = OutcomeDraws(subset, predictor, known_effects(post, subset, new))
    total = _Total(predictor.model, weights.reshape(chains, per_chain))

    def evaluate(piece: Batch) -> np.ndarray:
        expected, density = drawn.outcome(piece)
        total.add(expected, density, piece)
        return density if expected is None else expected

    for _ in in_pieces(new, chains * per_chain, evaluate):
        pass
    return total.score()


class _Total:
    """Running sums over rows of the scores of the average prediction and of single draws."""

    def __init__(self, model: BaseModel, weights: np.ndarray) -> None:
        self.model, self.weights = model, weights
        self.share = normalised(weights).reshape(-1)
        self.right, self.density = 0.0, 0.0
        self.rights, self.densities = np.zeros(weights.size), np.zeros(weights.size)
        self.ratios = np.zeros(weights.size)  # of a draw's density to the average, summed
        self.mass, self.rows, self.cancelled = 0.0, 0, 0
        self.classes = True

    def add(self, expected: np.ndarray | None, density: np.ndarray, piece: Batch) -> None:
        """Add a piece of rows: expected outcomes (draws, rows, ...) and log-densities."""
        y = np.asarray(piece[self.model.outcome_field])
        bets = None if expected is None else self.model.decide(expected)
        multiclass = expected is not None and bets is not None and expected.ndim == 3
        self._check_outcomes(y, expected.shape[2] if multiclass else None)  # type: ignore[union-attr]
        if isinstance(self.model, LinearPredictorModel):
            self.model.check_fields(piece, self.rows)
        mass = np.asarray(piece.get("weight", np.ones(len(y))), dtype=float)
        density = np.where(mass > 0, density, 0.0)  # a row of weight 0 adds 0, not 0 times inf
        self.mass, self.rows = self.mass + mass.sum(), self.rows + len(y)
        self.densities += density @ mass
        together = self._log_mean(density)
        self.density += float(together @ mass)
        with np.errstate(invalid="ignore", over="ignore"):
            self.ratios += np.exp(density - together) @ mass
        if expected is None or bets is None:
            self.classes = False
            return
        self.rights += (bets == y) @ mass
        bet = self.model.decide(np.tensordot(self.share, expected, axes=1))
        self.right += float((bet == y) @ mass)

    def _check_outcomes(self, y: np.ndarray, classes: int | None) -> None:
        """Refuse outcomes the model gives no density to, naming the first such row."""
        if classes is not None:
            bad, support = class_fault(y, classes)
        elif isinstance(self.model, LinearPredictorModel):
            bad, support = self.model.outcome_fault(y)
        else:
            return
        if bad.any():
            at = int(np.argmax(bad))
            raise DataError(
                f"the outcome is {y[at]:g} in row {self.rows + at}, but the model of this "
                f"posterior needs {support}."
            )

    def _log_mean(self, density: np.ndarray) -> np.ndarray:
        """Return the log of the weighted mean density of each row."""
        top = density.max(axis=0)
        top = np.where(np.isfinite(top), top, 0.0)
        mean = self.share @ np.exp(density - top)
        self.cancelled += int(np.sum(mean < 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(mean) + top)

    def score(self) -> Score:
        """Average over rows, draws and chains."""
        self._warn()
        if not self.classes:
            self.right, self.rights = np.nan, self.rights * np.nan
        accuracy, accuracies = self._average(self.rights)
        density, densities = self._average(self.densities)
        together = (self.right / self.mass, self.density / self.mass)
        # a log of averages has the error of the average ratio of what is averaged to it
        error = weighted_mcse(self.ratios.reshape(self.weights.shape) / self.mass, self.weights)
        counts = (self.rows, self.weights.size)
        return Score(*together, accuracy, density, accuracies, densities, *counts, float(error))

    def _warn(self) -> None:
        """Warn if the average is NaN; minus infinity means that an outcome was ruled out."""
        if self.cancelled:
            warn(
                ModicumWarning(
                    "signs-cancel",
                    f"the signs of the draws cancel: {self.cancelled} of {self.rows} rows have a "
                    "predictive density below zero",
                    "score with more draws",
                    rows=self.cancelled,
                ),
            )
        elif np.isnan(self.density) or np.isnan(self.densities).any():
            bad = int(np.isnan(self.densities).sum())
            reason = (
                f"{bad} of {self.densities.size} draws give NaN"
                if bad
                else "the weights of the draws do not add up to more than 0"
            )
            warn(
                ModicumWarning(
                    "not-finite",
                    f"the log predictive density is not a number ({reason})",
                    "look for draws that are not finite, and for signs that cancel",
                    draws=bad,
                ),
            )

    def _average(self, scores: np.ndarray) -> tuple[float, np.ndarray]:
        """Average the scores of single draws, over all draws and by chain."""
        by_draw = scores.reshape(self.weights.shape) / self.mass
        pairs = zip(by_draw, self.weights, strict=True)
        by_chain = [weighted_mean(values[None], weights[None]) for values, weights in pairs]
        return float(weighted_mean(by_draw, self.weights)), np.array(by_chain)

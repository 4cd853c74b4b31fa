"""The result of a run: draws, what they cost, and how far they can be trusted."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from modicum.errors import ModicumWarning, SettingError
from modicum.ledger import Ledger
from modicum.posterior import correction, datatree, learning, prediction, storage, summary
from modicum.posterior import score as scoring
from modicum.posterior.labels import tidy_labels
from modicum.posterior.weighted import (
    weighted_covariance,
    weighted_mean,
    weighted_quantile,
    weighted_variance,
)

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from modicum.posterior import stein

__all__ = ["Posterior"]


@dataclass(repr=False, eq=False)
class Posterior:
    """Draws from a posterior, with their signs or weights, their cost and their warnings.

    Every estimate respects the signs of a signed sampler and importance weights.

    Parameters
    ----------
    draws
        Name to array (chain, draw, *shape).
    stats
        Name to array (chain, draw), by ArviZ's names: ``acceptance_rate``, ``diverging`` ...
    ledger
        Count of the row evaluations.
    labels
        Name to one sequence of labels (or ``None``) for each axis of its shape.
    weights
        Sign or importance weight of each draw (chain, draw); ``None``: all equal.
    warnings
        Sentences: the reasons to doubt these draws.
    tuning
        Settings that were chosen by the sampler, each with an explanation.
    settings
        Method, seed, number of rows, wall time, versions.
    predictor
        From draws and a batch of rows to expected outcomes; see `predict`. It is saved with the
        posterior where it has a ``to_dict`` method.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> draws = {"beta": rng.normal([1.0, 2.0], 0.1, size=(4, 250, 2))}
    >>> post = Posterior(draws, {}, Ledger(rows=1_000), labels={"beta": ("age", "income")})
    >>> post
    <Posterior: 4 chains of 250 draws; beta (2,); 0.0 passes over 1,000 rows>
    >>> post.summary()[["mean", "sd"]].round(1)
                  mean   sd
    beta[age]      1.0  0.1
    beta[income]   2.0  0.1
    """

    draws: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    ledger: Ledger
    labels: Mapping[str, Any] = field(default_factory=dict)
    weights: np.ndarray | None = None
    warnings: list[ModicumWarning] = field(default_factory=list)
    tuning: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    predictor: Any = None
    predictor_spec: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.draws = {name: _plain(x) for name, x in self.draws.items()}
        self.stats = {name: _plain(x) for name, x in self.stats.items()}
        if not self.draws:
            raise SettingError("A posterior needs the draws of at least one parameter.")
        lead = next(iter(self.draws.values())).shape[:2]
        for name, x in {**self.draws, **self.stats}.items():
            if x.shape[:2] != lead or len(lead) != 2:
                raise SettingError(
                    f"{name!r} has shape {x.shape}, but draws and stats start with "
                    f"(chain, draw) = {lead}."
                )
        if self.weights is not None:
            self.weights = np.asarray(self.weights, dtype=float)
            if self.weights.shape != lead:
                raise SettingError(
                    f"The weights have shape {self.weights.shape}, the draws are {lead}."
                )
        self.labels = tidy_labels(self.labels, self.draws)
        if self.predictor_spec is None and hasattr(self.predictor, "to_dict"):
            self.predictor_spec = self.predictor.to_dict()

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self.draws[name]
        except KeyError:
            raise KeyError(f"No parameter {name!r}; there are {list(self.draws)}.") from None

    @property
    def chains(self) -> int:
        """Number of chains."""
        return len(next(iter(self.draws.values())))

    @property
    def num_draws(self) -> int:
        """Number of draws of one chain."""
        return int(next(iter(self.draws.values())).shape[1])

    @property
    def weighted(self) -> bool:
        """Whether the weights differ, so that draws do not count alike."""
        w = self.weights
        return w is not None and w.size > 0 and bool((w != w.flat[0]).any() or w.flat[0] <= 0)

    def mean(self, name: str) -> np.ndarray:
        """Posterior mean; with signs or weights the ratio estimate."""
        x = self[name]
        if self.weights is None or not self.weighted:
            return np.asarray(x.mean(axis=(0, 1), dtype=float))
        return weighted_mean(x, self.weights)

    def sd(self, name: str) -> np.ndarray:
        """Posterior standard deviation."""
        x = np.asarray(self[name], dtype=float)
        if self.weights is not None and self.weighted:
            return np.sqrt(weighted_variance(x, self.weights))
        if x.shape[0] * x.shape[1] < 2:
            return np.full(x.shape[2:], np.nan)
        return np.asarray(x.std(axis=(0, 1), ddof=1))

    def quantile(self, name: str, q: ArrayLike) -> np.ndarray:
        """Posterior quantiles, of shape (*q.shape, *shape)."""
        x = self[name]
        if self.weights is None or not self.weighted:
            return np.asarray(np.quantile(x, np.asarray(q, float), axis=(0, 1)))
        return weighted_quantile(x, self.weights, q)

    def covariance(self, name: str) -> np.ndarray:
        """Posterior covariance matrix of the scalars of one parameter, flattened."""
        x = np.asarray(self[name], dtype=float)
        if self.weights is not None and self.weighted:
            return weighted_covariance(x, self.weights)
        flat = x.reshape(x.shape[0] * x.shape[1], -1)
        return np.atleast_2d(np.cov(flat, rowvar=False))

    def summary(self, names: Sequence[str] | str | None = None, prob: float = 0.9) -> pd.DataFrame:
        """Tabulate every scalar: mean, sd, interval, Monte Carlo error, ESS, R-hat.

        The interval is equal-tailed with posterior probability `prob`; its two columns bear the
        names of their quantiles, such as ``5%`` and ``95%``. With signs or weights, `mcse_mean`,
        `ess_bulk`, `ess_tail` and `r_hat` are of the ratio estimate (delta method, batch means),
        and ``attrs`` holds the mean weight and the weights' own R-hat.
        """
        return summary.summarise(self, names, prob)

    def to_datatree(self) -> xr.DataTree:
        """Convert to an ArviZ DataTree, with dimensions named and labelled."""
        return datatree.to_datatree(self)

    def predict(self, rows: Any, draws: int = 200, prob: float = 0.9) -> prediction.Prediction:
        """Predict the expected outcome of each row, with an interval of probability `prob`.

        Rows are visited a chunk at a time, and an evenly spaced subset of `draws` draws is used,
        so that memory stays small however many rows there are.

        Parameters
        ----------
        rows
            Modicum rows, or a dict of arrays such as ``{"x": X}``.
        draws
            Posterior draws to use.
        prob
            Posterior probability of the equal-tailed interval of the expected outcome.
        """
        self.restore_predictor()
        return prediction.predict(self, rows, draws, prob)

    def score(self, rows: Any, draws: int = 200) -> scoring.Score:
        """Score predictions of outcomes that were seen: accuracy and log predictive density.

        Both are given for the averaged prediction of the draws of all chains, and for draws by
        themselves, chain by chain. Rows count by their `weight`, if they have one, and draws by
        their signs or weights.

        Parameters
        ----------
        rows
            Modicum rows, or a dict of arrays such as ``{"x": X, "y": y}``.
        draws
            Posterior draws to use, evenly spaced: as many of each chain, and at least one.
        """
        self.restore_predictor()
        return scoring.score(self, rows, draws)

    def restore_predictor(self) -> Any:
        """Return the predictor, rebuilt from its description where the posterior was loaded."""
        if self.predictor is None and self.predictor_spec is not None:
            from modicum.models.prediction import rebuild

            self.predictor = rebuild(self.predictor_spec)
        return self.predictor

    def correct(self, rows: Any, draws: int = 1000, progressbar: bool = True) -> Posterior:
        """Make the draws of a subsampling method exact by importance weights, in one pass.

        A perturbed chain samples a density close to the posterior; the ratio of the two at each
        draw is its weight. The full log-likelihood is evaluated at up to `draws` evenly spaced
        draws, and the weights are Pareto-smoothed. The result's summaries use the weights, and
        ``result.tuning["correction"]`` says how far off the perturbed answer was.

        Parameters
        ----------
        rows
            The rows the posterior was sampled with.
        draws
            The most draws to keep.
        progressbar
            Whether to show progress on a long pass.
        """
        return correction.correct(self, rows, draws, progressbar)

    def stein_discrepancy(
        self,
        rows: Any,
        draws: int = 500,
        subsample: int | None = None,
        random_seed: int = 0,
        progressbar: bool = True,
    ) -> stein.SteinDiscrepancy:
        """Measure how far the draws are from the posterior, without a reference to compare with.

        The kernel Stein discrepancy (Gorham and Mackey 2017) needs the gradient of the
        log-posterior at each draw. From all rows that is one pass with `draws` gradients a row;
        from a subsample it is one pass for control variates, and `subsample` rows a draw.

        Parameters
        ----------
        rows
            The rows the posterior was sampled with.
        draws
            The most draws to use, evenly spaced.
        subsample
            Rows for the gradient at each draw; None: all.
        random_seed
            Of the subsamples.
        progressbar
            Whether to show progress on a long pass.
        """
        from modicum.posterior import stein

        self.restore_predictor()
        return stein.stein_discrepancy(self, rows, draws, subsample, random_seed, progressbar)

    def learning_curve(
        self,
        statistic: Callable[[dict[str, np.ndarray]], Any],
        at: Sequence[float] | None = None,
    ) -> pd.DataFrame:
        """Follow a statistic of the chains, taken as independent realisations, along the run.

        Parameters
        ----------
        statistic
            From the chains' current draws, name to array (chain, *shape), to a number or a dict
            of numbers.
        at
            Passes over the rows at which to evaluate it, counted for each chain from its start;
            by default 50 moments from the first draw to the last.

        Returns
        -------
        DataFrame
            Indexed by passes; the column ``value``, or one for each entry of the dict.

        Examples
        --------
        >>> rng = np.random.default_rng(1)
        >>> draws = {"beta": np.cumsum(rng.normal(size=(200, 30)), axis=1)}
        >>> post = Posterior(draws, {"rows_touched": np.full((200, 30), 50)}, Ledger(rows=100))
        >>> post.learning_curve(lambda now: now["beta"].var(), at=[0.5, 15]).round(1)
                value
        passes
        0.5       1.0
        15.0     30.7
        """
        return learning.learning_curve(self, statistic, at)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to one file, whole or not at all; nothing in it is executable."""
        storage.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Posterior:
        """Load what `save` saved; a damaged or foreign file is a `DataError`."""
        values = storage.load(path)
        return cls(
            **{k: v for k, v in values.items() if k != "predictor"},
            predictor_spec=values["predictor"],
        )

    def __repr__(self) -> str:
        chains = f"{self.chains} chain" + "s" * (self.chains != 1)
        names = ", ".join(f"{k} {v.shape[2:]}" if v.ndim > 2 else k for k, v in self.draws.items())
        parts = [f"{chains} of {self.num_draws:,} draws", names]
        if self.weights is not None and self.weighted:
            parts.append(f"mean {datatree.weight_name(self.weights)} {self.weights.mean():.3g}")
        parts.append(f"{self.ledger.passes:,.1f} passes over {self.ledger.rows:,} rows")
        if self.warnings:
            parts.append(f"{len(self.warnings)} warning" + "s" * (len(self.warnings) != 1))
        method = f" {self.settings['method']}" if "method" in self.settings else ""
        return f"<Posterior{method}: {'; '.join(parts)}>"


def _plain(x: Any) -> np.ndarray:
    array = np.asarray(x)
    # bfloat16 and its like: neither NumPy's quantiles nor a .npy file know them
    return array.astype(np.float32) if array.dtype.kind == "V" else array

"""The result of a run: draws, what they cost, and how far they can be trusted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from modicum.errors import DataError, SettingError, is_number
from modicum.models import IntegratedEffects
from modicum.models.base import BaseModel, Model, named_leaves
from modicum.models.prediction import ModelPredictor, rebuild
from modicum.posterior.alignment import FitRows, RowsLike, aligned, rows_of_fit
from modicum.posterior.correction import Fit, correct, require_correctable
from modicum.posterior.datatree import to_datatree, weight_name
from modicum.posterior.draws import Draws
from modicum.posterior.effects import effects, known_groups, with_groups
from modicum.posterior.guards import Warnings
from modicum.posterior.prediction import Prediction, Predictor, predict
from modicum.posterior.score import Score, score
from modicum.posterior.stein import PURPOSE, SteinDiscrepancy, stein_discrepancy
from modicum.posterior.storage import Contents, load, save
from modicum.posterior.summary import Statistic, learning_curve, summarise
from modicum.rows import Rows
from modicum.rows.formula import NewLevels
from modicum.run import within_disk

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

__all__ = ["Posterior"]


@dataclass(repr=False, eq=False)
class Posterior(Draws):
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
        The reasons to doubt these draws, each a `ModicumWarning`; they print as sentences.
    tuning
        Settings that were chosen by the sampler, each with an explanation.
    settings
        Method, seed, number of rows, wall time, versions.
    predictor
        From draws and a batch of rows to expected outcomes; see `predict`. It is saved with the
        posterior where it has a ``to_dict`` method.
    fit_rows
        Names, levels, reference levels and fingerprint of the rows of the fit, which other rows
        are compared with; ``None``: rows are taken as they are.
    rows
        The rows of the fit themselves, where effects can be drawn from them; not saved.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> draws = {"beta": rng.normal([1.0, 2.0], 0.1, size=(4, 250, 2))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=1_000), labels={"beta": ("age", "income")})
    >>> post
    <Posterior: 4 chains of 250 draws; beta (2,); 0.0 passes over 1,000 rows>
    >>> post.summary()[["mean", "sd"]].round(1)
                  mean   sd
    beta[age]      1.0  0.1
    beta[income]   2.0  0.1
    """

    warnings: Warnings = field(default_factory=Warnings)
    tuning: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    predictor: Predictor | None = None
    predictor_spec: dict[str, Any] | None = None
    fit_rows: FitRows | None = None
    rows: Rows | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.warnings = Warnings(self.warnings)
        describe = getattr(self.predictor, "to_dict", None)
        if self.predictor_spec is None and describe is not None:
            self.predictor_spec = describe()

    def summary(self, names: Sequence[str] | str | None = None, prob: float = 0.9) -> pd.DataFrame:
        """Tabulate every scalar: mean, sd, interval, Monte Carlo error, ESS, R-hat.

        The interval is equal-tailed with posterior probability `prob`; its two columns bear the
        names of their quantiles, such as ``5%`` and ``95%``. With signs or weights, `mcse_mean`,
        `ess_bulk`, `ess_tail` and `r_hat` are of the ratio estimate (delta method, batch means),
        and ``attrs`` holds the mean weight and the weights' own R-hat.
        """
        return summarise(self, names, prob)

    def to_datatree(self) -> xr.DataTree:
        """Convert to an ArviZ DataTree, with dimensions named and labelled."""
        return to_datatree(self, self.settings, self.warnings)

    def predict(
        self,
        rows: RowsLike,
        draws: int = 200,
        prob: float = 0.9,
        newlevels: NewLevels = "refuse",
        groups: Literal["known", "new"] | None = None,
    ) -> Prediction:
        """Predict the expected outcome of each row, with an interval of probability `prob`.

        Rows are visited a chunk at a time, and an evenly spaced subset of `draws` draws is used,
        so that memory stays small however many rows there are.

        Parameters
        ----------
        rows
            Modicum rows, whose columns are matched with those of the fit by name; a pandas, polars
            or Arrow table (after `mo.fit` also a file), which is encoded as the rows of the fit
            were: columns in any order, others are left alone; or a dict of arrays such
            as ``{"x": X}`` with the columns in the fit's order.
        draws
            Posterior draws to use.
        prob
            Posterior probability of the equal-tailed interval of the expected outcome.
        newlevels
            What becomes of a level that the fit did not have, in a table given to a posterior of
            `mo.fit`: "refuse" it, or take it for the "reference" level.
        groups
            Of a model with groups: "known" takes the effects of the rows' own groups, which must
            be among those of the fit, "new" averages over the groups there may be. None: known
            where the rows say which group they are in, else new.
        """
        if groups not in (None, "new", "known"):
            raise SettingError(f"groups must be 'new' or 'known', not {groups!r}.")
        predictor = self.restore_predictor()
        if predictor is None:
            raise SettingError(
                "This posterior cannot predict because it has no model: it was made without one, "
                "or its file, which keeps no model of one's own, was loaded without it; use "
                "Posterior.load(path, model=...), or compute from posterior.draws."
            )
        new = aligned(rows, self.fit_rows, False, newlevels)
        if isinstance(predictor, ModelPredictor):
            new, known = with_groups(new, predictor.model, groups)
            if known and isinstance(predictor.model, IntegratedEffects):
                predictor = known_groups(self, self._fit(), self._rows_of_fit(None), new, draws)
        return predict(self, predictor, new, draws, prob)

    def score(self, rows: RowsLike, draws: int = 200, newlevels: NewLevels = "refuse") -> Score:
        """Score predictions of outcomes that were seen: accuracy and log predictive density.

        Both are given for the averaged prediction of the draws of all chains, and for draws by
        themselves, chain by chain. Rows count by their `weight`, if they have one, and draws by
        their signs or weights.

        Parameters
        ----------
        rows
            Modicum rows, whose columns are matched with those of the fit by name; a pandas, polars
            or Arrow table (after `mo.fit` also a file), which is encoded as the rows of the fit
            were: columns in any order, others are left alone; or a dict of arrays such
            as ``{"x": X, "y": y}`` with the columns in the fit's order.
        draws
            Posterior draws to use, evenly spaced: as many of each chain, and at least one.
        newlevels
            As in `predict`.
        """
        predictor = self.restore_predictor()
        if not isinstance(predictor, ModelPredictor):
            raise SettingError(
                "this posterior cannot score outcomes because it has no model: it was made without "
                "one, or its file, which keeps no model of one's own, was loaded without it; use "
                "Posterior.load(path, model=...), or compute from posterior.draws."
            )
        return score(self, predictor, aligned(rows, self.fit_rows, True, newlevels), draws)

    def restore_predictor(self) -> Predictor | None:
        """Return the predictor, rebuilt from its description where the posterior was loaded."""
        if self.predictor is None and self.predictor_spec is not None:
            self.predictor = rebuild(self.predictor_spec)
        return self.predictor

    def _fit(self) -> Fit:
        predictor = self.restore_predictor()
        if not isinstance(predictor, ModelPredictor):
            raise SettingError(
                "this posterior was made or loaded without its model, and a file keeps no model of "
                "one's own; use Posterior.load(path, model=...)."
            )
        # Modicum's own models cannot change; another JAX may write one's own otherwise.
        comparable = self.predictor_spec is None and self.settings.get("jax") == version("jax")
        identity = self.settings.get("model") if comparable else None
        return Fit(predictor.model, self.fit_rows, identity)

    def correct(self, rows: RowsLike, draws: int = 1000, progressbar: bool = True) -> Posterior:
        """Make the draws of a subsampling method exact by importance weights, in one pass.

        A perturbed chain samples a density close to the posterior; the ratio of the two at each
        draw is its weight. The full log-likelihood is evaluated at up to `draws` evenly spaced
        draws, and the weights are Pareto-smoothed. The result's summaries use the weights, and
        ``result.tuning["correction"]`` says how far off the perturbed answer was.

        Parameters
        ----------
        rows
            The rows the posterior was sampled with (after `mo.fit`, the table); others are refused.
        draws
            The most draws to keep.
        progressbar
            Whether to show progress on a long pass.
        """
        require_correctable(self)
        same = rows_of_fit(rows, self.fit_rows, "a correction")
        weighted = correct(self, self._fit(), same, draws, progressbar)
        doubts = self.warnings if weighted.warning is None else [*self.warnings, weighted.warning]
        return replace(
            self,
            draws=weighted.draws,
            stats=weighted.stats,
            weights=weighted.weights,
            ledger=weighted.ledger,
            warnings=Warnings(doubts),
            tuning=self.tuning | {"correction": weighted.report},
        )

    def effects(
        self,
        group: str,
        levels: Sequence[Any] | None = None,
        rows: Rows | None = None,
        draws: int = 200,
        prob: float = 0.9,
    ) -> pd.DataFrame:
        """Tabulate the effects of groups: mean, sd, interval, and rows of each.

        Effects that were integrated out are drawn now, given draws of everything else, from the
        rows of the groups asked for.

        Parameters
        ----------
        group
            The field the rows are grouped by.
        levels
            Groups to tabulate, by their values; None: all.
        rows
            The rows the posterior was sampled with; needed for integrated effects where it was
            loaded from a file.
        draws
            Posterior draws to use for integrated effects, evenly spaced; explicit ones use all.
        prob
            Posterior probability of the equal-tailed interval.

        Returns
        -------
        DataFrame
            Indexed by level; by level and effect where a group has several.

        Examples
        --------
        >>> import numpy as np, modicum as mo
        >>> rng = np.random.default_rng(1)
        >>> g = np.repeat(np.arange(30), 20)
        >>> y = rng.random(600) < 1 / (1 + np.exp(-rng.normal(size=30)[g]))
        >>> rows = mo.Rows(x=rng.normal(size=(600, 1)), y=y, codes={"clinic": g})
        >>> model = mo.models.Logistic(groups="clinic")
        >>> post = mo.sample(model, rows, method="nuts", draws=200, tune=200, chains=2,
        ...                  random_seed=1, progressbar=False)
        >>> list(post.effects("clinic", levels=[3, 4]).columns)
        ['mean', 'sd', '5%', '95%', 'rows']
        """
        known = self.rows if rows is None else rows
        return effects(self, self._fit(), known, group, levels, draws, prob)

    def _rows_of_fit(self, rows: Rows | None) -> Rows:
        known = self.rows if rows is None else rows
        if known is None:
            raise SettingError(
                "predictions for known groups need the rows of the fit where effects were "
                "integrated out, and a file does not keep them; predict for new groups "
                "(groups='new')."
            )
        return known

    def stein_discrepancy(
        self,
        rows: RowsLike,
        draws: int = 500,
        subsample: int | None = None,
        random_seed: int = 0,
        progressbar: bool = True,
    ) -> SteinDiscrepancy:
        """Measure how far the draws are from the posterior, without a reference to compare with.

        The kernel Stein discrepancy (Gorham and Mackey 2017) needs the gradient of the
        log-posterior at each draw. From all rows that is one pass with `draws` gradients per row;
        from a subsample it is one pass for control variates, and `subsample` rows per draw.

        Parameters
        ----------
        rows
            The rows the posterior was sampled with (after `mo.fit`, the table); others are refused.
        draws
            The most draws to use, evenly spaced.
        subsample
            Rows for the gradient at each draw; None: all.
        random_seed
            Of the subsamples.
        progressbar
            Whether to show progress on a long pass.
        """
        same = rows_of_fit(rows, self.fit_rows, PURPOSE)
        return stein_discrepancy(
            self, self._fit(), same, draws, subsample, random_seed, progressbar
        )

    def learning_curve(
        self,
        statistic: Statistic,
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
        >>> import numpy as np, modicum as mo
        >>> rng = np.random.default_rng(1)
        >>> draws = {"beta": np.cumsum(rng.normal(size=(200, 30)), axis=1)}
        >>> stats = {"rows_touched": np.full((200, 30), 50)}
        >>> post = mo.Posterior(draws, stats, mo.Ledger(rows=100))
        >>> post.learning_curve(lambda now: now["beta"].var(), at=[0.5, 15]).round(1)
                value
        passes
        0.5       1.0
        15.0     30.7
        """
        before = self.settings.get("warmup_rows", 0)
        return learning_curve(self, statistic, at, before if is_number(before) else 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to one file, whole or not at all; nothing in it is executable.

        Raises
        ------
        ResourceError
            If the disk is full; a file that was there before is as it was.
        """
        contents = Contents(
            self.draws, self.stats, self.weights, self.labels, self.ledger, self.warnings,
            self.tuning, self.settings, self.predictor_spec, self.fit_rows,
        )  # fmt: skip
        with within_disk(path):
            save(contents, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: BaseModel | None = None) -> Posterior:
        """Load what `save` saved; a damaged or foreign file is a `DataError`.

        Parameters
        ----------
        path
            The file.
        model
            The model, where it is one of your own: a file keeps Modicum's models only.
        """
        contents = load(path)
        values = dict(vars(contents))
        try:
            post = cls(predictor_spec=values.pop("predictor"), **values)
        except (TypeError, ValueError, AttributeError) as fault:
            raise DataError(
                f"{path} is not a posterior saved by Modicum, or it is damaged ({fault})."
            ) from fault
        if model is not None:
            post._take_model(model)
        return post

    def _take_model(self, model: BaseModel) -> None:
        """Predict by a model that the file did not keep, if its parameters are those drawn."""
        if not isinstance(model, BaseModel):
            raise SettingError(
                f"model must be a model such as mo.Model(...), not {type(model).__name__}."
            )
        if self.predictor_spec is not None:
            raise SettingError("the file keeps the model of this posterior: leave `model` out.")
        if isinstance(model, Model):
            needed = {name: np.shape(leaf) for name, leaf in named_leaves(model.init).items()}
            drawn = {name: x.shape[2:] for name, x in self.draws.items()}
            if needed != drawn:
                raise SettingError(
                    f"the posterior is of another model: its parameters are {drawn}, those of this "
                    f"model {needed}."
                )
        self.predictor = ModelPredictor(model)

    def __repr__(self) -> str:
        chains = f"{self.chains} chain" + "s" * (self.chains != 1)
        names = ", ".join(f"{k} {v.shape[2:]}" if v.ndim > 2 else k for k, v in self.draws.items())
        parts = [f"{chains} of {self.num_draws:,} draws", names]
        if self.weights is not None and self.weighted:
            parts.append(f"mean {weight_name(self.weights)} {self.weights.mean():.3g}")
        units = f"{self.ledger.rows:,} {self.ledger.unit}s"
        parts.append(f"{self.ledger.passes:,.1f} passes over {units}")
        if self.warnings:
            parts.append(f"{len(self.warnings)} warning" + "s" * (len(self.warnings) != 1))
        method = f" {self.settings['method']}" if "method" in self.settings else ""
        return f"<Posterior{method}: {'; '.join(parts)}>"

"""Contenders on one data set: their settings, and the measures of their draws."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from modicum import sample
from modicum.diagnostics import computational_time, inefficiency
from modicum.errors import ModicumWarning
from modicum.methods import Method
from modicum.plots import METHOD_COLOURS
from modicum.posterior import Posterior
from modicum_lab.datasets import Dataset
from modicum_lab.papers.experiments import Table

CONVERGED = 1.1  # R-hat above which draws say nothing about where a method converges


@dataclass(frozen=True)
class Contender:
    """A method as an experiment runs it.

    Attributes
    ----------
    label
        Name in tables and plots.
    method
        The method with its settings.
    draws, tune, thin
        As for `mo.sample`.
    colour
        Name in `plots.METHOD_COLOURS`, or a colour; by default the method's.
    training
        Whether the cost counts from the first pass over the rows (the papers' HMC-ECS) or from
        the end of warm-up (their stochastic gradients).
    """

    label: str
    method: Method
    draws: int
    tune: int
    thin: int = 1
    colour: str | None = None
    training: bool = True

    def run(self, data: Dataset, chains: int, seed: int) -> Fit:
        """Sample without showing warnings; the posterior keeps them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModicumWarning)
            post = sample(
                data.model,
                data.rows,
                method=self.method,
                draws=self.draws,
                tune=self.tune,
                thin=self.thin,
                chains=chains,
                random_seed=seed,
                progressbar=False,
            )
        return Fit(self, post)


@dataclass(frozen=True)
class Length:
    """Length of a run: warm-up iterations, draws, and rows of the data."""

    tune: int
    draws: int
    rows: int


@dataclass
class Fit:
    """A contender's posterior, and the papers' measures of each scalar."""

    contender: Contender
    post: Posterior

    @property
    def label(self) -> str:
        """Name in tables and plots."""
        return self.contender.label

    @property
    def colour(self) -> str:
        """The method's colour."""
        name = self.contender.colour or self.contender.method.name
        return METHOD_COLOURS.get(name, name)

    @cached_property
    def draws(self) -> np.ndarray:
        """All scalars side by side, (chain, draw, d)."""
        parts = self.post.draws.values()
        return np.concatenate([x.reshape(*x.shape[:2], -1) for x in parts], axis=2)

    @cached_property
    def weights(self) -> np.ndarray:
        """Sign or weight of each draw, (chain, draw)."""
        weights = self.post.weights
        return np.ones(self.draws.shape[:2]) if weights is None else weights

    @cached_property
    def mean(self) -> np.ndarray:
        """Posterior means."""
        return np.concatenate([np.ravel(self.post.mean(name)) for name in self.post.draws])

    @cached_property
    def sd(self) -> np.ndarray:
        """Posterior standard deviations."""
        return np.concatenate([np.ravel(self.post.sd(name)) for name in self.post.draws])

    @cached_property
    def inefficiency(self) -> np.ndarray:
        """IF of each scalar; with signs, that of s (psi - mean) (eq. 5.4)."""
        return np.asarray(inefficiency(self.weights[..., None] * (self.draws - self.mean)))

    @property
    def positive(self) -> float:
        """Share of positive signs, tau."""
        return float(np.mean(self.weights > 0))

    def stat(self, name: str) -> float | None:
        """Return the mean of a statistic over the draws, or None if it is not recorded."""
        return float(self.post.stats[name].mean()) if name in self.post.stats else None

    def evaluations(self, training: bool, length: Length | None = None) -> float:
        """Return the row evaluations of one chain, with `training` also warm-up and preparations.

        For a run of another `length` they are extrapolated from the cost of an iteration and of the
        preparations in this run.
        """
        counts, chains, run = self.post.ledger.by_purpose, self.post.chains, self.contender
        as_long = Length(run.tune, run.draws, self.post.ledger.rows)
        length = as_long if length is None else length
        own = counts.get("sampling", 0) / chains * length.draws / run.draws
        if not training:
            return own
        warm = counts.get("warm-up", 0) / chains * (length.tune / run.tune if run.tune else 1)
        burn_in = counts.get("burn-in", 0) / chains  # the paper's schedule has a fixed length
        return own + warm + burn_in + self.preparations(length.rows)

    @property
    def passes(self) -> float:
        """Evaluations, divided by n, for preparations that grow with n: mode, design, anchors."""
        others = ("sampling", "warm-up", "burn-in", "pilot")
        counts = self.post.ledger.by_purpose
        return sum(n for name, n in counts.items() if name not in others) / self.post.ledger.rows

    def preparations(self, rows: int) -> float:
        """Return the evaluations before the first iteration, for this number of rows."""
        pilot = self.post.ledger.by_purpose.get("pilot", 0)  # does not depend on n
        return self.passes * rows + pilot

    def computational_time(
        self, training: bool | None = None, length: Length | None = None
    ) -> np.ndarray:
        """Return CT of each scalar (eqs. 3.2, 5.4), for this run or one of another length."""
        counted = self.contender.training if training is None else training
        cost = self.evaluations(counted, length)
        return np.asarray(computational_time(self.inefficiency, cost, self.weights.mean()))

    def off(self, truth: Fit) -> np.ndarray:
        """Return the error of each mean, in posterior standard deviations."""
        return np.asarray(np.abs(self.mean - truth.mean) / truth.sd)


def settings_of(data: Dataset, fits: Sequence[Fit], chains: int) -> dict[str, Any]:
    """Return data and settings for the record."""
    return {
        "data": data.description,
        "rows": len(data.rows),
        "columns": len(data.columns),
        "model": repr(data.model),
        "chains": chains,
        "methods": {
            fit.label: {
                "method": fit.post.settings["settings"],
                "draws": fit.contender.draws,
                "tune": fit.contender.tune,
                "thin": fit.contender.thin,
                "seconds": fit.post.settings["seconds"],
            }
            for fit in fits
        },
    }


STAND_INS = ("higgs_shaped", "bankruptcy_shaped")


def made_from(data: Dataset, *tables: Table) -> list[Table]:
    """Mark tables as stand-ins, in their titles, if the data are a stand-in."""
    return [replace(table, stand_in=data.name in STAND_INS) for table in tables]


def ledger_of(fits: Sequence[Fit]) -> dict[str, int]:
    """Return the row evaluations of all chains, by method."""
    return {fit.label: fit.post.ledger.evaluations for fit in fits}


def warnings_of(fits: Sequence[Fit]) -> list[str]:
    """Return the warnings of all methods about their draws."""
    return [f"{fit.label} warned: {text}" for fit in fits for text in fit.post.warnings]

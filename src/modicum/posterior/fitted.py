"""Draws together with the model that was fitted, and what is known of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from modicum.errors import SettingError
from modicum.files import Json
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.models.model import BaseModel
from modicum.models.over_draws import ModelPredictor, rebuild
from modicum.passes import LocalEngine, Sums, units_of
from modicum.posterior.doubts import Warnings
from modicum.posterior.draws import Draws
from modicum.posterior.fit_rows import (
    AlignedRows,
    Batch,
    FitRows,
    Groups,
    RowsLike,
    aligned,
    require_rows_of_fit,
    rows_of_fit,
)
from modicum.rows import Rows
from modicum.rows.formula import NewLevels
from modicum.rows.reading import TableFiles, is_tabular, table_numbers

Predictor: TypeAlias = Callable[[dict[str, np.ndarray], Batch], ArrayLike]
"""Maps draws ``name -> (S, *shape)`` and a batch of rows to expected outcomes (S, rows, ...)."""


class Rerun(NamedTuple):
    """How to sample again as this posterior was sampled."""

    on_rows: Callable[[BaseModel, Rows, int], FittedDraws]  # from a model, rows and a seed
    call: Callable[..., Any] | None = None  # with changed arguments of the user's call


@dataclass(repr=False, eq=False)
class FittedDraws(Draws):
    """Draws of a model's parameters, with the model and the rows if they are known.

    Functions of a fit take one; `Posterior`, which has these functions as its methods, documents
    the parameters.
    """

    warnings: Warnings = field(default_factory=Warnings)
    tuning: dict[str, Json] = field(default_factory=dict)
    settings: dict[str, Json] = field(default_factory=dict)
    predictor: Predictor | None = None
    predictor_spec: dict[str, Json] | None = None
    fit_rows: FitRows | None = None
    rows: Rows | None = None
    table: object = None
    rerun: Rerun | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.warnings = Warnings(self.warnings)
        describe = getattr(self.predictor, "to_dict", None)
        if self.predictor_spec is None and describe is not None:
            self.predictor_spec = describe()

    def restore_predictor(self) -> Predictor | None:
        """Return the predictor; that of a loaded posterior is rebuilt from its description."""
        if self.predictor is None and self.predictor_spec is not None:
            self.predictor = rebuild(self.predictor_spec)
        return self.predictor

    def model_predictor(self) -> ModelPredictor:
        """Return the predictor of the model; refuse a posterior without a model."""
        predictor = self.restore_predictor()
        if not isinstance(predictor, ModelPredictor):
            raise SettingError(
                "this posterior has no model: it was made without its model, or loaded from a "
                "file, which does not keep a custom one; use Posterior.load(path, model=...), or "
                "compute from posterior.draws."
            )
        return predictor

    def fitted_model(self) -> BaseModel:
        """Return the model; refuse a posterior without one."""
        return self.model_predictor().model

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the outcome's classes; empty if the classes are numbers."""
        recorded = self.settings.get("outcome_levels")
        levels = recorded or (() if self.rows is None else self.rows.outcome_levels)
        return tuple(map(str, levels))

    def held_rows(self) -> Rows | None:
        """Return the rows of the fit, None if they are not held; refuse rows written to since."""
        if self.rows is not None:
            self.rows.require_unchanged()
        return self.rows

    def rows_or_own(
        self,
        data: RowsLike | None,
        outcome: bool,
        newlevels: NewLevels,
        groups: Groups | None = None,
    ) -> AlignedRows:
        """Return `data`, encoded as the rows of the fit were; the rows of the fit if it is None."""
        if data is not None:
            return aligned(data, self.fit_rows, outcome, newlevels, groups)
        rows = self.held_rows()
        if rows is None:
            raise SettingError(
                "this posterior, made by hand, from a digest, or loaded from a file, does not hold "
                "its rows; give the rows, or their table."
            )
        return AlignedRows(rows, tuple(rows.fields))

    def rows_of_fit(self, data: RowsLike | None, purpose: str) -> Rows:
        """Return the rows of the fit: `data`, which must be those rows, or the rows held."""
        rows = self.rows if data is None else rows_of_fit(data, self.fit_rows, purpose)
        if rows is None:
            raise SettingError(
                f"{purpose} needs the rows of the fit, which this posterior, made by hand, from a "
                "digest, or loaded from a file, does not hold; give the rows, or their table."
            )
        if rows is self.rows:
            rows.require_unchanged()
        else:
            ledger = self.ledger
            number = ledger.rows if ledger.unit == "row" else None
            _, number = ledger.collapsed or (None, number)
            require_rows_of_fit(rows, self.fit_rows, number, purpose)
        return rows

    def rows_if_any(self, data: RowsLike | None, purpose: str) -> Rows | None:
        """Return the rows of the fit as `rows_of_fit` does; None if none are given or held."""
        return self.held_rows() if data is None else self.rows_of_fit(data, purpose)

    def take_rows(self, data: RowsLike) -> None:
        """Hold rows, which must be those of the fit, and their table."""
        self.rows = self.rows_of_fit(data, "a posterior that holds its rows")
        self.table = None if isinstance(data, Rows) else TableFiles.of(data)

    def table_numbers(self, data: RowsLike | None, rows: Rows) -> np.ndarray | None:
        """Return the index of each row of the fit in its table (`data` or the one it holds).

        None if the rows are all of the table's, in its order, or if no table is known.
        """
        table = self.table if data is None or isinstance(data, Rows) else data
        return table_numbers(rows, table) if is_tabular(table) else None


def flat_points(
    post: FittedDraws, rows: Rows, draws: dict[str, np.ndarray]
) -> tuple[Target, np.ndarray]:
    """Return the target over `rows`, and draws ``name -> (S, *shape)`` as flat vectors (S, d)."""
    target, _ = Target.of(post.fitted_model(), rows)
    # Modicum's own models do not change; another JAX may trace a custom model differently.
    comparable = post.predictor_spec is None and post.settings.get("jax") == version("jax")
    if comparable and post.settings.get("model") not in (None, target.identity):
        raise SettingError(
            "the model no longer computes what it did when the posterior was sampled: a global "
            "variable or an array that its functions read has changed, or Posterior.load was given "
            "another model; use the original model."
        )
    points = target.ravel_reported(draws)
    if points.shape[1] != target.size:
        raise SettingError(
            f"the draws have {points.shape[1]} parameters, but the model has {target.size} for "
            "these rows; give the rows the posterior was sampled with."
        )
    return target, points


def sums_at(
    post: FittedDraws,
    rows: Rows,
    draws: dict[str, np.ndarray],
    progressbar: bool,
    ledger: Ledger | None = None,
) -> tuple[Sums, np.ndarray]:
    """Return sums over the rows of the fit, or its groups, and draws as flat vectors (S, d)."""
    target, points = flat_points(post, rows, draws)
    engine, ledger = LocalEngine(progressbar=progressbar), ledger or Ledger(rows=len(rows))
    return Sums(target, units_of(target, rows, engine, ledger), engine, ledger), points

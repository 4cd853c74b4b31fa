"""Draws together with the model that was fitted, and what is known of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from modicum.errors import SettingError, argument
from modicum.models import Target
from modicum.models.model import BaseModel
from modicum.models.over_draws import ModelPredictor, rebuild
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
from modicum.rows.json_entries import Json
from modicum.rows.reading import is_tabular, table_numbers

Predictor: TypeAlias = Callable[[dict[str, np.ndarray], Batch], ArrayLike]
"""Maps draws ``name -> (S, *shape)`` and a batch of rows to expected outcomes (S, rows, ...)."""


class Fit(NamedTuple):
    """The model of a posterior and what is known of the rows it was fitted to.

    Attributes
    ----------
    model
        The model.
    rows
        Description of the rows, or None.
    identity
        Fingerprint of what the model computed (`Target.identity`), or None.
    """

    model: BaseModel
    rows: FitRows | None
    identity: str | None


class Subject(NamedTuple):
    """Draws, the model they belong to, and the rows it was fitted to."""

    source: Draws
    fit: Fit
    rows: Rows


@dataclass(repr=False, eq=False)
class FittedDraws(Draws):
    """Draws of a model's parameters, with the model and the rows if they are known.

    This is the base of the mixins in `outcomes.py` and `checking/mixin.py`; `Posterior` documents
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

    def fit(self) -> Fit:
        """Return the model and what is known of its rows; refuse a posterior without a model."""
        predictor = self.restore_predictor()
        if not isinstance(predictor, ModelPredictor):
            raise SettingError(
                "this posterior was made or loaded without its model, and a file does not keep a "
                "custom model; use Posterior.load(path, model=...)."
            )
        # Modicum's own models do not change; another JAX may trace a custom model differently.
        comparable = self.predictor_spec is None and self.settings.get("jax") == version("jax")
        identity = self.settings.get("model") if comparable else None
        return Fit(predictor.model, self.fit_rows, identity)

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the outcome's classes; empty if the classes are numbers."""
        recorded = self.settings.get("outcome_levels")
        levels = recorded or (() if self.rows is None else self.rows.outcome_levels)
        return tuple(map(str, levels))

    def rows_of_fit(self) -> Rows:
        """Return the rows of the fit, from which effects of known groups are drawn."""
        rows = self.held_rows()
        if rows is None:
            raise SettingError(
                "predictions for known groups need the rows of the fit, since effects were "
                "integrated out, and this posterior does not hold them; load it with its rows, by "
                "Posterior.load(path, data=...), or predict for new groups with "
                f"{argument('groups', 'new')}."
            )
        return rows

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

    def subject(self, data: RowsLike | None, purpose: str) -> Subject:
        """Return draws, model and rows of the fit; `data`, if given, must be those rows."""
        rows = self.rows if data is None else rows_of_fit(data, self.fit_rows, purpose)
        if rows is None:
            raise SettingError(
                f"{purpose} needs the rows of the fit, which this posterior, made by hand, from a "
                "digest, or loaded from a file, does not hold; give the rows, or their table."
            )
        if rows is self.rows:
            rows.require_unchanged()
        else:
            number = self.ledger.rows if self.ledger.unit == "row" else None
            require_rows_of_fit(rows, self.fit_rows, number, purpose)
        return Subject(self, self.fit(), rows)

    def table_numbers(self, data: RowsLike | None, rows: Rows) -> np.ndarray | None:
        """Return the index of each row of the fit in its table (`data` or the one it holds).

        None if the rows are all of the table's, in its order, or if no table is known.
        """
        table = self.table if data is None or isinstance(data, Rows) else data
        return table_numbers(rows, table) if is_tabular(table) else None


def flat_points(fit: Fit, rows: Rows, draws: dict[str, np.ndarray]) -> tuple[Target, np.ndarray]:
    """Return the target over `rows`, and draws ``name -> (S, *shape)`` as flat vectors (S, d)."""
    target, _ = Target.of(fit.model, rows)
    if fit.identity not in (None, target.identity):
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

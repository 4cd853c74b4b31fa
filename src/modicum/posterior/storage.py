"""Save and load a posterior: one zip file of ``.npy`` arrays and a JSON page, no pickles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from modicum.errors import ModicumWarning
from modicum.ledger import Ledger
from modicum.posterior import archive
from modicum.posterior.alignment import FitRows
from modicum.posterior.labels import LabelsLike
from modicum.rows.json_entries import Json

FORMAT, VERSION, PAGE = "modicum posterior", 2, "posterior.json"
KIND = archive.Format(FORMAT, VERSION, PAGE, "a posterior")


@dataclass(frozen=True)
class Contents:
    """The contents of a posterior's file.

    Parameters
    ----------
    draws, stats, weights, labels, ledger, warnings, tuning, settings
        As in `modicum.posterior.Posterior`.
    predictor
        Description of the predictor, or None.
    fit_rows
        Description of the rows of the fit, or None.
    """

    draws: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    weights: np.ndarray | None
    labels: LabelsLike
    ledger: Ledger
    warnings: list[ModicumWarning]
    tuning: dict[str, Json]
    settings: dict[str, Json]
    predictor: dict[str, Json] | None
    fit_rows: FitRows | None


_PLAIN = ("draws", "stats", "weights", "labels", "tuning", "settings", "predictor")


def save(contents: Contents, path: str | os.PathLike[str]) -> None:
    """Write a posterior atomically, through a temporary file next to `path`."""
    fit = contents.fit_rows
    plain = {
        "warnings": [doubt.to_dict() for doubt in contents.warnings],
        "ledger": contents.ledger.to_dict(),
        "rows": None if fit is None else fit.to_dict(),
    }
    archive.write(path, KIND, {part: getattr(contents, part) for part in _PLAIN}, plain)


def load(path: str | os.PathLike[str]) -> Contents:
    """Read a posterior that `save` wrote."""
    return archive.read(path, KIND, _PLAIN, _contents)


def _contents(parts: dict[str, Json], page: dict[str, Json]) -> Contents:
    _check_types(parts)
    rows = page["rows"]
    return Contents(
        **parts,
        ledger=Ledger.from_dict(page["ledger"]),
        warnings=[_warning(doubt) for doubt in page["warnings"]],
        fit_rows=None if rows is None else FitRows.from_dict(rows),
    )


def _check_types(parts: Mapping[str, object]) -> None:
    """Refuse parts that do not have the types of a posterior's fields."""
    for name in ("draws", "stats", "labels", "tuning", "settings"):
        if not isinstance(parts[name], dict):
            raise TypeError(f"its {name} are not listed by name")
    for name in ("draws", "stats"):
        values = parts[name]
        assert isinstance(values, dict)
        if not all(isinstance(x, np.ndarray) for x in values.values()):
            raise TypeError(f"its {name} are not arrays")
    if not isinstance(parts["weights"], np.ndarray | None):
        raise TypeError("its weights are not an array")
    if not isinstance(parts["predictor"], dict | None):
        raise TypeError("its predictor is not described by name")


def _warning(saved: Json) -> ModicumWarning:
    texts = [saved[part] for part in ("code", "sentence", "remedy")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("its warnings are not sentences")
    return ModicumWarning.from_dict(saved)

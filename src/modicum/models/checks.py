"""Checks of settings and outcomes that several kinds of models share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import DataError

if TYPE_CHECKING:
    from modicum.models.base import BaseModel
    from modicum.rows import Rows

__all__ = ["check_outcomes", "class_fault", "count_classes"]

Fault = Callable[[np.ndarray], tuple[np.ndarray, str]]
CHUNK = 262_144


def class_fault(y: np.ndarray, classes: int | None) -> tuple[np.ndarray, str]:
    """Mask of outcomes that are no class, and what classes are."""
    above = np.inf if classes is None else classes - 1
    upto = "0, 1, 2, ..." if classes is None else f"0 to {classes - 1}"
    return (y < 0) | (y != np.floor(y)) | (y > above), f"classes numbered {upto}"


def count_classes(rows: Rows) -> int:
    """One more than the largest outcome."""
    return 1 + int(max(chunk["y"].max() for chunk in rows.chunks(CHUNK)))


def check_outcomes(model: BaseModel, rows: Rows, fault: Fault) -> None:
    """Refuse outcomes that `fault` marks, naming the first such row."""
    start = 0
    for chunk in rows.chunks(CHUNK):
        y = np.asarray(chunk["y"])
        bad, support = fault(y)
        if bad.any():
            first = int(np.argmax(bad))
            raise DataError(
                f"the outcome '{rows.outcome or 'y'}' is {y[first]:g} in row {start + first}, "
                f"but {type(model).__name__} needs {support}."
            )
        start += len(y)

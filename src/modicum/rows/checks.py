"""Block-by-block checks that refuse invalid values, each with a one-sentence error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from modicum.errors import DataError, SettingError, argument, first_few
from modicum.rows.coding import STORED_TYPES, Array, DType

SEPARATORS = {"a semicolon": ";", "a tab": "\t", "a bar": "|"}  # found in files instead of commas
RowNumbers: TypeAlias = range | Array  # the number in the source of each row that is checked

# Numbers checked at a time: about a megabyte, so that a check runs from cache.
BLOCK = 1 << 18


def common_length(what: str, lengths: Mapping[str, int]) -> int:
    """Return the number of rows that all fields, or columns, have; refuse different numbers."""
    first, n = next(iter(lengths.items()))
    for name, length in lengths.items():
        if length != n:
            raise DataError(
                f"{what} {name!r} has {length} rows and {first!r} has {n}: all {what}s need the "
                "same number of rows."
            )
    return n


class RowIndexError(DataError, IndexError):
    """A row was requested that does not exist."""


def as_dtype(dtype: object, floating: Sequence[DType]) -> DType:
    """Return the type all fields will share: `dtype`, or by default that of the floating inputs.

    Without floating inputs (only integers and booleans) the default is float64. Bytes (uint8) are
    never inferred, since arithmetic on them wraps around; they must be requested.
    """
    if dtype is None:
        narrow = bool(floating) and all(kind.itemsize <= 4 for kind in floating)
        return np.dtype(np.float32 if narrow else np.float64)
    try:
        chosen: DType = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError):  # NumPy raises any of these for unknown names
        chosen = np.dtype(object)
    if chosen.name not in STORED_TYPES:
        raise SettingError(f"dtype must be float32, float64, uint8 or None, not {dtype!r}.")
    return chosen


def block_rows(width: int) -> int:
    """Return how many rows of `width` numbers make one block."""
    return max(1, BLOCK // max(width, 1))


def in_type(values: Array, dtype: DType, labels: Sequence[str], rows: RowNumbers) -> Array:
    """Return numbers in a type, as a view if type and layout fit; refuse what it cannot hold.

    Those are NaN and infinity, numbers that are too large, and integers that would be rounded.
    `values` has one entry of its first axis per row, with a label for each number in it.
    """
    require_exact(values, dtype, labels, rows)
    # A sum cannot hide a NaN or an infinity and costs a fifth of isfinite().all(). The sum itself
    # may overflow, in which case the elementwise check decides.
    with np.errstate(over="ignore", invalid="ignore"):
        array: Array = np.ascontiguousarray(values, dtype=dtype)
        if np.isfinite(array.sum()) or np.isfinite(array).all():
            return array
    at = int(np.argmin(np.isfinite(array)))
    (row, column), value = divmod(at, len(labels)), values.reshape(-1)[at]
    label, number = labels[column], rows[row]
    if np.isfinite(value):
        raise DataError(
            f"column {label!r} holds {value} in row {number}, too large for "
            f"{dtype.name}: rescale the column or pass {argument('dtype', 'float64')}."
        )
    if np.isnan(value):
        raise MissingValueError(label, number, "NaN")
    raise DataError(
        f"column {label!r} holds {value} in row {number}: "
        "drop such rows or replace the value first."
    )


class MissingValueError(DataError):
    """A value of a table is missing.

    Parameters
    ----------
    column, row
        Where it is missing.
    value
        What is there instead: null or NaN.
    remedy
        What the user can do.
    """

    def __init__(
        self,
        column: str,
        row: int,
        value: str = "a missing value",
        remedy: str = "drop such rows or fill in the value first",
    ) -> None:
        self.column, self.row, self.value = column, row, value
        super().__init__(f"column {column!r} holds {value} in row {row}: {remedy}.")


class NewLevelError(DataError):
    """A table holds a level that the rows of the fit did not have.

    Parameters
    ----------
    place
        Which level, of which column, in which row.
    remedy
        What to do.
    """

    def __init__(self, place: str, remedy: str) -> None:
        self.place = place
        super().__init__(f"{place}; {remedy}.")


class NewGroupError(NewLevelError):
    """A table holds a group that the rows of the fit did not have."""


def require_exact(values: Array, dtype: DType, labels: Sequence[str], rows: RowNumbers) -> None:
    """Refuse integers that `dtype` cannot hold exactly; for uint8, any such number.

    `values` has one entry of its first axis per row, with a label for each number in it.
    """
    if dtype.kind == "u":
        flat = values.reshape(-1)
        if values.dtype not in (np.dtype(np.uint8), np.dtype(bool)) and flat.size != 0:
            bad = ~((flat >= 0) & (flat <= 255) & (flat == np.floor(flat)))  # NaN is bad too
            if bad.any():
                row, column = divmod(int(np.argmax(bad)), len(labels))
                raise DataError(
                    f"column {labels[column]!r} holds {flat[np.argmax(bad)]} in row {rows[row]}, "
                    "but dtype='uint8' holds whole numbers from 0 to 255 only: leave dtype out."
                )
        return
    if values.dtype.kind not in "iu":
        return
    digits = np.finfo(dtype).nmant + 1
    if values.dtype.itemsize * 8 <= digits or values.size == 0:
        return
    limit = 1 << digits
    if int(values.min()) >= -limit and int(values.max()) <= limit:
        return
    flat = values.reshape(-1)
    held, beyond = flat.astype(dtype), float(np.iinfo(flat.dtype).max)  # rounded up to 2**63, say
    with np.errstate(invalid="ignore"):
        bad = (held >= beyond) | (held.astype(flat.dtype) != flat)
    if not bad.any():
        return
    row, column = divmod(int(np.argmax(bad)), len(labels))
    wider = argument("dtype", "float64")
    advice = f"pass {wider} or rescale it" if dtype.itemsize == 4 else "rescale it"
    raise DataError(
        f"column {labels[column]!r} holds the integer {flat[np.argmax(bad)]} in row {rows[row]}, "
        f"which {dtype.name} "
        f"cannot hold exactly: {advice} (or leave it out, if it is an identifier)."
    )


class WeightCheck:
    """Checks that no weight is negative and that not all of them are zero."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._total = 0.0

    def add(self, weights: Array, rows: RowNumbers) -> None:
        """Check the next weights."""
        if weights.min() < 0:
            row = int(np.argmax(weights < 0))
            raise DataError(
                f"column {self.label!r} holds the negative weight {weights[row]} in row "
                f"{rows[row]}: weights must be zero or more."
            )
        self._total += float(weights.sum(dtype=np.float64))

    def finish(self) -> None:
        """Check the total, after the last weights."""
        if self._total == 0:
            raise DataError(
                f"column {self.label!r} is zero in every row, so no row counts: "
                "give some rows a positive weight, or leave the weight out."
            )


def reads_as_number(value: object) -> bool:
    """Whether a value is a number, or text that reads as one."""
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def names_like(name: object, names: Iterable[object]) -> str:
    """Return a hint: the names closest to `name`, or else the first few names."""
    texts = [str(n) for n in names]
    only = texts[0] if len(texts) == 1 else ""
    marks = [word for word, mark in SEPARATORS.items() if mark in only]
    if marks:
        return (
            f"there is a single column, named {only!r}, so the columns seem to be separated by "
            f"{marks[0]}; read the table with pd.read_csv(path, sep={SEPARATORS[marks[0]]!r}), or "
            "pass the path of the file itself."
        )
    near = difflib.get_close_matches(str(name), texts, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(map(repr, near)) + "?"
    return f"there are {first_few([*map(repr, texts)], 8)}."


def name_list(part: str, names: object) -> list[object]:
    """Return the names in argument `part`; refuse anything but a sequence of names."""
    if isinstance(names, str):
        raise SettingError(f"{part} must be a sequence of names: pass [{names!r}].")
    try:
        return list(names)  # type: ignore[call-overload]
    except TypeError:
        raise SettingError(
            f"{part} must be a sequence of names, not {type(names).__name__}."
        ) from None

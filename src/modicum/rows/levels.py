"""Categorical columns: their levels, and treatment coding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.rows.checks import missing
from modicum.rows.description import Array, Level
from modicum.rows.roles import close_to

if TYPE_CHECKING:
    import pyarrow as pa

# More columns than this are no treatment coding any more, and would not fit in memory either.
MOST_LEVELS = 10_000


def _encoded(array: pa.Array, name: str, start: int) -> tuple[list[Any], Array]:
    """Distinct values and, for each row, which of them it holds."""
    import pyarrow as pa

    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    if array.indices.null_count:
        row = int(np.argmax(array.indices.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(missing(name, start + row))
    values, codes = array.dictionary.to_pylist(), array.indices.to_numpy(zero_copy_only=False)
    for code, value in enumerate(values):
        unusable = not isinstance(value, str | int | float) or value != value
        if unusable and (codes == code).any():
            row = start + int(np.argmax(codes == code))
            if value is None or value != value:
                raise DataError(missing(name, row))
            raise DataError(
                f"categorical column {name!r} holds a {type(value).__name__} in row {row}: "
                "convert it to text or to whole numbers first."
            )
    return values, codes


def collect(
    batches: Iterable[pa.RecordBatch], references: Mapping[str, Any]
) -> dict[str, tuple[Level, ...]]:
    """Levels that occur in each categorical column, the reference first, the others sorted."""
    seen: dict[str, dict[Any, None]] = {name: {} for name in references}
    start = 0
    for batch in batches:
        for name, found in seen.items():
            values, codes = _encoded(batch.column(name), name, start)
            found.update(dict.fromkeys(values[code] for code in np.unique(codes)))
            if len(found) > MOST_LEVELS:
                raise DataError(
                    f"categorical column {name!r} has more than {MOST_LEVELS} levels by row "
                    f"{start + batch.num_rows - 1}: group them, or leave the column out."
                )
        start += batch.num_rows
    return {name: _ordered(name, found, references[name]) for name, found in seen.items()}


def _ordered(name: str, found: Iterable[Any], reference: Any) -> tuple[Level, ...]:
    try:
        levels = sorted(found)
    except TypeError:
        raise DataError(
            f"categorical column {name!r} holds text in some files and numbers in others: "
            "convert it to one kind first."
        ) from None
    if len(levels) < 2:
        raise DataError(
            f"categorical column {name!r} holds one level only ({levels[0]!r} from row 0 on): "
            "leave it out, the intercept already says it."
            if levels
            else f"categorical column {name!r} has no rows."
        )
    if reference is None:
        return tuple(levels)
    matches = [v for v in levels if v == reference] or [
        v for v in levels if str(v) == str(reference)
    ]
    if not matches:
        raise SettingError(
            f"reference level {reference!r} does not occur in column {name!r}: "
            f"{close_to(reference, levels)}"
        )
    return (matches[0], *(v for v in levels if v is not matches[0]))


def treat(array: pa.Array, name: str, levels: tuple[Level, ...], out: Array, start: int) -> None:
    """Write the treatment coding of `array` into `out` (rows, levels - 1)."""
    values, codes = _encoded(array, name, start)
    place = {level: i for i, level in enumerate(levels)}
    places = np.array([place.get(value, -1) for value in values] or [-1])[codes]
    if len(places) and places.min() < 0:
        row = int(np.argmax(places < 0))
        raise DataError(
            f"categorical column {name!r} holds {values[codes[row]]!r} in row {start + row}, which "
            "was not there on the first reading: the source changed, read it again."
        )
    out[:] = 0
    rows = np.flatnonzero(places)
    out[rows, places[rows] - 1] = 1

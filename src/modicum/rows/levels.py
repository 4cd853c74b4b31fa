"""The levels of categorical columns: collecting them, their order, and their codes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.rows.checks import missing, names_like
from modicum.rows.coding import Level, level_key, level_places
from modicum.rows.description import Array
from modicum.rows.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa

# Columns with more levels are unlikely to be meant as treatment contrasts.
MOST_LEVELS = 10_000
# Fields that never hold codes; a factor of one of these names gets the suffix CODE.
RESERVED = ("x", "y", "offset", "weight")
CODE = " (code)"
# Texts that people write for a missing number but Arrow does not read as one.
STANDS_FOR_MISSING = {".", "?", "-", "--", "*", "missing", "none", "unknown", "na.", "n.a."}
FEW_FRACTIONS = 20  # at most this many levels may look like "1.5", as versions or doses do
WITH_COMMA = r"[+-]?[0-9]+(,[0-9]+)+([.][0-9]*)?"
# Numbers with a percent or currency sign, or with thousands apart: 5%, -$7.50, 12 €, 1'000.
MINUS, SIGNS, APART = "+\u2212-", "%‰$€£¥", " \u00a0\u202f'\u2019,"
DIGITS = rf"([0-9]+([{APART}][0-9]{{3}})*([.,][0-9]*)?|[.,][0-9]+)"
MARKED = rf"[{MINUS}]?[{SIGNS}]?[{MINUS}]?\s?{DIGITS}\s?[{SIGNS}]?"
NUMBER = r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?"


def collect_levels(
    batches: Iterable[pa.RecordBatch], references: Mapping[str, Level | None]
) -> dict[str, tuple[Level, ...]]:
    """Return the levels that occur in each column, the reference first, the others sorted."""
    # Dictionaries without values serve as ordered sets.
    occurring: dict[str, dict[Level, None]] = {name: {} for name in references}
    start = 0
    for batch in batches:
        for name, levels in occurring.items():
            values, codes = distinct(batch.column(name), name, start)
            levels.update(dict.fromkeys(values[code] for code in np.unique(codes)))
            if len(levels) > MOST_LEVELS:
                raise DataError(
                    f"categorical column {name!r} has more than {MOST_LEVELS} levels by row "
                    f"{start + batch.num_rows - 1}: group them, or leave the column out."
                )
        start += batch.num_rows
    return {name: ordered(name, levels, references[name]) for name, levels in occurring.items()}


def ordered(
    name: str, occurring: Iterable[Level], reference: Level | None = None
) -> tuple[Level, ...]:
    """Return the levels sorted, the reference first; refuse a single level."""
    return reference_first(name, _sort_levels(name, occurring), reference)


def reference_first(
    name: str, levels: Sequence[Level], reference: Level | None = None
) -> tuple[Level, ...]:
    """Return the levels in their order, the reference moved to the front; refuse a single level."""
    in_order = {level_key(level): level for level in levels}
    if len(in_order) < 2:
        raise DataError(
            f"categorical column {name!r} holds one level only ({levels[0]!r}): leave it out, "
            "since the intercept already covers it."
            if levels
            else f"categorical column {name!r} has no rows: at least one is needed."
        )
    if reference is None:
        return tuple(in_order.values())
    matches = [k for k, v in in_order.items() if k == level_key(reference) or v == reference]
    if not matches:
        raise SettingError(
            f"reference level {reference!r} does not occur in column {name!r}: "
            f"{names_like(reference, levels)}"
        )
    return (in_order.pop(matches[0]), *in_order.values())


def _sort_levels(name: str, levels: Iterable[Level]) -> list[Level]:
    """Return the levels sorted; levels that are all numbers written as text sort as numbers.

    A column of hours then has the same reference level in a CSV file, where levels are text, as in
    a Parquet file, where they are numbers.
    """
    values = list(levels)
    texts = [v for v in values if isinstance(v, str)]
    if texts and len(texts) < len(values):
        raise DataError(
            f"categorical column {name!r} holds text in some files and numbers in others: "
            "convert it to one type first."
        )
    if texts and all(re.fullmatch(r"[+-]?[0-9]+([.][0-9]*)?", v) for v in texts):
        return sorted(texts, key=lambda v: (float(v), v))
    return sorted(values)  # all are texts, or all are numbers


def distinct(array: pa.Array, name: str, start: int = 0) -> tuple[list[Level], Array]:
    """Return the distinct values, and for each row the index of its value."""
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


def joined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column of a batch or of a table as one array."""
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def level_codes(array: pa.Array, name: str, levels: tuple[Level, ...], start: int) -> Array:
    """Return the index in `levels` of each row of `array`, whose first row is `start`."""
    values, codes = distinct(array, name, start)
    place = {level: i for i, level in enumerate(levels)}
    places: Array = np.array([place.get(value, -1) for value in values] or [-1])[codes]
    if len(places) and places.min() < 0:
        row = int(np.argmax(places < 0))
        raise DataError(
            f"categorical column {name!r} holds {values[codes[row]]!r} in row {start + row}, which "
            "it did not hold on the first reading: the source has changed, so read it again."
        )
    return places


def levels_like(source: Source, name: str, levels: Sequence[str]) -> tuple[Level, ...]:
    """Return known levels in their order, each as this table writes it: 6 or "6"."""
    as_written: dict[str, Level] = {}
    start = 0
    for batch in source.batches([name]):
        values, codes = distinct(batch.column(name), name, start)
        places = level_places(levels, values)
        for code in np.unique(codes):
            if places[code] < 0:
                raise DataError(
                    f"column {name!r} holds {values[code]!r} in row "
                    f"{start + int(np.argmax(codes == code))}, which the rows of the fit did not; "
                    "leave such rows out, or fit again with rows that have them."
                )
            as_written[levels[places[code]]] = values[code]
        start += batch.num_rows
    return tuple(as_written.get(level, level) for level in levels)


def refuse_stray_text(source: Source, name: str, levels: Iterable[Level], remedy: str) -> None:
    """Refuse a text column that looks like numbers with a few faulty values, not like levels."""
    texts = [level for level in levels if isinstance(level, str)]
    commas = [level for level in texts if re.fullmatch(WITH_COMMA, level.strip())]
    numbers = sum(bool(re.fullmatch(NUMBER, level.strip())) for level in texts)
    if commas and len(commas) + numbers == len(texts):
        raise DataError(
            f"column {name!r} holds numbers with a comma, such as {commas[0]!r}, which are text: "
            "read the table with decimal=',' (pandas) or thousands=',', or replace the commas, or "
            f"{remedy}."
        )
    number = re.compile(f"{NUMBER}|{WITH_COMMA}|{MARKED}")
    stray = [level for level in texts if not number.fullmatch(level.strip())]
    plain = re.compile(f"{NUMBER}|{WITH_COMMA}")
    marked = [level for level in texts if not plain.fullmatch(level.strip())]
    if marked and not stray:
        raise DataError(
            f"column {name!r} holds numbers that are written as text, such as {marked[0]!r}: "
            f"remove what is not part of the number and convert it to numbers, or {remedy}."
        )
    fractions = [level for level in texts if "." in level]
    if fractions and numbers == len(texts) > FEW_FRACTIONS:
        raise DataError(
            f"column {name!r} holds numbers that are written as text, such as {fractions[0]!r}: "
            f"convert it to numbers, or {remedy}."
        )
    if not stray or len(stray) == len(texts):
        return
    start = 0
    for batch in source.batches([name]):
        values, codes = distinct(joined(batch.column(name)).drop_null(), name, start)
        for code in np.unique(codes):
            if values[code] in stray:
                column = joined(batch.column(name)).to_pylist()
                row = start + column.index(values[code])
                stands = values[code].strip().lower() in STANDS_FOR_MISSING
                fix = "leave it empty if it stands for a missing value" if stands else "correct it"
                raise DataError(
                    f"column {name!r} holds text ({values[code]!r} in row {row}) among numbers: "
                    f"{fix}, or {remedy}."
                )
        start += batch.num_rows


def code_field(column: str) -> str:
    """Return the field that holds the codes of a column, avoiding the names of other fields."""
    return f"{column}{CODE}" if column in RESERVED else column


def table_column(field: str, names: Sequence[str]) -> str:
    """Return the table column that a field of codes was made from: the inverse of `code_field`."""
    plain = field.removesuffix(CODE)
    return plain if field not in names and plain in RESERVED else field

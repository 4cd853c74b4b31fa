"""Sample rows and read columns, from the rows or from the table they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.checks import MissingValueError, names_like
from modicum.rows.formula import FormulaEncoding
from modicum.rows.reading import is_tabular, reread, source_of
from modicum.rows.sources import Source, absent

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["column_values", "counted_rows", "holds_column", "random_rows", "table_sample"]

MOST_COLOURS = 10**9  # NumPy's limit for draws without replacement


def random_rows(number: int, most: int, seed: int) -> np.ndarray:
    """Return the indices of up to `most` of `number` rows, in random order."""
    rng = generator(seed, Stream.CHECKED_ROWS)
    if number <= most:
        return rng.permutation(number)
    return rng.choice(number, size=most, replace=False)


def counted_rows(rows: Rows, most: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of up to `most` rows, in random order, and the weight of each outcome.

    A row with an integer weight k stands for k outcomes, whose sum varies less than k times one
    outcome: its index is repeated k times. Fractional weights multiply a single outcome.
    """
    ids = random_rows(len(rows), most, seed)
    if "weight" not in rows.fields:
        return ids, np.ones(len(ids))
    weight = np.asarray(rows.take(ids)["weight"], float)
    if np.any(weight != np.floor(weight)):
        return ids, weight
    counts, total = weight.astype(np.int64), int(weight.sum())
    if total == 0:
        raise DataError("all of these rows have weight 0: at least one needs a positive weight.")
    rng = generator(seed, Stream.COUNTED_ROWS)
    if most < total < MOST_COLOURS:
        counts = rng.multivariate_hypergeometric(counts, most, method="marginals")
    elif most < total:  # so many that sampling with replacement hardly ever repeats an outcome
        counts = rng.multinomial(most, weight / total)
    repeated = rng.permutation(np.repeat(ids, counts))
    return repeated, np.ones(len(repeated))


def holds_column(rows: Rows, name: str) -> bool:
    """Return whether the rows hold the values of a column, as numbers or as levels."""
    if name in rows.levels and name in rows.fields:
        return True
    return _place(rows, name) is not None or rows.fields.get(name) == ()


def _place(rows: Rows, name: str) -> int | None:
    """Return the index of a numeric column in the field x, or None."""
    if name not in rows.columns or "x" not in rows.fields:
        return None
    place = rows.columns.index(name)
    dense = list(range(len(rows.columns)) if rows.coding is None else rows.coding.dense)
    return dense.index(place) if place in dense else None


def column_values(rows: Rows, table: object, name: str, row_ids: np.ndarray) -> np.ndarray:
    """Return the values of a column at these rows: numbers, or levels as strings.

    A table must be in the order of the rows.
    """
    subset = rows.subset(row_ids)
    batch = subset.slice(0, len(subset))
    if name in rows.levels and name in batch:
        return np.array([str(level) for level in rows.levels[name]])[batch[name].astype(int)]
    place = _place(rows, name)
    if place is not None:
        return np.asarray(batch["x"][:, place], float)
    if name in batch and batch[name].ndim == 1:
        return np.asarray(batch[name], float)
    if table is None or not is_tabular(table):
        fields = [field for field in batch if batch[field].ndim == 1]
        columns = [*dict.fromkeys([*rows.columns, *rows.levels, *fields])]
        raise SettingError(f"there is no column {name!r}: {names_like(name, columns)}")
    return _table_values(table, name, len(rows), row_ids)


def _table_values(table: object, name: str, number: int, row_ids: np.ndarray) -> np.ndarray:
    source = source_of(table)
    if name not in source.names:
        raise SettingError(f"there is no column {name!r}: {names_like(name, source.names)}")
    parts = reread(lambda: [_plain(batch.column(name)) for batch in source.batches([name])])
    values = np.concatenate(parts)
    if len(values) != number:
        raise DataError(
            f"the table has {len(values):,} rows and {number:,} were fitted, since rows with "
            "missing values were dropped; give the table without these rows."
        )
    return values[row_ids]


def _plain(column: pa.Array) -> np.ndarray:
    """Convert an Arrow column to numbers, or to strings."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), float)
    return np.array([str(value) for value in column.to_pylist()])


def _complete(table: pa.Table) -> pa.Table:
    """Drop rows with missing values: nulls and NaN, which polars and Parquet tell apart."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = table.drop_null()
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if pa.types.is_floating(kind):
            table = table.filter(pc.invert(pc.is_nan(table.column(name))))
    return table


def table_sample(
    table: object,
    columns: Sequence[str],
    most: int,
    seed: int,
    encoding: FormulaEncoding,
    drop: bool = True,
) -> pa.Table:
    """Return up to `most` random rows of a table, in one reading.

    Rows that are incomplete in these columns are left out, or refused unless `drop`.
    """
    source = source_of(table, encoding)
    for name in columns:
        if name not in source.names:
            raise DataError(absent(source, name))
    sample = reread(lambda: _sample(source, columns, most, seed, drop))
    if sample is None or not len(sample):
        raise DataError("there are no (complete) rows in the data: at least one is needed.")
    return sample


def _sample(
    source: Source, columns: Sequence[str], most: int, seed: int, drop: bool
) -> pa.Table | None:
    import pyarrow as pa

    rng = generator(seed, Stream.CHECKED_ROWS)
    sample, keys, first = None, np.zeros(0), 0
    for batch in source.batches(columns):
        part = pa.Table.from_batches([batch]).select(list(columns))
        complete = _complete(part)
        if len(complete) < len(part) and not drop:
            raise _missing(part, first)
        joined = complete if sample is None else pa.concat_tables([sample, complete])
        keys = np.concatenate([keys, rng.random(len(complete))])
        if len(keys) > most:  # rows with the smallest keys are a random sample of all so far
            chosen = np.sort(np.argpartition(keys, most - 1)[:most])
            joined, keys = joined.take(chosen), keys[chosen]
        sample, first = joined, first + len(part)
    return sample


def _missing(part: pa.Table, first: int) -> MissingValueError:
    """Return the error for the first missing value of a table that begins at row `first`."""
    name = next(
        name for name in part.column_names if len(_complete(part.select([name]))) < len(part)
    )
    holes = np.asarray(part.column(name).is_null(nan_is_null=True))
    return MissingValueError(name, first + int(np.argmax(holes)))

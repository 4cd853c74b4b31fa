"""Sample rows and read columns, from the rows or from the table they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.checks import names_like
from modicum.rows.formula import FormulaEncoding
from modicum.rows.formula.columns import complete_rows
from modicum.rows.reading import encode_table, is_tabular, reread, source_of
from modicum.rows.sources import Source, absent
from modicum.rows.table_order import table_numbers

if TYPE_CHECKING:
    import pyarrow as pa

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


def table_sample(
    table: object,
    columns: Sequence[str],
    most: int,
    seed: int,
    encoding: FormulaEncoding,
    drop: bool = True,
    fitted: Rows | None = None,
) -> pa.Table:
    """Return up to `most` random rows of a table, in one reading.

    Parameters
    ----------
    table, encoding
        A table, and the encoding of the fit.
    columns
        The columns to read.
    most, seed
        The most rows, and the seed of their choice.
    drop
        Whether rows that are incomplete in these columns are left out instead of refused.
    fitted
        The rows of the fit, if the table is the one that they were made from: it is refused if the
        rows that were chosen have changed since.
    """
    source = source_of(table, encoding)
    for name in columns:
        if name not in source.names:
            raise DataError(absent(source, name))
    sample = reread(lambda: _sample(source, columns, most, seed, drop))
    if sample is None or not len(sample.row_ids):
        raise DataError("there are no (complete) rows in the data: at least one is needed.")
    if fitted is not None and not _made(fitted, sample, table, encoding):
        raise DataError(
            "the table of the fit has changed since it was fitted, and this would mix its present "
            "rows with a fit to the former ones: give the table as it was, or the rows to use "
            "instead, as data=..."
        )
    return sample.table


class _Sample(NamedTuple):
    """Some rows of a table, their row numbers, and the number of all rows of the table."""

    table: pa.Table
    row_ids: np.ndarray
    total: int


def _sample(
    source: Source, columns: Sequence[str], most: int, seed: int, drop: bool
) -> _Sample | None:
    import pyarrow as pa

    rng = generator(seed, Stream.CHECKED_ROWS)
    sample, keys, total = None, np.zeros(0), 0
    for part, dropped in complete_rows(source.batches(columns), columns, drop):
        total += len(part) + dropped
        joined, row_ids = pa.Table.from_batches([part.batch]).select(list(columns)), part.row_ids
        if sample is not None:
            joined = pa.concat_tables([sample.table, joined])
            row_ids = np.concatenate([sample.row_ids, row_ids])
        keys = np.concatenate([keys, rng.random(len(part))])
        if len(keys) > most:  # rows with the smallest keys are a random sample of all so far
            chosen = np.sort(np.argpartition(keys, most - 1)[:most])
            joined, row_ids, keys = joined.take(chosen), row_ids[chosen], keys[chosen]
        sample = _Sample(joined, row_ids, total)
    return sample


def _made(fitted: Rows, sample: _Sample, table: object, encoding: FormulaEncoding) -> bool:
    """Whether `fitted` were made from a table of which this is a sample.

    Only the sample is compared, since the result depends on no other row.
    """
    numbers, at = table_numbers(fitted, table), sample.row_ids
    if numbers is not None:  # some rows were dropped, or a store has sorted them by group
        order = np.argsort(numbers, kind="stable")
        places = np.searchsorted(numbers, sample.row_ids, sorter=order)
        at = order[np.minimum(places, len(numbers) - 1)]
        if not np.array_equal(numbers[at], sample.row_ids):
            return False
    elif sample.total != len(fitted):
        return False
    outcome = all(name in sample.table.column_names for name in encoding.needed())
    try:
        rows = encode_table(encoding, sample.table, outcome=outcome, dtype=fitted.dtype)
    except DataError:  # a level or a value that the fit has not seen
        return False
    before = fitted.take(at)
    return all(_alike(before[name], now) for name, now in rows.slice(0, len(rows)).items())


def _alike(before: np.ndarray, now: np.ndarray) -> bool:
    """Whether codes are equal, and numbers up to rounding: splines depend on the batch a little."""
    if before.dtype.kind != "f":
        return np.array_equal(before, now)
    size = np.abs(before)
    error = 2 * np.finfo(before.dtype).eps * size + 1e-12 * size.max(axis=0)
    return bool(np.all(np.abs(now - before) <= error))

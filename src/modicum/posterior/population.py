"""Samples of rows, and columns of rows or of their table, which can be set to other values.

After a formula a column is one of its table, so that splines, interactions and contrasts follow;
for arrays it is a column of x, or a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.libraries import pyarrow as pa
from modicum.posterior.fit_rows import AlignedRows, Batch, Groups, RowsLike
from modicum.posterior.fitted import FittedDraws, not_held
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.checks import names_like
from modicum.rows.coding import Level
from modicum.rows.formula import FormulaEncoding
from modicum.rows.formula.expressions import Expression
from modicum.rows.levels import StrayTextError, complete_rows
from modicum.rows.reading import encode_table, is_tabular, source_of, table_numbers, whole_field
from modicum.rows.sources import Source

T = TypeVar("T")
MOST_COLOURS = 10**9  # NumPy's limit for draws without replacement


def random_rows(number: int, most: int, seed: int) -> np.ndarray:
    """Return the indices of up to `most` of `number` rows, in random order."""
    rng = generator(seed, Stream.CHECKED_ROWS)
    if number <= most:
        return rng.permutation(number)
    return rng.choice(number, size=most, replace=False)


def row_sample(rows: AlignedRows, most: int, seed: int) -> AlignedRows:
    """Return up to `most` of the rows, in their order; refuse none."""
    if not len(rows):
        raise DataError("there are no rows to average over: at least one is needed.")
    ids = np.sort(random_rows(len(rows), most, seed))
    return replace(rows, rows=rows.rows.subset(ids))


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
    return AlignedRows.of(rows).holds(name) or rows.fields.get(name) == ()


def column_values(
    rows: Rows, table: object, name: str, row_ids: np.ndarray, numbers: np.ndarray | None = None
) -> np.ndarray:
    """Return the values of a column at these rows: numbers, or levels as strings.

    A table must be in the order of the rows, or `numbers` are the place of each row in it.
    """
    sample = AlignedRows.of(rows.subset(row_ids))
    if sample.holds(name):
        values = sample.values(name)
        return values if name in sample.places else values.astype(str)
    if rows.fields.get(name) == ():
        return whole_field(sample.rows, name).astype(float)
    if table is None or not is_tabular(table):
        fields = [field for field, shape in rows.fields.items() if shape == ()]
        columns = [*dict.fromkeys([*rows.columns, *rows.levels, *fields])]
        raise SettingError(f"there is no column {name!r}: {names_like(name, columns)}")
    source = source_of(table)
    if name not in source.names:
        raise SettingError(f"there is no column {name!r}: {names_like(name, source.names)}")
    values = _read(
        source, lambda s: np.concatenate([_plain(b.column(name)) for b in s.batches([name])])
    )
    if numbers is not None:
        return values[numbers[row_ids]]
    if len(values) != len(rows):
        raise DataError(
            f"the table has {len(values):,} rows and {len(rows):,} were fitted, since rows with "
            "missing values were dropped; give the table without these rows."
        )
    return values[row_ids]


def _read(source: Source, read: Callable[[Source], T]) -> T:
    """Read a table; where text comes among the numbers of a CSV file's column, all are levels."""
    try:
        return read(source)
    except StrayTextError as stray:
        return _read(source.with_text([stray.column]), read)


def _plain(column: pa.Array) -> np.ndarray:
    """Convert an Arrow column to numbers, or to strings."""
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
            raise DataError(source.absent(name))
    sample = _read(source, lambda s: _sample(s, columns, most, seed, drop))
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
    rng = generator(seed, Stream.CHECKED_ROWS)
    sample, keys, total = None, np.zeros(0), 0
    for part, dropped in complete_rows(source.batches(columns), columns, drop):
        total += len(part) + dropped
        joined, row_ids = pa.Table.from_batches([part.batch]).select(list(columns)), part.row_ids
        if sample is not None:
            joined = pa.concat_tables([sample.table, joined], promote_options="permissive")
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


@dataclass(frozen=True)
class TablePopulation:
    """A sample of the table that a formula was applied to."""

    table: pa.Table
    encoding: FormulaEncoding
    known: Mapping[str, np.ndarray]  # as in `AlignedRows`

    def __len__(self) -> int:
        return len(self.table)

    def values(self, name: str) -> np.ndarray:
        """Return the values of a column that predictions depend on."""
        # Weights, and fields that belong to the outcome, do not enter the predictor.
        fields = ["offset", *(group.field for group in self.encoding.groupings)]
        columns = self.encoding.needed(outcome=False, fields=fields)
        if name not in columns and name in self.encoding.needed(outcome=False):
            raise SettingError(
                f"predictions do not depend on {name!r}, which is a weight or part of the "
                f"outcome: choose another column ({', '.join(map(repr, columns))})."
            )
        if name not in columns or name not in self.table.column_names:
            raise SettingError(f"the formula reads no column {name!r}: {names_like(name, columns)}")
        return np.array(self.table.column(name).to_pylist())

    def levels(self, name: str) -> tuple[Level, ...]:
        """Return the levels of the fit if the column itself is a factor, else those that occur."""
        for factor in self.encoding.factors:
            if factor.levels and Expression(factor.expression).inner.bare == name:
                return factor.levels
        for group in self.encoding.groupings:
            if group.columns == (name,):
                return group.levels
        if self.encoding.kinds.get(name, "number") == "number":
            return ()
        return tuple(np.unique(self.values(name)).tolist())

    def setting(self, changes: Mapping[str, np.ndarray]) -> Batch:
        """Encode the table with columns set to these values."""
        table = self.table
        for name, values in changes.items():
            place = table.column_names.index(name)
            plain = [value.item() if isinstance(value, np.generic) else value for value in values]
            whole = pa.types.is_integer(table.schema.types[place])
            floats = whole and all(isinstance(value, float) for value in plain)
            column = pa.array(plain, pa.float64() if floats else None)
            table = table.set_column(place, name, column)
        try:
            batch = self._encoded(table).whole()
        except DataError as fault:  # for instance, values outside the range of a spline
            names = " and ".join(map(repr, changes))
            raise DataError(
                f"{names} cannot be set to these values; use others (at=[...] or between=[...]): "
                f"{fault}"
            ) from fault
        weights = [Expression(w).bare for w in self.encoding.fields.get("weight", ())]
        if set(weights) & set(changes):
            batch["weight"] = self.as_it_is.whole()["weight"]  # rows count as they did
        return batch

    @property
    def as_it_is(self) -> AlignedRows:
        """The rows, encoded as those of the fit were."""
        return self._encoded(self.table)

    def _encoded(self, table: pa.Table) -> AlignedRows:
        # columns that are set may make combinations of known levels that no row has
        new_groups = bool(self.known)
        rows = encode_table(
            self.encoding,
            table,
            outcome=False,
            new_groups=new_groups,
            weights=True,
            dtype=np.float64,
        )
        return replace(AlignedRows.of(rows), known=self.known)


Population: TypeAlias = TablePopulation | AlignedRows
"""Rows whose columns can be set."""


def population(
    post: FittedDraws, data: RowsLike | None, most: int, seed: int, groups: Groups | None
) -> tuple[Population, float]:
    """Return up to `most` random rows, and which share of all these are.

    They are rows of the table if the fit had a formula, and else of the rows: of `data`, or what
    the posterior holds; see `table_sample`.
    """
    encoding = post.encoding
    if encoding is None:
        rows = post.rows_or_own(data, False, "refuse", groups, weights=True)
        some = row_sample(rows, most, seed)
        return some, len(some) / len(rows)
    table, fitted = (post.table, post.rows) if data is None else (data, None)
    if table is None:
        raise not_held("this", "the table that the formula was applied to")
    source, needed = source_of(table, encoding), encoding.needed(outcome=True)
    if any(name not in source.names for name in needed):
        needed = tuple(name for name in encoding.needed(outcome=False) if name in source.names)
    sample = table_sample(table, needed, most, seed, encoding, encoding.drops, fitted)
    share = 1.0 if len(sample) < most else len(sample) / (source.rows or np.inf)
    known = {}
    if groups not in (None, "known"):
        known = {g.field: np.arange(len(g.levels)) for g in encoding.groupings}
        encoding = encoding.with_levels_of(source_of(sample))
    return TablePopulation(sample, encoding, known), share

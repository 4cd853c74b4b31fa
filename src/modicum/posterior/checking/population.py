"""Rows in which one column can be set to other values.

After a formula this is a column of its table, so that splines, interactions and contrasts follow;
for arrays it is a column of x, or a factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from modicum.errors import DataError, SettingError
from modicum.posterior.alignment import AlignedRows, Batch, FitRows, Groups
from modicum.posterior.checking.columns import random_rows, table_sample
from modicum.rows import Rows
from modicum.rows.checks import names_like
from modicum.rows.formula import FormulaEncoding
from modicum.rows.formula.expressions import Expression
from modicum.rows.level_names import Level
from modicum.rows.reading import encode_table, source_of

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 20_000  # rows per batch


class Population(Protocol):
    """Rows whose columns can be set."""

    def __len__(self) -> int:
        """Number of rows."""

    def values(self, name: str) -> np.ndarray:
        """Return the values of a column, numbers or levels; a `SettingError` if there is none."""

    def levels(self, name: str) -> tuple[Level, ...]:
        """Return the levels of a factor, in the fit's order; empty for numbers."""

    def setting(self, name: str, values: np.ndarray) -> Iterator[Batch]:
        """Yield the rows with a column set to these values, one per row, a chunk at a time."""

    def columns_of(self, group: str) -> tuple[str, ...]:
        """Return the columns that define a grouping factor."""

    @property
    def share(self) -> float:
        """Share of all rows that these are; 0 if that is not known."""

    @property
    def as_it_is(self) -> AlignedRows:
        """The rows, with no column changed."""


@dataclass(frozen=True)
class TablePopulation:
    """A sample of the table that a formula was applied to."""

    table: pa.Table
    encoding: FormulaEncoding
    first_new: Mapping[str, float]  # as in `AlignedRows`
    share: float

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
            call = Expression(factor.expression)
            inner = call if call.categorical is None else call.categorical.inner
            if factor.levels and inner.bare == name:
                return factor.levels
        for group in self.encoding.groupings:
            if group.columns == (name,):
                return group.levels
        if self.encoding.kinds.get(name, "number") == "number":
            return ()
        return tuple(np.unique(self.values(name)).tolist())

    def setting(self, name: str, values: np.ndarray) -> Iterator[Batch]:
        """Encode the table with a column set to these values."""
        import pyarrow as pa

        place = self.table.column_names.index(name)
        kind = self.table.schema.types[place]
        plain = [value.item() if isinstance(value, np.generic) else value for value in values]
        if pa.types.is_integer(kind) and all(isinstance(v, float) for v in plain):
            column = pa.array(plain, pa.float64())
        else:
            column = pa.array(plain)
        try:
            encoded = self._encoded(self.table.set_column(place, name, column))
        except DataError as fault:  # for instance, values outside the range of a spline
            raise DataError(
                f"{name!r} cannot be set to these values; use others (at=[...] or between=[...]): "
                f"{fault}"
            ) from fault
        if name not in [Expression(w).bare for w in self.encoding.fields.get("weight", ())]:
            yield from encoded.chunks(CHUNK)
            return
        for batch, before in zip(encoded.chunks(CHUNK), self.as_it_is.chunks(CHUNK), strict=True):
            yield {**batch, "weight": before["weight"]}  # rows count as they did

    def columns_of(self, group: str) -> tuple[str, ...]:
        """Return the columns that define a grouping factor."""
        return next(g.columns for g in self.encoding.groupings if g.field == group)

    @property
    def as_it_is(self) -> AlignedRows:
        """The rows, encoded as those of the fit were."""
        return self._encoded(self.table)

    def _encoded(self, table: pa.Table) -> AlignedRows:
        has_outcome = all(name in table.column_names for name in self.encoding.needed(outcome=True))
        rows = encode_table(self.encoding, table, outcome=has_outcome, dtype=np.float64)
        return AlignedRows(rows, tuple(rows.fields), first_new=self.first_new)


@dataclass(frozen=True)
class ArrayPopulation:
    """A sample of rows, in the layout of the fit.

    Parameters
    ----------
    as_it_is
        The rows.
    places
        Index in x of each numeric column.
    factors
        Levels of each field that holds codes.
    share
        Share of all rows that these are.
    """

    as_it_is: AlignedRows
    places: dict[str, int]
    factors: dict[str, tuple[Level, ...]]
    share: float

    @classmethod
    def of(cls, rows: AlignedRows, fit: FitRows | None, share: float) -> ArrayPopulation:
        """Locate the columns of the rows."""
        source = rows.rows
        if rows.columns is not None or rows.coding is not None:  # brought into the fit's order
            assert fit is not None
            return cls(rows, {name: k for k, name in enumerate(fit.schema.columns)}, {}, share)
        dense = range(len(source.columns)) if source.coding is None else source.coding.dense
        places = {source.columns[column]: k for k, column in enumerate(dense)}
        factors = {k: v for k, v in source.levels.items() if k in source.fields}
        return cls(rows, places, factors, share)

    def __len__(self) -> int:
        return len(self.as_it_is)

    def _batch(self, name: str) -> Batch:
        """Return all rows; refuse a column that they do not have."""
        if name not in self.places and name not in self.factors:
            columns = [*self.places, *self.factors]
            raise SettingError(f"the rows have no column {name!r}: {names_like(name, columns)}")
        return dict(next(self.as_it_is.chunks(len(self))))

    def values(self, name: str) -> np.ndarray:
        """Return the values of a column of x, or of a factor."""
        batch = self._batch(name)
        if name in self.places:
            return np.asarray(batch["x"][:, self.places[name]], float)
        levels = np.array(self.factors[name], dtype=object)
        return np.asarray(levels[batch[name].astype(int)])

    def levels(self, name: str) -> tuple[Level, ...]:
        """Return the levels of a factor; empty for numbers."""
        return self.factors.get(name, ())

    def columns_of(self, group: str) -> tuple[str, ...]:
        """Return the columns that define a grouping factor: itself."""
        return (group,)

    def setting(self, name: str, values: np.ndarray) -> Iterator[Batch]:
        """Yield the rows with a column of x, or the codes of a factor, set to these values."""
        batch = self._batch(name)
        if name in self.places:
            batch["x"] = np.array(batch["x"], float)
            batch["x"][:, self.places[name]] = values
        else:
            code = {level: k for k, level in enumerate(self.factors[name])}
            codes = np.array([code[value] for value in values])
            batch[name] = codes.astype(batch[name].dtype)
        for first in range(0, len(self), CHUNK):
            yield {k: v[first : first + CHUNK] for k, v in batch.items()}


def population(
    data: object,
    rows: AlignedRows | None,
    fit: FitRows | None,
    most: int,
    seed: int,
    groups: Groups | None,
    fitted: Rows | None = None,
) -> Population:
    """Return up to `most` random rows: of the table if the fit had a formula, else of `rows`.

    The rows of the fit, `fitted`, are given if the table is that of the fit: see `table_sample`.
    """
    encoding = None if fit is None else fit.encoding
    if fit is not None and encoding is not None:
        if data is None:
            raise SettingError(
                "this needs the table that the formula was applied to, which this posterior, made "
                "from a digest or loaded from a file, does not hold; give it as `data`."
            )
        source, needed = source_of(data, encoding), encoding.needed(outcome=True)
        if any(name not in source.names for name in needed):
            needed = tuple(name for name in encoding.needed(outcome=False) if name in source.names)
        sample = table_sample(data, needed, most, seed, encoding, encoding.drops, fitted)
        share = 1.0 if len(sample) < most else len(sample) / (source.rows or np.inf)
        if groups in (None, "known"):
            return TablePopulation(sample, encoding, {}, share)
        first_new = {g.field: len(g.levels) for g in encoding.groupings}
        encoding = encoding.with_levels_of(source_of(sample))
        return TablePopulation(sample, encoding, first_new, share)
    if rows is None:
        raise SettingError(
            "this needs rows to average over, and this posterior, made by hand or loaded from a "
            "file, does not hold any; give rows, or a table, as `data`."
        )
    if not len(rows):
        raise DataError("there are no rows to average over: at least one is needed.")
    ids = np.sort(random_rows(len(rows), most, seed))
    sample = replace(rows, rows=rows.rows.subset(ids))
    return ArrayPopulation.of(sample, fit, len(ids) / len(rows))

"""`Rows`: a data set, in memory or in a store."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from modicum.errors import (
    DataError,
    ModicumWarning,
    SettingError,
    first_few,
    listed,
    whole_number,
)
from modicum.markup import box, table, tag
from modicum.rows.checks import RowIndexError, block_rows
from modicum.rows.coding import Array, Coding, DType, Level
from modicum.rows.description import Description, RowsSchema, fingerprint
from modicum.rows.fields import field_stream
from modicum.rows.memory import Backend, MemoryBackend, encoded
from modicum.rows.object_storage import place_of
from modicum.rows.sources import TableSource, is_table, require_columns
from modicum.rows.table_encoding import ChosenColumns, columns_like, columns_of

CHUNK = 1 << 20  # rows read at a time


class Rows:
    """A data set of n rows, each with the same named fields of numbers.

    Rows are checked when they are made (no missing values, no infinities, no text) and do not
    change afterwards. All fields share one type, floating or bytes. A C-contiguous array of that
    type is used without a copy: do not write to it later, or methods that read the rows again will
    refuse them.

    Parameters
    ----------
    x : array of shape (n, d) or data frame, optional
        Predictors, without a column of ones: families add an intercept themselves.
    y : array of shape (n,) or series, optional
        Outcome. A column vector (n, 1) is taken as (n,). For user-defined models the outcome may
        have any shape; families refuse an outcome of several numbers per row.
    offset : array of shape (n,) or series, optional
        Known part of the linear predictor of each row.
    weight : array of shape (n,) or series, optional
        Non-negative weight of each row: a row with weight 3 counts as three rows.
    columns : sequence of str, optional
        Names of the columns of `x`; by default those of the data frame, else x0, x1, ...
    codes : mapping of str to array or series, or data frame, optional
        Categorical predictors by name: the level of each row, as text, whole numbers or a
        categorical series. They are held as integer codes, of the smallest type that fits, and
        enter a regression as treatment contrasts after the columns of `x`: one coefficient for
        each level but the first, which is the reference. Levels are sorted, or in the order of
        the categories; levels that do not occur are ignored.
    dtype : float32, float64, uint8 or None
        Type of all fields but codes. None: float32 if there are floating fields and all of them are
        float32 or narrower, else float64. Integers that the type cannot hold exactly are refused,
        and so is anything but whole numbers from 0 to 255 for uint8, which is for images that
        networks (`mo.models.MLP`, `mo.models.CNN`) read directly.
    **fields : array of shape (n, ...)
        Further fields, of any trailing shape. Fields that are None are dropped. Fields given as
        integers or booleans (`Rows.kinds`) are passed to user-defined models as such.

    Examples
    --------
    >>> import numpy as np
    >>> rows = Rows(x=np.arange(6.0).reshape(3, 2), y=[0, 1, 1], columns=["age", "dose"])
    >>> rows
    Rows(3 rows: x (2,), y; float64, 72 bytes in memory)
    >>> rows.take([2, 0])["x"]
    array([[4., 5.],
           [0., 1.]])
    >>> [len(chunk["y"]) for chunk in rows.chunks(2)]
    [2, 1]

    Factors are held as codes:

    >>> rows = Rows(y=[0, 1, 1], codes={"carrier": ["UA", "AA", "DL"]})
    >>> rows
    Rows(3 rows: y, carrier 3 levels; float64, 27 bytes in memory)
    >>> rows.columns, rows.take([0, 1])["carrier"]
    (('carrier[DL]', 'carrier[UA]'), array([2, 0], dtype=uint8))
    """

    unit: ClassVar[str] = "row"  # what has a log-likelihood and is drawn; see `GroupedRows`
    chunk_units: int | None = None  # how many units a chunk of a pass holds, if the rows say so

    def __init__(
        self,
        # Typed as object, so that type checkers accept Rows(**rows.take(row_ids)).
        x: object = None,
        y: object = None,
        offset: object = None,
        weight: object = None,
        *,
        columns: object = None,
        dtype: object = None,
        codes: object = None,
        **fields: object,
    ) -> None:
        common = {"x": x, "y": y, "offset": offset, "weight": weight}
        stream = field_stream({**common, **fields}, columns, dtype, codes)
        self._backend: Backend = stream.in_memory()

    @classmethod
    def _at(cls, backend: Backend) -> Rows:
        """Make rows of what a backend holds."""
        rows = cls.__new__(cls)
        rows._backend = backend
        return rows

    @property
    def _description(self) -> Description:
        return self._backend.description

    @classmethod
    def from_table(
        cls,
        table: object,
        outcome: str | None = "y",
        predictors: Sequence[str] | None = None,
        offset: str | None = None,
        weight: str | None = None,
        categorical: Sequence[str] | Mapping[str, Level | None] = (),
        dtype: object = None,
        like: object = None,
        dense: bool = False,
    ) -> Rows:
        """Make rows from a pandas or polars data frame or a pyarrow table.

        Parameters
        ----------
        table : DataFrame or Table
        outcome : str or None
            The column that becomes ``y``; None for rows without an outcome.
        predictors : sequence of str, optional
            The columns that become ``x``; by default all that have no other role.
        offset, weight : str, optional
            Columns that become ``offset`` and ``weight``.
        categorical : sequence of str, or mapping of str to level
            Categorical predictors, besides the columns of text and categories. They are held as
            integer codes, of the smallest type that fits, and enter a regression as treatment
            contrasts: one coefficient for each level but the reference. The mapping gives the
            reference levels; the default is the first level in sorted order (numeric order, if all
            levels are numbers, perhaps written as text). Levels that do not occur are ignored.
        dtype : float32, float64, uint8 or None
        like : Posterior, Rows or RowsSchema, optional
            A fit, or other rows, whose columns, levels and formula are used to encode the table.
            The rows have an outcome if the table does. Other arguments do not apply.
        dense : bool
            Whether each level but the reference becomes a column of zeros and ones in ``x``, for
            networks and user-defined models, which read only ``x``. A regression is the same
            either way, and codes take less memory and time.

        Examples
        --------
        >>> import pandas as pd
        >>> flights = pd.DataFrame({"late": [1, 0, 1], "carrier": ["UA", "AA", "DL"]})
        >>> rows = Rows.from_table(flights, outcome="late", categorical=["carrier"])
        >>> rows.columns
        ('carrier[DL]', 'carrier[UA]')
        >>> Rows.from_table(flights[:1], like=rows).slice(0, 1)["carrier"]
        array([2], dtype=uint8)
        """
        choice = ChosenColumns(outcome, predictors, offset, weight, categorical, dense)
        if like is not None:
            if choice != ChosenColumns():
                raise SettingError(
                    "like= already determines the columns: leave the other column arguments out."
                )
            # as a fit or other rows are, with the outcome if the table has one
            fit = getattr(like, "fit_rows", like)
            schema = getattr(fit, "schema", fit)
            if not isinstance(schema, RowsSchema):
                raise SettingError(
                    f"like must be a posterior, rows or their schema, not a {type(like).__name__}."
                )
            if dtype is not None or not is_table(table):
                raise SettingError(
                    "with like=, pass a data frame or an Arrow table, and leave dtype out."
                )
            names = TableSource(table).names
            needed: Sequence[str | None] = [schema.outcome]
            if schema.encoding is not None:
                others = schema.encoding.needed(outcome=False)
                needed = [name for name in schema.encoding.needed() if name not in others]
            return Rows.from_table_like(table, schema, all(name in names for name in needed))
        if not is_table(table):
            raise SettingError(
                f"from_table takes a pandas, polars or pyarrow table, not {type(table).__name__}: "
                "for arrays use Rows(x=..., y=...), for files modicum.rows.ingest."
            )
        return cls._at(columns_of(TableSource(table), choice, dtype).in_memory())

    @classmethod
    def from_table_like(
        cls, table: object, schema: RowsSchema, outcome: bool = True, weights: bool | None = None
    ) -> Rows:
        """Make rows from a table with the columns, levels and reference levels of other rows.

        Columns are found by name, in any order, and other columns are ignored; a level that the
        other rows do not have is refused.

        Parameters
        ----------
        table : DataFrame or Table
        schema : RowsSchema
            Schema of the other rows.
        outcome : bool
            Whether the rows get an outcome; otherwise the table need not have that column.
        weights : bool, optional
            Whether the rows get weights, if the table has them; by default, if they get an outcome.

        Examples
        --------
        >>> import pandas as pd
        >>> flights = pd.DataFrame({"late": [1, 0, 1], "carrier": ["UA", "AA", "DL"]})
        >>> rows = Rows.from_table(flights, outcome="late", categorical=["carrier"])
        >>> new = pd.DataFrame({"carrier": ["UA"]})
        >>> Rows.from_table_like(new, rows.schema, outcome=False).slice(0, 1)["carrier"]
        array([2], dtype=uint8)
        """
        source = TableSource(table)
        if schema.encoding is not None:
            return cls._at(encoded(schema.encoding, source, outcome=outcome, weights=weights))
        weights = outcome if weights is None else weights
        return cls._at(columns_like(source, schema, outcome, weights).in_memory())

    @classmethod
    def with_levels(cls, fields: Mapping[str, object], schema: RowsSchema, dtype: object) -> Rows:
        """Make rows to predict from named arrays, with the columns and levels of other rows.

        Factors are given under "codes", or by name like other fields. There may be no rows.

        Examples
        --------
        >>> rows = Rows(y=[0, 1, 1], codes={"carrier": ["UA", "AA", "DL"]})
        >>> new = Rows.with_levels({"codes": {"carrier": ["UA"]}}, rows.schema, "float64")
        >>> new.take([0])["carrier"]
        array([2], dtype=uint8)
        """
        coding, named = schema.coding, dict(fields)
        factors = named.pop("codes", None)
        if coding is not None:
            if factors is None:
                factors = {name: named.pop(name) for name in coding.fields if name in named}
            elif isinstance(factors, Mapping):
                factors = {name: factors[name] for name in coding.fields if name in factors}
            if factors and is_table(named.get("x")):
                names = [schema.columns[place] for place in coding.dense]  # in any order
                source = TableSource(named["x"])
                require_columns("x, unlike in the rows of the fit", names, source.names)
                named["x"] = source.table(names)
        stream = field_stream(named, named.pop("columns", None), dtype, factors, schema)
        return cls._at(stream.in_memory())

    @classmethod
    def open(cls, store: str | os.PathLike[str], verify: bool = False) -> Rows:
        """Open a store that `ingest` made, without reading it into memory.

        The description, the size of every shard and both ends of its data are checked; `verify`
        also checks the checksums of all data, which reads the whole store. A store on object
        storage (``s3://bucket/folder``) is read over the network, in ranges of bytes.

        Examples
        --------
        >>> import tempfile, numpy as np
        >>> from modicum.rows import ingest
        >>> folder = tempfile.mkdtemp() + "/store"
        >>> made = ingest({"x": np.eye(3), "y": [0, 1, 1]}, folder, progressbar=False)
        >>> Rows.open(folder, verify=True).slice(1, 3)["y"]
        array([1., 1.], dtype=float32)
        """
        if not isinstance(store, str | os.PathLike):
            raise SettingError(
                f"Rows.open takes the folder of a store, not a {type(store).__name__}."
            )
        return cls._at(place_of(store).opened(verify))

    def subset(self, row_ids: Array) -> Rows:
        """Return the rows at `row_ids` as rows in memory, of the same types, columns and levels.

        If a store was damaged after its ingest and holds a value that is not finite, the error
        names its place in the store.
        """
        arrays = {name: np.ascontiguousarray(part) for name, part in self.take(row_ids).items()}
        numbers = [part for part in arrays.values() if part.dtype.kind == "f"]
        if not all(np.isfinite(part).all() for part in numbers):
            damage = first_not_finite(self)
            if damage is not None:
                raise damage.error()
        return Rows._at(MemoryBackend.of(self._description, arrays))

    def reordered(self, columns: Sequence[str]) -> Rows:
        """Return these rows, which must have codes, with their columns in another order.

        The coefficients follow the columns; the data stay unchanged, and the levels of a factor
        must stay adjacent.

        Examples
        --------
        >>> rows = Rows(x=[[0.5], [1.5]], columns=["dose"], codes={"gas": ["neon", "argon"]})
        >>> rows.columns, rows.reordered(["gas[neon]", "dose"]).columns
        (('dose', 'gas[neon]'), ('gas[neon]', 'dose'))
        """
        place = {str(name): i for i, name in enumerate(columns)}
        if self.coding is None or len(place) != len(columns) or set(place) != set(self.columns):
            raise SettingError("reordered takes the columns of rows with codes, each once.")
        try:
            coding = self.coding.reordered([place[name] for name in self.columns])
        except ValueError as fault:
            raise SettingError(f"columns cannot come in this order: {fault}.") from None
        if self.is_store:
            raise SettingError("the columns of a store cannot be reordered: ingest it again.")
        backend = copy(self._backend)
        backend.description = replace(self._description, columns=tuple(place), coding=coding)
        backend.fingerprint = None
        return Rows._at(backend)

    @property
    def members(self) -> Rows:
        """The individual rows, which row numbers refer to: these, unless they are grouped."""
        return self

    @property
    def grouped(self) -> bool:
        """Whether the units are groups, whose effects are integrated out."""
        return self.unit == "group"

    def bounds(self, size: int) -> list[tuple[int, int]]:
        """Return the first unit of each chunk of a pass, and the one after its last."""
        n = len(self)
        return [(start, min(start + size, n)) for start in range(0, n, size)]

    def chunk(self, index: int, size: int, pad: bool = True) -> tuple[dict[str, Array], Array]:
        """Return chunk `index` of `size` rows, and a mask of the units that are present.

        The last chunk is padded with copies of a row, or stays short without `pad`.
        """
        start = index * size
        stop = min(start + size, len(self))
        batch = self.slice(start, stop)
        missing = size - (stop - start) if pad else 0
        if missing:
            batch = {name: np.r_[v, np.repeat(v[:1], missing, axis=0)] for name, v in batch.items()}
        return batch, np.arange(stop - start + missing) < stop - start

    def take(self, row_ids: object) -> dict[str, Array]:
        """Return the rows at `row_ids`, an integer array of any shape S.

        Returns
        -------
        dict of str to array
            Arrays of shape S + row shape. They may be strided views of one packed array.
        """
        try:
            ids = np.asarray(row_ids)
        except ValueError:  # a ragged list
            ids = np.asarray(None)
        if ids.size == 0:
            ids = ids.astype(np.intp)
        if ids.dtype.kind not in "iu":
            raise SettingError(
                f"row numbers must be an array of integers, not of {ids.dtype.name}."
            )
        if ids.size:
            low, high = ids.min(), ids.max()
            if low < 0 or high >= len(self):
                wrong = low if low < 0 else high
                raise RowIndexError(
                    f"row {wrong} does not exist: rows are numbered 0 to {len(self) - 1}."
                )
        return self._backend.take(ids.astype(np.intp, copy=False))

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Return the rows from `start` up to, not including, `stop`: views where possible."""
        try:
            start, stop = operator.index(start), operator.index(stop)
        except TypeError:
            raise SettingError(
                f"a slice takes two row numbers, not {start!r} and {stop!r}."
            ) from None
        if not 0 <= start <= stop <= len(self):
            raise RowIndexError(
                f"rows {start} to {stop} do not exist: a slice must lie within 0 to {len(self)}."
            )
        return self._backend.slice(start, stop)

    def chunks(self, size: int) -> Iterator[dict[str, Array]]:
        """Return an iterator over all rows in order, `size` at a time; the last may be shorter."""
        return self._backend.chunks(whole_number("the size of chunks", size))

    def fingerprint(self) -> str:
        """Return a short hash of the data set, the same in memory and in a store.

        It covers every number, the names, shapes and type of the fields and the number of rows, but
        not the column names. It is computed once, for a store when it is written
        (``Rows.open(store, verify=True)`` checks that the data have not changed since). Arrays that
        were written to since the rows were made are refused.

        Examples
        --------
        >>> rows = Rows(y=[0.0, 1.0, 2.0])
        >>> rows.fingerprint() == Rows(y=[0.0, 1.0, 2.0]).fingerprint()
        True
        >>> rows.fingerprint() == Rows(y=[0.0, 2.0, 1.0]).fingerprint()
        False
        """
        self.require_unchanged()
        backend = self._backend
        if backend.fingerprint is None:
            backend.fingerprint = fingerprint(backend.description, backend.slice)
        return backend.fingerprint

    def require_unchanged(self) -> None:
        """Refuse rows whose arrays were written to since the rows were made.

        Examples
        --------
        >>> import numpy as np
        >>> x = np.ones((4, 2))
        >>> rows = Rows(x=x)
        >>> x *= 1000
        >>> rows.require_unchanged()
        Traceback (most recent call last):
        ...
        modicum.errors.DataError: an array was written to after mo.Rows was made from it, ...
        """
        if not self._backend.unchanged:
            raise DataError(
                "an array was written to after mo.Rows was made from it, so that the rows are no "
                "longer those that were checked and fitted: make rows of a copy, as by "
                "mo.Rows(x=X.copy()), before you change the array, and fit again."
            )

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row of each field, () for a scalar and (d,) for ``x``."""
        return dict(self._description.fields)

    @property
    def kinds(self) -> dict[str, str]:
        """Fields that were given as integers ("integer") or booleans ("boolean").

        They are held in the type of the rows, which represents them exactly.

        Examples
        --------
        >>> Rows(school=[3, 1], treated=[True, False], y=[0.5, 1.5]).kinds
        {'school': 'integer', 'treated': 'boolean'}
        """
        return dict(self._description.kinds)

    @property
    def dtype(self) -> DType:
        """The type of all fields but codes."""
        return self._description.dtype

    @property
    def dtypes(self) -> dict[str, DType]:
        """The type of each field, `dtype` or a small integer for codes."""
        return dict(self._description.dtypes)

    @property
    def coding(self) -> Coding | None:
        """Which columns the codes represent; None for rows of numbers only."""
        return self._description.coding

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of ``x``, and of each level but the reference of coded factors.

        Empty without a two-dimensional ``x`` and without codes.
        """
        return self._description.columns

    @property
    def outcome(self) -> str | None:
        """Name of the outcome's column, if it had one."""
        return self._description.outcome

    @property
    def levels(self) -> dict[str, tuple[Level, ...]]:
        """Levels of each categorical column, the reference first."""
        return dict(self._description.levels)

    @property
    def outcome_levels(self) -> tuple[Level, ...]:
        """Levels of a formula's outcome, held in y as codes 0, 1, ...; empty for numbers."""
        encoding = self._description.encoding
        return () if encoding is None or encoding.outcome is None else encoding.outcome.levels

    @property
    def schema(self) -> RowsSchema:
        """Columns, fields, outcome and levels, which another table must match."""
        return self._description.schema

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self._description.row_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return len(self) * self.row_bytes

    @property
    def is_store(self) -> bool:
        """Whether the rows live in a store on disk."""
        return self._backend.folder is not None

    @property
    def observations(self) -> float:
        """The number of rows, of which one with weight 3 counts as three."""
        if "weight" not in self.fields:
            return float(self._description.n)
        weights = (chunk["weight"] for chunk in self._backend.chunks(CHUNK))
        return sum(float(np.maximum(weight, 1.0).sum(dtype=float)) for weight in weights)

    def __len__(self) -> int:
        return self._description.n

    def __repr__(self) -> str:
        levels = {term.field: term.levels for term in self.coding.terms} if self.coding else {}
        shapes = {k: f"{levels[k]} levels" if k in levels else v for k, v in self.fields.items()}
        parts = ", ".join(f"{k} {v}" if v else k for k, v in shapes.items())
        size = _size(self.nbytes)
        return f"Rows({len(self):,} rows: {parts}; {self.dtype.name}, {size} {self._backend.where})"

    def _repr_html_(self) -> str:
        lines = [
            (name, "x".join(map(str, shape)) or "one number", self.dtypes[name].name)
            for name, shape in self.fields.items()
        ]
        columns = tag("div", f"columns: {first_few(self.columns, 8)}") if self.columns else None
        title = f"{len(self):,} rows, {_size(self.nbytes)} {self._backend.where}"
        return box(tag("b", title), table(("field", "per row", "type"), lines), columns)


class NotFinite(NamedTuple):
    """A NaN or infinite number in rows that passed the check when they were made."""

    column: str
    row: int
    value: float
    where: str

    def error(self) -> DataError:
        """Return the error to raise."""
        value = "NaN" if math.isnan(self.value) else str(self.value)
        return DataError(
            f"column {self.column!r} holds {value} in row {self.row} {self.where}, where it held a "
            "number when the rows were made: the data have changed since, so make the rows again "
            "from their source."
        )


def first_not_finite(rows: Rows) -> NotFinite | None:
    """Return the first number of `rows` that is NaN or infinite; None if there is none.

    This reads all rows up to that number. It is called when a sum over rows is not finite, to
    distinguish damaged data (a store on a failing disk, an array that was written to after `Rows`
    was made) from a model that overflows.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.ones((4, 2))
    >>> rows = Rows(x=x)
    >>> print(first_not_finite(rows))
    None
    >>> x[2, 1] = np.nan  # which the documentation of Rows forbids
    >>> first_not_finite(rows)
    NotFinite(column='x1', row=2, value=nan, where='in memory')
    """
    description = rows._description
    if description.dtype.kind != "f":
        return None
    numbers, start = description.numbers, 0
    for chunk in rows.chunks(block_rows(description.width)):
        if not all(np.isfinite(chunk[name]).all() for name in numbers):
            flat = [chunk[name].reshape(len(chunk[name]), -1) for name in numbers]
            block = np.concatenate(flat, axis=1)
            row, column = (int(i) for i in np.argwhere(~np.isfinite(block))[0])
            labels = [label for name in numbers for label in description.labels(name)]
            value = float(block[row, column])
            return NotFinite(labels[column], start + row, value, rows._backend.where)
        start += len(next(iter(chunk.values())))
    return None


def _size(count: int) -> str:
    if count < 1000:
        return f"{count} bytes"
    power = min(int(math.log10(count) / 3), 4)
    return f"{count / 1000**power:.3g} {' kMGT'[power]}B"


SEEN = 65_536  # evenly spaced rows whose weights are examined
HIGH, LOW = 3.0, 0.1  # bounds on the mean of fractional weights, beyond which they are doubtful
MOST = 1e6  # bound on the mean of integer weights: tables of counts have large ones


@listed
def doubtful_weights(rows: Rows) -> Iterator[ModicumWarning]:
    """Return a warning if the weights do not look like numbers of observations."""
    if "weight" not in rows.fields:
        return
    row_ids = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SEEN)).astype(int))
    weights = np.asarray(rows.take(row_ids)["weight"], np.float64)
    mean = float(weights.mean())
    whole = bool(np.all(weights == np.round(weights)))
    if (LOW <= mean <= HIGH or whole) and mean <= MOST:
        return
    total, times = mean * len(rows), np.sqrt(mean)
    narrow = f"{times:.3g} times as narrow" if mean > 1 else f"{1 / times:.3g} times as wide"
    yield ModicumWarning(
        "weights-sum",
        f"the weights of {len(rows):,} rows sum to about {total:.3g}, and a weight is the "
        f"number of observations a row represents: the posterior is that of {total:.3g} "
        f"independent rows, {narrow} as with {len(rows):,} rows",
        "divide the weights by their mean if they are sampling weights, or leave them out",
        sum=total,
        mean=mean,
    )

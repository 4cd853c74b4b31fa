"""`Rows`: the data set, wherever it lives."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modicum.errors import SettingError
from modicum.rows.checks import RowIndexError
from modicum.rows.description import Array, Description, Level, RowsSchema
from modicum.rows.given import GivenFields
from modicum.rows.memory import Backend, fill
from modicum.rows.tables import read_table

# Rows whose bytes enter the fingerprint.
FINGERPRINT_ROWS = 4096


class Rows:
    """A data set of n rows, each with the same named fields of numbers.

    Rows are checked when they are made (no missing values, no infinities, no text) and do not
    change afterwards. All fields share one type, floating or bytes. An array that already has that
    type and lies row after row in memory is used as it is, without a copy: do not write to it
    later.

    Parameters
    ----------
    x : array of shape (n, d) or data frame, optional
        Predictors, a column of ones included if an intercept is wanted.
    y, offset, weight : array of shape (n,) or series, optional
        Outcome, known part of the linear predictor, and non-negative weight of each row. A column
        vector (n, 1) is taken as (n,); any other shape is refused.
    columns : sequence of str, optional
        Names of the columns of `x`; by default those of the data frame, else x0, x1, ...
    dtype : float32, float64, uint8 or None
        Type of all fields. None: float32 if there are floating fields and all of them are float32
        or narrower, else float64. Numbers that the type cannot hold exactly are refused where they
        are integers or the type is. Bytes (uint8) are for images, which networks
        (`mo.models.MLP`, `mo.models.CNN`) read as they are.
    **fields : array of shape (n, ...)
        Further fields, of any trailing shape. Fields that are None are dropped.

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
    """

    def __init__(
        self,
        x: Any = None,
        y: Any = None,
        offset: Any = None,
        weight: Any = None,
        *,
        columns: Any = None,  # not Sequence[str]: type checkers then accept Rows(**rows.take(i))
        dtype: Any = None,
        **fields: Any,
    ) -> None:
        known = {"x": x, "y": y, "offset": offset, "weight": weight}
        given = GivenFields({**known, **fields}, columns, dtype)
        self._description: Description = given.description
        self._backend: Backend = given.in_memory()
        self._fingerprint: str | None = None

    @classmethod
    def _at(cls, description: Description, backend: Backend) -> Rows:
        rows = cls.__new__(cls)
        rows._description, rows._backend, rows._fingerprint = description, backend, None
        return rows

    @classmethod
    def from_table(
        cls,
        table: Any,
        outcome: str | None = "y",
        predictors: Sequence[str] | None = None,
        offset: str | None = None,
        weight: str | None = None,
        categorical: Sequence[str] | Mapping[str, Any] = (),
        dtype: Any = None,
    ) -> Rows:
        """Make rows of a pandas or polars data frame or a pyarrow table.

        Parameters
        ----------
        table : DataFrame or Table
        outcome : str or None
            The column that becomes ``y``; None for rows without an outcome.
        predictors : sequence of str, optional
            The columns that become ``x``; by default all that have no other part.
        offset, weight : str, optional
            Columns that become ``offset`` and ``weight``.
        categorical : sequence of str, or mapping of str to level
            Predictors that are coded by treatment contrasts: one column of zeros and ones for each
            level but the reference. The mapping gives the reference levels; the default is the
            first level in sorted order. Only levels that occur count.
        dtype : float32, float64, uint8 or None

        Examples
        --------
        >>> import pandas as pd
        >>> flights = pd.DataFrame({"late": [1, 0, 1], "carrier": ["UA", "AA", "DL"]})
        >>> rows = Rows.from_table(flights, outcome="late", categorical=["carrier"])
        >>> rows.columns
        ('carrier[DL]', 'carrier[UA]')
        """
        description, blocks = read_table(
            table, outcome, predictors, offset, weight, categorical, dtype
        )
        return cls._at(description, fill(description, blocks))

    @classmethod
    def open(cls, store: str | Path, verify: bool = False) -> Rows:
        """Open a store that `ingest` made, without reading it into memory.

        The description, the size of every shard and both ends of its data are checked; with
        `verify`, the checksum of all data, which reads the store once.

        Examples
        --------
        >>> import tempfile, numpy as np
        >>> from modicum.rows import ingest
        >>> folder = tempfile.mkdtemp() + "/store"
        >>> made = ingest({"x": np.eye(3), "y": [0, 1, 1]}, folder, progressbar=False)
        >>> Rows.open(folder, verify=True).slice(1, 3)["y"]
        array([1., 1.], dtype=float32)
        """
        from modicum.rows.store import StoreBackend

        backend = StoreBackend(Path(store).absolute(), verify)
        return cls._at(backend.description, backend)

    def take(self, indices: Any) -> dict[str, Array]:
        """Return the rows at `indices`, an integer array of any shape S.

        Returns
        -------
        dict of str to array
            Arrays of shape S + row shape. They may be strided views of one packed array.
        """
        wanted = np.asarray(indices)
        if wanted.size == 0:
            wanted = wanted.astype(np.intp)
        if wanted.dtype.kind not in "iu":
            raise SettingError(f"row numbers must be integers, not {wanted.dtype.name}.")
        if wanted.size:
            low, high = wanted.min(), wanted.max()
            if low < 0 or high >= len(self):
                wrong = low if low < 0 else high
                raise RowIndexError(
                    f"row {wrong} does not exist: rows are numbered 0 to {len(self) - 1}."
                )
        return self._backend.take(wanted.astype(np.intp, copy=False))

    def slice(self, start: int, stop: int) -> dict[str, Array]:
        """Return the rows from `start` up to, not including, `stop`: views where possible."""
        if not 0 <= start <= stop <= len(self):
            raise RowIndexError(
                f"rows {start} to {stop} do not exist: slices lie within 0 to {len(self)}."
            )
        return self._backend.slice(start, stop)

    def chunks(self, size: int) -> Iterator[dict[str, Array]]:
        """Return an iterator over all rows in order, `size` at a time; the last may be shorter."""
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise SettingError(f"the size of chunks must be a positive integer, not {size!r}.")
        return self._backend.chunks(int(size))

    def fingerprint(self) -> str:
        """Return a short hash of the data set, the same in memory and in a store.

        Names, shapes, type and number of rows enter it, and the bytes of up to 4096 rows spread
        evenly from the first to the last: a change elsewhere goes unnoticed.
        """
        if self._fingerprint is None:
            n, about = len(self), self._description
            count = min(n, FINGERPRINT_ROWS)
            sample = np.arange(count, dtype=np.int64) * (n - 1) // max(count - 1, 1)
            shapes = sorted(self.fields.items())
            digest = hashlib.blake2b(digest_size=8)
            digest.update(json.dumps([n, about.dtype.name, shapes]).encode())
            parts = self.take(sample)
            for name, _ in shapes:
                digest.update(np.ascontiguousarray(parts[name], about.dtype.newbyteorder("<")).data)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        """Shape of one row of each field: () for a scalar, (d,) for ``x``."""
        return {f.name: f.shape for f in self._description.fields}

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of all fields."""
        return self._description.dtype

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of ``x``; empty if there is no two-dimensional ``x``."""
        return self._description.columns

    @property
    def outcome(self) -> str | None:
        """Name of the column ``y`` came from, if it had one."""
        return self._description.outcome

    @property
    def levels(self) -> dict[str, tuple[Level, ...]]:
        """Levels of each categorical column, the reference first."""
        return dict(self._description.levels)

    @property
    def schema(self) -> RowsSchema:
        """Columns, fields, outcome and levels: what a later table must match."""
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
        return hasattr(self._backend, "folder")

    def __len__(self) -> int:
        return self._description.n

    def __repr__(self) -> str:
        parts = ", ".join(f"{k} {v}" if v else k for k, v in self.fields.items())
        size = _size(self.nbytes)
        return f"Rows({len(self):,} rows: {parts}; {self.dtype.name}, {size} {self._backend.where})"

    def __reduce__(self) -> Any:
        folder = getattr(self._backend, "folder", None)
        if folder is not None:  # a map cannot travel, its path can
            return Rows.open, (folder,)
        return Rows._at, (self._description, self._backend)


def _size(count: int) -> str:
    if count < 1000:
        return f"{count} bytes"
    power = min(int(math.log10(count) / 3), 4)
    return f"{count / 1000**power:.3g} {' kMGT'[power]}B"

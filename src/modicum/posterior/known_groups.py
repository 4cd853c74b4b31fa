"""Split rows to predict by whether the fit had their groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from modicum.errors import SettingError
from modicum.posterior.alignment import AlignedRows, FitRows, RowsLike, aligned
from modicum.rows.coding import code_type
from modicum.rows.formula import NewLevels
from modicum.rows.formula.columns import BatchColumns
from modicum.rows.formula.grouping import Grouping
from modicum.rows.reading import encode_table, is_tabular

__all__ = ["parts_by_known_groups"]


@dataclass(frozen=True)
class _Lenient(Grouping):
    """A factor that gives unknown levels the first code, and records in which rows they are."""

    unknown: dict[int, np.ndarray] = field(default_factory=dict, compare=False)

    def codes(self, columns: BatchColumns) -> np.ndarray:
        """Return the code of each row of a chunk."""
        places = self.places(columns)
        if len(places):  # keyed by first row, since a file may be read more than once
            self.unknown[columns.row(0)] = places < 0
        return np.maximum(places, 0).astype(code_type(len(self.levels)))


def parts_by_known_groups(
    table: RowsLike, fit: FitRows | None, newlevels: NewLevels
) -> Iterator[tuple[np.ndarray, AlignedRows]]:
    """Yield row numbers and rows, one part for each set of factors whose group the fit had.

    A part leaves out the fields of the factors whose groups the fit did not have.
    """
    if fit is None or fit.encoding is None or not is_tabular(table):
        raise SettingError(
            "groups='any' needs a table, and a posterior of mo.fit; otherwise predict rows of "
            "known groups and rows of new groups separately."
        )
    lenient = [_Lenient(g.columns, g.levels) for g in fit.encoding.groupings]
    encoding = replace(fit.encoding, groupings=tuple(lenient))
    rows = aligned(encode_table(encoding, table, outcome=False, newlevels=newlevels), fit, False)
    unknown = np.zeros((len(rows), len(lenient)), dtype=bool)
    for j, grouping in enumerate(lenient):
        for first, mask in grouping.unknown.items():
            unknown[first : first + len(mask), j] = mask
    if not len(rows):
        yield np.arange(0), rows
    patterns, which = np.unique(unknown, axis=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        row_ids = np.flatnonzero(which.reshape(-1) == k)
        new = {grouping.field for grouping, is_new in zip(lenient, pattern, strict=True) if is_new}
        fields = tuple(name for name in rows.fields if name not in new)
        yield row_ids, replace(rows, rows=rows.rows.subset(row_ids), fields=fields)

"""Which row of a table each row of a fit was: some are dropped, and stores of groups are sorted."""

from __future__ import annotations

import numpy as np

from modicum.rows.description import Array
from modicum.rows.formula import FormulaEncoding
from modicum.rows.formula.columns import complete_rows
from modicum.rows.reading import largest_factor, source_of
from modicum.rows.rows import Rows

__all__ = ["table_numbers", "whole_field"]

CHUNK = 1 << 20  # rows whose fields are read at a time


def table_numbers(rows: Rows, table: object) -> Array | None:
    """Return the number that each of `rows` has in the table that a formula made them of.

    None: they are all of its rows in its order, were not made by a formula, or the table is not
    theirs (any more).

    Parameters
    ----------
    rows
        Rows in the table's order or, as in a store, in that of their largest group.
    table
        Any table that `mo.fit` takes; it is read once, in the columns that say so.

    Examples
    --------
    >>> import pandas as pd
    >>> from modicum.rows.reading import read_formula
    >>> table = pd.DataFrame({"y": [1.0, None, 3.0], "x": [0.5, 1.5, 2.5]})
    >>> made = read_formula("y ~ x", table, missing="drop", progressbar=False)
    >>> table_numbers(made.rows, table).tolist()
    [0, 2]
    """
    origin = rows.schema.origin
    if origin is None:
        return None
    encoding = FormulaEncoding.from_dict(origin)
    field = largest_factor(encoding, rows.schema.levels)
    own = None if field is None else whole_field(rows, field)
    is_sorted = own is not None and bool(np.all(own[1:] >= own[:-1]))
    if not encoding.drops and not is_sorted:
        return None
    numbers, codes = _read(encoding, table, field)
    if len(numbers) != len(rows):
        return None
    if is_sorted:  # of rows of one group the first came first
        order = np.argsort(codes, kind="stable")
        numbers, codes = numbers[order], codes[order]
    return numbers if own is None or np.array_equal(own, codes) else None


def whole_field(rows: Rows, name: str) -> Array:
    """One field of all rows, which need not be in memory with their other fields."""
    return np.concatenate([np.array(chunk[name]) for chunk in rows.chunks(CHUNK)])


def _read(encoding: FormulaEncoding, table: object, field: str | None) -> tuple[Array, Array]:
    """The numbers of the table's rows that a fit keeps, and the codes of a factor there."""
    source = source_of(table)
    needed = encoding.needed() if encoding.drops else ()
    factors = [group for group in encoding.groupings if group.field == field]
    columns = list(dict.fromkeys([*needed, *(name for g in factors for name in g.columns)]))
    numbers, codes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for part, _ in complete_rows(source.batches(columns), columns, encoding.drops):
        numbers.append(part.row_ids)
        codes += [group.places(part) for group in factors]
    return np.concatenate(numbers), np.concatenate(codes)

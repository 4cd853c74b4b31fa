"""Maps the rows of a fit, some of which may be dropped or sorted, to the rows of its table."""

from __future__ import annotations

import numpy as np

from modicum.rows.description import Array
from modicum.rows.formula import FormulaEncoding
from modicum.rows.formula.columns import complete_rows
from modicum.rows.reading import largest_factor, reread, source_of
from modicum.rows.rows import Rows

CHUNK = 1 << 20  # rows read at a time


def table_numbers(rows: Rows, table: object) -> Array | None:
    """Return the row number in `table` of each of `rows`, which a formula made from it.

    None if the rows are all rows of the table in its order, if they were not made by a formula, or
    if the table is not (any longer) the one they were made from.

    Parameters
    ----------
    rows
        Rows in the table's order or, as in a store, sorted by their largest group.
    table
        Any table that `mo.fit` takes; only the columns needed for matching are read, once.

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
    if is_sorted:  # by a stable sort, which keeps the table's order within a group
        order = np.argsort(codes, kind="stable")
        numbers, codes = numbers[order], codes[order]
    return numbers if own is None or np.array_equal(own, codes) else None


def whole_field(rows: Rows, name: str) -> Array:
    """Return one field of all rows, without loading their other fields into memory."""
    return np.concatenate([np.array(chunk[name]) for chunk in rows.chunks(CHUNK)])


def _read(encoding: FormulaEncoding, table: object, field: str | None) -> tuple[Array, Array]:
    """Return the numbers of the table rows that a fit keeps, and the codes of their factor."""
    source = source_of(table, encoding)
    # A column may have been taken out of the table since.
    needed = [name for name in encoding.needed() if encoding.drops and name in source.names]
    factors = [
        g for g in encoding.groupings if g.field == field and {*g.columns} <= {*source.names}
    ]
    columns = list(dict.fromkeys([*needed, *(name for g in factors for name in g.columns)]))

    def read() -> tuple[Array, Array]:
        numbers, codes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for part, _ in complete_rows(source.batches(columns), columns, encoding.drops):
            numbers.append(part.row_ids)
            codes += [group.places(part) for group in factors]
        return np.concatenate(numbers), np.concatenate(codes)

    return reread(read)

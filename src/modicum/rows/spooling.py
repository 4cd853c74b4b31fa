"""Tables that can be iterated only once, written to a temporary file to be read again."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from modicum.errors import DataError, ResourceError, SettingError, first_line
from modicum.rows.checks import names_like
from modicum.rows.sources import (
    BATCH_ROWS,
    FileSource,
    TableSource,
    is_table,
    refuse_booleans_and_numbers,
)

if TYPE_CHECKING:
    import pyarrow as pa


class SpooledSource(FileSource):
    """Tables that can be iterated only once, written to a temporary file.

    Parameters
    ----------
    tables
        pandas or polars frames, or Arrow tables or record batches, of one schema.
    """

    def __init__(self, tables: Iterable[object]) -> None:
        with _temporary():
            folder = tempfile.mkdtemp(prefix="modicum-tables-")
        self._gone = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / "tables.arrow"
        try:
            rows = _spool(tables, path)
            super().__init__([path], parquet=False)
        except BaseException:
            self._gone()  # at once: the error's traceback keeps this object
            raise
        self.rows = rows


def _spool(tables: Iterable[object], path: Path) -> int:
    import pyarrow as pa

    writer, schema, rows = None, None, 0
    try:
        for number, table in enumerate(tables):
            if not is_table(table):
                raise SettingError(
                    f"entry {number} is a {type(table).__name__}, but all entries must be data "
                    "frames or Arrow tables, or all must be paths."
                )
            source = TableSource(table)
            part = source.table(source.names)
            if writer is None or schema is None:
                schema = part.schema
                with _temporary():
                    writer = pa.ipc.new_file(str(path), schema)
            part = _cast_to_first(part, schema, number)
            with _temporary():
                writer.write_table(part, max_chunksize=BATCH_ROWS)
            rows += part.num_rows
    finally:
        if writer is not None:
            with _temporary():
                writer.close()
    if not rows:
        raise DataError(
            "there are no rows in the tables: at least one is needed, and an iterator that has "
            "been read has none left, so give the tables again, or as a list."
        )
    return rows


@contextlib.contextmanager
def _temporary() -> Iterator[None]:
    """Turn a failure to write the temporary file into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise ResourceError(
            "tables that can be read only once are written to a temporary file, which cannot be "
            f"done ({first_line(error)}): free some space in the temporary folder, or name another "
            "by the environment variable TMPDIR."
        ) from None


def _cast_to_first(part: pa.Table, schema: pa.Schema, number: int) -> pa.Table:
    """Cast a table to the schema of the first; refuse other columns and values that do not fit."""
    import pyarrow as pa

    for name in schema.names:
        if name not in part.column_names:
            raise DataError(
                f"column {name!r} is not in table {number}: {names_like(name, part.column_names)}"
            )
    refuse_booleans_and_numbers(schema.names, {"table 0": schema, f"table {number}": part.schema})
    try:
        return part.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise DataError(
            f"table {number} holds other types of values than the first ({first_line(error)}): "
            "convert its columns to the types of the first."
        ) from None

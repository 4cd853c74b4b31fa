"""CSV files as a table: streamed, with types that widen when a later row calls for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from modicum.errors import DataError, argument
from modicum.rows.encode import is_number
from modicum.rows.sources import line, require_columns

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 23


class TypesWidened(Exception):  # noqa: N818 - a signal between reader and ingest, not an error
    """A column needs a wider type than its first rows showed: read again from the beginning."""


class CsvSource:
    """CSV files, one after the other; row numbers count data rows from 0.

    Arrow takes a column's type from the first few megabytes. Where a later value does not fit,
    the column's type is widened (whole numbers to floats, then to text if it is categorical) and
    `TypesWidened` tells the caller to start over.
    """

    def __init__(self, paths: Sequence[Path], categorical: Sequence[str] = ()) -> None:
        self._paths, self._categorical = paths, categorical
        self._types: dict[Path, dict[str, Any]] = {path: {} for path in paths}
        self._schema = self._open(paths[0], None).schema
        self.names = tuple(self._schema.names)
        self.rows: int | None = None

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns as the first rows show them."""
        return [self._schema.field(name).type for name in columns]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns, in order."""
        import pyarrow as pa

        for path in self._paths:
            names = self._open(path, None).schema.names
            require_columns(path, columns, names)
            reader = self._open(path, columns)
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    break
                except pa.ArrowException as error:
                    self._widen(path, names, error)
                yield batch

    def _open(self, path: Path, columns: Sequence[str] | None, **types: Any) -> Any:
        import pyarrow as pa
        from pyarrow import csv

        convert = csv.ConvertOptions(
            include_columns=None if columns is None else list(columns),
            column_types={**self._types[path], **types},
            strings_can_be_null=True,
        )
        try:
            return csv.open_csv(
                path,
                read_options=csv.ReadOptions(block_size=BLOCK_BYTES),
                parse_options=csv.ParseOptions(delimiter="\t" if ".tsv" in path.suffixes else ","),
                convert_options=convert,
            )
        except (pa.ArrowException, OSError) as error:
            if columns is None:
                raise DataError(f"{path} cannot be read as CSV ({line(error)}).") from None
            names = self._open(path, None).schema.names
            self._widen(path, names, error)

    def _widen(self, path: Path, names: Sequence[str], error: Exception) -> NoReturn:
        """Widen the column that `error` is about and raise `TypesWidened`, or say what is wrong."""
        import pyarrow as pa

        found = re.search(r"CSV column #(\d+).*conversion error", str(error))
        if found is None:
            raise DataError(f"{path} is not well-formed CSV ({line(error)}): mend it.") from None
        name = names[int(found.group(1))]
        if name in self._categorical:
            self._types[path][name] = pa.string()
        elif self._types[path].get(name) is None:
            self._types[path][name] = pa.float64()
        else:
            raise DataError(self._text_sentence(path, name)) from None
        raise TypesWidened

    def _text_sentence(self, path: Path, name: str) -> str:
        """Name the first value of a column that is no number."""
        import pyarrow as pa

        start = sum(self._count(p) for p in self._paths[: self._paths.index(path)])
        for batch in self._open(path, [name], **{name: pa.string()}):
            for row, value in enumerate(batch.column(0).to_pylist(), start=start):
                if value is not None and not is_number(value):
                    return (
                        f"column {name!r} holds text ({value!r} in row {row}): mend the value, "
                        f"or pass {argument('categorical', [name])} to code the column as levels."
                    )
            start += batch.num_rows
        return f"column {name!r} of {path} holds values that are no numbers: mend it."

    def _count(self, path: Path) -> int:
        import pyarrow as pa

        name = self._open(path, None).schema.names[0]
        return sum(batch.num_rows for batch in self._open(path, [name], **{name: pa.string()}))

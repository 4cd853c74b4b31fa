"""CSV files as a streamed table, whose column types widen if a later row requires it."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NoReturn, TypeVar

from modicum.errors import DataError, SettingError, argument, first_line
from modicum.rows.dialect import Dialect
from modicum.rows.sources import (
    Source,
    refuse_booleans_and_numbers,
    refuse_repeated,
    require_columns,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow.fs import FileSystem

BLOCK_BYTES = 1 << 23
T = TypeVar("T")


class TypesWidened(Exception):  # noqa: N818 - a signal between reader and ingest, not an error
    """A column needs a wider type than its first rows suggested: read again from the start."""


def reread(read: Callable[[], T]) -> T:
    """Return what `read` returns, started over if a column of a CSV file needs a wider type."""
    while True:
        try:
            return read()
        except TypesWidened:
            continue


class CsvSource(Source):
    """CSV files read one after the other; row numbers count data rows from 0.

    Categorical columns are read as text, so that levels stay as they are written: "01234" and
    "1234" are two ZIP codes. Arrow infers the type of every other column from its first few
    megabytes. If a later value does not fit, the column is read as floats from then on, and
    `TypesWidened` tells the caller to start over. Each file may have its own `Dialect`.

    Parameters
    ----------
    paths : sequence of PurePath
        Their paths in the file system.
    categorical : sequence of str
        Columns to read as text.
    encoding : str
        Encoding of the files, by its Python name.
    levels : bool
        Whether a column that contains anything but numbers is read as text instead of refused.
    system : FileSystem, optional
        The file system of the files; None: that of this machine.
    """

    def __init__(
        self,
        paths: Sequence[PurePath],
        categorical: Sequence[str] = (),
        encoding: str = "utf-8",
        levels: bool = False,
        system: FileSystem | None = None,
    ) -> None:
        import pyarrow as pa
        from pyarrow import fs

        try:
            "a".encode(encoding)  # also refuses codecs that are not text encodings
            self._encoding = codecs.lookup(encoding).name
        except (LookupError, TypeError, ValueError):
            raise SettingError(
                f"encoding must be one that Python knows, such as 'latin-1', not {encoding!r}."
            ) from None
        self._paths, self._levels = paths, levels
        self._system = fs.LocalFileSystem() if system is None else system
        self._dialects = {path: Dialect.of(path, self._system, self._encoding) for path in paths}
        texts = dict.fromkeys(categorical, pa.string())
        self._types: dict[PurePath, dict[str, pa.DataType]] = {path: dict(texts) for path in paths}
        self._schema = self._first_rows(paths[0])
        self.names = tuple(self._schema.names)

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns, as inferred from the rows read so far.

        They are those of the first file, but a column without values has the type of the first
        file in which it has some.
        """
        import pyarrow as pa

        refuse_repeated(columns, self._schema.names)
        kinds = self._types_in(self._paths[0], self._schema)
        rest = iter(self._paths[1:])
        while any(pa.types.is_null(kinds[name]) for name in columns):
            path = next(rest, None)
            if path is None:
                break
            found = self._types_in(path, self._first_rows(path))
            empty = [name for name, kind in kinds.items() if pa.types.is_null(kind)]
            kinds |= {name: found.get(name, kinds[name]) for name in empty}
        return [kinds[name] for name in columns]

    def _types_in(self, path: PurePath, schema: pa.Schema) -> dict[str, pa.DataType]:
        """Return the types of one file's columns: widened, or as inferred from its first rows."""
        inferred = dict(zip(schema.names, schema.types, strict=True))
        return inferred | {n: t for n, t in self._types[path].items() if n in inferred}

    def with_text(self, columns: Sequence[str]) -> CsvSource:
        """Return the same files with these columns as text."""
        return CsvSource(self._paths, columns, self._encoding, self._levels, self._system)

    def _read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns, in order."""
        import pyarrow as pa

        for path in self._paths:
            require_columns(path, columns, self._first_rows(path).names)
            try:
                reader = self._open(path, columns, self._types[path])
                known = pa.schema(zip(columns, self.types(columns), strict=True))
                refuse_booleans_and_numbers(
                    columns, {str(self._paths[0]): known, str(path): reader.schema}
                )
                binary = [f.name for f in reader.schema if pa.types.is_binary(f.type)]
                if binary:  # Arrow's type for text that it cannot decode
                    self._require_encoding(path)
                while True:
                    yield reader.read_next_batch()
            except StopIteration:
                continue
            except (pa.ArrowException, OSError, UnicodeError) as error:
                self._widen(path, columns, error)

    def _first_rows(self, path: PurePath) -> pa.Schema:
        """Names and types of all columns, as inferred from the first rows of a file."""
        import pyarrow as pa

        try:
            schema = self._open(path, None, self._types[path]).schema
            schema.names  # noqa: B018 - decoded on access
        except (pa.ArrowException, OSError, UnicodeError) as error:
            self._require_encoding(path)
            raise DataError(
                f"{path} cannot be read as CSV ({first_line(error)}): it should begin with a line "
                "of column names, and every later line should have a value for each of them."
            ) from None
        return schema

    def _open(
        self, path: PurePath, columns: Sequence[str] | None, types: Mapping[str, pa.DataType]
    ) -> arrow_csv.CSVStreamingReader:
        from pyarrow import csv as arrow_csv

        dialect = self._dialects[path]
        return arrow_csv.open_csv(
            self._system.open_input_stream(str(path)),  # decompressed by the file's ending
            read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES, encoding=self._encoding),
            parse_options=arrow_csv.ParseOptions(delimiter=dialect.separator),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=None if columns is None else list(columns),
                column_types=dict(types),
                strings_can_be_null=True,
                decimal_point=dialect.point,
            ),
        )

    def _widen(self, path: PurePath, columns: Sequence[str], error: Exception) -> NoReturn:
        """Widen the columns that hold a misfit and raise `TypesWidened`; else raise `DataError`."""
        import pyarrow as pa

        self._require_encoding(path)
        schema = self._first_rows(path)
        types = {name: self._types[path].get(name, schema.field(name).type) for name in columns}
        try:
            misfits = self._misfits(path, types)
        except (pa.ArrowException, OSError) as malformed:
            raise DataError(
                f"{path} is not well-formed CSV ({first_line(malformed)}): correct it."
            ) from None
        if not misfits:
            raise DataError(
                f"{path} cannot be read as CSV ({first_line(error)}): correct it."
            ) from None
        for name, (row, value) in misfits.items():
            if types[name] == pa.float64() and self._levels:
                for types_of_file in self._types.values():  # text in one file is text in all
                    types_of_file[name] = pa.string()
                continue
            if types[name] == pa.float64():
                row += sum(self._count(p) for p in self._paths[: self._paths.index(path)])
                raise DataError(
                    f"column {name!r} holds text ({value!r} in row {row}): correct the value, or, "
                    f"if the column is a predictor, pass {argument('categorical', [name])} to code "
                    "it as levels."
                ) from None
            self._types[path][name] = pa.float64()
        raise TypesWidened

    def _misfits(
        self, path: PurePath, types: Mapping[str, pa.DataType]
    ) -> dict[str, tuple[int, str]]:
        """Read a file as text; return row and value of each column's first misfit.

        Arrow's error message names the column too, but its wording may change.
        """
        import pyarrow as pa

        misfits: dict[str, tuple[int, str]] = {}
        start, point = 0, self._dialects[path].point
        for batch in self._open(path, list(types), dict.fromkeys(types, pa.string())):
            for name in types.keys() - misfits.keys():
                values = batch.column(name)
                row = _first_misfit(values, types[name], point)
                if row is not None:
                    misfits[name] = start + row, values[row].as_py()
            start += batch.num_rows
        return misfits

    def _count(self, path: PurePath) -> int:
        import pyarrow as pa

        name = self._first_rows(path).names[0]
        return sum(batch.num_rows for batch in self._open(path, [name], {name: pa.string()}))

    def _require_encoding(self, path: PurePath) -> None:
        """Refuse a file that is not in the stated encoding, naming the first invalid byte."""
        import pyarrow as pa

        decoder = codecs.getincrementaldecoder(self._encoding)()
        lines, start = 1, b""
        try:
            with self._system.open_input_stream(str(path)) as stream:
                while block := stream.read(BLOCK_BYTES):
                    start = start or block[:4]
                    lines += decoder.decode(block).count("\n")
                decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            before = error.object[: error.start]
            lines += before.count(b"\n")
            at = f"byte 0x{error.object[error.start]:02x} in line {lines}"
            raise DataError(
                f"{path} is not {self._encoding} text ({at}): {self._remedy(start, before)}"
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path} cannot be read ({first_line(error)}): check the file."
            ) from None

    def _remedy(self, start: bytes, before: bytes) -> str:
        if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return f"it is UTF-16; pass {argument('encoding', 'utf-16')}, or save it as UTF-8."
        if b"\0" in start + before:
            return "it does not look like text at all; check what kind of file it is."
        if self._encoding == "utf-8":
            return (
                "it is probably Latin-1 (or Windows-1252); pass "
                f"{argument('encoding', 'latin-1')}, or convert it to UTF-8 (iconv -f latin1 -t "
                "utf-8)."
            )
        return "pass its actual encoding, or convert it to UTF-8."


def _first_misfit(values: pa.Array, kind: pa.DataType, point: str = ".") -> int | None:
    """Index of the first text that cannot be read as `kind`, found by bisection."""
    import pyarrow as pa
    from pyarrow import compute

    def fits(part: pa.Array) -> bool:
        if pa.types.is_null(kind):
            return bool(part.null_count == len(part))
        try:
            pointed = compute.replace_substring(part, point, ".")
            compute.cast(compute.utf8_trim_whitespace(pointed), kind)
        except pa.ArrowException:
            return False
        return True

    if fits(values):
        return None
    low, high = 0, len(values)  # the first misfit is in values[low:high]
    while high - low > 1:
        middle = (low + high) // 2
        if fits(values.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low

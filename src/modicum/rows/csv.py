"""CSV files as a streamed table, whose column types widen if a later row requires it.

How a file separates its columns and writes its numbers is seen in its first lines.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import NamedTuple, NoReturn, TypeVar

from modicum.errors import DataError, SettingError, argument, first_line
from modicum.libraries import pyarrow as pa
from modicum.rows.checks import SEPARATORS
from modicum.rows.sources import (
    Source,
    refuse_booleans_and_numbers,
    refuse_repeated,
    require_columns,
)

BLOCK_BYTES = 1 << 23
BEGINNING_BYTES = 1 << 16
DECIMAL_COMMA = re.compile(r"[-+]?(?!0*[1-9]\d{0,2}(,\d{3})+$)\d*,\d+")
DECIMAL_POINT = re.compile(r"[-+]?\d*\.\d+")
QUOTED = re.compile(r'"[^"]*"')
T = TypeVar("T")


class Dialect(NamedTuple):
    r"""The separator of the columns, and the decimal point.

    Examples
    --------
    >>> Dialect.seen_in("age,dose\n30,1.5\n")
    Dialect(separator=',', point='.')
    >>> Dialect.seen_in("age;dose\n30;1,5\n")  # as spreadsheets in much of Europe write it
    Dialect(separator=';', point=',')
    """

    separator: str = ","
    point: str = "."

    @classmethod
    def of(cls, path: PurePath, system: pa.fs.FileSystem, encoding: str) -> Dialect:
        """Return the dialect of a file, which may be compressed."""
        try:
            with system.open_input_stream(str(path)) as stream:
                start = bytes(stream.read(BEGINNING_BYTES))
        except (pa.ArrowException, OSError):
            return cls()  # opening the file says what is wrong with it
        if ".tsv" in [suffix.lower() for suffix in path.suffixes]:
            return cls("\t")
        text = codecs.getincrementaldecoder(encoding)("replace").decode(start)
        whole_lines = text if len(start) < BEGINNING_BYTES else text.rpartition("\n")[0]
        return cls.seen_in(whole_lines)

    @classmethod
    def seen_in(cls, text: str) -> Dialect:
        """Return the dialect of a file that begins with `text`.

        The separator is a comma if the line of column names holds one, whatever else it holds.
        Numbers have a decimal comma if columns are separated by semicolons, some value in the first
        lines has a decimal comma (1,500 may as well be 1500, 1,5 may not), and none has a point.
        """
        header, *lines = QUOTED.sub("", text).splitlines() or [""]
        marks = [mark for mark in SEPARATORS.values() if mark in header]
        if "," in header or not marks:
            return cls()
        if marks[0] != ";":
            return cls(marks[0])
        values = [value.strip() for line in lines for value in line.split(";")]
        commas = any(DECIMAL_COMMA.fullmatch(value) for value in values)
        points = any(DECIMAL_POINT.fullmatch(value) for value in values)
        return cls(";", "," if commas and not points else ".")


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
    system : FileSystem
        The file system of the files.
    categorical : sequence of str
        Columns to read as text.
    encoding : str
        Encoding of the files, by its Python name.
    levels : bool
        Whether a column that contains anything but numbers is read as text instead of refused.
    """

    written = True

    def __init__(
        self,
        paths: Sequence[PurePath],
        system: pa.fs.FileSystem,
        categorical: Sequence[str] = (),
        encoding: str = "utf-8",
        levels: bool = False,
    ) -> None:
        try:
            "a".encode(encoding)  # also refuses codecs that are not text encodings
            codec = codecs.lookup(encoding).name
        except (LookupError, TypeError, ValueError):
            raise SettingError(
                f"encoding must be one that Python knows, such as 'latin-1', not {encoding!r}."
            ) from None
        self._paths, self._system, self._encoding, self._levels = paths, system, codec, levels
        self._files = [CsvFile(path, system, codec, categorical) for path in paths]
        self.names = tuple(self._files[0].schema.names)

    def with_text(self, columns: Sequence[str]) -> CsvSource:
        """Return the same files with these columns as text."""
        return CsvSource(self._paths, self._system, columns, self._encoding, self._levels)

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns, as inferred from the rows read so far.

        They are those of the first file, but a column without values has the type of the first
        file in which it has some.
        """
        refuse_repeated(columns, self.names)
        kinds = dict.fromkeys(columns, pa.null())
        for file in self._files:
            empty = [name for name, kind in kinds.items() if pa.types.is_null(kind)]
            if not empty:
                break
            kinds |= {name: file.types.get(name, pa.null()) for name in empty}
        return [kinds[name] for name in columns]

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches with (at least) these columns, in order."""
        for file in self._files:
            require_columns(file.path, columns, file.schema.names)
            try:
                reader = file.open(columns)
                known = pa.schema(zip(columns, self.types(columns), strict=True))
                parts = {str(self._paths[0]): known, str(file.path): reader.schema}
                refuse_booleans_and_numbers(columns, parts)
                if any(map(pa.types.is_binary, reader.schema.types)):
                    file.require_encoding()  # Arrow's type for text that it cannot decode
                yield from reader
            except (pa.ArrowException, OSError, UnicodeError) as error:
                self._widen(file, columns, error)

    def _widen(self, file: CsvFile, columns: Sequence[str], error: Exception) -> NoReturn:
        """Widen the columns that hold a misfit and raise `TypesWidened`; else raise `DataError`."""
        file.require_encoding()
        types = {name: file.types[name] for name in columns}
        try:
            misfits = file.misfits(types)
        except (pa.ArrowException, OSError) as malformed:
            raise DataError(
                f"{file.path} is not well-formed CSV ({first_line(malformed)}): correct it."
            ) from None
        if not misfits:
            raise DataError(
                f"{file.path} cannot be read as CSV ({first_line(error)}): correct it."
            ) from None
        for name, (row, value) in misfits.items():
            if types[name] != pa.float64():
                file.widened[name] = pa.float64()
            elif self._levels:
                for each in self._files:  # text in one file is text in all
                    each.widened[name] = pa.string()
            else:
                row += sum(each.count() for each in self._files[: self._files.index(file)])
                raise DataError(
                    f"column {name!r} holds text ({value!r} in row {row}): correct the value, or, "
                    f"if the column is a predictor, pass {argument('categorical', [name])} to code "
                    "it as levels."
                ) from None
        raise TypesWidened


class CsvFile:
    """One file: its dialect, and the types of its columns.

    Attributes
    ----------
    path
        Its path in the file system.
    widened
        Types of columns that differ from what Arrow infers from the first few megabytes.
    """

    def __init__(
        self, path: PurePath, system: pa.fs.FileSystem, encoding: str, categorical: Sequence[str]
    ) -> None:
        self.path, self._system, self._encoding = path, system, encoding
        self._dialect = Dialect.of(path, system, encoding)
        self.widened = dict.fromkeys(categorical, pa.string())

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of all columns, as inferred from the first rows."""
        try:
            schema = self.open(None).schema
            schema.names  # noqa: B018 - decoded on access
        except (pa.ArrowException, OSError, UnicodeError) as error:
            self.require_encoding()
            raise DataError(
                f"{self.path} cannot be read as CSV ({first_line(error)}): it should begin with a "
                "line of column names, and every later line should have a value for each of them."
            ) from None
        return schema

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Types of the columns: widened, or as inferred."""
        inferred = dict(zip(self.schema.names, self.schema.types, strict=True))
        return {name: self.widened.get(name, kind) for name, kind in inferred.items()}

    def open(
        self, columns: Sequence[str] | None, types: Mapping[str, pa.DataType] | None = None
    ) -> pa.csv.CSVStreamingReader:
        """Open the file to read some columns, or all."""
        return pa.csv.open_csv(
            self._system.open_input_stream(str(self.path)),  # decompressed by the file's ending
            read_options=pa.csv.ReadOptions(block_size=BLOCK_BYTES, encoding=self._encoding),
            parse_options=pa.csv.ParseOptions(delimiter=self._dialect.separator),
            convert_options=pa.csv.ConvertOptions(
                include_columns=None if columns is None else list(columns),
                column_types=dict(self.widened if types is None else types),
                strings_can_be_null=True,
                decimal_point=self._dialect.point,
            ),
        )

    def misfits(self, types: Mapping[str, pa.DataType]) -> dict[str, tuple[int, str]]:
        """Read the file as text; return row and value of each column's first misfit.

        Arrow's error message names the column too, but its wording may change.
        """
        found: dict[str, tuple[int, str]] = {}
        start = 0
        for batch in self.open(list(types), dict.fromkeys(types, pa.string())):
            for name in types.keys() - found.keys():
                values = batch.column(name)
                row = _first_misfit(values, types[name], self._dialect.point)
                if row is not None:
                    found[name] = start + row, values[row].as_py()
            start += batch.num_rows
        return found

    def count(self) -> int:
        """Count the rows."""
        name = self.schema.names[0]
        return sum(batch.num_rows for batch in self.open([name], {name: pa.string()}))

    def require_encoding(self) -> None:
        """Refuse a file that is not in the stated encoding, naming the first invalid byte."""
        decoder = codecs.getincrementaldecoder(self._encoding)()
        lines, start = 1, b""
        try:
            with self._system.open_input_stream(str(self.path)) as stream:
                while block := stream.read(BLOCK_BYTES):
                    start = start or block[:4]
                    lines += decoder.decode(block).count("\n")
                decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            before = error.object[: error.start]
            lines += before.count(b"\n")
            at = f"byte 0x{error.object[error.start]:02x} in line {lines}"
            raise DataError(
                f"{self.path} is not {self._encoding} text ({at}): {self._remedy(start, before)}"
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self.path} cannot be read ({first_line(error)}): check the file."
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

    def fits(part: pa.Array) -> bool:
        if pa.types.is_null(kind):
            return bool(part.null_count == len(part))
        try:
            pointed = pa.compute.replace_substring(part, point, ".")
            pa.compute.cast(pa.compute.utf8_trim_whitespace(pointed), kind)
        except pa.ArrowException:
            return False
        return True

    if fits(values):
        return None
    return bisect_left(range(len(values)), True, key=lambda row: not fits(values[: row + 1]))

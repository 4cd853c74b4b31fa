"""CSV files as a streamed table, whose integers may turn into fractions.

How a file separates its columns and writes its numbers is seen in its first lines.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import NamedTuple

from modicum.errors import DataError, SettingError, argument, first_line
from modicum.libraries import pyarrow as pa
from modicum.rows.checks import SEPARATORS
from modicum.rows.formula.expressions import Expression
from modicum.rows.levels import StrayTextError
from modicum.rows.sources import (
    Source,
    from_row,
    kind_of,
    refuse_booleans_and_numbers,
    refuse_repeated,
    require_columns,
)

BLOCK_BYTES = 1 << 23
BEGINNING_BYTES = 1 << 16
DECIMAL_COMMA = re.compile(r"[-+]?(?!0*[1-9]\d{0,2}(,\d{3})+$)\d*,\d+")
DECIMAL_POINT = re.compile(r"[-+]?\d*\.\d+")
QUOTED = re.compile(r'"[^"]*"')


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


@dataclass(eq=False)
class CsvSource(Source):
    """CSV files read one after the other; row numbers count data rows from 0.

    Categorical columns are read as text, so that levels stay as they are written: "01234" and
    "1234" are two ZIP codes. The type of every other column is that of its first few megabytes;
    integers may turn into fractions later, but numbers not into text. Each file may have its own
    `Dialect`.

    Parameters
    ----------
    paths : sequence of PurePath
        Their paths in the file system.
    system : FileSystem
        The file system of the files.
    encoding : str
        Encoding of the files, by its Python name.
    formula : bool
        Whether a formula says which columns are levels, or the argument `categorical`.
    text : tuple of str
        Columns to read as text.
    """

    paths: Sequence[PurePath]
    system: pa.fs.FileSystem
    encoding: str = "utf-8"
    formula: bool = False
    text: tuple[str, ...] = ()
    written = True

    def __post_init__(self) -> None:
        try:
            "a".encode(self.encoding)  # also refuses codecs that are not text encodings
            self.encoding = codecs.lookup(self.encoding).name
        except (LookupError, TypeError, ValueError):
            raise SettingError(
                f"encoding must be one that Python knows, such as 'latin-1', not {self.encoding!r}."
            ) from None

    @cached_property
    def _files(self) -> list[CsvFile]:
        return [CsvFile(path, self) for path in self.paths]

    @cached_property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the columns."""
        return tuple(self._files[0].schema.names)

    def with_text(self, columns: Sequence[str]) -> CsvSource:
        """Return the same files with these columns as text too."""
        return replace(self, text=(*self.text, *columns))

    def types(self, columns: Sequence[str]) -> list[pa.DataType]:
        """Arrow types of the columns in the first file in which they begin with a value."""
        refuse_repeated(columns, self.names)
        kinds = dict.fromkeys(columns, pa.null())
        for file in self._files:
            empty = [name for name, kind in kinds.items() if pa.types.is_null(kind)]
            kinds |= {f.name: f.type for f in file.schema if f.name in empty}
            file.require_text(columns)
        for name in [name for name, kind in kinds.items() if pa.types.is_null(kind)]:
            if any(batch.num_rows > batch.column(0).null_count for batch in self.read([name])):
                kinds[name] = pa.float64()
        return [kinds[name] for name in columns]

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches with (at least) these columns, in order."""
        start, first = 0, self._files[0]
        for file in self._files:
            require_columns(file.path, columns, file.schema.names)
            parts = {str(each.path): each.schema for each in (first, file)}
            refuse_booleans_and_numbers(columns, parts)
            for batch in file.read(columns, start):
                yield batch
                start += batch.num_rows


class CsvFile:
    """One file: its dialect, and the types of its columns.

    Attributes
    ----------
    path
        Its path in the file system.
    """

    def __init__(self, path: PurePath, of: CsvSource) -> None:
        self.path, self._of, self._dialect = path, of, Dialect.of(path, of.system, of.encoding)
        self._chosen = dict.fromkeys(of.text, pa.string())  # types that are not inferred

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of all columns, as the first rows suggest."""
        try:
            schema = self._open(None, self._chosen).schema
            schema.names  # noqa: B018 - decoded on access
        except (pa.ArrowException, OSError, UnicodeError) as error:
            self.require_encoding()
            raise DataError(
                f"{self.path} cannot be read as CSV ({first_line(error)}): it should begin with a "
                "line of column names, and every later line should have a value for each of them."
            ) from None
        return schema

    def read(self, columns: Sequence[str], start: int) -> Iterator[pa.RecordBatch]:
        """Record batches of these columns, whose first row is number `start` of the table."""
        self.require_text(columns)
        first = start
        try:
            for batch in self._open(columns, self._chosen):
                yield batch
                start += batch.num_rows
            return
        except (pa.ArrowException, OSError, UnicodeError):
            self.require_encoding()
        # Some value is not what the first rows suggest, so the rest is read as text.
        try:
            texts = self._open(columns, dict.fromkeys(columns, pa.string()))
            for batch in from_row(texts, start - first):
                parts = {name: self._as_first(batch.column(name), name, start) for name in columns}
                yield pa.record_batch(parts)
                start += batch.num_rows
        except (pa.ArrowException, OSError) as malformed:
            raise DataError(
                f"{self.path} is not well-formed CSV ({first_line(malformed)}): correct it."
            ) from None

    def _as_first(self, texts: pa.Array, name: str, start: int) -> pa.Array:
        """Return values of a column in the type of its first rows, or as floats; refuse others."""
        if name in self._chosen:
            return texts
        first = self.schema.field(name).type
        among = {"number": "numbers", "null": "empty values"}.get(kind_of(first))
        for kind in (first, pa.float64()) if among else (first,):
            values = self._cast(texts, kind)
            if values is not None:
                return values
        sizes = range(1, len(texts) + 1)
        row = bisect_left(sizes, True, key=lambda size: self._cast(texts[:size], kind) is None)
        asked = f"pass {argument('categorical', [name])}"
        if self._of.formula:
            asked = f"write C({Expression.column(name).text})"
        remedy = f"{asked} to code the column as levels"
        raise StrayTextError(name, texts[row].as_py(), start + row, among or "other values", remedy)

    def _cast(self, texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
        """Return texts as values of a type; None if that is not possible."""
        try:
            pointed = pa.compute.replace_substring(texts, self._dialect.point, ".")
            return pa.compute.cast(pa.compute.utf8_trim_whitespace(pointed), kind)
        except pa.ArrowException:
            return None

    def _open(
        self, columns: Sequence[str] | None, types: Mapping[str, pa.DataType]
    ) -> pa.csv.CSVStreamingReader:
        """Open the file to read some columns, or all."""
        return pa.csv.open_csv(
            self._of.system.open_input_stream(str(self.path)),  # decompressed by the file's ending
            read_options=pa.csv.ReadOptions(block_size=BLOCK_BYTES, encoding=self._of.encoding),
            parse_options=pa.csv.ParseOptions(delimiter=self._dialect.separator),
            convert_options=pa.csv.ConvertOptions(
                include_columns=None if columns is None else list(columns),
                column_types=types,
                strings_can_be_null=True,
                decimal_point=self._dialect.point,
            ),
        )

    def require_text(self, columns: Sequence[str]) -> None:
        """Refuse columns of Arrow's type for text that it cannot decode."""
        if any(pa.types.is_binary(f.type) for f in self.schema if f.name in columns):
            self.require_encoding()

    def require_encoding(self) -> None:
        """Refuse a file that is not in the stated encoding, naming the first invalid byte."""
        decoder = codecs.getincrementaldecoder(self._of.encoding)()
        lines, start = 1, b""
        try:
            with self._of.system.open_input_stream(str(self.path)) as stream:
                while block := stream.read(BLOCK_BYTES):
                    start = start or block[:4]
                    lines += decoder.decode(block).count("\n")
                decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            before = error.object[: error.start]
            lines += before.count(b"\n")
            at = f"byte 0x{error.object[error.start]:02x} in line {lines}"
            raise DataError(
                f"{self.path} is not {self._of.encoding} text ({at}): {self._remedy(start, before)}"
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
        if self._of.encoding == "utf-8":
            return (
                "it is probably Latin-1 (or Windows-1252); pass "
                f"{argument('encoding', 'latin-1')}, or convert it to UTF-8 (iconv -f latin1 -t "
                "utf-8)."
            )
        return "pass its actual encoding, or convert it to UTF-8."

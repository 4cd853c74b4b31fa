"""How a CSV file separates its columns and writes its numbers, as its first lines show."""

from __future__ import annotations

import codecs
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

BEGINNING_BYTES = 1 << 16
DECIMAL_COMMA = re.compile(r"[-+]?(?!0*[1-9]\d{0,2}(,\d{3})+$)\d*,\d+")
DECIMAL_POINT = re.compile(r"[-+]?\d*\.\d+")
QUOTED = re.compile(r'"[^"]*"')
SEPARATORS = {"a semicolon": ";", "a tab": "\t", "a bar": "|"}  # found in files instead of commas


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
    def of(cls, path: PurePath, system: FileSystem, encoding: str) -> Dialect:
        """Return the dialect of a file, which may be compressed."""
        import pyarrow as pa

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

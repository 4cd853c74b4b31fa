"""All fields of a data set as the user gave them: described together, converted on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from modicum.errors import DataError, SettingError
from modicum.rows.arrays import ArrayField, FrameField
from modicum.rows.checks import WeightCheck, as_dtype, block_rows
from modicum.rows.description import Array, Description, Field, field_labels
from modicum.rows.memory import MemoryBackend
from modicum.rows.sources import is_series, is_table

# One number a row; an offset may also hold one a class.
SCALARS = ("y", "offset", "weight")
RawField: TypeAlias = ArrayField | FrameField


class GivenFields:
    """All fields of a data set as given, described and ready to be converted."""

    def __init__(
        self, fields: Mapping[str, Any], columns: Sequence[str] | None, dtype: Any
    ) -> None:
        given = {name: value for name, value in fields.items() if value is not None}
        if not given:
            raise SettingError("there are no fields: pass at least one, such as Rows(x=X, y=y).")
        for name in given:
            if not isinstance(name, str):
                raise SettingError(f"field names must be text, not {name!r}.")
        self._raw = {name: _field(name, value) for name, value in given.items()}
        lengths = {name: raw.n for name, raw in self._raw.items()}
        n = next(iter(lengths.values()))
        for name, length in lengths.items():
            if length != n:
                first = next(iter(lengths))
                raise DataError(
                    f"field {name!r} has {length} rows and {first!r} has {n}: "
                    "all fields need the same number of rows."
                )
        if n == 0:
            raise DataError(f"field {next(iter(lengths))!r} has no rows: at least one is needed.")
        made = tuple(Field(name, raw.shape) for name, raw in self._raw.items())
        kind = as_dtype(dtype, [f for raw in self._raw.values() for f in raw.floating])
        names = _column_names(self._raw.get("x"), columns)
        outcome = self._raw["y"].title if "y" in self._raw else None
        self.description = Description(n, kind, made, names, outcome)

    def _labels(self, f: Field) -> tuple[str, ...]:
        return field_labels(f, self.description.columns)

    def in_memory(self) -> MemoryBackend:
        """Convert and check everything at once."""
        about = self.description
        arrays = {
            f.name: self._raw[f.name].whole(about.dtype, self._labels(f)) for f in about.fields
        }
        if "weight" in arrays:
            check = WeightCheck("weight")
            check.add(arrays["weight"], 0)
            check.finish()
        return MemoryBackend(about, arrays)

    def blocks(self) -> Iterator[Array]:
        """Convert and check a block of packed rows at a time."""
        about, step = self.description, block_rows(self.description.width)
        check = WeightCheck("weight") if "weight" in self._raw else None
        for start in range(0, about.n, step):
            stop = min(start + step, about.n)
            parts = {
                f.name: self._raw[f.name].part(start, stop, about.dtype, self._labels(f))
                for f in about.fields
            }
            if check:
                check.add(parts["weight"], start)
            yield about.pack(parts)
        if check:
            check.finish()


def _field(name: str, value: Any) -> RawField:
    if isinstance(value, str | Path):
        raise SettingError(
            f"field {name!r} is a path: use Rows.open for a store, modicum.rows.ingest for files."
        )
    framed = is_table(value) or is_series(value)
    made: RawField = FrameField(name, value) if framed else ArrayField(name, value)
    if name in SCALARS and made.shape == (1,):
        made.squeeze()  # (n, 1) can only mean n numbers here; kept, it would broadcast to (n, n)
    several = name == "offset" and len(made.shape) == 1  # one a class, for softmax
    if name in SCALARS and made.shape != () and not several:
        raise DataError(
            f"field {name!r} has shape {(made.n, *made.shape)}: it must hold one number a row."
        )
    return made


def _column_names(x: RawField | None, columns: Sequence[str] | None) -> tuple[str, ...]:
    if x is None or len(x.shape) != 1:
        if columns is not None:
            raise SettingError(
                "columns names the columns of a two-dimensional x, and there is none."
            )
        return ()
    if columns is None:
        return x.columns or tuple(f"x{j}" for j in range(x.shape[0]))
    names = tuple(str(name) for name in columns)
    if isinstance(columns, str) or len(names) != x.shape[0]:
        raise SettingError(f"columns has {len(names)} names and x has {x.shape[0]} columns.")
    if len(set(names)) < len(names):
        raise SettingError("columns holds the same name twice: give each column its own.")
    return names

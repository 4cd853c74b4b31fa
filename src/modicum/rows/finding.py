"""What kind of source `ingest` was given, and which files it names."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modicum.errors import DataError, SettingError
from modicum.rows.csv_source import CsvSource
from modicum.rows.rows import Rows
from modicum.rows.sources import FileSource, Source, TableSource, is_table
from modicum.rows.staging import DESCRIPTION

KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")


def find(
    source: Any, categorical: Sequence[str] | Mapping[str, Any]
) -> Source | Rows | Mapping[str, Any]:
    """Tell what kind of source it is."""
    if isinstance(source, Rows | Mapping):
        return source
    if is_table(source):
        return TableSource(source)
    if not isinstance(source, str | os.PathLike):
        raise SettingError(
            f"ingest cannot read a {type(source).__name__}: pass a path, a data frame, a pyarrow "
            "table, a mapping of arrays, or Rows."
        )
    path = Path(source)
    if (path / DESCRIPTION).is_file():
        return Rows.open(path)
    files = _files(path)
    kinds = {_kind(file) for file in files}
    if len(kinds) > 1:
        raise SettingError(
            f"{source} holds several kinds of files: name one kind, as in '*.parquet'."
        )
    kind = kinds.pop()
    if kind == "csv":
        return CsvSource(files, list(categorical))
    return FileSource(files, parquet=kind == "parquet")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and not any(p[0] in "._" for p in file.relative_to(path).parts)
        )
        for file in found:
            if any("=" in part for part in file.relative_to(path).parts[:-1]):
                raise SettingError(
                    f"{path} keeps columns in the names of its folders ({file.parent.name}): write "
                    "them into the files first, or pass a glob of the files to do without them."
                )
    else:
        found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
        found = [file for file in found if file.is_file()]
    if not found:
        raise DataError(f"there is no file at {path}: check the path.")
    return found


def _kind(file: Path) -> str:
    suffixes = [s.lower() for s in file.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    kind = KINDS.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise SettingError(f"{file} has no known ending: one of {', '.join(KINDS)} is expected.")
    return kind

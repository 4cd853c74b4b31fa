"""Files that Arrow reads as one table: object storage, lists, and folders that name columns.

All footers are read first, so that types are settled before any row is read: a column that holds
integers in one file and floats in another is read as floats, and a file that lacks a requested
column is refused rather than read as missing values. Reading resumes where a connection broke.

Names of folders, such as ``year=2024``, are columns. If a file holds a column of that name too,
its values must be the folder's, and have its own type: the folder ``month=01`` of files with a
text column ``month`` holds "01", not 1.
"""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from modicum.errors import DataError, SettingError, first_line
from modicum.files import is_uri, place_name, refuse_uri
from modicum.rows.checks import names_like
from modicum.rows.sources import BATCH_ROWS, DatasetSource, refuse_twice

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import FileFormat, Fragment
    from pyarrow.fs import FileInfo, FileSystem


def fragments(
    system: FileSystem, files: list[str], base: str, file_format: FileFormat
) -> list[Fragment]:
    """Return the files as Arrow reads them, with the values that folder names below `base` hold."""
    from pyarrow import dataset

    options = dataset.FileSystemFactoryOptions(
        partition_base_dir=base,
        partitioning=dataset.HivePartitioning.discover(),
        exclude_invalid_files=False,
    )
    factory = dataset.FileSystemDatasetFactory(system, files, file_format, options)
    in_file, in_names = factory.inspect_schemas()
    fragments = factory.finish(_with_text(in_names, in_file)).get_fragments()
    by_path = {fragment.path: fragment for fragment in fragments}
    return [by_path[file] for file in files]


def _with_text(in_names: pa.Schema, in_file: pa.Schema) -> pa.Schema:
    """Return the types of columns in folder names: text for those that the first file has as text.

    Arrow takes names of digits for numbers.
    """
    import pyarrow as pa

    for at, name in enumerate(in_names.names):
        if name in in_file.names and is_text(in_file.field(name).type):
            in_names = in_names.set(at, pa.field(name, pa.string()))
    return in_names


def is_text(kind: pa.DataType) -> bool:
    """Whether values of this type are text, be they strings or categories."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind))


def folder_values(fragment: Fragment) -> dict[str, Any]:  # text, numbers or None
    """Return the columns that the folders of a file hold, with their values."""
    from pyarrow.dataset import get_partition_keys

    return dict(get_partition_keys(fragment.partition_expression))


def refuse_contradiction(path: str, name: str, column: pa.Array, value: object) -> None:
    """Refuse a column of a file that holds anything but the `value` in the name of its folder."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    column = column.dictionary_decode() if types.is_dictionary(column.type) else column
    try:
        expected = pa.scalar(value).cast(column.type)
        agrees = column.is_null() if value is None else pc.equal(column, expected).fill_null(False)
    except pa.ArrowException:  # the folder's value is of another kind than the column's
        agrees = pa.array([False] * len(column))
    at = pc.index(agrees, False).as_py()
    if at >= 0:
        raise DataError(
            f"{path} holds {column[at].as_py()!r} in column {name!r}, and {value!r} according to "
            "the name of its folder: correct one of them, rename the column or the folder, or pass "
            "pyarrow.dataset.dataset(...) of the folder, which ignores the names of folders."
        )


T = TypeVar("T")
FOOTERS = 16  # footers read at the same time
ATTEMPTS, FIRST_PAUSE = 4, 0.5  # attempts per read; seconds before the second, then doubled
FORMATS = {
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "ipc", ".feather": "ipc", ".ipc": "ipc",
}  # fmt: skip


class LakeError(DataError):
    """A file could not be read to its end, perhaps only temporarily."""


def is_remote(value: object) -> bool:
    """Whether `value` is a URI that does not point to a local file."""
    return is_uri(value) and not str(value).startswith("file:")


def local_path(place: str | os.PathLike[str]) -> Path:
    """Return the local path that a path or a URI such as file:///data/rows points to."""
    if is_uri(place):
        return Path(file_system(str(place))[1])
    refuse_uri(place, "a Path drops one of its slashes: pass it as text")
    return Path(place)


def with_retries(call: Callable[[], T]) -> T:
    """Return what `call` returns, retrying after failures that may be temporary."""
    import pyarrow as pa

    for attempt in range(ATTEMPTS - 1):
        try:
            return call()
        except (FileNotFoundError, PermissionError):
            raise
        except (pa.ArrowException, OSError):
            time.sleep(FIRST_PAUSE * 2**attempt)
    return call()


def cache_folder() -> Path:
    """Return the folder that caches remote rows: ``modicum`` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "modicum"


class Listing(NamedTuple):
    """Files of one file system, in the order of their names.

    Attributes
    ----------
    system
        The file system.
    files
        Path within it, size and modification time of each file.
    base
        The folder that contains all files; folder names below it, such as ``year=2024``, are
        columns.
    called
        What messages call them.
    remote
        Whether any of the files is remote.
    """

    system: FileSystem
    files: list[FileInfo]
    base: str
    called: str
    remote: bool

    @classmethod
    def of(cls, places: Sequence[str | os.PathLike[str]]) -> Listing:
        """List the files at paths or URIs: files, folders, or globs."""
        import pyarrow as pa

        called = place_name(places[0]) + (" ..." if len(places) > 1 else "")
        try:
            system, files, base = _list_files(places)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(called, error) from None
        if not files:
            raise DataError(f"there is no file at {called}: check the path.")
        refuse_twice([f.path for f in files])
        return cls(system, files, base, called, any(map(is_remote, places)))

    @property
    def paths(self) -> list[str]:
        """Path of each file within the file system."""
        return [f.path for f in self.files]

    @property
    def identity(self) -> list[list[str | int]]:
        """Name, size and modification time of every file, which change when the data do."""
        return [[f.path, f.size, str(f.mtime_ns)] for f in self.files]


class LakeSource(DatasetSource):
    """Parquet or Arrow files of one file system, in the order of their names.

    Parameters
    ----------
    listing
        The files. Folder names such as ``year=2024`` add columns to the table; a file that holds
        such a column too, with another value, is refused.
    """

    def __init__(self, listing: Listing) -> None:
        import pyarrow as pa

        self.called, self.remote, self.identity = listing.called, listing.remote, listing.identity
        try:
            self._fragments = _fragments(listing.system, listing.paths, listing.base)
            with ThreadPoolExecutor(FOOTERS) as pool:
                footers = list(pool.map(_footer, self._fragments))
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.called, error) from None
        self._held = [set(schema.names) for schema, _ in footers]
        self._schema = _unify_schemas([schema for schema, _ in footers], self.called)
        self.names = tuple(self._schema.names)
        counts = [count for _, count in footers]
        self._counts = counts
        self._agree: set[tuple[str, str]] = set()  # files and columns that agree with folder names
        self.rows: int | None = None if None in counts else sum(c or 0 for c in counts)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns, in order."""
        return self.batches_from(columns, 0)

    def batches_from(self, columns: Sequence[str], first: int) -> Iterator[pa.RecordBatch]:
        """Record batches from row `first` on; files before it are not opened again."""
        for fragment, names, count in zip(self._fragments, self._held, self._counts, strict=True):
            for name in columns:
                if name not in names:
                    raise DataError(
                        f"column {name!r} is not in {fragment.path}: "
                        f"{names_like(name, sorted(names))}"
                    )
            if count is not None and first >= count:
                first -= count
                continue
            self._check_folder_names(fragment, columns)
            yield from self._file_batches(fragment, columns, first)
            first = 0 if count is not None else max(0, first - fragment.count_rows())

    def _check_folder_names(self, fragment: Fragment, columns: Sequence[str]) -> None:
        """Refuse a file whose columns contradict the names of its folders; read them once."""
        values = folder_values(fragment)
        unchecked = [
            name
            for name in fragment.physical_schema.names
            if name in columns and name in values and (fragment.path, name) not in self._agree
        ]
        if not unchecked:
            return
        alone = fragment.format.make_fragment(fragment.path, fragment.filesystem)
        for batch in self._file_batches(alone, unchecked, 0):
            for name in unchecked:
                refuse_contradiction(fragment.path, name, batch.column(name), values[name])
        self._agree.update((fragment.path, name) for name in unchecked)

    def _file_batches(
        self, fragment: Fragment, columns: Sequence[str], first: int
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of one file from row `first` on; reading resumes after a failure."""
        import pyarrow as pa

        position, attempt = first, 0
        while True:
            at = 0
            try:
                for batch in self._scan(fragment, columns):
                    fresh = batch.slice(max(0, position - at))
                    at += batch.num_rows
                    if fresh.num_rows:
                        yield fresh
                        position = at
                return
            except (pa.ArrowException, OSError) as error:
                attempt += 1
                is_lost = isinstance(error, FileNotFoundError | PermissionError)
                if is_lost or attempt >= ATTEMPTS or not self.remote:
                    raise _unreadable(fragment.path, error) from None
                time.sleep(FIRST_PAUSE * 2 ** (attempt - 1))

    def _scan(self, fragment: Fragment, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        from pyarrow import dataset

        options = {}
        if hasattr(fragment, "metadata"):  # Parquet: read a batch without its whole row group
            options["fragment_scan_options"] = dataset.ParquetFragmentScanOptions(
                use_buffered_stream=True, buffer_size=1 << 20, pre_buffer=False
            )
        scan = fragment.scanner(
            schema=self._schema,
            columns=list(columns),
            batch_size=BATCH_ROWS,
            batch_readahead=1,
            fragment_readahead=1,
            **options,
        )
        yield from scan.to_batches()


def _list_files(places: Sequence[str | os.PathLike[str]]) -> tuple[FileSystem, list[FileInfo], str]:
    """Return the file system, the files at `places`, and the folder that contains them all."""
    from pyarrow import fs

    systems, files, bases = [], [], []
    for place in places:
        if is_uri(place):
            system, path = file_system(str(place))
        else:
            system, path = fs.LocalFileSystem(), os.path.abspath(place)
        systems.append(system)
        part, base = _files_at(system, path)
        files += part
        bases.append(base)
    if any(system != systems[0] for system in systems):
        raise SettingError("all files must lie on one file system: read them one after the other.")
    base = os.path.commonpath(bases) if len(bases) > 1 else bases[0]
    while "=" in base:  # folder names above the files may be columns too
        base = base.rpartition("/")[0]
    return systems[0], files, base


def file_system(uri: str) -> tuple[FileSystem, str]:
    """Return the file system of a URI, and the path within it."""
    import pyarrow as pa
    from pyarrow import fs

    try:
        system, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        called = place_name(uri)
        raise SettingError(
            f"{called!r} cannot be read ({first_line(error).replace(uri, called)}): give a path, "
            "or a URI such as s3://bucket/folder or gs://bucket/folder."
        ) from None
    if not path.strip("/"):
        raise SettingError(
            f"{place_name(uri)!r} names no file or folder: write s3://bucket/folder."
        )
    return system, path


def _files_at(system: FileSystem, path: str) -> tuple[list[FileInfo], str]:
    """Return the files at a path (a file, a folder or a glob), and the folder they are in."""
    from pyarrow import fs

    globbed = any(c in path for c in "*?[")
    base = path.rstrip("/")
    while any(c in base for c in "*?["):
        base = base.rpartition("/")[0]
    info = system.get_file_info(base)
    if not globbed and info.type == fs.FileType.File:
        return [info], base.rpartition("/")[0]
    if info.type == fs.FileType.NotFound:
        raise DataError(f"there is no file at {path}: check the path.")
    inside = system.get_file_info(fs.FileSelector(base, recursive=True))
    files = [f for f in inside if f.type == fs.FileType.File and not _hidden(f.path, base)]
    if globbed:
        pattern = path.replace("**/", "*")
        files = [f for f in files if fnmatch.fnmatchcase(f.path, pattern)]
    return sorted(files, key=lambda f: str(f.path)), base


def _hidden(path: str, base: str) -> bool:
    parts = [part for part in path[len(base) :].split("/") if part]
    return any(part[0] in "._" for part in parts)


def _fragments(system: FileSystem, files: list[str], base: str) -> list[Fragment]:
    from pyarrow import dataset

    kinds = {FORMATS.get(os.path.splitext(file)[1].lower()) for file in files}
    if None in kinds or len(kinds) > 1:
        wrong = next((f for f in files if os.path.splitext(f)[1].lower() not in FORMATS), files[0])
        raise SettingError(
            f"{wrong} is among files that are read as one table, which must all be Parquet or all "
            "Arrow (Feather) files, or CSV files outside folders such as year=2024: name one kind, "
            "as in '*.parquet', or write CSV as Parquet."
        )
    parquet = kinds == {"parquet"}
    file_format = dataset.ParquetFileFormat() if parquet else dataset.IpcFileFormat()
    return fragments(system, files, base, file_format)


def _footer(fragment: Fragment) -> tuple[pa.Schema, int | None]:
    """Return a file's schema, including columns from folder names, and its row count if known."""
    import pyarrow as pa

    physical = fragment.physical_schema
    values = folder_values(fragment)
    named = [pa.field(name, pa.scalar(value).type) for name, value in values.items()]
    schema = pa.schema([*physical, *(f for f in named if f.name not in physical.names)])
    count = fragment.metadata.num_rows if hasattr(fragment, "metadata") else None
    return schema.with_metadata(physical.metadata), count


def _unify_schemas(schemas: list[pa.Schema], called: str) -> pa.Schema:
    """Return one schema for all files: numbers widen, and incompatible types are refused."""
    import pyarrow as pa

    try:
        return pa.unify_schemas(_one_kind_of_text(schemas), promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"the files at {called} do not hold the same types of values ({first_line(error)}): "
            "write them again with one schema, or read them separately."
        ) from None


def _one_kind_of_text(schemas: list[pa.Schema]) -> list[pa.Schema]:
    """Return the schemas with one type for columns whose files hold different types of text.

    Libraries write text as strings or as large strings, and categories as dictionaries of either.
    """
    import pyarrow as pa

    kinds: dict[str, set[pa.DataType]] = {}
    for schema in schemas:
        for field in schema:
            kinds.setdefault(field.name, set()).add(field.type)
    mixed = [name for name, found in kinds.items() if len(found) > 1 and all(map(is_text, found))]
    for name in mixed:
        schemas = [
            schema.set(at, pa.field(name, pa.large_string()))
            if (at := schema.get_field_index(name)) >= 0
            else schema
            for schema in schemas
        ]
    return schemas


def _unreadable(path: str, error: BaseException) -> LakeError:
    return LakeError(
        f"{path} cannot be read ({first_line(error)}): check that it exists, is complete, and that "
        "you may read it."
    )

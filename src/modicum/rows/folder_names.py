"""Columns in the names of folders, such as ``year=2024``, and in the files inside them.

If a file holds a column of that name too, its values must be the folder's, and have its own type:
the folder ``month=01`` of files with a text column ``month`` holds "01", not 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modicum.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import FileFormat, Fragment
    from pyarrow.fs import FileSystem


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

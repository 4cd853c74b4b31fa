"""The file format of saved results: one zip file of ``.npy`` arrays and a JSON page, no pickles.

Files are not trusted. Members are stored, not deflated, so none can be larger than the file
itself; an array's header must agree with the size of its member before memory is allocated; and
anything that `write` would not have written is a `DataError`.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from modicum.errors import AbsentFileError, DataError, ModicumWarning
from modicum.files import Json, check_members, refuse_uri, stored_array, whole_file
from modicum.ledger import Ledger
from modicum.posterior.fit_rows import FitRows
from modicum.posterior.fitted import FittedDraws

DEEPEST = 100  # levels of nesting allowed; `write` uses a handful
Decoded: TypeAlias = Any  # like Json, with arrays
T = TypeVar("T")


@dataclass(frozen=True)
class Format:
    """Name and version of a kind of file.

    Attributes
    ----------
    name, version
        Format name and version, as written on the page.
    page
        Name of the member that is the page.
    thing
        What the file holds, with its article, for error messages.
    """

    name: str
    version: int
    page: str
    thing: str


def write(
    path: str | os.PathLike[str],
    kind: Format,
    parts: Mapping[str, object],
    plain: Mapping[str, Json],
) -> None:
    """Write atomically, through a temporary file next to `path`.

    A full disk is a `ResourceError`, a folder that does not exist a `SettingError`. `parts` may
    contain arrays at any depth; `plain` is JSON already.
    """
    arrays: list[np.ndarray] = []
    encoded = {name: _encode(part, arrays) for name, part in parts.items()}
    page = {"format": kind.name, "version": kind.version, **encoded, **plain}
    with whole_file(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(kind.page, json.dumps(page, indent=1))
        for i, array in enumerate(arrays):
            with archive.open(f"{i}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def read(
    path: str | os.PathLike[str],
    kind: Format,
    parts: tuple[str, ...],
    make: Callable[[dict[str, Decoded], dict[str, Json]], T],
) -> T:
    """Read a file that `write` wrote; return ``make(decoded parts, whole page)``."""
    refuse_uri(path)
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            page = _page(archive, kind, os.fstat(file.fileno()).st_size)
            decoded = {part: _decode(page[part], archive) for part in parts}
            return make(decoded, page)
    except _VersionError as error:
        raise DataError(f"{path} {error}") from None
    except FileNotFoundError:
        raise AbsentFileError(f"there is no file at {path}: check the path.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder: name {kind.thing}, which is one file.") from None
    except PermissionError:
        raise DataError(f"{path} cannot be read: check its permissions.") from None
    except Exception as error:  # any other error means that `write` did not write this file
        reason = str(error).rstrip(".") or type(error).__name__
        raise DataError(
            f"{path} is not {kind.thing} saved by Modicum, or it is damaged ({reason})."
        ) from error


class _VersionError(Exception):
    """The file has another version; the message says which, and what to do."""


def _page(archive: zipfile.ZipFile, kind: Format, size: int) -> dict[str, Json]:
    check_members(archive, size)
    page: dict[str, Json] = json.loads(archive.read(kind.page))
    if page["format"] != kind.name:
        raise ValueError("it names another format")
    version = page["version"]
    if type(version) is not int or version < 1:
        raise ValueError("its version is not a number")
    if version != kind.version:
        age, remedy = ("a newer", "upgrade Modicum") if version > kind.version else (
            "an older", "use that version"
        )  # fmt: skip
        raise _VersionError(
            f"was saved by {age} Modicum (format {version}, and this one reads {kind.version}); "
            f"{remedy} to load it."
        )
    return page


def _encode(value: object, arrays: list[np.ndarray]) -> Json:
    """Turn a value into JSON; collect arrays in `arrays`, and write other objects as their repr."""
    if isinstance(value, dict):
        return {"dict": [[str(k), _encode(v, arrays)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(v, arrays) for v in value]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "biufcSU":
            arrays.append(array)
            return {"array": len(arrays) - 1}
    return repr(value)


def _decode(value: Json, archive: zipfile.ZipFile, depth: int = 0) -> Decoded:
    """Undo `_encode`."""
    if isinstance(value, list) or depth > DEEPEST:
        raise ValueError("its page is not laid out as Modicum does")
    if isinstance(value, str):
        value.encode()  # refuse lone surrogates, which cannot be written anywhere
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "array":
        if type(inside) is not int:
            raise TypeError("an array is not numbered")
        return stored_array(archive, f"{inside}.npy")
    if kind == "dict":
        items = {k: _decode(v, archive, depth + 1) for k, v in inside}
        for name in items:
            if not isinstance(name, str):
                raise TypeError("a name is not text")
            name.encode()
        return items
    if kind not in ("list", "tuple"):
        raise ValueError("its page is not laid out as Modicum does")
    entries = [_decode(v, archive, depth + 1) for v in inside]
    return tuple(entries) if kind == "tuple" else entries


PAGE = "posterior.json"
POSTERIOR = Format("modicum posterior", 2, PAGE, "a posterior")
PARTS = ("draws", "stats", "weights", "labels", "tuning", "settings", "predictor")


def save(post: FittedDraws, path: str | os.PathLike[str]) -> None:
    """Save atomically to one file, which holds no executable code.

    Raises
    ------
    ResourceError
        If the disk is full; an existing file is left unchanged.
    SettingError
        If the file cannot be written, for instance because its folder does not exist.
    """
    fit = post.fit_rows
    held = vars(post) | {"predictor": post.predictor_spec}
    plain = {
        "warnings": [doubt.to_dict() for doubt in post.warnings],
        "ledger": post.ledger.to_dict(),
        "rows": None if fit is None else fit.to_dict(),
    }
    write(path, POSTERIOR, {part: held[part] for part in PARTS}, plain)


def load(path: str | os.PathLike[str], make: Callable[..., T]) -> T:
    """Read a file that `save` wrote; `make` is given its contents, named as in `FittedDraws`."""

    def made(parts: dict[str, Decoded], page: dict[str, Json]) -> T:
        _check_types(parts)
        rows = page["rows"]
        return make(
            predictor_spec=parts.pop("predictor"),
            **parts,
            ledger=Ledger.from_dict(page["ledger"]),
            warnings=[_warning(doubt) for doubt in page["warnings"]],
            fit_rows=None if rows is None else FitRows.from_dict(rows),
        )

    return read(path, POSTERIOR, PARTS, made)


def _check_types(parts: Mapping[str, object]) -> None:
    """Refuse parts that do not have the types of a posterior's fields."""
    for name in ("draws", "stats", "labels", "tuning", "settings"):
        if not isinstance(parts[name], dict):
            raise TypeError(f"its {name} are not listed by name")
    for name in ("draws", "stats"):
        values = parts[name]
        assert isinstance(values, dict)
        if not all(isinstance(x, np.ndarray) for x in values.values()):
            raise TypeError(f"its {name} are not arrays")
    if not isinstance(parts["weights"], np.ndarray | None):
        raise TypeError("its weights are not an array")
    if not isinstance(parts["predictor"], dict | None):
        raise TypeError("its predictor is not described by name")


def _warning(saved: Json) -> ModicumWarning:
    texts = [saved[part] for part in ("code", "sentence", "remedy")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("its warnings are not sentences")
    return ModicumWarning.from_dict(saved)

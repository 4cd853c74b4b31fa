"""A posterior on disk: one zip file of plain ``.npy`` arrays and a JSON page, no pickles.

A file may come from anyone. Members are stored, not deflated, so none can be larger than the file
itself; an array's header must agree with the size of its member before memory is set aside; and
whatever else is not as `save` writes it is a `DataError`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from modicum.errors import DataError, ModicumWarning
from modicum.ledger import Ledger
from modicum.posterior.alignment import FitRows
from modicum.posterior.labels import AnyLabels

__all__ = ["Contents", "load", "save"]

FORMAT, VERSION, PAGE = "modicum posterior", 2, "posterior.json"
DEEPEST = 100  # values within values; `save` writes a handful
Json: TypeAlias = Any  # what json.loads returns


@dataclass(frozen=True)
class Contents:
    """What a posterior's file holds.

    Parameters
    ----------
    draws, stats, weights, labels, ledger, warnings, tuning, settings
        As in `modicum.posterior.Posterior`.
    predictor
        Description of the predictor, or None.
    fit_rows
        What is remembered of the rows of the fit, or None.
    """

    draws: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    weights: np.ndarray | None
    labels: AnyLabels
    ledger: Ledger
    warnings: list[ModicumWarning]
    tuning: dict[str, Any]
    settings: dict[str, Any]
    predictor: dict[str, Any] | None
    fit_rows: FitRows | None


_PLAIN = ("draws", "stats", "weights", "labels", "tuning", "settings", "predictor")


def save(contents: Contents, path: str | os.PathLike[str]) -> None:
    """Write to a file beside `path` first, so that a crash leaves no half-written posterior."""
    target = Path(path)
    arrays: list[np.ndarray] = []
    fit = contents.fit_rows
    page = {
        "format": FORMAT,
        "version": VERSION,
        **{part: _encode(getattr(contents, part), arrays) for part in _PLAIN},
        "warnings": [doubt.to_dict() for doubt in contents.warnings],
        "ledger": contents.ledger.to_dict(),
        "rows": None if fit is None else fit.to_dict(),
    }
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(PAGE, json.dumps(page, indent=1))
                for i, array in enumerate(arrays):
                    with archive.open(f"{i}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def load(path: str | os.PathLike[str]) -> Contents:
    """Read what `save` wrote."""
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            return _read(archive, os.fstat(file.fileno()).st_size)
    except _VersionError as error:
        raise DataError(f"{path} {error}") from None
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # any other means that `save` did not write this
        reason = str(error).rstrip(".") or type(error).__name__
        raise DataError(
            f"{path} is not a posterior saved by Modicum, or it is damaged ({reason})."
        ) from error


class _VersionError(Exception):
    """The file is of another version: it says so, and what to do."""


def _read(archive: zipfile.ZipFile, size: int) -> Contents:
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED or member.file_size > size:
            raise ValueError(f"{member.filename!r} claims to be larger than the file")
    page = json.loads(archive.read(PAGE))
    if page["format"] != FORMAT:
        raise ValueError("it names another format")
    version = page["version"]
    if type(version) is not int or version < 1:
        raise ValueError("its version is no number")
    if version != VERSION:
        age, remedy = ("a newer", "upgrade Modicum") if version > VERSION else (
            "an older", "use that version"
        )  # fmt: skip
        raise _VersionError(
            f"was saved by {age} Modicum (format {version}, and this one reads {VERSION}); "
            f"{remedy} to load it."
        )
    parts = {part: _decode(page[part], archive) for part in _PLAIN}
    _check_types(parts)
    rows = page["rows"]
    return Contents(
        **parts,
        ledger=Ledger.from_dict(page["ledger"]),
        warnings=[_warning(doubt) for doubt in page["warnings"]],
        fit_rows=None if rows is None else FitRows.from_dict(rows),
    )


def _check_types(parts: Mapping[str, object]) -> None:
    """Refuse parts that are not what a posterior is made of."""
    for name in ("draws", "stats", "labels", "tuning", "settings"):
        if not isinstance(parts[name], dict):
            raise TypeError(f"its {name} are not listed by name")
    for name in ("draws", "stats"):
        values = parts[name]
        assert isinstance(values, dict)
        if not all(isinstance(x, np.ndarray) for x in values.values()):
            raise TypeError(f"its {name} are not arrays")
    if not isinstance(parts["weights"], np.ndarray | None):
        raise TypeError("its weights are no array")
    if not isinstance(parts["predictor"], dict | None):
        raise TypeError("its predictor is not described by name")


def _warning(saved: Json) -> ModicumWarning:
    texts = [saved[part] for part in ("code", "sentence", "remedy")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("its warnings are no sentences")
    return ModicumWarning.from_dict(saved)


def _encode(value: object, arrays: list[np.ndarray]) -> Json:
    """Turn a value into JSON; arrays go aside, and what neither can hold becomes its repr."""
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


def _decode(value: Json, archive: zipfile.ZipFile, depth: int = 0) -> Any:
    """Undo `_encode`."""
    if isinstance(value, list) or depth > DEEPEST:
        raise ValueError("its page is not laid out as a posterior's")
    if isinstance(value, str):
        value.encode()  # half a surrogate pair cannot be written anywhere
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "array":
        if type(inside) is not int:
            raise TypeError("an array is not numbered")
        return _read_array(archive, f"{inside}.npy")
    if kind == "dict":
        items = {k: _decode(v, archive, depth + 1) for k, v in inside}
        for name in items:
            if not isinstance(name, str):
                raise TypeError("a name is no text")
            name.encode()
        return items
    if kind not in ("list", "tuple"):
        raise ValueError("its page is not laid out as a posterior's")
    entries = [_decode(v, archive, depth + 1) for v in inside]
    return tuple(entries) if kind == "tuple" else entries


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read a member whose header says as many bytes as there are: nothing else gets memory."""
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, fortran, dtype = readers[version](member)
        left = archive.getinfo(name).file_size - member.tell()
        if dtype.kind not in "biufcSU" or not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError("an array holds something else than numbers or text")
        if math.prod(shape) * dtype.itemsize != left:
            raise ValueError("an array's header does not agree with its size")
        # to the end of the member: only there does zipfile compare the checksum
        data = member.read(left + 1)
    return np.ndarray(shape, dtype, buffer=bytearray(data), order="F" if fortran else "C")

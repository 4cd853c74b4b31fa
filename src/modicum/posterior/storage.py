"""A posterior on disk: one zip file of plain ``.npy`` arrays and a JSON page, no pickles."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modicum.errors import DataError, ModicumWarning
from modicum.ledger import Ledger

if TYPE_CHECKING:
    from modicum.posterior.posterior import Posterior

__all__ = ["load", "save"]

FORMAT, VERSION, PAGE = "modicum posterior", 1, "posterior.json"


def save(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write to a file beside `path` first, so that a crash leaves no half-written posterior."""
    target = Path(path)
    arrays: list[np.ndarray] = []
    page = {
        "format": FORMAT,
        "version": VERSION,
        **{part: _encode(getattr(posterior, part), arrays) for part in _PARTS},
        "ledger": posterior.ledger.to_dict(),
        "predictor": _encode(posterior.predictor_spec, arrays),
    }
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
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


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `save` wrote, as arguments for a Posterior."""
    try:
        with zipfile.ZipFile(path) as archive:
            page = json.loads(archive.read(PAGE))
            if page["format"] != FORMAT:
                raise DataError(f"{path} is not a posterior saved by Modicum.")
            if page["version"] > VERSION:
                raise DataError(
                    f"{path} was saved by a newer Modicum (format {page['version']}, and "
                    f"this one reads {VERSION}); upgrade Modicum to load it."
                )
            values = {part: _decode(page[part], archive) for part in (*_PARTS, "predictor")}
            ledger = Ledger.from_dict(page["ledger"])
    except DataError:
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, EOFError, KeyError, IndexError),
        *(TypeError, ValueError, AttributeError, NotImplementedError),
    ) as error:
        raise DataError(
            f"{path} is not a posterior saved by Modicum, or it is damaged ({error})."
        ) from error
    return {**values, "ledger": ledger}


_PARTS = ("draws", "stats", "weights", "labels", "warnings", "tuning", "settings")


def _encode(value: Any, arrays: list[np.ndarray]) -> Any:
    """Turn a value into JSON; arrays go aside, and what neither can hold becomes its repr."""
    if isinstance(value, dict):
        return {"dict": [[str(k), _encode(v, arrays)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(v, arrays) for v in value]}
    if isinstance(value, ModicumWarning):
        return {"warning": _encode(value.to_dict(), arrays)}
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


def _decode(value: Any, archive: zipfile.ZipFile) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "array":
        with archive.open(f"{int(inside)}.npy") as member:
            array = np.lib.format.read_array(member, allow_pickle=False)
            # to the end of the member: only there does zipfile compare the checksum
            if member.read(1):
                raise ValueError("an array is longer than its header says")
            return array
    if kind == "dict":
        return {k: _decode(v, archive) for k, v in inside}
    if kind == "warning":
        return ModicumWarning.from_dict(_decode(inside, archive))
    items = [_decode(v, archive) for v in inside]
    return tuple(items) if kind == "tuple" else items

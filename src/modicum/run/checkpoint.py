"""Checkpoints: state and draws on disk after every chunk, so that a killed run can be resumed.

A checkpoint is a folder. `run.json` lists the valid files and is replaced atomically after they are
safely written; all other files are ignored. A resumed run makes the same draws as one that was
never stopped.

Nothing in the folder is trusted. File names contain no paths and follow from iteration numbers, an
array is read only if its header agrees with the length of the file, and nothing is ever unpickled.
One process at a time holds the folder; the system releases the lock when that process dies.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from modicum.errors import DataError, ResourceError, SettingError, first_line
from modicum.files import (
    DISK_FULL,
    Json,
    Lock,
    check_members,
    filled,
    numbered,
    plain,
    refuse_uri,
    restored,
    stored_array,
)

FORMAT = "modicum-checkpoint-1"
INDEX, LOCK = "run.json", "run.lock"
SHORT = 80  # characters of a setting shown in an error message
OURS = {".npz", ".tmp", ".lock"}
Arrays = dict[str, np.ndarray]
T = TypeVar("T")


class Checkpoint:
    """A folder that stores one run, and is held by one process at a time.

    Parameters
    ----------
    folder
        Path of the folder; created if it does not exist.
    identity
        Identifies the run (model, rows, method, seed ...): a checkpoint of another run is refused.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> with Checkpoint(folder, {"seed": 1}) as checkpoint:
    ...     checkpoint.append(2, {"position": np.zeros((1, 2, 3))}, [np.zeros(3)])
    >>> with Checkpoint(folder, {"seed": 1}) as checkpoint:
    ...     checkpoint.iterations
    2
    """

    def __init__(self, folder: str | os.PathLike[str], identity: Mapping[str, object]) -> None:
        refuse_uri(folder)
        self.folder = Path(folder)
        self.identity: dict[str, Json] = json.loads(json.dumps(identity))
        if self.folder.exists() and not self.folder.is_dir():
            raise SettingError(f"the checkpoint '{self.folder}' is a file; name a folder.")
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            others = (p.suffix not in OURS or p.is_dir() for p in self.folder.iterdir())
            if not (self.folder / INDEX).exists() and any(others):
                raise SettingError(
                    f"the checkpoint folder '{self.folder}' holds other files; choose an empty one."
                )
            self._lock = Lock(self.folder / LOCK, f"the checkpoint in '{self.folder}'")
        try:
            self.index = self._read_index()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder."""
        self._lock.release()

    def _read_index(self) -> _Index:
        path = self.folder / INDEX
        if not path.exists():
            fresh = _Index(FORMAT, self.identity, 0, (), None)
            self._write(INDEX, fresh.to_bytes())
            return fresh
        index = _Index.read(path)
        for name, value in self.identity.items():
            saved = index.identity.get(name)
            if saved != value:
                there, now = _apart(str(saved), str(value))
                raise SettingError(
                    f"the checkpoint in '{self.folder}' belongs to another run ({name} is "
                    f"{_short(there)} there and {_short(now)} here); delete the folder or choose "
                    "another."
                )
        return index

    @staticmethod
    def saved_identity(folder: str | os.PathLike[str]) -> dict[str, Json]:
        """Return the identity of the run saved in `folder`; empty if none can be resumed."""
        try:
            return dict(_Index.read(Path(folder) / INDEX).identity)
        except (OSError, DataError):
            return {}

    @staticmethod
    def delete(folder: str | os.PathLike[str]) -> None:
        """Remove the checkpoint in `folder`, and the folder if nothing else is in it."""
        path = Path(folder)
        (path / INDEX).unlink(missing_ok=True)  # first: without it all other files are ignored
        for file in path.iterdir():
            if file.suffix in OURS and not file.is_dir():
                file.unlink(missing_ok=True)
        with suppress(OSError):
            path.rmdir()

    @property
    def iterations(self) -> int:
        """Number of iterations safely on disk."""
        return self.index.iterations

    def remember(
        self,
        name: str,
        compute: Callable[[], Mapping[str, Json]],
        read: Callable[[Mapping[str, Json]], T],
    ) -> T:
        """Apply `read` to the parts saved under `name`, which are computed if there are none.

        Parts are plain JSON values, in which there may be arrays. If `read` fails on parts from a
        file, the file is reported as damaged.
        """
        path = self.folder / f"{name}.npz"
        if not path.exists():
            parts, arrays = compute(), list[np.ndarray]()
            pages = {part: json.dumps(numbered(v, arrays)) for part, v in parts.items()}
            texts = {part: np.array(page) for part, page in pages.items()}
            self._write(path.name, texts | {str(i): array for i, array in enumerate(arrays)})
            return read(parts)
        saved = _load(path)
        pages = {part: str(saved.pop(part)) for part in list(saved) if not part.isdigit()}
        try:
            return read(
                {
                    part: filled(json.loads(page), lambda i: saved[str(i)])
                    for part, page in pages.items()
                }
            )
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as fault:
            raise _damaged(path) from fault

    def append(self, iterations: int, record: Arrays, state: list[np.ndarray]) -> None:
        """Save the records of the iterations up to number `iterations`, and the final state."""
        part, at = _file("part", iterations), _file("state", iterations)
        self._write(part, record)
        self._write(at, {f"leaf{i}": leaf for i, leaf in enumerate(state)})
        before = self.index.state
        parts = (*self.index.parts, part)
        index = replace(self.index, iterations=iterations, parts=parts, state=at)
        self._write(INDEX, index.to_bytes())
        self.index = index
        if before:
            (self.folder / before).unlink(missing_ok=True)

    def _write(self, name: str, content: Arrays | bytes) -> None:
        """Write a file atomically: it appears under its name complete, or not at all."""
        path = self.folder / name
        temporary = path.with_suffix(".tmp")
        iterations = self.index.iterations if hasattr(self, "index") else 0
        with _writing(self.folder, iterations):
            try:
                with open(temporary, "wb") as file:
                    if isinstance(content, bytes):
                        file.write(content)
                    else:
                        np.savez(file, **content)  # type: ignore[arg-type]
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except OSError:
                with suppress(OSError):
                    temporary.unlink()  # the disk may be full
                raise

    def restore(self) -> tuple[list[Arrays], list[np.ndarray]]:
        """Return all parts in order, and the last state."""
        parts = [_load(self.folder / name) for name in self.index.parts]
        path = self.folder / str(self.index.state)
        state = _load(path)
        if set(state) != {f"leaf{i}" for i in range(len(state))}:
            raise _damaged(path)
        return parts, [state[f"leaf{i}"] for i in range(len(state))]


# The index --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Index:
    """Content of `run.json`; only file names that `append` gives are valid."""

    format: str
    identity: Mapping[str, Json]
    iterations: int
    parts: tuple[str, ...]
    state: str | None

    def to_bytes(self) -> bytes:
        return json.dumps(plain(self), indent=1).encode()

    @classmethod
    def read(cls, path: Path) -> _Index:
        """Read and validate the file."""
        try:
            index: _Index = restored(cls, json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, PermissionError):
            raise
        except KeyError as fault:
            raise _refusal(path, f"it lacks {fault}") from fault
        except (OSError, ValueError, TypeError, RecursionError) as fault:
            raise _refusal(path, first_line(fault)) from fault
        wrong = index._fault()
        if wrong is not None:
            raise _refusal(path, wrong)
        return index

    def _fault(self) -> str | None:
        """Describe what is wrong with the content; None if nothing is."""
        if self.format != FORMAT:
            return f"its format is not {FORMAT}"
        matches = [re.fullmatch(r"part-([0-9]{8,18})\.npz", part) for part in self.parts]
        numbers = [int(match[1]) if match else 0 for match in matches]
        if numbers != sorted({*numbers} - {0}):
            return "its parts are not files of this checkpoint, in order"
        if (numbers[-1] if numbers else 0) != self.iterations:
            return "its parts do not add up to its iterations"
        if self.state != (_file("state", self.iterations) if self.iterations else None):
            return "its state is not a file of this checkpoint"
        return None


def _file(kind: str, iterations: int) -> str:
    """Return the name of the file with the records or the state after so many iterations."""
    return f"{kind}-{iterations:08d}.npz"


def _refusal(path: Path, wrong: str) -> DataError:
    return DataError(
        f"'{path}' is not the record of a Modicum checkpoint: {wrong}; delete the folder, or "
        "choose another."
    )


def _apart(saved: str, current: str) -> tuple[str, str]:
    """Shorten two long texts to start at the word in which they begin to differ."""
    pairs = enumerate(zip(saved, current, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(saved), len(current)))
    cut = max(saved.rfind(mark, 0, same) + len(mark) for mark in ("(", ", "))
    return (saved, current) if cut < SHORT // 2 else (f"... {saved[cut:]}", f"... {current[cut:]}")


def _short(value: object) -> str:
    return textwrap.shorten(str(value), SHORT, placeholder=" ...") or repr(value)


# Reading arrays ---------------------------------------------------------------------------


def _load(path: Path) -> Arrays:
    """Load the arrays of a file, each only if its header agrees with the file's length."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_members(archive, path.stat().st_size)
            names = archive.namelist()
            return {name.removesuffix(".npy"): stored_array(archive, name) for name in names}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as fault:
        raise _damaged(path) from fault
    except (ValueError, KeyError, TypeError, NotImplementedError, RecursionError) as fault:
        raise _damaged(path) from fault


def _damaged(path: Path) -> DataError:
    return DataError(
        f"the checkpoint file '{path}' is missing or damaged; delete the folder to start anew."
    )


# Failures to write ------------------------------------------------------------------------


@contextmanager
def _writing(folder: Path, iterations: int = 0) -> Iterator[None]:
    """Turn a failure to write into an error that names the folder and what is safe."""
    try:
        yield
    except OSError as error:
        safe = f" (the first {iterations:,} iterations are safe there)" if iterations else ""
        if error.errno in DISK_FULL:
            free = ""
            with suppress(OSError):
                free = f", with {shutil.disk_usage(folder).free:,} bytes left"
            raise ResourceError(
                f"the disk of the checkpoint '{folder}' is full{free}{safe}; free some space, and "
                "the same call will continue from there."
            ) from error
        raise SettingError(
            f"the checkpoint '{folder}' cannot be written ({error.strerror or error}){safe}; "
            "choose another folder."
        ) from error

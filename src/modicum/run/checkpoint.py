"""Checkpoints: state and draws on disk after every chunk, so that a killed run goes on.

A checkpoint is a folder. `run.json` names the files that count and is replaced in one step after
they are safely written; whatever else lies there is of no account. A run that resumes makes the
same draws as one that was never stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from modicum.errors import DataError, SettingError

__all__ = ["Checkpoint"]

FORMAT = "modicum-checkpoint-1"
Arrays = dict[str, np.ndarray]


class Checkpoint:
    """A folder that remembers one run.

    Parameters
    ----------
    folder
        Where; made if it is not there.
    identity
        What makes the run this one (model, rows, method, seed ...): a checkpoint of another run
        is refused.
    """

    def __init__(self, folder: str | os.PathLike[str], identity: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self.identity = json.loads(json.dumps(identity))
        if self.folder.exists() and not self.folder.is_dir():
            raise SettingError(f"the checkpoint '{self.folder}' is a file; name a folder.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.index = self._read_index()

    def _read_index(self) -> dict[str, Any]:
        path = self.folder / "run.json"
        if not path.exists():
            if any(p.suffix not in {".npz", ".tmp"} for p in self.folder.iterdir()):
                raise SettingError(
                    f"the checkpoint folder '{self.folder}' holds other files; choose an empty one."
                )
            empty = {"format": FORMAT, "identity": self.identity}
            fresh = empty | {"iterations": 0, "parts": [], "state": None}
            _replace(path, json.dumps(fresh, indent=1).encode())
            return fresh
        try:
            index = json.loads(path.read_text())
            if index["format"] != FORMAT:
                raise KeyError("format")
        except (ValueError, KeyError, TypeError) as fault:
            raise DataError(f"'{path}' is not the record of a Modicum checkpoint.") from fault
        for name, here in self.identity.items():
            there = index["identity"].get(name)
            if there != here:
                raise SettingError(
                    f"the checkpoint in '{self.folder}' belongs to another run ({name} is {there} "
                    f"there and {here} here); delete the folder or choose another."
                )
        return dict(index)

    @staticmethod
    def saved_identity(folder: str | os.PathLike[str]) -> dict[str, Any]:
        """What the run saved in `folder` is; empty if there is none."""
        try:
            return dict(json.loads((Path(folder) / "run.json").read_text())["identity"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    @property
    def iterations(self) -> int:
        """How many iterations are safely on disk."""
        return int(self.index["iterations"])

    def remember(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """Return the arrays saved under `name`, or compute and save them now."""
        path = self.folder / f"{name}.npz"
        if path.exists():
            return _load(path)
        arrays = compute()
        _save(path, arrays)
        return arrays

    def append(self, iterations: int, record: Arrays, state: list[np.ndarray]) -> None:
        """Save what the iterations up to number `iterations` recorded, and where they ended."""
        part, at = f"part-{iterations:08d}.npz", f"state-{iterations:08d}.npz"
        _save(self.folder / part, record)
        _save(self.folder / at, {f"leaf{i}": leaf for i, leaf in enumerate(state)})
        before = self.index["state"]
        self.index |= {
            "iterations": iterations,
            "parts": [*self.index["parts"], part],
            "state": at,
        }
        self._write_index()
        if before:
            (self.folder / before).unlink(missing_ok=True)

    def _write_index(self) -> None:
        _replace(self.folder / "run.json", json.dumps(self.index, indent=1).encode())

    def restore(self) -> tuple[list[Arrays], list[np.ndarray]]:
        """All parts in order, and the last state."""
        parts = [_load(self.folder / name) for name in self.index["parts"]]
        state = _load(self.folder / self.index["state"])
        return parts, [state[f"leaf{i}"] for i in range(len(state))]


def _save(path: Path, arrays: Arrays) -> None:
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _load(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, BadZipFile) as fault:
        raise DataError(
            f"the checkpoint file '{path}' is missing or damaged; delete the folder to start anew."
        ) from fault

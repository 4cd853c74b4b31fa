"""Writing packed rows into shard files, and checking those files again."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from modicum.errors import DataError
from modicum.rows.description import Array

SHARD_BYTES = 1 << 30
# What is read at either end of a shard for the quick check.
END_BYTES = 1 << 16


@dataclass(frozen=True)
class Shard:
    """What the store knows of one file: its rows, its size, and checksums of its data."""

    file: str
    rows: int
    bytes: int
    checksum: str
    ends: str


def _header(file: BinaryIO, rows: int, width: int, dtype: np.dtype[Any]) -> int:
    descr = npy.dtype_to_descr(dtype.newbyteorder("<"))
    shape = (rows, width)
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.tell()


def _ends(file: BinaryIO, data: int, size: int) -> str:
    """Digest of the first and the last bytes of the data, which begin at `data`."""
    digest = hashlib.blake2b(digest_size=16)
    for at in (data, max(data, size - END_BYTES)):
        file.seek(at)
        digest.update(file.read(min(END_BYTES, size - at)))
    return digest.hexdigest()


class ShardWriter:
    """Writes packed rows into ``rows-00000.npy``, ``rows-00001.npy``, ... of a folder."""

    def __init__(self, folder: Path, width: int, dtype: np.dtype[Any], shard_rows: int) -> None:
        self._folder, self._width, self._dtype = folder, width, dtype
        self._shard_rows = shard_rows
        self._file: BinaryIO | None = None
        self.shards: list[Shard] = []
        self.rows = 0

    def write(self, block: Array) -> None:
        """Append packed rows (k, width)."""
        while len(block):
            if self._file is None:
                self._begin()
            piece, block = np.split(block, [self._shard_rows - self._filled])
            data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
            assert self._file is not None
            self._file.write(data)
            self._digest.update(data)
            self._filled += len(piece)
            self.rows += len(piece)
            if self._filled == self._shard_rows:
                self._end()

    def finish(self) -> list[Shard]:
        """Close the last shard and return all of them."""
        if self._file is not None:
            self._end()
        return self.shards

    def close(self) -> None:
        """Let go of an unfinished file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        self._name = f"rows-{len(self.shards):05d}.npy"
        self._file = open(self._folder / self._name, "w+b", buffering=0)  # noqa: SIM115
        self._data = _header(self._file, 0, self._width, self._dtype)
        self._digest = hashlib.blake2b(digest_size=16)
        self._filled = 0

    def _end(self) -> None:
        file = self._file
        assert file is not None
        # NumPy pads headers so that the number of rows can be filled in afterwards.
        file.seek(0)
        if _header(file, self._filled, self._width, self._dtype) != self._data:
            raise AssertionError("the npy header changed its length")
        size = os.fstat(file.fileno()).st_size
        ends = _ends(file, self._data, size)
        os.fsync(file.fileno())
        self.close()
        shard = Shard(self._name, self._filled, size, self._digest.hexdigest(), ends)
        self.shards.append(shard)


def check_shard(folder: Path, shard: Shard, width: int, dtype: np.dtype[Any], verify: bool) -> int:
    """Refuse a truncated or altered shard; return where its data begin.

    The size, the header and both ends of the data are always looked at, the rest with `verify`.
    """
    path = folder / shard.file
    again = "ingest the source again"
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != shard.bytes:
                state = "truncated" if size < shard.bytes else "too long"
                raise DataError(
                    f"shard {shard.file} of {folder} is {state} ({size} bytes, not {shard.bytes}): "
                    f"{again}."
                )
            changed = DataError(f"shard {shard.file} of {folder} was altered: {again}.")
            try:
                npy.read_magic(file)
                shape, fortran, found = npy.read_array_header_1_0(file)
            except Exception:  # a damaged header ends in any of NumPy's or Python's parsers
                raise changed from None
            data = file.tell()
            if (shape, fortran, found) != ((shard.rows, width), False, dtype.newbyteorder("<")):
                raise changed
            if data + shard.rows * width * dtype.itemsize != size:
                raise changed
            if _ends(file, data, size) != shard.ends:
                raise changed
            if verify:
                digest = hashlib.blake2b(digest_size=16)
                file.seek(data)
                while piece := file.read(1 << 20):
                    digest.update(piece)
                if digest.hexdigest() != shard.checksum:
                    raise changed
    except OSError as error:
        raise DataError(
            f"shard {shard.file} of {folder} cannot be read ({error.strerror}): {again}."
        ) from None
    return data


def shard_json(shard: Shard) -> dict[str, Any]:
    """Return a shard as plain JSON values."""
    return asdict(shard)

"""Equal rows are one row: rows with the same outcome and columns, weighted by their number.

Every sum over rows takes weights, so that a posterior given the distinct rows is exactly that given
all rows. Rows are told apart by a hash of their values, and equal hashes are compared by value.
Distinct rows are sorted by their hashes: rows that are repeated, or weighted, or in another order
are then the same rows to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from modicum.libraries import pandas as pd
from modicum.rows.coding import Array
from modicum.rows.description import Description
from modicum.rows.memory import MemoryBackend
from modicum.rows.rows import Rows

CHUNK = 1 << 16  # rows hashed at a time
MOST_DISTINCT = 2 / 3  # share of distinct rows above which rows stay as they are
# Rows that are looked at first, and the share of distinct ones above which the others are not: the
# fewer there are, the fewer of them are repeated.
LOOKS = ((10_000, 0.99), (100_000, MOST_DISTINCT))
BLOCKS = 100  # of consecutive rows, which a store reads fast
EXACT_COUNT = 1 << 24  # the whole numbers that float32 holds
MIXERS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))  # from MurmurHash3


class _CollisionError(Exception):
    """Rows that differ have the same hash."""


class _Counted(NamedTuple):
    """Distinct rows: their hashes, the sum of the weights of equal ones, and their fields."""

    hashed: Array
    weight: Array
    fields: dict[str, Array]

    @classmethod
    def of(cls, hashed: Array, weight: Array, fields: Mapping[str, Array]) -> _Counted:
        """Count equal rows."""
        place, values = pd.factorize(hashed)
        first = np.empty(len(values), np.intp)
        first[place[::-1]] = np.arange(len(place))[::-1]  # of several, the last that is written
        kept = {name: part[first] for name, part in fields.items()}
        if any(np.any(kept[name][place] != part) for name, part in fields.items()):
            raise _CollisionError
        return cls(values, np.bincount(place, weight, len(values)), kept)

    @classmethod
    def joined(cls, parts: list[_Counted]) -> _Counted:
        """Count rows of several parts together."""
        fields = {k: np.concatenate([p.fields[k] for p in parts]) for k in parts[0].fields}
        hashed, weight = (np.concatenate([part[i] for part in parts]) for i in range(2))
        return cls.of(hashed, weight, fields)


def distinct_rows(rows: Rows, always: bool = False) -> Rows | None:
    """Return every distinct row once, in memory, weighted by how many there are.

    Weights of equal rows add up, and rows of weight 0 are left out.

    Parameters
    ----------
    rows
        The rows.
    always
        Whether to return distinct rows however few are repeated; otherwise None if fewer than a
        third are.

    Examples
    --------
    >>> rows = Rows(y=[0, 1, 1, 1], codes={"ward": ["a", "b", "b", "a"]})
    >>> few = distinct_rows(rows, always=True)
    >>> few, sorted(few.slice(0, 3)["weight"].tolist())
    (Rows(3 rows: y, ward 2 levels, weight; float64, 51 bytes in memory), [1.0, 1.0, 2.0])
    """
    about = rows._description
    about = replace(about, fields={k: v for k, v in about.fields.items() if k != "weight"})
    looks = () if always else (look for look in LOOKS if look[0] < len(rows))
    try:
        for size, most in looks:
            each = size // BLOCKS  # rows of evenly spaced blocks
            starts = np.linspace(0, len(rows) - each, BLOCKS).astype(int)
            parts = [rows.slice(int(start), int(start) + each) for start in starts]
            sample = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            if len(_counted(about, [sample], 1.0).hashed) > most * size:
                return None
        most = 1.0 if always else MOST_DISTINCT
        found = _counted(about, rows.chunks(CHUNK), most)
    except _CollisionError:
        return None
    if len(found.hashed) > most * len(rows):
        return None
    order = np.argsort(found.hashed)
    order = order[found.weight[order] > 0]
    weight = found.weight[order]
    if weight.max() > EXACT_COUNT and about.dtype == np.float32:
        about = replace(about, dtype=np.dtype(np.float64))
    about = replace(about, fields={**about.fields, "weight": ()})
    arrays = {name: part[order] for name, part in found.fields.items()} | {"weight": weight}
    typed = {name: part.astype(about.dtypes[name]) for name, part in arrays.items()}
    return Rows._at(MemoryBackend.of(about, typed))


def _counted(about: Description, chunks: Iterable[dict[str, Array]], most: float) -> _Counted:
    """Count the rows of all chunks; those of some, if they are clearly not worth it."""
    parts: list[_Counted] = []
    known = waiting = seen = 0  # distinct rows, rows that may equal them, and all rows so far
    for chunk in chunks:
        fields = {name: chunk[name] for name in about.fields}
        hashed = hashes(about, chunk)
        weight = np.asarray(chunk.get("weight", np.ones(len(hashed))), np.float64)
        parts.append(_Counted.of(hashed, weight, fields))
        waiting, seen = waiting + len(parts[-1].hashed), seen + len(hashed)
        if waiting > max(known, 2 * CHUNK):
            parts = [_Counted.joined(parts)]
            known, waiting = len(parts[0].hashed), 0
            if known > most * seen and seen > 4 * CHUNK:
                break
    return _Counted.joined(parts)


def hashes(description: Description, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a 64-bit hash of the values of each row; -0.0 hashes as 0.0."""
    fields = sorted(description.fields.items())
    total = word = np.zeros(len(batch[fields[0][0]]), np.uint64)
    used = 0  # bits of the word that hold values, of one column or several short ones
    for name, shape in fields:
        values, kind = np.asarray(batch[name]), description.dtypes[name]
        part = np.ascontiguousarray(values.reshape(len(values), prod(shape)), kind)
        bits = 8 * kind.itemsize
        for column in ((part + 0.0).view(f"u{kind.itemsize}") if kind.kind == "f" else part).T:
            if used + bits > 64:
                total, used = _mix_bits(total ^ word), 0
            word = column.astype(np.uint64) | (word << np.uint64(bits) if used else np.uint64(0))
            used += bits
    return _mix_bits(total ^ word)


def _mix_bits(words: np.ndarray) -> np.ndarray:
    """Mix all bits with MurmurHash3's finalizer, after an offset so that 0 is no fixed point."""
    words = (words + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    for mixer in MIXERS:
        words = (words ^ (words >> np.uint64(33))) * mixer
    return words ^ (words >> np.uint64(33))

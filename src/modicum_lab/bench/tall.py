"""A made-up table of any height: numbers, factors, a rare outcome; made a block at a time.

Every block has its own seed, so that the rows are the same as arrays or as Parquet files, all at
once or in parts. Outcomes of the first rows have a different intercept from the others, so that
removing these rows moves the posterior.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from modicum import Rows


class Shape(NamedTuple):
    """Columns of the table, and the rows that are made at a time."""

    factors: int
    numbers: int
    block: int = 250_000


WIDE, NARROW = Shape(5, 10), Shape(3, 2)
LEVELS = 12  # of a factor
OTHERS, SHIFT = 10_000, 0.8  # first rows with a different intercept, and the difference


def blocks(n: int, shape: Shape = WIDE, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Yield rows from `start` to n in blocks: numbers x, codes of factors g0, g1, ..., and y."""
    slopes = np.random.default_rng(0).normal(scale=0.2, size=shape.numbers).astype(np.float32)
    effects = np.random.default_rng(1).normal(scale=0.3, size=(shape.factors, LEVELS))
    for first in range(start, n, shape.block):
        size, rng = min(shape.block, n - first), np.random.default_rng([2, first])
        x = rng.standard_normal((shape.block, shape.numbers), np.float32)[:size]
        codes = rng.integers(0, LEVELS, (shape.factors, shape.block), np.uint8)[:, :size]
        eta = -3.0 + x @ slopes + sum(effects[k][codes[k]] for k in range(shape.factors))
        eta[: max(0, OTHERS - first)] += SHIFT
        y = (rng.random(shape.block)[:size] < 1 / (1 + np.exp(-eta))).astype(np.float32)
        yield {"x": x, "y": y} | {f"g{k}": column for k, column in enumerate(codes)}


def arrays(n: int, shape: Shape = WIDE) -> dict[str, np.ndarray]:
    """Return all rows at once, as arrays.

    Examples
    --------
    >>> made = arrays(20)
    >>> made["x"].shape, made["g4"].dtype
    ((20, 10), dtype('uint8'))
    """
    fields: dict[str, np.ndarray] = {}
    first = 0
    for block in blocks(n, shape):
        for name, values in block.items():
            whole = fields.setdefault(name, np.empty((n, *values.shape[1:]), values.dtype))
            whole[first : first + len(values)] = values
        first += len(block["y"])
    return fields


def rows(n: int, shape: Shape = WIDE) -> Rows:
    """Return all rows as `Rows` in memory, with factors as codes."""
    fields = arrays(n, shape)
    codes = {name: values for name, values in fields.items() if name.startswith("g")}
    names = [f"x{j}" for j in range(shape.numbers)]
    return Rows(x=fields["x"], y=fields["y"], codes=codes, columns=names)


def write_parquet(folder: Path, n: int, shape: Shape = WIDE, part_blocks: int = 40) -> int:
    """Write the rows as Parquet files, one process per core; return their bytes."""
    part_rows = part_blocks * shape.block
    starts = range(0, n, part_rows)
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(starts)), get_context("spawn")) as pool:
        ends = [min(start + part_rows, n) for start in starts]
        list(pool.map(_write_part, repeat(folder), starts, ends, repeat(shape)))
    return sum(file.stat().st_size for file in folder.iterdir())


def _write_part(folder: Path, start: int, stop: int, shape: Shape) -> None:
    """Write one file, with levels as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    levels = pa.array([f"level {i:02d}" for i in range(LEVELS)])
    writer = None
    for block in blocks(stop, shape, start):
        columns = {f"x{j}": pa.array(block["x"][:, j]) for j in range(shape.numbers)}
        for name in (f"g{k}" for k in range(shape.factors)):
            columns[name] = pa.DictionaryArray.from_arrays(pa.array(block[name]), levels)
        table = pa.table(columns | {"y": pa.array(block["y"].astype(np.int8))})
        writer = writer or pq.ParquetWriter(folder / f"{start:012d}.parquet", table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()

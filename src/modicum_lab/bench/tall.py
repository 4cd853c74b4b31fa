"""A made-up table of any height: ten numbers, five factors, a rare outcome; made a block at a time.

Every block has its own seed, so that the rows are the same as arrays or as Parquet files, all at
once or in parts. Outcomes of the first rows have a different intercept from the others, so that
removing these rows moves the posterior.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from modicum import Rows

FACTORS, NUMBERS, LEVELS = 5, 10, 12
BLOCK = 250_000  # rows
OTHERS, SHIFT = 10_000, 0.8  # first rows with a different intercept, and the difference
NUMBER_NAMES = [f"x{j}" for j in range(NUMBERS)]
FACTOR_NAMES = [f"g{k}" for k in range(FACTORS)]


def blocks(n: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows in blocks: numbers x, codes of the factors g0, g1, ..., and outcomes y."""
    slopes = np.random.default_rng(0).normal(scale=0.2, size=NUMBERS).astype(np.float32)
    effects = np.random.default_rng(1).normal(scale=0.3, size=(FACTORS, LEVELS))
    for first in range(0, n, BLOCK):
        size, rng = min(BLOCK, n - first), np.random.default_rng([2, first])
        x = rng.standard_normal((BLOCK, NUMBERS), np.float32)[:size]
        codes = rng.integers(0, LEVELS, (FACTORS, BLOCK), np.uint8)[:, :size]
        eta = -3.0 + x @ slopes + sum(effects[k][codes[k]] for k in range(FACTORS))
        eta[: max(0, OTHERS - first)] += SHIFT
        y = (rng.random(BLOCK)[:size] < 1 / (1 + np.exp(-eta))).astype(np.float32)
        yield {"x": x, "y": y} | dict(zip(FACTOR_NAMES, codes, strict=True))


def arrays(n: int) -> dict[str, np.ndarray]:
    """Return all rows at once, as arrays.

    Examples
    --------
    >>> made = arrays(20)
    >>> made["x"].shape, made["g4"].dtype
    ((20, 10), dtype('uint8'))
    """
    fields: dict[str, np.ndarray] = {}
    first = 0
    for block in blocks(n):
        for name, values in block.items():
            whole = fields.setdefault(name, np.empty((n, *values.shape[1:]), values.dtype))
            whole[first : first + len(values)] = values
        first += len(block["y"])
    return fields


def rows(n: int) -> Rows:
    """Return all rows as `Rows` in memory, with factors as codes."""
    fields = arrays(n)
    codes = {name: fields[name] for name in FACTOR_NAMES}
    return Rows(x=fields["x"], y=fields["y"], codes=codes, columns=NUMBER_NAMES)


def write_parquet(folder: Path, n: int, part_rows: int = 40 * BLOCK) -> int:
    """Write the rows as Parquet files, with levels as text; return their bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    levels = pa.array([f"level {i:02d}" for i in range(LEVELS)])
    writer: pq.ParquetWriter | None = None
    for i, block in enumerate(blocks(n)):
        columns = {name: pa.array(block["x"][:, j]) for j, name in enumerate(NUMBER_NAMES)}
        for name in FACTOR_NAMES:
            columns[name] = pa.DictionaryArray.from_arrays(pa.array(block[name]), levels)
        columns["y"] = pa.array(block["y"].astype(np.int8))
        table = pa.table(columns)
        if i * BLOCK % part_rows == 0:
            if writer is not None:
                writer.close()
            writer = pq.ParquetWriter(
                folder / f"{i * BLOCK // part_rows:04d}.parquet", table.schema
            )
        assert writer is not None
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return sum(file.stat().st_size for file in folder.iterdir())

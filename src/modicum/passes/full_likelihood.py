"""All rows as part of a compiled log-density: chunks on the device, or read as it runs.

The sum runs over the same chunks in the same order either way, so draws do not depend on where
the rows are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.models import Target
from modicum.models.base import Batch
from modicum.passes.engine import chunk_bounds, chunk_rows, padded_chunk
from modicum.passes.sums import value_and_slope
from modicum.rows import Rows
from modicum.rows.description import DType
from modicum.runtime import Pytree, free_memory, to_device

Chunk: TypeAlias = tuple[Batch, jax.Array]  # rows, and which of them are present
Slope: TypeAlias = tuple[jax.Array, jax.Array]  # a log-likelihood, and its gradient


@dataclass(frozen=True)
class Resident:
    """Chunks on the device: the arrays scanned over are the chunks themselves."""

    def chunk(self, item: Chunk) -> Chunk:
        """Return (batch, present) of one chunk."""
        return item


@dataclass(frozen=True, eq=False)
class Streamed:
    """Chunks read by the host while the compiled function runs: memory does not grow with n."""

    rows: Rows
    size: int

    def chunk(self, item: jax.Array) -> Chunk:
        """Return (batch, present) of the chunk whose number is `item`."""
        first, mask = padded_chunk(self.rows, 0, self.size)  # all chunks have its shapes and types
        batch = {
            name: jax.ShapeDtypeStruct((*values.shape, *_words(values.dtype)), _word(values.dtype))
            for name, values in first.items()
        }
        shapes = batch, jax.ShapeDtypeStruct(mask.shape, np.bool_)
        raw, present = jax.pure_callback(self._read, shapes, item, vmap_method="sequential")
        return {name: _from_words(words, first[name].dtype) for name, words in raw.items()}, present

    def _read(self, index: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        # NumPy only: JAX must not be called from inside its own callback. Numbers are passed as
        # 32-bit words (bytes and codes unchanged), since double precision is not enabled in the
        # callback's thread.
        batch, present = padded_chunk(self.rows, int(index), self.size)
        return {name: _to_words(values) for name, values in batch.items()}, present


Source: TypeAlias = Resident | Streamed


def _to_words(values: np.ndarray) -> np.ndarray:
    kind = values.dtype
    words = np.ascontiguousarray(values).view(_word(kind))
    return words.reshape(*values.shape, *_words(kind))


def _from_words(raw: jax.Array, kind: DType) -> jax.Array:
    return raw if kind.kind == "u" else jax.lax.bitcast_convert_type(raw, kind)


def _word(kind: DType) -> DType:
    return kind if kind.kind == "u" else np.dtype(np.uint32)


def _words(kind: DType) -> tuple[int, ...]:
    """Return the trailing axis for a number's words, if it has more than one."""
    return (2,) if kind.itemsize == 8 else ()


def hold(rows: Rows, limit: int | None = None) -> tuple[Source, Pytree]:
    """Put the rows on the device if they fit in `limit` bytes; otherwise prepare to stream them.

    Return the source and its array argument. By default the limit is half of the free memory.
    """
    size = chunk_rows(rows)
    count = len(chunk_bounds(rows))
    if rows.nbytes > (free_memory() // 2 if limit is None else limit):
        return Streamed(rows, size), jnp.arange(count)
    shapes = padded_chunk(rows, 0, size)[0]
    filled = {name: np.zeros((count, *part.shape), part.dtype) for name, part in shapes.items()}
    present = np.zeros((count, size), bool)
    for i in range(count):
        batch, present[i] = padded_chunk(rows, i, size)
        for name, values in batch.items():
            filled[name][i] = values
    return Resident(), to_device((filled, present))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def log_likelihood(target: Target, source: Source, t: jax.Array, chunks: Pytree) -> jax.Array:
    """Log-likelihood of all rows at `t`; the same sweep computes its gradient."""
    return _sweep(target, source, t, chunks)[0]


def _sweep(target: Target, source: Source, t: jax.Array, chunks: Pytree) -> Slope:
    def add(total: Slope, item: Pytree) -> tuple[Slope, None]:
        batch, present = source.chunk(item)
        part = value_and_slope(target, t, batch, present)
        added: Slope = jax.tree.map(jnp.add, total, part)
        return added, None

    zero = (jnp.zeros((), jnp.float64), jnp.zeros_like(t))
    total: Slope = jax.lax.scan(add, zero, chunks)[0]
    return total


def _forward(target: Target, source: Source, t: jax.Array, chunks: Pytree) -> Slope:
    return _sweep(target, source, t, chunks)


def _backward(
    target: Target, source: Source, slope: jax.Array, tangent: jax.Array
) -> tuple[jax.Array, None]:
    del target, source
    return tangent * slope, None


log_likelihood.defvjp(_forward, _backward)

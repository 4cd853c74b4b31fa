"""The product x L that whitens rows of many columns, by a factor in blocks and in float32.

A fresh row takes d^2 multiplications, an evaluation of a whitened one 2 d: with hundreds of columns
whitening is most of an iteration. Two things each halve it. L is upper triangular, so that block j
of its columns needs only as many columns of x; and what a row's predictor moves by, e = x L z, is
read by residuals alone, which keep their relative precision: an error of 1e-6 of e is 3e-6 of a
residual. So the product may be in float32, if no digits cancel in it. Those that would, of columns
with a mean far from zero, are taken out beforehand in float64:

    x L = (x - c) L + c L.

What float32 leaves, where columns are nearly collinear, is measured on some rows, and the product
is in float64 where it is too much. Sums over all rows and the rest of the chain are in float64
anyway.
"""

from __future__ import annotations

import jax
import numpy as np

from modicum.arrays import namespace
from modicum.kernels.base import RowFactor
from modicum.runtime import Array, to_device

__all__ = ["MANY", "relative_error", "row_factor", "share_of_work", "whitened"]

MANY = 256  # columns above which whitening outweighs evaluations
BLOCKS = 8  # 9/16 of the multiplications; with more, products are too small to be fast
ACCURATE = 1e-5  # error of a whitened row, relative to its length, up to which float32 will do


def row_factor(factor: np.ndarray, rows: np.ndarray) -> tuple[RowFactor, float]:
    """The factor as `rows` of its kind are to be multiplied by it, and the error of float32.

    Parameters
    ----------
    factor
        L, with one line per column of a row.
    rows
        Some rows, (rows, columns), in float64.
    """
    mixed = _in_blocks(factor, rows.mean(axis=0), "float32")
    error = relative_error(mixed, factor, rows)
    if error <= ACCURATE:
        return mixed, error
    return _in_blocks(factor, np.zeros(len(factor)), "float64"), error


def relative_error(mixed: RowFactor, factor: np.ndarray, rows: np.ndarray) -> float:
    """Largest error of a whitened row, relative to its length."""
    exact = rows @ factor
    off = np.asarray(whitened(rows, jax.tree.map(np.asarray, mixed))) - exact
    length = np.linalg.norm(exact, axis=1)
    return float(np.max(np.linalg.norm(off, axis=1) / np.maximum(length, 1e-300)))


def _in_blocks(factor: np.ndarray, centre: np.ndarray, kind: str) -> RowFactor:
    """L by blocks of columns, without the lines below the diagonal if these are zero."""
    lines, columns = factor.shape
    upper = not np.any(np.tril(factor, -1))
    width = -(-columns // BLOCKS)
    parts = [factor]
    if upper:
        spans = [(start, start + width) for start in range(0, columns, width)]
        parts = [factor[: min(end, lines), start:end] for start, end in spans]
    return RowFactor(
        to_device(centre),
        to_device(centre @ factor),
        tuple(to_device(part.astype(kind)) for part in parts),
    )


def whitened(x: Array, factor: RowFactor) -> jax.Array:
    """x L of rows (rows, columns) in float64."""
    away = (x - factor.centre).astype(factor.blocks[0].dtype)
    parts = [away[..., : block.shape[0]] @ block for block in factor.blocks]
    return namespace(away).concatenate(parts, axis=-1).astype(np.float64) + factor.shift


def share_of_work(factor: RowFactor) -> float:
    """What a product with these blocks takes, of one with the whole factor in float64."""
    dense = factor.blocks[-1].shape[0] * len(factor.shift)
    numbers = sum(block.size for block in factor.blocks)
    return numbers / dense * factor.blocks[0].dtype.itemsize / 8

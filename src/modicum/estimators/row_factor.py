"""The product x L that whitens rows with many columns, in blocks and in float32.

Whitening a fresh row takes d^2 multiplications, evaluating a whitened row 2 d: with hundreds of
columns, whitening dominates an iteration. Two measures each halve it. First, L is upper triangular,
so block j of its columns needs only the leading columns of x. Second, the product can be in
float32: the change e = x L z of a row's predictor enters only residuals, which keep their relative
precision (a relative error of 1e-6 in e is 3e-6 in a residual). To avoid cancellation, the means of
columns far from zero are split off in float64:

    x L = (x - c) L + c L.

The remaining float32 error, which nearly collinear columns cause, is measured on some rows; where
it is too large, the product is in float64. Sums over all rows and the rest of the chain are in
float64 anyway.
"""

from __future__ import annotations

import jax
import numpy as np

from modicum.arrays import namespace
from modicum.kernels.base import RowFactor
from modicum.runtime import Array, to_device

MANY = 256  # columns above which whitening outweighs evaluations
BLOCKS = 8  # 9/16 of the multiplications; with more, products are too small to be fast
ACCURATE = 1e-5  # largest error of a whitened row, relative to its length, for float32


def row_factor(factor: np.ndarray, rows: np.ndarray) -> tuple[RowFactor, float]:
    """Return the factor in the form that multiplies rows like `rows`, and the float32 error.

    Parameters
    ----------
    factor
        L, with one row per column of x.
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
    """Split L into blocks of columns, without the rows below the diagonal if these are zero."""
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
    """Work of a product with these blocks, relative to the whole factor in float64."""
    dense = factor.blocks[-1].shape[0] * len(factor.shift)
    numbers = sum(block.size for block in factor.blocks)
    return numbers / dense * factor.blocks[0].dtype.itemsize / 8

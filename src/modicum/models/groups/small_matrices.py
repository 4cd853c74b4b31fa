"""Explicit formulas for inverses and Cholesky factors of many matrices of up to three rows.

A library call per matrix costs more than the arithmetic, and does not fuse with its surroundings.
"""

from __future__ import annotations

import jax

from modicum.arrays import namespace


def inverse(S: jax.Array) -> jax.Array:
    """Inverses of positive definite matrices (..., r, r) for r up to 3."""
    xp, size = namespace(S), S.shape[-1]
    if size == 1:
        return 1 / S
    if size == 2:
        a, b, c = S[..., 0, 0], S[..., 0, 1], S[..., 1, 1]
        inverse: jax.Array = xp.stack([xp.stack([c, -b], -1), xp.stack([-b, a], -1)], -2)
        return inverse / (a * c - b**2)[..., None, None]
    rows = [S[..., k, :] for k in range(3)]
    cofactors: jax.Array = xp.stack(
        [xp.cross(rows[(k + 1) % 3], rows[(k + 2) % 3]) for k in range(3)], -1
    )
    return cofactors / xp.sum(rows[0] * cofactors[..., 0], axis=-1)[..., None, None]


def lower_factor(S: jax.Array) -> jax.Array:
    """Cholesky factors of positive definite matrices (..., r, r), from their lower triangles."""
    xp, size = namespace(S), S.shape[-1]
    zero = xp.zeros(S.shape[:-2])
    L: list[list[jax.Array]] = []
    for i in range(size):
        row: list[jax.Array] = []
        for j in range(i + 1):
            entry = S[..., i, j]
            for k in range(j):
                entry = entry - row[k] * (L[j] if j < i else row)[k]
            row.append(xp.sqrt(entry) if i == j else entry / L[j][j])
        L.append(row)
    padded = [xp.stack([*row, *[zero] * (size - len(row))], -1) for row in L]
    factor: jax.Array = xp.stack(padded, -2)
    return factor

"""Makes a symmetric matrix positive definite by dropping cross terms of a few entries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf

MOST_DECOUPLED = 3  # entries whose cross terms may be dropped


class Decoupled(NamedTuple):
    """The lower Cholesky factor of a matrix without the cross terms of some entries.

    Absolute eigenvalues, the other way to make a matrix positive definite, depend on the units of
    its entries: below a share of the largest one, they are only rounding errors.
    """

    lower: np.ndarray
    entries: tuple[int, ...]

    @classmethod
    def of(cls, matrix: np.ndarray, own: np.ndarray | None = None) -> Decoupled | None:
        """Drop cross terms of the entries that have no pivot, until all have one.

        Parameters
        ----------
        matrix
            A symmetric matrix.
        own
            What a decoupled entry leaves on the diagonal; None: the diagonal of `matrix`.

        Returns
        -------
        Decoupled or None
            None if more than `MOST_DECOUPLED` entries, or one that is not positive by itself, have
            no pivot.

        Examples
        --------
        >>> Decoupled.of(np.array([[4.0, 3.0], [3.0, 1.0]]))
        Decoupled(lower=array([[2., 0.],
               [0., 1.]]), entries=(1,))
        """
        own = np.diag(matrix) if own is None else own
        mended = matrix.copy()
        entries: tuple[int, ...] = ()
        for _ in range(MOST_DECOUPLED + 1):
            lower, order = dpotrf(mended, lower=1)  # order of the first minor that is not positive
            if order == 0:
                return cls(np.asarray(lower), entries)
            entry = order - 1
            if not own[entry] > 0:
                return None
            mended[entry], mended[:, entry] = 0.0, 0.0
            mended[entry, entry] = own[entry]
            entries = (*entries, entry)
        return None

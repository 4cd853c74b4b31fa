"""Arrow matrices, for effects of a factor with too many levels for dense matrices."""

from modicum.models.arrow.matrices import (
    MOST_BORDER,
    MOST_NUMBERS,
    ArrowCholesky,
    ArrowCovariance,
    ArrowFactor,
    ArrowLayout,
    ArrowMatrix,
    Covariance,
    Decoupled,
    Factor,
    Symmetric,
    all_finite,
    arrow_fits,
    arrow_layout,
    diagonal,
    flat_vector,
)

__all__ = [
    "MOST_BORDER",
    "MOST_NUMBERS",
    "ArrowCholesky",
    "ArrowCovariance",
    "ArrowFactor",
    "ArrowLayout",
    "ArrowMatrix",
    "Covariance",
    "Decoupled",
    "Factor",
    "Symmetric",
    "all_finite",
    "arrow_fits",
    "arrow_layout",
    "diagonal",
    "flat_vector",
]

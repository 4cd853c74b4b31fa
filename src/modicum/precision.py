"""Double precision where the work is done, without touching the user's global JAX settings.

JAX keeps the switch per thread, so every thread that computes enters the scope by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax

__all__ = ["in_double_precision"]

P = ParamSpec("P")
R = TypeVar("R")


def in_double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with 64-bit types enabled in the calling thread."""

    @wraps(function)
    def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return scoped

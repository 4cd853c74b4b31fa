"""Optimised code, for the few tests that compute longer than they compile (see conftest.py)."""

import os
from contextlib import contextmanager
from functools import cache

import jax
import pytest

from modicum.run import advance
from modicum.runtime import FAST_COMPILE, _usable, jit


def optimised(function, **settings):
    """`jax.jit` for long simulations."""
    options = _usable(tuple(FAST_COMPILE.items()))
    return jax.jit(function, **settings, compiler_options=options)


@contextmanager
def optimised_chains():
    """Have the loop in which chains run compiled as users have it."""
    rest = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "_level" not in flag]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", " ".join(rest))  # `jit` looks when a function is first called
        for name in ("advance", "advance_together"):
            patch.setattr(advance, name, _loop(name))
        yield


@cache
def _loop(name):
    return jit(static=(0, 1))(getattr(advance, name).__wrapped__)

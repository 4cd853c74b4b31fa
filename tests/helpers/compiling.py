"""Optimised compilation, for the few tests that compute longer than they compile."""

from contextlib import contextmanager
from functools import cache

import jax
import pytest

from modicum.methods.pilot import short_chains
from modicum.run import iterations
from modicum.runtime import FAST_COMPILE, known_options


def optimised(function, **settings):
    """`jax.jit` for long simulations."""
    options = known_options(FAST_COMPILE)  # also those that XLA_FLAGS sets for tests
    return jax.jit(function, **settings, compiler_options=options)


@contextmanager
def optimised_chains():
    """Compile the loops of chains and pilot chains with the optimisation that users get."""
    with pytest.MonkeyPatch.context() as patch:
        for name, statics in LOOPS.items():
            function = getattr(iterations, name).__wrapped__
            patch.setattr(iterations, name, _loop(function, statics))
        patch.setattr(short_chains, "_chains", _loop(PILOT, 3))
        yield


@cache
def _loop(function, statics):
    return optimised(function, static_argnums=tuple(range(statics)))


LOOPS = {"advance": 2, "ahead": 1}  # numbers of their static arguments
PILOT = short_chains._chains.__wrapped__

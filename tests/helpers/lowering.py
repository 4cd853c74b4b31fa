"""Let functions that are compiled one after another share a context of the compiler.

JAX creates an MLIR context for every function it lowers. That takes 5 ms, a quarter of the time of
a small function, and a test run compiles thousands.
"""

import threading
from contextlib import contextmanager

import pytest

USES = 100  # a context keeps constants and places in the source of all functions it lowered


@contextmanager
def shared_contexts():
    """Give each thread one context for `USES` functions, where JAX's own function is as known."""
    from jax._src.interpreters import mlir

    create, of_thread = getattr(mlir, "make_ir_context", None), threading.local()

    def shared():
        uses = getattr(of_thread, "uses", 0)
        if uses % USES == 0:
            of_thread.context = create()
        of_thread.uses = uses + 1
        return of_thread.context

    with pytest.MonkeyPatch.context() as patch:
        if create is not None:
            patch.setattr(mlir, "make_ir_context", shared)
        yield

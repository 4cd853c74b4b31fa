"""Let functions that are compiled one after another share what they are lowered with.

JAX creates an MLIR context for every function it lowers, which takes 5 ms, a quarter of the time of
a small function, and lowers every operation anew. A test run compiles thousands of functions, most
of them from the same operations on the same shapes.
"""

import threading
from contextlib import contextmanager

import pytest

USES = 300  # a context keeps constants and places in the source of all functions it lowered


@contextmanager
def shared_contexts():
    """Give each thread one context for `USES` functions, where JAX's own functions are as known.

    An operation that is lowered for one of these functions is copied into the others.
    """
    from jax._src.interpreters import mlir

    create, lower = (getattr(mlir, name, None) for name in ("make_ir_context", LOWER))
    of_thread = threading.local()

    def shared():
        uses = getattr(of_thread, "uses", 0)
        if uses % USES == 0:
            of_thread.context, of_thread.operations = create(), {}
        of_thread.uses = uses + 1
        return of_thread.context

    def lower_once(module, equation, key, *rest, **settings):
        known = _of_context(of_thread, module)
        if key in known:
            module.lowering_cache[key] = known[key]
            return known[key]
        lowered = lower(module, equation, key, *rest, **settings)
        if _stands_alone(lowered):
            known[key] = lowered
        return lowered

    with pytest.MonkeyPatch.context() as patch:
        if create is not None:
            patch.setattr(mlir, "make_ir_context", shared)
            if lower is not None:
                patch.setattr(mlir, LOWER, lower_once)
        yield


LOWER = "_cached_lowering_miss"


def _of_context(of_thread, module):
    """Return the operations lowered in a module's context; none if it is not the thread's."""
    is_shared = getattr(of_thread, "context", None) is module.context
    return of_thread.operations if is_shared else {}


def _stands_alone(lowered):
    """Whether a lowered operation needs no function, callback or constant of its module."""
    from jaxlib.mlir.ir import WalkResult

    names = []

    def see(operation):
        names.append(operation.name)
        return WalkResult.ADVANCE

    if lowered.inline and not lowered.const_args:
        lowered.func.operation.walk(see)
    return bool(names) and all(
        name.startswith(("stablehlo.", "chlo.", "func.func", "func.return")) and name not in NAMING
        for name in names
    )


NAMING = ("stablehlo.custom_call", "stablehlo.composite")  # these name functions of the module

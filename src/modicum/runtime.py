"""How functions are compiled, and in which precision they run.

A run's first draw waits for the compiler, so `jit` is `jax.jit` with options that suit the device.
Double precision is switched on where the work is done, without touching the user's global JAX
settings: JAX keeps the switch per thread, so every thread that computes enters the scope by itself.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

import jax
import numpy as np

__all__ = [
    "FASTEST_COMPILE",
    "FAST_COMPILE",
    "GPU_GRAPHS",
    "Array",
    "in_double_precision",
    "jit",
    "make_room",
    "uncollected",
]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Array: TypeAlias = jax.Array | np.ndarray  # what compiled functions take


# Precision ------------------------------------------------------------------------------


def in_double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with 64-bit types enabled in the calling thread."""

    @wraps(function)
    def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return scoped


# Compilation ----------------------------------------------------------------------------

# The CPU compiler's newer code generator and its last level of optimisation take more than half of
# its time, and the loops made here run no faster for them.
FAST_COMPILE = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
# For what is run once: slow code.
FASTEST_COMPILE = FAST_COMPILE | {"xla_backend_optimization_level": 0}
# Loops whose length the device decides stay on it, as part of one graph.
GPU_GRAPHS = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CONDITIONAL,WHILE,"
    "DYNAMIC_SLICE_FUSION",
    "xla_gpu_graph_min_graph_size": 1,
}


class Compiled(Protocol[P, R]):
    """A function that is compiled when it is first called."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it."""
        ...

    def lower(self, *args: Any) -> Any:
        """Make ready what is to be compiled, as `jax.jit` does."""
        ...


def jit(
    *,
    static: int | tuple[int, ...] = (),
    options: dict[str, Any] = FAST_COMPILE,
    on_gpu: dict[str, Any] | None = None,
) -> Callable[[Callable[P, R]], Compiled[P, R]]:
    """Compile the decorated function as `jax.jit` does, with `options` on a CPU or `on_gpu`.

    The arguments numbered in `static` are part of what is compiled. Nothing is asked of JAX before
    the first call.
    """

    def decorate(function: Callable[P, R]) -> Compiled[P, R]:
        lock = threading.Lock()
        made: list[Any] = []
        within = jax.jit(function, static_argnums=static)

        def outermost() -> Any:
            with lock:
                if not made:
                    wished = {"cpu": options, "gpu": on_gpu}.get(jax.default_backend())
                    usable = _usable(tuple((wished or {}).items()))
                    made.append(jax.jit(function, static_argnums=static, **usable))
            return made[0]

        @wraps(function)
        def compiled(*args: Any) -> Any:
            if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
                return within(*args)  # options are for the outermost function alone
            return outermost()(*args)

        def lower(*args: Any) -> Any:
            return outermost().lower(*args)

        compiled.lower = lower  # type: ignore[attr-defined]
        return compiled  # type: ignore[return-value]

    return decorate


@cache
def _usable(options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The options as an argument of `jax.jit`, without those that the compiler does not know."""
    if not options:
        return {}
    if not _are_known(*options):  # they come and go with the compiler's versions
        options = tuple(option for option in options if _are_known(option))
    return {"compiler_options": dict(options)}


def _are_known(*options: tuple[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=dict(options))()
    except Exception:  # what is raised depends on the version
        return False
    return True


# Memory ---------------------------------------------------------------------------------

MAPS, MOST = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
ROOM = 0.7  # share of the maps that may be in use before a run


@contextmanager
def uncollected() -> Iterator[None]:
    """Put off garbage collection: while functions are traced, it is a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def make_room(maps: Path = MAPS, most: Path = MOST) -> bool:
    """Let compiled code go before the system's limit on memory maps is reached.

    Every compiled function holds some hundreds of maps, and the process dies when there are no
    more: some hundred runs of different shapes would do. What is still needed is compiled again.
    """
    try:
        limit = int(most.read_text())
        with maps.open("rb") as file:
            held = sum(1 for _ in file)
    except OSError:  # no Linux
        return False
    if held < ROOM * limit:
        return False
    jax.clear_caches()
    gc.collect()
    return True

"""How functions are compiled, and in which precision they run.

A run's first draw waits for the compiler, so `jit` is `jax.jit` with options that suit the device.
Double precision is switched on where the work is done, without touching the user's global JAX
settings: JAX keeps the switch per thread, so every thread that computes enters the scope by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

import jax
import numpy as np
from scipy.linalg import lapack

from modicum.errors import SettingError

__all__ = [
    "COMPILED",
    "FASTEST_COMPILE",
    "FAST_COMPILE",
    "GPU_GRAPHS",
    "SCATTERS",
    "Array",
    "Compiled",
    "Pytree",
    "aligned",
    "devices",
    "in_double_precision",
    "jit",
    "let_compiled_code_go",
    "make_room",
    "on_device",
    "on_release",
    "one_blas_thread",
    "refuse_forked",
    "share_of_maps",
    "to_device",
    "uncollected",
]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Array: TypeAlias = jax.Array | np.ndarray  # what compiled functions take
Pytree: TypeAlias = Any  # nested tuples, lists and dicts of arrays, of whatever structure


# Precision ------------------------------------------------------------------------------


def in_double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with 64-bit types enabled in the calling thread."""

    @wraps(function)
    def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return scoped


# Devices --------------------------------------------------------------------------------


def devices() -> list[jax.Device]:
    """What work is spread over: all devices of this process, or the one that the user chose."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]  # or a kind, by name
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)
    return [chosen]


def on_device(number: int) -> contextlib.AbstractContextManager[object]:
    """Run what is compiled in the block on the device whose turn it is."""
    every = devices()
    if len(every) == 1:
        return contextlib.nullcontext()
    return jax.default_device(every[number % len(every)])


def to_device(tree: Pytree) -> Pytree:
    """Copies of a tree's NumPy arrays as JAX's.

    `jnp.asarray` compiles a function for every shape that is new, a fiftieth of a second each.
    """
    return jax.tree.map(jax.device_put, aligned(tree))


ALIGNMENT = 64  # bytes; JAX on a CPU takes NumPy's memory as its own where this divides its address


def aligned(tree: Pytree) -> Pytree:
    """Copies of a tree's NumPy arrays that JAX need not copy again, and nobody else can change."""
    return jax.tree.map(lambda leaf: _copy(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)


def _copy(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


# Threads --------------------------------------------------------------------------------


class _OneBLASThread:
    """Matrix products of NumPy in the calling thread alone, while anybody is in the block.

    Threads that work on chunks of rows would each spread every product over all cores, and wait
    for each other: ten times the processor time. The setting is that of the whole process, so that
    the last to leave the block puts back what the first has found.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before: list[int] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        switches = _blas_threads()
        with self._lock:
            if not self._inside:
                self._before = [get() for get, _ in switches]
                for _, put in switches:
                    put(1)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    for (_, put), before in zip(switches, self._before, strict=True):
                        put(before)

    def for_small(self, size: int) -> contextlib.AbstractContextManager[None]:
        """The same where matrices have so few columns that threads only wait for each other.

        On a machine that others use as well, factoring 137 columns takes two threads 90 times the
        processor time of one.
        """
        return self() if size < FEW_COLUMNS else contextlib.nullcontext()


FEW_COLUMNS = 500
Switch: TypeAlias = tuple[Callable[[], int], Callable[[int], object]]  # gets, sets threads
# Functions that get and set the number of threads, by their names in NumPy's libraries.
BLAS_SWITCHES = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
)


@cache
def _blas_threads() -> list[Switch]:
    """Those of the libraries that NumPy and SciPy multiply by, where they have any of these."""
    switches: list[Switch] = []
    for module in (np.linalg._umath_linalg, lapack._flapack):
        with contextlib.suppress(AttributeError, OSError, TypeError):
            # a name is looked up in what a module was linked with, too
            library = ctypes.CDLL(module.__file__)
            for get, put in BLAS_SWITCHES:
                if hasattr(library, get) and hasattr(library, put):
                    switches.append((library[get], library[put]))
                    break
    return switches


one_blas_thread = _OneBLASThread()


# Compilation ----------------------------------------------------------------------------

CompilerOption: TypeAlias = tuple[str, str | bool | int]
CompilerOptions: TypeAlias = dict[str, str | bool | int]

# The CPU compiler's newer code generator and its last level of optimisation take more than half of
# its time, and the loops made here run no faster for them.
FAST_COMPILE: CompilerOptions = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
}
# Sums over codes are scattered, which the older code generator does one by one.
SCATTERS: CompilerOptions = {"xla_backend_optimization_level": 1}
# For what is run once: slow code.
FASTEST_COMPILE: CompilerOptions = FAST_COMPILE | {"xla_backend_optimization_level": 0}
# Loops whose length the device decides stay on it, as part of one graph.
GPU_GRAPHS: CompilerOptions = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CONDITIONAL,WHILE,"
    "DYNAMIC_SLICE_FUSION",
    "xla_gpu_graph_min_graph_size": 1,
}


class Compiled(Protocol[P, R]):
    """A function that is compiled when it is first called."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the compiled function."""
        ...

    def lower(self, *args: Pytree) -> jax.stages.Lowered:
        """Make ready what is to be compiled, as `jax.jit` does."""
        ...


def jit(
    *,
    static: int | tuple[int, ...] = (),
    options: CompilerOptions = FAST_COMPILE,
    on_gpu: CompilerOptions | None = None,
) -> Callable[[Callable[P, R]], Compiled[P, R]]:
    """Compile the decorated function as `jax.jit` does, with `options` on a CPU or `on_gpu`.

    The arguments numbered in `static` are part of what is compiled. Options that the variable
    XLA_FLAGS sets stay as they are there. Nothing is asked of JAX before the first call.
    """

    def decorate(function: Callable[P, R]) -> Compiled[P, R]:
        lock = threading.Lock()
        compiled_once: list[jax.stages.Wrapped] = []
        within = jax.jit(function, static_argnums=static)

        def outermost() -> jax.stages.Wrapped:
            refuse_forked()  # here, since every computation of ours comes this way
            with lock:
                if not compiled_once:
                    wished = {"cpu": options, "gpu": on_gpu}.get(jax.default_backend())
                    usable = _usable(_not_in_flags(wished or {}))
                    compiled_once.append(
                        jax.jit(function, static_argnums=static, compiler_options=usable)
                    )
            return compiled_once[0]

        @wraps(function)
        def compiled(*args: Pytree) -> Pytree:
            if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
                return within(*args)  # options are for the outermost function alone
            with COMPILED.counted():
                return outermost()(*args)

        def lower(*args: Pytree) -> jax.stages.Lowered:
            COMPILED.since_cleared += 1  # the caller is about to compile it
            return outermost().lower(*args)

        compiled.lower = lower  # type: ignore[attr-defined]
        return compiled  # type: ignore[return-value]

    return decorate


def _not_in_flags(options: CompilerOptions) -> tuple[CompilerOption, ...]:
    """The options that XLA_FLAGS does not set: what somebody chose there is what they get."""
    flags = {flag.split("=")[0].lstrip("-") for flag in os.environ.get("XLA_FLAGS", "").split()}
    return tuple((name, value) for name, value in options.items() if name not in flags)


@cache
def _usable(options: tuple[CompilerOption, ...]) -> CompilerOptions | None:
    """The options as an argument of `jax.jit`, without those that the compiler does not know."""
    if not options:
        return None
    if not _are_known(*options):  # they come and go with the compiler's versions
        options = tuple(option for option in options if _are_known(option))
    return dict(options)


def _are_known(*options: CompilerOption) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=dict(options))()
    except Exception:  # what is raised depends on the version
        return False
    return True


# Memory ---------------------------------------------------------------------------------

MAPS, MOST = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
MOST_MAPS = 0.7  # share of the maps that may be in use before a run
MANY = 100  # functions compiled since the last clearing: about thirty runs of different shapes
COMPILATION = "/jax/core/compile/backend_compile_duration"
FROM_DISK = "/jax/compilation_cache/cache_hits"


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
    """Free compiled code before there is too much of it; return whether it was freed.

    Runs of different shapes (folds, groups, another n each) are compiled anew, and what was
    compiled before stays: about 25 MB per run, and hundreds of memory maps, of which a process may
    have only so many. What is still needed is compiled again.
    """
    if COMPILED.since_cleared < MANY and share_of_maps(maps, most) < MOST_MAPS:
        return False
    let_compiled_code_go()
    COMPILED.since_cleared = 0
    return True


def on_release(forget: Callable[[], None]) -> None:
    """Have this called whenever compiled code is freed, by whoever holds some of it."""
    _HOLDERS.append(forget)


_HOLDERS: list[Callable[[], None]] = []


def let_compiled_code_go() -> None:
    """Free all compiled code, and return its memory to the system."""
    for forget in _HOLDERS:
        forget()
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # else the C library would keep it


def share_of_maps(maps: Path = MAPS, most: Path = MOST) -> float:
    """Share of the system's limit on memory maps that is used."""
    try:
        limit = int(most.read_text())
        with maps.open("rb") as file:
            return sum(1 for _ in file) / limit
    except OSError:  # no Linux
        return 0.0


class _Compiled:
    """Counts what the compiler makes in this process, and knows whether it is a forked copy."""

    def __init__(self) -> None:
        self.total = 0
        self.seconds = 0.0  # that the compiler has taken
        self.from_disk = 0  # of these, by JAX's cache
        self.since_cleared = 0  # by functions of ours, or about as many
        self.forked_after = False  # this process is a copy of one in which JAX had been at work
        jax.monitoring.register_event_duration_secs_listener(self._hear)
        jax.monitoring.register_event_listener(self._hear_event)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._in_child)

    def _hear(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        if event == COMPILATION:
            self.total += 1
            self.seconds += duration_secs

    def _hear_event(self, event: str, **kwargs: str | int) -> None:
        del kwargs
        self.from_disk += event == FROM_DISK

    def _in_child(self) -> None:
        self.forked_after = self.total > 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what is compiled within the block as ours."""
        before = self.total
        yield
        self.since_cleared += self.total - before


COMPILED = _Compiled()


def refuse_forked() -> None:
    """Refuse to compute in a copy of a process in which JAX has computed.

    Its threads were not copied, and whatever waits for one of them waits for ever.
    """
    if COMPILED.forked_after:
        raise SettingError(
            "this process was forked from one in which JAX had already been used, and JAX would "
            "hang here; start processes with multiprocessing.get_context('spawn'), or fork before "
            "anything is sampled."
        )

"""How functions are compiled, in which precision they run, and the memory there is for them.

Compile time delays a run's first draw, so `jit` is `jax.jit` with compiler options chosen for the
device. Double precision is enabled locally, without touching the user's global JAX settings. JAX
keeps that switch, and the device, per thread: `Threads` take over those of their caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

import jax
import numpy as np
from threadpoolctl import ThreadpoolController

from modicum.errors import SettingError

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
S = TypeVar("S")
T = TypeVar("T")
Array: TypeAlias = jax.Array | np.ndarray  # accepted by compiled functions
Pytree: TypeAlias = Any  # arbitrarily nested tuples, lists and dicts of arrays


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
    """Return the devices to use: all devices of this process, or the user's default device."""
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]  # may be a platform name
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)
    return [chosen]


def backend() -> str:
    """Return what kind of device chains run on: "cpu", "gpu" or "tpu"."""
    return devices()[0].platform


def on_accelerator() -> bool:
    """Whether chains run on something other than a CPU."""
    return backend() != "cpu"


def on_cpu() -> contextlib.AbstractContextManager[object]:
    """Compute on the CPU inside the block, unless the user chose a device or platforms."""
    chosen = jax.config.jax_default_device is not None or jax.config.jax_platforms  # type: ignore[attr-defined]
    if chosen or not on_accelerator():
        return contextlib.nullcontext()
    return jax.default_device(jax.local_devices(backend="cpu")[0])


def computed_on_cpu(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` in double precision, on the CPU unless the user chose a device.

    Digests and questions about a posterior are many small programs, each of which takes longer to
    compile for an accelerator than it saves there.
    """

    @wraps(function)
    @in_double_precision
    def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
        with on_cpu():
            return function(*args, **kwargs)

    return scoped


def on_device(number: int) -> contextlib.AbstractContextManager[object]:
    """Make device `number`, modulo the number of devices, the default inside the block."""
    all_devices = devices()
    if len(all_devices) == 1:
        return contextlib.nullcontext()
    return jax.default_device(all_devices[number % len(all_devices)])


def to_device(tree: Pytree) -> Pytree:
    """Copy a tree's NumPy arrays to JAX arrays.

    `jnp.asarray` would compile a function for each new shape, at 20 ms each.
    """
    return jax.tree.map(jax.device_put, aligned(tree))


ALIGNMENT = 64  # bytes; on a CPU, JAX shares NumPy memory whose address is a multiple of this


def aligned(tree: Pytree) -> Pytree:
    """Copy a tree's NumPy arrays to aligned memory, which JAX can use without copying again."""

    def copied(leaf: Pytree) -> Pytree:
        if not isinstance(leaf, np.ndarray):
            return leaf
        memory = np.empty(leaf.nbytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        copy = memory[start : start + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
        copy[...] = leaf
        return copy

    return jax.tree.map(copied, tree)


# Threads --------------------------------------------------------------------------------


class _OneBLASThread:
    """Limit BLAS to one thread while any thread is inside the block.

    Otherwise each thread that works on a chunk of rows would spread its matrix products over all
    cores, and threads would wait for each other: ten times the CPU time. The setting is global to
    the process, so the last thread to leave restores what the first one found.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._limit = _blas().limit(limits=1)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._limit.restore_original_limits()

    def for_small(self, size: int) -> contextlib.AbstractContextManager[None]:
        """Limit BLAS to one thread if matrices of `size` columns are too small to gain from more.

        On a busy machine, factoring 137 columns takes two threads 90 times the CPU time of one.
        """
        return self() if size < FEW_COLUMNS else contextlib.nullcontext()


FEW_COLUMNS = 500


@cache
def _blas() -> ThreadpoolController:
    """Find the BLAS libraries of NumPy and SciPy."""
    return ThreadpoolController().select(user_api="blas")


one_blas_thread = _OneBLASThread()


class Threads(ThreadPoolExecutor):
    """Threads that compute in the precision and on the device of whoever hands them work."""

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the function in a thread."""
        double = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        device = jax.config.jax_default_device  # type: ignore[attr-defined]

        def scoped() -> R:
            with jax.enable_x64(double), jax.default_device(device):
                return function(*args, **kwargs)

        return super().submit(scoped)


# Compilation ----------------------------------------------------------------------------

CompilerOptions: TypeAlias = dict[str, str | bool | int]

# XLA's newer CPU code generator and its highest optimisation level take more than half of the
# compile time, and Modicum's loops run no faster for them.
FAST_COMPILE: CompilerOptions = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    # Operations one after the other: handing small ones to other threads takes longer than they do.
    # Iterations of HMC-ECS are a fifth faster for it.
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    # parts that are compiled in parallel; XLA's 32 cost a tenth more than they gain
    "xla_cpu_parallel_codegen_split_count": min(8, os.cpu_count() or 1),
}
# Sums over codes are scatters, which the older code generator executes element by element.
SCATTERS: CompilerOptions = {"xla_backend_optimization_level": 1}
# Slow code, for functions that run once.
FASTEST_COMPILE: CompilerOptions = FAST_COMPILE | {"xla_backend_optimization_level": 0}
# Keep loops with a data-dependent length on the GPU, as part of one graph.
GPU_GRAPHS: CompilerOptions = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CONDITIONAL,WHILE,"
    "DYNAMIC_SLICE_FUSION",
    "xla_gpu_graph_min_graph_size": 1,
}


def in_threads(
    function: Callable[[S], T], items: Iterable[S], threads: int | None = None
) -> Iterator[T]:
    """Map a function over items by several threads, by default one per core; results in order.

    Few items wait at a time. BLAS uses one thread in each.
    """
    threads = threads or os.cpu_count() or 1
    waiting: deque[Future[T]] = deque()
    with one_blas_thread(), Threads(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:  # after an interrupt
                future.cancel()


def in_blocks(make: Callable[[slice], T], number: int, step: int, by_threads: bool = True) -> T:
    """Join the arrays that `make` returns of `step` chains at a time, side by side by threads.

    It returns them in any structure. Their memory is allocated once: gigabytes of draws would take
    longer to join than to make.
    """
    if step >= number:
        return make(slice(number))
    whole: list[T] = []
    lock = threading.Lock()

    def fill(start: int) -> None:
        some = slice(start, start + max(1, step))
        made = make(some)
        with lock:  # the first to arrive tells shapes
            if not whole:
                empty = [np.empty((number, *a.shape[1:]), a.dtype) for a in jax.tree.leaves(made)]
                whole.append(jax.tree.unflatten(jax.tree.structure(made), empty))
        jax.tree.map(lambda all_, part: all_.__setitem__(some, part), whole[0], made)

    list((in_threads if by_threads else map)(fill, range(0, number, max(1, step))))
    return whole[0]


class Compiled(Protocol[P, R]):
    """A function that is compiled when it is first called."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the compiled function."""

    def lower(self, *args: Pytree) -> jax.stages.Lowered:
        """Lower the function for these arguments, as a `jax.jit` function's `lower` does."""


def jit(
    *,
    static: int | tuple[int, ...] = (),
    options: CompilerOptions = FAST_COMPILE,
    on_gpu: CompilerOptions | None = None,
) -> Callable[[Callable[P, R]], Compiled[P, R]]:
    """Compile the decorated function as `jax.jit` does, with `options` on a CPU or `on_gpu`.

    `static` numbers the static arguments. Options set in the environment variable XLA_FLAGS take
    precedence. The device is asked for at each call, and JAX not initialised before the first.
    """

    def decorate(function: Callable[P, R]) -> Compiled[P, R]:
        lock = threading.Lock()
        compiled_once: dict[str, jax.stages.Wrapped] = {}  # by kind of device
        within = jax.jit(function, static_argnums=static)

        def outermost() -> jax.stages.Wrapped:
            refuse_forked()  # here, since all of Modicum's computations pass through
            kind = backend()
            with lock:
                if kind not in compiled_once:
                    usable = usable_options(options, on_gpu)
                    compiled_once[kind] = jax.jit(
                        function, static_argnums=static, compiler_options=usable
                    )
            return compiled_once[kind]

        @wraps(function)
        def compiled(*args: Pytree) -> Pytree:
            if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
                return within(*args)  # only the outermost function may have options
            with COMPILED.counted():
                return outermost()(*args)

        def lower(*args: Pytree) -> jax.stages.Lowered:
            COMPILED.since_cleared += 1  # the caller is about to compile the result
            return outermost().lower(*args)

        compiled.lower = lower  # type: ignore[attr-defined]
        return compiled  # type: ignore[return-value]

    return decorate


def in_equal_blocks(
    evaluate: Callable[[np.ndarray], np.ndarray], points: np.ndarray, size: int
) -> np.ndarray:
    """Evaluate points in padded blocks of exactly `size`, so that one shape is compiled."""
    parts = []
    for first in range(0, len(points), size):
        block = points[first : first + size]
        filled = np.concatenate([block, np.repeat(block[-1:], size - len(block), axis=0)])
        parts.append(evaluate(filled)[: len(block)])
    return np.concatenate(parts)


def for_numpy(function: Callable[P, tuple[jax.Array, ...]]) -> Callable[P, tuple[Any, ...]]:
    """Call a compiled function in double precision, and convert its results to NumPy."""

    @wraps(function)
    @in_double_precision
    def called(*args: P.args, **kwargs: P.kwargs) -> tuple[Any, ...]:
        return tuple(np.asarray(result)[()] for result in function(*args, **kwargs))

    return called


def usable_options(
    options: CompilerOptions, on_gpu: CompilerOptions | None = None
) -> CompilerOptions | None:
    """Return the options for this device, without those that XLA_FLAGS sets or XLA lacks."""
    chosen = {"cpu": options, "gpu": on_gpu}.get(backend()) or {}
    flags = {flag.split("=")[0].lstrip("-") for flag in os.environ.get("XLA_FLAGS", "").split()}
    return known_options({name: value for name, value in chosen.items() if name not in flags})


def known_options(options: CompilerOptions) -> CompilerOptions | None:
    """Return the options that this version of the compiler has; None if it has none of them."""
    fresh = {name: value for name, value in options.items() if name not in _KNOWN}
    all_known = not fresh or _are_known(fresh)
    for name, value in fresh.items():
        _KNOWN[name] = all_known or _are_known({name: value})
    return {name: value for name, value in options.items() if _KNOWN[name]} or None


_KNOWN: dict[str, bool] = {}  # whether the compiler has an option: a test takes 30 ms


def _are_known(options: CompilerOptions) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except Exception:  # the exception's type depends on the version
        return False
    return True


# Memory ---------------------------------------------------------------------------------

MAPS, MOST = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
MOST_MAPS = 0.7  # share of the allowed memory maps that may be in use before a run
MANY = 100  # compilations before compiled code is freed: some fifty runs of different shapes
COMPILATION = "/jax/core/compile/backend_compile_duration"


def free_memory() -> int:
    """Return the bytes of free memory: on the device if it reports them, or else on the host."""
    statistics = devices()[0].memory_stats() or {}
    if "bytes_limit" in statistics:
        return int(statistics["bytes_limit"] - statistics.get("bytes_in_use", 0))
    return free_on_host()


def free_on_host() -> int:
    """Return the bytes of free memory on the host."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return 4 * 2**30


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection inside the block: it takes a tenth of the time of tracing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def make_room() -> bool:
    """Free compiled code if there is too much of it; return whether it was freed.

    Each run with new shapes (folds, groups, another n) compiles its functions anew, and JAX keeps
    the old ones: about 25 MB per run, and hundreds of memory maps, whose number per process the
    system limits. Code that is still needed is compiled again.
    """
    if COMPILED.since_cleared < MANY and share_of_maps() < MOST_MAPS:
        return False
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)  # otherwise the C library keeps freed memory
    COMPILED.since_cleared = 0
    return True


def share_of_maps() -> float:
    """Return this process's number of memory maps as a share of the system's limit."""
    try:
        return MAPS.read_bytes().count(b"\n") / int(MOST.read_text())
    except OSError:  # not on Linux
        return 0.0


class _Compiled:
    """Counts this process's compilations, and records whether it was forked after one."""

    def __init__(self) -> None:
        self.total = 0
        self.seconds = 0.0  # total compile time
        self.since_cleared = 0  # Modicum's own compilations since the last clearing, roughly
        self.forked_after = False  # this process was forked from one that had used JAX
        jax.monitoring.register_event_duration_secs_listener(self._hear)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._in_child)

    def _hear(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        if event == COMPILATION:
            self.total += 1
            self.seconds += duration_secs

    def _in_child(self) -> None:
        self.forked_after = self.total > 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count compilations inside the block as Modicum's own."""
        before = self.total
        yield
        self.since_cleared += self.total - before


COMPILED = _Compiled()


def refuse_forked() -> None:
    """Refuse to compute in a process forked from one that has used JAX.

    JAX's threads are not copied by a fork, so waiting for one of them would never end.
    """
    if COMPILED.forked_after:
        raise SettingError(
            "this process was forked from one in which JAX had already been used, so JAX would "
            "hang here; start processes with multiprocessing.get_context('spawn'), or fork before "
            "sampling anything."
        )

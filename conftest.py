"""Settings of every test run: fast compilation, compiled code cached on disk, bounded memory.

Tests spend nearly all of their time compiling. The settings are environment variables, so that
workers and the processes that tests start share them and make the same draws to the last bit.
"""

import gc
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

# Compile as fast as possible. The code is slow but fast enough for tests (if not, see
# helpers/compiling.py). Do not split modules: with all cores busy, that costs more than it gains.
# JAX reads these flags when it is imported.
QUICKLY_COMPILED = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
OLDER_CODE = "--xla_cpu_use_fusion_emitters=false"
# XLA aborts on an unknown flag, so set them only for versions that are known to accept them.
XLA_VERSION = tuple(map(int, version("jaxlib").split(".")[:2]))
if (0, 8) <= XLA_VERSION <= (0, 12):
    older = f" {OLDER_CODE}" if XLA_VERSION < (0, 11) else ""
    given = os.environ.get("XLA_FLAGS", "")
    if QUICKLY_COMPILED not in given:  # a worker inherits them; flags that come last prevail
        os.environ["XLA_FLAGS"] = f"{QUICKLY_COMPILED}{older} {given}".rstrip()
# Lowered operations need not know where in the source they come from.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# One thread per computation: workers keep all cores busy, and idle threads would spin.
os.environ.setdefault("NPROC", "1")  # XLA
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy and SciPy

gc.disable()  # until tests begin: imported objects stay alive anyway

import pytest  # noqa: E402  (only processes that run tests import JAX; xdist's controller does not)

from helpers import lowering, patching  # noqa: E402

LARGEST_CACHE = 1 << 30  # bytes
WORTH_KEEPING = 0.2  # seconds of compilation; caching less costs more than it saves
MEMORY_KEPT = 1.5 * (1 << 30)  # bytes; above this, a worker frees compiled code after a file
PEAKS = []  # peak memory of each worker, in KiB


def pytest_configure(config):
    """Share compiled code between workers, their child processes and the next run.

    JAX's cache key is the program given to XLA with the compiler's version and options, so the
    cache never returns the code of another function.
    """
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":  # tests run here
        # not in pyproject.toml: pytest would import JAX to read it, before the flags above are set
        config.addinivalue_line("filterwarnings", "error::modicum.errors.ModicumWarning")
        patching.watch()
    config.option.loadscopereorder = False  # otherwise files with few, long tests come last
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = _cache_folder(config)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = str(WORTH_KEEPING)
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        if "jax" in sys.modules:  # it has read the variables already
            config_of_jax = sys.modules["jax"].config
            config_of_jax.update("jax_compilation_cache_dir", str(folder))
            config_of_jax.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
            config_of_jax.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _cache_folder(config):
    """Return a folder in pytest's cache, emptied if it is too large, or a temporary folder."""
    cache = getattr(config, "cache", None)
    if cache is None:  # pytest -p no:cacheprovider
        folder = Path(tempfile.mkdtemp(prefix="modicum-compiled-"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        return folder
    folder = cache.mkdir("compiled")
    if sum(file.stat().st_size for file in folder.iterdir()) > LARGEST_CACHE:
        shutil.rmtree(folder)
        folder = cache.mkdir("compiled")
    return folder


def pytest_sessionfinish(session):
    """Report the peak memory of this worker to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and sys.platform != "win32":
        import resource

        output["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Collect each worker's peak memory."""
    memory = getattr(node, "workeroutput", {}).get("memory")
    if memory is not None:
        PEAKS.append(memory)


def pytest_terminal_summary(terminalreporter):
    """Print the peak memory of the workers."""
    if PEAKS:
        sizes = ", ".join(f"{peak / 2**20:.2f}" for peak in PEAKS)
        terminalreporter.write_line(f"peak memory of the workers: {sizes} GiB")


def pytest_collection_finish():
    """Make the garbage collector scan only objects created by tests, and less often."""
    gc.freeze()  # without collecting first: the imports leave little garbage, and many objects
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def compiled_code_stays():
    """Compile quickly, and keep the code of all tests of a file, however many functions it is."""
    from modicum import runtime

    with pytest.MonkeyPatch.context() as patch, lowering.shared_contexts():
        patch.setattr(runtime, "MANY", 10**9)
        yield


@pytest.fixture
def x64():
    """Enable double precision for JAX code in a test; Modicum enables its own."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", autouse=True)
def let_compiled_code_go():
    """Keep compiled code for the next file, unless memory runs short."""
    yield
    from modicum import runtime

    if _memory() > MEMORY_KEPT or runtime.share_of_maps() > 0.3:
        runtime.COMPILED.since_cleared = runtime.MANY  # as if there were too much of it
        assert runtime.make_room()


def _memory():
    """Return the resident memory of this process in bytes; infinity if the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("inf")
    return pages * os.sysconf("SC_PAGE_SIZE")

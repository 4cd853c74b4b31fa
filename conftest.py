"""What every test run shares: quick compilation, compiled code on disk, memory given back.

Nearly all of a test run is compilation. Its settings are in the environment, so that workers and
the processes tests start have the same ones, and with them the same draws to the last bit.
"""

import gc
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

# Compiled as quickly as can be: slow code, which is quick enough for tests (where it is not, see
# helpers/compiling.py). One module per function, since with all cores at work splitting it costs
# more than it gains. Read when JAX is imported.
QUICKLY_COMPILED = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 "
    "--xla_cpu_parallel_codegen_split_count=1"
)
# JAX ends the process over a flag it does not know: only versions that were tried have them.
if tuple(map(int, version("jaxlib").split(".")[:2])) in ((0, 8), (0, 9), (0, 10)):
    os.environ.setdefault("XLA_FLAGS", QUICKLY_COMPILED)
# One thread per computation: workers keep all cores busy, and idle threads look for work all day.
os.environ.setdefault("NPROC", "1")  # of XLA
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of NumPy and SciPy

gc.disable()  # until tests begin: what is imported stays

import pytest  # noqa: E402  (JAX is imported where tests run: xdist's controller needs none)

from helpers import patching  # noqa: E402

LARGEST_CACHE = 1 << 30  # bytes
WORTH_KEEPING = 0.2  # seconds of compiling; to write what takes less costs more than it saves
LEAST_KEPT, MOST_KEPT = 1.2 * (1 << 30), 3 * (1 << 30)  # bytes; see `_memory_kept`
PEAKS = []  # memory of each worker, in KiB


def pytest_configure(config):
    """Have all workers, their children and the next run share what was compiled.

    JAX's key is the function as XLA sees it, with the compiler's version and options: another
    function never comes from there.
    """
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":  # tests run here
        # not in pyproject.toml, since pytest would import JAX to read it before the flags above
        config.addinivalue_line("filterwarnings", "error::modicum.errors.ModicumWarning")
        patching.watch()
    # Tests patch the library, and so do the processes they start.
    os.environ.setdefault("MODICUM_KEEP_COMPILED", "0")
    config.option.loadscopereorder = False  # else files of few tests come last, however long
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
    """A folder of pytest's cache, emptied when it has grown too large; else a temporary one."""
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
    """A worker tells how much memory it had at most."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and sys.platform != "win32":
        import resource

        output["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Collect what the workers tell."""
    memory = getattr(node, "workeroutput", {}).get("memory")
    if memory is not None:
        PEAKS.append(memory)


def pytest_terminal_summary(terminalreporter):
    """Print it, beside the slowest tests."""
    if PEAKS:
        sizes = ", ".join(f"{peak / 2**20:.2f}" for peak in PEAKS)
        terminalreporter.write_line(f"memory of the workers at most: {sizes} GiB")


def pytest_collection_finish():
    """Have the garbage collector look at what tests make alone, and less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def compiled_code_stays():
    """Tests of one file share what they compiled, however many functions that is."""
    from modicum import runtime

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "MANY", 10**9)
        yield


@pytest.fixture(scope="module", autouse=True)
def let_compiled_code_go():
    """The next file uses what this one compiled, unless memory runs short."""
    yield
    from modicum import runtime

    if _memory() > _memory_kept() or runtime.share_of_maps() > 0.3:
        runtime.let_compiled_code_go()


def _memory_kept():
    """Bytes with more of which a worker frees compiled code after a file: by what there is."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # no POSIX
        return LEAST_KEPT
    return min(max(LEAST_KEPT, whole / 8), MOST_KEPT)  # there are four workers at most


def _memory():
    """Bytes of memory that this process has now; infinite where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("inf")
    return pages * os.sysconf("SC_PAGE_SIZE")

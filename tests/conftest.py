"""What every test run shares: compiled code on disk, and memory given back between files.

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

# What `modicum.runtime` asks of the compiler by itself, for the small functions of tests too; and
# one module per function, since with all cores at work splitting it costs more than it gains. Read
# when JAX is imported.
QUICKLY_COMPILED = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1 "
    "--xla_cpu_parallel_codegen_split_count=1"
)
# JAX ends the process over a flag it does not know: only versions that were tried have them.
if tuple(map(int, version("jaxlib").split(".")[:2])) in ((0, 8), (0, 9), (0, 10)):
    os.environ.setdefault("XLA_FLAGS", QUICKLY_COMPILED)

import jax  # noqa: E402
import pytest  # noqa: E402

from modicum import runtime  # noqa: E402

HERE = Path(__file__).parent
LARGEST_CACHE = 1 << 30  # bytes
PEAKS = []  # memory of each worker, in KiB
COMPILING = (  # where tests run chains, or compile much: folders and files
    *("digest", "engines", "kernels", "methods", "run", "traps"),
    *("test_sample.py", "test_cli.py", "test_readme.py", "test_extending.py", "test_progress.py"),
    *("test_taylor.py", "test_block_poisson.py", "test_bounds.py"),
    *("test_networks.py", "test_network_posterior.py", "test_wrapped.py", "test_posteriordb.py"),
    *("test_constraints.py", "test_own.py", "test_from_numpyro.py", "test_integrated.py"),
    *("test_coded_rows.py", "test_sampling.py", "test_effects.py", "test_sklearn.py"),
    *("test_fit.py", "test_fit_groups.py"),
)
LONGEST = (  # files that take the longest, which workers begin with: what comes last is waited for
    *("models/test_integrated.py", "methods/test_hmc_ecs.py", "methods/test_hmc_ecs_signed.py"),
    *("methods/test_stochastic_gradient.py", "kernels/test_stochastic_gradient.py"),
    *("test_extending.py", "test_sample.py", "traps/test_interrupt.py", "run/test_checkpoint.py"),
    *("methods/test_groups.py", "traps/test_guards.py", "traps/test_modes.py", "test_fit.py"),
    *("methods/test_flymc.py", "kernels/test_energy_conserving.py", "traps/test_priors.py"),
)
SLOW_EXAMPLES = {  # of docstrings: what they sample, quick tests sample too
    *("modicum.sklearn.PoissonRegressor", "modicum.sklearn.Regressor"),
    *(
        "modicum.posterior.outcomes.OutcomesMixin.effects",
        "modicum.posterior.checks.ChecksMixin.loo",
    ),
    *("modicum.posterior.comparison.compare", "modicum.digest.making.digest"),
    *("modicum.models.from_numpyro.from_numpyro", "modicum.models.own.Model"),
}


def pytest_configure(config):
    """Have all workers, their children and the next run share what was compiled.

    JAX's key is the function as XLA sees it, with the compiler's version and options: another
    function never comes from there.
    """
    config.option.loadscopereorder = False  # else files of few tests come last, however long
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = _cache_folder(config)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


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


def pytest_collection_modifyitems(items):
    """Put the longest files first; mark as `unit` what neither runs a chain nor compiles much."""
    places = {HERE / name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    for item in items:
        if item.name in SLOW_EXAMPLES:
            item.add_marker(pytest.mark.slow)
        if not item.path.is_relative_to(HERE) or item.get_closest_marker("slow"):
            continue
        if not set(item.path.relative_to(HERE).parts) & set(COMPILING):
            item.add_marker(pytest.mark.unit)


@pytest.fixture(scope="session", autouse=True)
def compiled_code_stays():
    """Tests of one file share what they compiled, however many functions that is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "MANY", 10**9)
        yield


@pytest.fixture(scope="module", autouse=True)
def let_compiled_code_go():
    """Each file compiles what it needs: kept for the whole run, it would fill the memory."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def x64():
    """Double precision for a test's own JAX arithmetic; Modicum scopes its own."""
    with jax.enable_x64(True):
        yield

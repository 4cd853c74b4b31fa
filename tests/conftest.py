import gc
from pathlib import Path

import jax
import pytest

from modicum import runtime

HERE = Path(__file__).parent
COMPILING = (  # where tests run chains, or compile much: folders and files
    *("kernels", "methods", "run", "traps"),
    *("test_sample.py", "test_cli.py", "test_readme.py", "test_extending.py", "test_progress.py"),
    *("test_taylor.py", "test_block_poisson.py", "test_bounds.py"),
    *("test_networks.py", "test_network_posterior.py", "test_wrapped.py", "test_posteriordb.py"),
)


def pytest_collection_modifyitems(items):
    """Mark as `unit` what neither runs a chain nor compiles much."""
    for item in items:
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

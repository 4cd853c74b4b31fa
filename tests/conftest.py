import sys
from pathlib import Path

import jax
import pytest

# targets with known answers are shared by the tests of every room
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def x64():
    """Double precision for a test's own JAX arithmetic; Modicum scopes its own."""
    with jax.enable_x64(True):
        yield

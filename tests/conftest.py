import jax
import pytest


@pytest.fixture
def x64():
    """Double precision for a test's own JAX arithmetic; Modicum scopes its own."""
    with jax.enable_x64(True):
        yield

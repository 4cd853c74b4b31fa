"""Fixtures of the laboratory's tests: the real tables, if they are available."""

import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]


def data_folder() -> Path:
    """Return the folder of the tables: MODICUM_DATA, or the default next to the checkout."""
    named = os.environ.get("MODICUM_DATA")
    return Path(named) if named else CHECKOUT.parent / "shared" / "data"


@pytest.fixture
def real_tables(monkeypatch):
    """Point the loaders at the tables; skip the test if they are not available."""
    folder = data_folder()
    if not all((folder / name).is_dir() for name in ("covtype", "higgs", "mnist", "fremtpl")):
        pytest.skip("the real tables are not here")
    monkeypatch.setenv("MODICUM_DATA", str(folder))
    return folder

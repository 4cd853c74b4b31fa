"""What the laboratory's tests share: the real tables, where they are at hand."""

import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]


def data_folder() -> Path:
    """Where the tables lie: MODICUM_DATA, or beside the checkout."""
    named = os.environ.get("MODICUM_DATA")
    return Path(named) if named else CHECKOUT.parent / "shared" / "data"


@pytest.fixture
def real_tables(monkeypatch):
    """Point the loaders at the tables; a skipped test where these are not here."""
    folder = data_folder()
    if not all((folder / name).is_dir() for name in ("covtype", "higgs", "mnist", "fremtpl")):
        pytest.skip("the real tables are not here")
    monkeypatch.setenv("MODICUM_DATA", str(folder))
    return folder

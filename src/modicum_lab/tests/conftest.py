"""Fixtures of the laboratory's tests: the real tables, if they are available."""

import pytest


@pytest.fixture
def real_tables(monkeypatch):
    """Point the loaders at the tables; skip the test if they are not available."""
    from modicum_lab.tests.validation.tables import data_folder

    folder = data_folder()
    if not all((folder / name).is_dir() for name in ("covtype", "higgs", "mnist", "fremtpl")):
        pytest.skip("the real tables are not here")
    monkeypatch.setenv("MODICUM_DATA", str(folder))
    return folder

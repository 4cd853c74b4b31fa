"""The real tables of the slow tests and references, as `modicum_lab.datasets` makes them.

A table is made in two steps: `raw(name)` reads the columns that matter as plain arrays, which can
be saved as NPZ, and `build(name, raw)` makes a data set from them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modicum_lab.datasets import Dataset
from modicum_lab.datasets.claims_table import RECIPE as CLAIMS
from modicum_lab.datasets.covertype_table import RECIPE as COVERTYPE
from modicum_lab.datasets.flights_table import RECIPE as FLIGHTS
from modicum_lab.datasets.taxi_table import RECIPE as TAXI

RECIPES = {"covertype": COVERTYPE, "flights": FLIGHTS, "taxi": TAXI, "claims": CLAIMS}
NAMES = tuple(RECIPES)


def data_folder() -> Path:
    """Return the folder of the tables: MODICUM_DATA, or one next to the checkout."""
    given = os.environ.get("MODICUM_DATA")
    return Path(given) if given else Path(__file__).resolve().parents[5] / "shared" / "data"


def raw(name):
    """Read the columns of a table that matter, as arrays."""
    recipe = RECIPES[name]
    return recipe.read(recipe.source.find(data_folder(), download=False))


def build(name, arrays) -> Dataset:
    return RECIPES[name].build(arrays)


def table(name) -> Dataset:
    """Return the data set, or skip the test if its file is missing."""
    if RECIPES[name].source.look(data_folder()) is None:
        pytest.skip(f"the table {name} is not here")
    return build(name, raw(name))

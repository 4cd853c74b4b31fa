"""French motor third-party liability policies (freMTPLfreq of the R package CASdatasets)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import DataError
from modicum.models import Poisson
from modicum.rows import Rows
from modicum_lab.datasets.dataset import Arrays, Dataset, Recipe
from modicum_lab.datasets.encoding import dummies, factor, spline_names, splines
from modicum_lab.datasets.source import Folder, Source

if TYPE_CHECKING:
    import pandas as pd

COMMIT = "c49cbbb37235fc49616cac8ccac32e1491cdc619"
SOURCE = Source(
    name="claims",
    folder="fremtpl",
    files=("freMTPLfreq.parquet", "freMTPLfreq.rda"),
    url=f"https://raw.githubusercontent.com/dutangc/CASdatasets/{COMMIT}/data/freMTPLfreq.rda",
    saved="freMTPLfreq.rda",
    digest="sha256:ae6dad75015c24335c3fc951b1d3fb78a1a4009db9a8fcc1ac15cb4a7cfb3896",
)
FACTORS = ("Power", "Brand", "Gas", "Region")
NUMBERS = (*spline_names("CarAge", 8), *spline_names("DriverAge", 8), "log_density")


def claims(
    folder: Folder = None, download: bool = True, progressbar: bool = True, coded: bool = False
) -> Dataset:
    """French motor policies: number of claims, exposure as offset, 413,169 rows of 42 columns.

    The columns are dummy variables for power, brand, gas and region, with the most frequent level
    as reference; splines in the ages of car and driver; and the log of the population density.
    Parameters as in `covertype`; the package pyreadr reads R's file. With `coded` the factors are
    held as codes: the same columns in fewer bytes.
    """
    recipe = RECIPE if not coded else replace(RECIPE, build=_build_coded)
    return recipe.load(folder, download, progressbar)


def claims_frame(folder: Folder, download: bool, progressbar: bool) -> pd.DataFrame:
    """Return all columns of all policies."""
    return _table(SOURCE.find(folder, download, progressbar))


def _read(path: Path) -> Arrays:
    t = _table(path)
    arrays: Arrays = {}
    for name in FACTORS:
        arrays[name] = t[name].cat.codes.to_numpy(np.int16)
        arrays[f"{name} levels"] = np.array([str(level) for level in t[name].cat.categories])
    numbers = {k: t[k].to_numpy() for k in ("CarAge", "DriverAge", "Density", "Exposure")}
    return arrays | numbers | {"claims": t["ClaimNb"].to_numpy(np.int16)}


def _table(path: Path) -> pd.DataFrame:
    import pandas as pd

    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    try:
        import pyreadr
    except ImportError:
        raise DataError(
            f"reading {path.name} needs the package pyreadr, which is not installed: pip install "
            "pyreadr."
        ) from None
    table: pd.DataFrame = pyreadr.read_r(path)["freMTPLfreq"]
    return table


def _build(raw: Arrays) -> Dataset:
    parts = [dummies(raw[name], name, raw[f"{name} levels"]) for name in FACTORS]
    names = [name for _, group in parts for name in group]
    x = np.concatenate([*(x for x, _ in parts), _numbers(raw)], axis=1)
    return _dataset(Rows(x=x, columns=[*names, *NUMBERS], **_others(raw)))


def _build_coded(raw: Arrays) -> Dataset:
    codes = {name: factor(raw[name], raw[f"{name} levels"]) for name in FACTORS}
    rows = Rows(x=_numbers(raw), columns=NUMBERS, codes=codes, **_others(raw))
    return _dataset(rows.reordered([*rows.columns[len(NUMBERS) :], *NUMBERS]))


def _numbers(raw: Arrays) -> np.ndarray:
    columns = (
        splines(np.minimum(raw["CarAge"], 30).astype(np.float64), 8),
        splines(raw["DriverAge"].astype(np.float64), 8),
        np.log(raw["Density"].astype(np.float64))[:, None].astype(np.float32) - 6,
    )
    return np.concatenate(columns, axis=1)


def _others(raw: Arrays) -> Arrays:
    exposure = np.log(raw["Exposure"]).astype(np.float32)
    return {"y": raw["claims"].astype(np.float32), "offset": exposure}


def _dataset(rows: Rows) -> Dataset:
    return Dataset(
        name="claims",
        rows=rows,
        model=Poisson(prior_scale=2.5, intercept_scale=10.0),
        description="French motor policies, number of claims with the years insured as exposure",
        source="https://github.com/dutangc/CASdatasets",
    )


RECIPE = Recipe(SOURCE, _read, _build)

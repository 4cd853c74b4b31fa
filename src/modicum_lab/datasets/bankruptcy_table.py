"""Bankruptcy: Polish firms' financial ratios, in the layout of the HMC-ECS paper's example.

The paper's own table (Swedish firms, section 6.6: 4,748,089 rows, eight covariates, ten spline
functions each, an intercept) is not public. The Polish one is (Zieba, Tomczak and Tomczak 2016).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal
from zipfile import ZipFile

import numpy as np

from modicum.errors import DataError
from modicum.models import Logistic
from modicum.rows import Rows
from modicum_lab.datasets.dataset import Arrays, Dataset
from modicum_lab.datasets.encoding import spline_names, splines
from modicum_lab.datasets.source import Folder, Source, data_folder
from modicum_lab.datasets.stand_in import resampled

if TYPE_CHECKING:
    import pandas as pd

ARCHIVE = "polish+companies+bankruptcy+data.zip"
SOURCE = Source(
    name="bankruptcy",
    folder="polish_bankruptcy",
    files=(ARCHIVE,),
    url=f"https://archive.ics.uci.edu/static/public/365/{ARCHIVE}",
    saved=ARCHIVE,
    digest="sha256:17377929aa0b204bbf957e56462cf827c19fe4e2ce89f27dfbc77f9ea2bb16c9",
)
RATIOS = {  # by their numbers in the file
    "profit_to_assets": "Attr1",
    "debt_to_assets": "Attr2",
    "working_capital_to_assets": "Attr3",
    "current_assets_to_current_debt": "Attr4",
    "retained_earnings_to_assets": "Attr6",
    "sales_to_assets": "Attr9",
    "profit_and_depreciation_to_sales": "Attr13",
    "log_assets": "Attr29",
}
COUNT = 11  # spline functions, of which ten are kept: d = 8 * 10 + 1
PAPER_ROWS = 4_748_089
HOME = "https://archive.ics.uci.edu/dataset/365/polish+companies+bankruptcy+data"


def bankruptcy(folder: Folder = None, download: bool = True, progressbar: bool = True) -> Dataset:
    """Polish firms: bankruptcy from eight financial ratios, ten spline functions of each (80).

    Ratios are clipped at their 1st and 99th percentiles; firms with a missing ratio are left out.
    Parameters as in `covertype` (9 MB). The folder may hold some or all of the yearly files
    instead, ``1year.arff`` to ``5year.arff`` or as CSV, compressed or not.
    """
    rows, files = _rows(folder, download, progressbar)
    return Dataset(
        name="bankruptcy",
        rows=rows,
        model=Logistic(prior_scale=2.5, intercept_scale=10.0),
        description=f"Polish firms, bankrupt or not, splines of 8 ratios; {files} files",
        source=HOME,
    )


def bankruptcy_shaped(
    n: int = PAPER_ROWS,
    seed: int = 1,
    folder: Folder = None,
    download: bool = True,
    progressbar: bool = True,
) -> Dataset:
    """Stand-in with the shape of the HMC-ECS paper's bankruptcy table: `n` rows of 80 columns.

    Polish firms are drawn with replacement, and outcomes from the logistic regression fitted to
    them, so the right answer is close to that regression. The paper's Swedish firms are not public.
    """
    real, _ = _rows(folder, download, progressbar)
    return Dataset(
        name="bankruptcy_shaped",
        rows=resampled(real, Logistic(prior_scale=2.5, intercept_scale=10.0), n, seed),
        model=Logistic(prior_scale=2.5, intercept_scale=10.0),
        description=(
            f"a stand-in for the HMC-ECS paper's Swedish firms: {len(real):,} Polish firms drawn "
            f"again to {n:,}, outcomes from a fitted logistic regression"
        ),
        source=HOME,
    )


def _rows(folder: Folder, download: bool, progressbar: bool) -> tuple[Rows, int]:
    tables = [_columns(table) for table in _tables(folder, download, progressbar)]
    joined = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return _build(joined), len(tables)


def _tables(folder: Folder, download: bool, progressbar: bool) -> Iterator[pd.DataFrame]:
    """Yield one table per file: the files in the folder, otherwise those in the archive."""
    top = data_folder(folder)
    kinds = (".arff", ".arff.xz", ".arff.gz", ".csv", ".csv.xz", ".csv.gz")
    files = sorted(
        path
        for place in (top / SOURCE.folder, top)
        for path in (place.glob("[1-5]year*") if place.is_dir() else ())
        if path.name.endswith(kinds)
    )
    if files and SOURCE.look(folder) is None:
        yield from (_table(path, ".arff" in path.name, "infer") for path in files)
        return
    with ZipFile(SOURCE.find(folder, download, progressbar)) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith("year.arff"):
                with archive.open(name) as file:
                    yield _table(file, True, None)


def _table(
    file: Path | IO[bytes], arff: bool, compression: Literal["infer"] | None
) -> pd.DataFrame:
    import pandas as pd

    if not arff:
        return pd.read_csv(file, compression=compression)
    # Below its "@" lines, an ARFF file of numbers is a CSV file.
    names = [f"Attr{i}" for i in range(1, 65)] + ["class"]
    return pd.read_csv(file, compression=compression, names=names, na_values="?", comment="@")


def _columns(table: pd.DataFrame) -> Arrays:
    missing = [name for name in (*RATIOS.values(), "class") if name not in table.columns]
    if missing:
        raise DataError(f"a file of the Polish firms has no column {missing[0]}; fetch it again.")
    complete = table[[*RATIOS.values(), "class"]].apply(_numbers).dropna()
    return {name: complete[name].to_numpy(np.float64) for name in complete}  # type: ignore[misc]


def _numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    import pandas as pd

    return pd.to_numeric(column, errors="coerce")


def _build(raw: Arrays) -> Rows:
    parts, names = [], []
    for name, column in RATIOS.items():
        low, high = np.quantile(raw[column], (0.01, 0.99))
        parts.append(splines(np.clip(raw[column], low, high), COUNT))
        names += spline_names(name, COUNT)
    y = raw["class"].astype(np.float32)
    return Rows(x=np.concatenate(parts, axis=1), y=y, columns=names)

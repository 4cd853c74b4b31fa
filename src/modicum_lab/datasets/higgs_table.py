"""HIGGS: simulated collisions, signal against background (Baldi, Sadowski and Whiteson 2014)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from modicum.errors import DataError
from modicum.models import Logistic
from modicum.rows import Rows
from modicum_lab.datasets.dataset import Dataset
from modicum_lab.datasets.source import Folder, Source
from modicum_lab.datasets.stand_in import resampled

SOURCE = Source(
    name="higgs",
    folder="higgs",
    files=("HIGGS.csv.gz", "HIGGS.csv", "higgs_union.parquet"),
    url="https://archive.ics.uci.edu/ml/machine-learning-databases/00280/HIGGS.csv.gz",
    saved="HIGGS.csv.gz",
    digest="sha256:ea302c18164d4e3d916a1e2e83a9a8d07069fa6ebc7771e4c0540d54e593b698",
)
COLUMNS = (
    *("lepton_pT", "lepton_eta", "lepton_phi", "missing_energy_magnitude", "missing_energy_phi"),
    *(f"jet{i}_{what}" for i in range(1, 5) for what in ("pt", "eta", "phi", "btag")),
    *("m_jj", "m_jjj", "m_lv", "m_jlv", "m_bb", "m_wbb", "m_wwbb"),
)
WHOLE, TEST = 11_000_000, 500_000  # UCI designates the last half million rows for testing
HOME = "https://archive.ics.uci.edu/dataset/280/higgs"


def higgs(
    folder: Folder = None,
    download: bool = True,
    progressbar: bool = True,
    limit: int | None = None,
) -> Dataset:
    """HIGGS: collisions that produce a Higgs boson against background, 28 columns.

    The whole file has 11 million rows, of which the last 500,000 are `test`. Columns are not
    scaled, since they are scaled in the file.

    Parameters
    ----------
    folder, download, progressbar
        As in `covertype` (2.8 GB). The folder may hold a part of the file instead,
        ``higgs_union.parquet``; the description then says so.
    limit
        Read at most this many rows.
    """
    path = SOURCE.find(folder, download, progressbar)
    x, y = _read(path, limit)
    is_complete = len(y) == WHOLE
    cut = WHOLE - TEST if is_complete else len(y)
    extent = "all" if is_complete else "a part"
    return Dataset(
        name="higgs",
        rows=Rows(x=x[:cut], y=y[:cut], columns=COLUMNS),
        model=Logistic(prior_scale=2.5, intercept_scale=10.0),
        description=f"simulated collisions, signal against background; {extent} of the file",
        source=HOME,
        test=Rows(x=x[cut:], y=y[cut:], columns=COLUMNS) if is_complete else None,
    )


def higgs_shaped(
    n: int = WHOLE,
    seed: int = 1,
    folder: Folder = None,
    download: bool = True,
    progressbar: bool = True,
) -> Dataset:
    """Stand-in with the shape of HIGGS: `n` resampled real rows, outcomes from a fitted model.

    It serves to measure time and memory without the whole file. Rows are drawn with replacement
    from those in `folder`, and outcomes from the logistic regression fitted to them, so the right
    answer is close to that regression; it is not the posterior of HIGGS.
    """
    x, y = _read(SOURCE.find(folder, download, progressbar), None)
    real = Rows(x=x, y=y, columns=COLUMNS)
    return Dataset(
        name="higgs_shaped",
        rows=resampled(real, Logistic(prior_scale=2.5, intercept_scale=10.0), n, seed),
        model=Logistic(prior_scale=2.5, intercept_scale=10.0),
        description=(
            f"a stand-in for HIGGS: {len(real):,} real rows drawn again to {n:,}, outcomes from a "
            "fitted logistic regression"
        ),
        source=HOME,
    )


def _read(path: Path, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd

    if path.suffix == ".parquet":
        table = pd.read_parquet(path, columns=["label", *COLUMNS])
        table = table if limit is None else table.head(limit)
    else:
        names = ["label", *COLUMNS]
        table = pd.read_csv(path, header=None, dtype=np.float32, nrows=limit)
        if table.shape[1] != len(names):
            raise DataError(f"{path} has {table.shape[1]} columns instead of 29; fetch it again.")
        table.columns = pd.Index(names)
    y = table.pop("label").to_numpy(np.float32)
    return np.ascontiguousarray(table.to_numpy(np.float32)), y

"""Yellow taxi trips of New York in May 2023 (Taxi and Limousine Commission)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import DataError
from modicum.models import Logistic
from modicum.rows import Rows
from modicum_lab.datasets.dataset import Arrays, Dataset, Recipe
from modicum_lab.datasets.encoding import spline_names, splines
from modicum_lab.datasets.source import Folder, Source

if TYPE_CHECKING:
    import pandas as pd

SOURCE = Source(
    name="taxi",
    folder="nyc_taxi_yellow",
    files=("yellow_2023-05.parquet", "yellow_tripdata_2023-05.parquet"),
    url="https://d37ci6vzurychx.cloudfront.net/trip-data/yellow_tripdata_2023-05.parquet",
    saved="yellow_tripdata_2023-05.parquet",
    digest=None,  # the commission publishes none, and has rewritten its files before
    sizes=(30_000_000, 120_000_000),  # allows for other columns and compression
)
CARD = 1
PUBLISHED = (  # the columns that are read, by the commission's names
    *("tpep_pickup_datetime", "tpep_dropoff_datetime", "payment_type", "trip_distance"),
    *("fare_amount", "tip_amount"),
)
NARROW = ("pickup_s", "duration_s", "payment_type", "distance_cmi", "fare_c", "tip_c")


def taxi(folder: Folder = None, download: bool = True, progressbar: bool = True) -> Dataset:
    """New York taxi trips: a tip of a fifth of the fare or more, 2.7 million rows of 27 columns.

    The columns are splines in the time of day and in the logs of distance and duration, nine each.
    Trips are those paid by card, of 3 dollars or more, up to 100 miles, and from one minute to four
    hours. Parameters as in `covertype` (48 MB). The commission publishes no checksum and has
    rewritten its files before, so only the size of a download and its columns are checked.
    """
    return RECIPE.load(folder, download, progressbar)


def _read(path: Path) -> Arrays:
    import pandas as pd

    try:
        t = pd.read_parquet(path)
    except Exception as fault:  # several of pyarrow's errors
        raise _wrong_file(path, "not a Parquet file") from fault
    columns = NARROW if "pickup_s" in t.columns else PUBLISHED
    missing = [name for name in columns if name not in t.columns]
    if missing:
        raise _wrong_file(path, f"a file without the column {missing[0]!r}")
    t = t if columns == NARROW else _narrow(t)
    kept = (t["payment_type"] == CARD) & (t["fare_c"] >= 300)
    kept &= t["distance_cmi"].between(1, 9_999) & t["duration_s"].between(61, 14_399)
    t = t[kept]
    return {
        "minute": ((t["pickup_s"] % 86_400) // 60).to_numpy(np.int16),
        "distance": t["distance_cmi"].to_numpy(np.int16),
        "duration": t["duration_s"].to_numpy(np.int16),
        "tip": (t["tip_c"] >= 0.2 * t["fare_c"]).to_numpy(),
    }


def _wrong_file(path: Path, fault: str) -> DataError:
    return DataError(
        f"{path} is {fault}, so it does not hold the trips of May 2023 as the commission publishes "
        "them; delete it, and it will be downloaded again."
    )


def _narrow(t: pd.DataFrame) -> pd.DataFrame:
    """Convert the commission's columns to whole seconds, cents and hundredths of a mile."""
    import pandas as pd

    pickup, dropoff = t["tpep_pickup_datetime"], t["tpep_dropoff_datetime"]
    month = pd.Timestamp("2023-05-01")
    return pd.DataFrame(
        {
            "pickup_s": (pickup - month).dt.total_seconds().astype(np.int64),
            "duration_s": (dropoff - pickup).dt.total_seconds().astype(np.int64),
            "payment_type": t["payment_type"],
            "distance_cmi": (100 * t["trip_distance"]).round().astype(np.int64),
            "fare_c": (100 * t["fare_amount"]).round().astype(np.int64),
            "tip_c": (100 * t["tip_amount"]).round().astype(np.int64),
        }
    )


def _build(raw: Arrays) -> Dataset:
    columns = {
        "hour": raw["minute"] / 60.0,
        "log_distance": np.log(raw["distance"].astype(np.float64)),
        "log_duration": np.log(raw["duration"].astype(np.float64)),
    }
    x = np.concatenate([splines(values) for values in columns.values()], axis=1)
    names = [part for name in columns for part in spline_names(name)]
    return Dataset(
        name="taxi",
        rows=Rows(x=x, y=raw["tip"].astype(np.float32), columns=names),
        model=Logistic(prior_scale=2.5, intercept_scale=10.0),
        description="taxi trips paid by card, a tip of a fifth of the fare or more",
        source="https://www.nyc.gov/site/tlc/about/tlc-trip-record-data.page",
    )


RECIPE = Recipe(SOURCE, _read, _build)

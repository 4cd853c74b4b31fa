"""What the posterior says about flights: comparisons of interest to a traveller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from modicum.posterior import Posterior
from modicum.rows import Rows
from modicum_lab.demo.flights import Flights, rows_like

PROB = 0.9
OFTEN = 365  # flights a year from which a destination counts as regular


@dataclass(frozen=True)
class Findings:
    """Tables with the columns `mean` (or `odds_ratio`), `lower` and `upper`."""

    typical: pd.Series
    carriers: pd.DataFrame
    hours: pd.DataFrame
    destinations: pd.DataFrame
    calibration: pd.DataFrame


def find(post: Posterior, flights: Flights, rows: Rows) -> Findings:
    """Compute everything the demo prints and plots."""
    typical = typical_flight(flights)
    return Findings(
        typical=typical,
        carriers=odds_ratios(post, rows, "carrier").sort_values("odds_ratio", ascending=False),
        hours=chance_by_hour(post, flights, rows, typical),
        destinations=chance_by_destination(post, flights, rows, typical),
        calibration=calibration(post, flights, rows),
    )


def typical_flight(flights: Flights) -> pd.Series:
    """Return the most common carrier and route, in the most common month and hour."""
    table = flights.table
    route = ["carrier", "origin", "dest"]
    commonest: Any = table.groupby(route).size().idxmax()
    when = {name: table[name].mode()[0] for name in ("month", "hour")}
    values = dict(zip(route, commonest, strict=True)) | when
    miles = _distance(table, origin=values["origin"], dest=values["dest"])
    return pd.Series(values | {"distance": miles})


def _distance(table: pd.DataFrame, **levels: object) -> float:
    same = np.logical_and.reduce([table[name] == level for name, level in levels.items()])
    return float(table.loc[same, "distance"].mean())


def odds_ratios(post: Posterior, rows: Rows, factor: str) -> pd.DataFrame:
    """Compare each level's odds of being late with those of the reference level."""
    levels = rows.levels[factor][1:]
    at = [rows.columns.index(f"{factor}[{level}]") for level in levels]
    ends = np.exp(post.quantile("beta", [(1 - PROB) / 2, 0.5, (1 + PROB) / 2])[:, at])
    columns = {"lower": ends[0], "odds_ratio": ends[1], "upper": ends[2]}
    return pd.DataFrame(columns, index=pd.Index(levels, name=factor))


def chance_by_hour(
    post: Posterior, flights: Flights, rows: Rows, typical: pd.Series
) -> pd.DataFrame:
    """Predict the typical flight at every hour of departure, with the observed share late."""
    late = flights.table.groupby("hour")["late"].agg(observed="mean", flights="size")
    imagined = pd.DataFrame([typical] * len(late)).assign(hour=late.index.to_numpy())
    return late.join(_chance(post, imagined, flights, rows).set_index(late.index))


def chance_by_destination(
    post: Posterior, flights: Flights, rows: Rows, typical: pd.Series
) -> pd.DataFrame:
    """Predict the typical flight to every destination, each at its own distance.

    A destination determines its distance, so the data cannot separate their effects; what they do
    determine is the chance of a flight that goes there.
    """
    by = flights.table.groupby("dest")
    by_dest = by.agg(observed=("late", "mean"), flights=("late", "size"))
    imagined = pd.DataFrame([typical] * len(by_dest)).assign(
        dest=by_dest.index.to_numpy(), distance=by["distance"].mean().to_numpy()
    )
    chances = by_dest.join(_chance(post, imagined, flights, rows).set_index(by_dest.index))
    return chances.sort_values("mean", ascending=False)


def _chance(post: Posterior, table: pd.DataFrame, flights: Flights, rows: Rows) -> pd.DataFrame:
    chance = post.predict(rows_like(table, flights, rows), draws=1000, prob=PROB)
    return pd.DataFrame({"mean": chance.mean, "lower": chance.lower, "upper": chance.upper})


def calibration(post: Posterior, flights: Flights, rows: Rows, bins: int = 20) -> pd.DataFrame:
    """Sort flights by predicted chance into equal groups, and return the share late in each."""
    chance = post.predict(rows, draws=20).mean
    group = np.argsort(np.argsort(chance, kind="stable"), kind="stable") * bins // len(chance)
    table = pd.DataFrame({"predicted": chance, "observed": flights.table["late"].to_numpy(float)})
    return table.groupby(group).agg(
        predicted=("predicted", "mean"), observed=("observed", "mean"), flights=("observed", "size")
    )

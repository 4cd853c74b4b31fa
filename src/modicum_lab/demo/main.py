"""Fit the flights, print the findings, and plot them."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from modicum import Posterior, Rows, sample
from modicum.models import Logistic
from modicum.plots import pyplot
from modicum_lab.demo import narrative
from modicum_lab.demo.findings import Findings, find
from modicum_lab.demo.flights import Flights, flight_rows, load_flights
from modicum_lab.demo.reference import Comparison, compare

if TYPE_CHECKING:
    from rich.console import Console

PICTURE = "flights.png"
SEED = 13


def run_demo(out: Path, quick: bool = False) -> Path:
    """Run the demo, print what it finds and return the path of its plot."""
    from rich.console import Console

    pyplot()  # raise now, not after the fit, if matplotlib is missing
    say = Console(soft_wrap=True, highlight=False)
    started = time.monotonic()
    flights = load_flights()
    if quick:
        flights = flights.sample(len(flights.table) // 10)
    rows = flight_rows(flights)
    _tell(say, "What it read", narrative.about_data(flights, rows, quick))
    post = fit(rows, quick, progressbar=say.is_terminal)
    _tell(say, "What it did", narrative.about_cost(post) + narrative.about_tuning(post))
    _tell(say, "What its guards say", narrative.about_warnings(post))
    full = compare(rows, post, flights, draws=20 if quick else 50, seed=SEED)
    _tell(say, "Was it right?", narrative.about_comparison(post, full, flights))
    findings = find(post, flights, rows)
    _tell(say, "What it found", narrative.about_findings(findings, flights, rows))
    path = _picture(out, post, full, findings, flights, rows)
    say.print(f"\nThe picture is in {path} ({time.monotonic() - started:.0f} s in all).")
    return path


def fit(rows: Rows, quick: bool = False, progressbar: bool = False) -> Posterior:
    """Draw from the posterior of a logistic regression with Modicum's defaults."""
    from modicum.errors import ModicumWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)  # they are printed afterwards
        return sample(
            Logistic(prior_scale=2.5, intercept_scale=10.0),
            rows,
            method="hmc-ecs",
            draws=250 if quick else 1000,
            tune=300,
            chains=4,
            random_seed=SEED,
            progressbar=progressbar,
        )


def _picture(
    out: Path,
    post: Posterior,
    full: Comparison,
    findings: Findings,
    flights: Flights,
    rows: Rows,
) -> Path:
    from modicum_lab.demo.picture import draw

    out.mkdir(parents=True, exist_ok=True)
    draw(post, full, findings, flights, rows, out / PICTURE)
    return out / PICTURE


def _tell(say: Console, title: str, lines: list[str]) -> None:
    from rich.markup import escape

    say.print(f"\n[bold]{title}[/]")
    for line in lines:
        say.print(escape(line))

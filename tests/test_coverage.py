"""Intervals hold what they promise: coverage over simulated data sets, of curves and new groups.

Parameters are drawn from the prior, so that 90 % intervals of any data set contain them with a
chance of 90 % on average. The Monte Carlo error of a coverage is that of a mean over data sets.
"""

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import modicum as mo
from helpers.refusals import unwarned
from modicum.methods import nested_draws
from modicum.rows.formula.smooths import learn_smooth, smooth_columns

SETS, FEW = 200, 50  # data sets, and those of the controls
FIT = {"draws": 500, "chains": 2, "random_seed": 5, "progressbar": False}
PRIORS = {"intercept": mo.priors.Normal(0, 1), "common": mo.priors.Normal(0, 1)}
X = np.linspace(0, 3, 300)
AT = np.linspace(0.05, 2.95, 25)


def curves_covered(family, sets):
    """Return the share of 25 points at which the band contains the curve, for each data set."""
    rng, found = np.random.default_rng(7), []
    state = learn_smooth(X[:, None], None, k=8)
    columns, at = smooth_columns(state, X[:, None]), smooth_columns(state, AT[:, None])
    priors = PRIORS | {"smooth_sd": mo.priors.HalfNormal(1)}
    for _ in range(sets):
        intercept, slope, sd = rng.normal(), rng.normal(), abs(rng.normal())
        coefficients = np.append(slope, sd * rng.normal(size=6))
        eta = intercept + columns @ coefficients
        noisy, chance = eta + 0.5 * rng.normal(size=len(X)), rng.random(len(X))
        y = noisy if family == "gaussian" else chance < expit(eta)
        if y.min() == y.max():
            continue
        with unwarned():
            post = mo.fit("y ~ s(x, k=8)", {"x": X, "y": y}, family, priors=priors, **FIT)
        band, curve = post.effects("s(x)", levels=AT), at @ coefficients
        found.append(np.mean((band["5%"] < curve) & (curve < band["95%"])))
    return np.array(found)


def new_groups_covered(newgroups, sets):
    """Return the share of 20 new groups whose chance is inside its interval, for each data set."""
    rng, found = np.random.default_rng(8), []
    g, new = np.repeat(np.arange(12), 25), pd.DataFrame({"g": ["new"]})
    priors = PRIORS | {"group_sd": mo.priors.HalfNormal(1)}
    for _ in range(sets):
        intercept, sd = rng.normal(), abs(rng.normal())
        eta = intercept + sd * rng.normal(size=12)[g]
        y = rng.random(len(g)) < expit(eta)
        if y.min() == y.max():
            continue
        with unwarned():
            table = pd.DataFrame({"y": y, "g": g.astype(str)})
            post = mo.fit("y ~ (1 | g)", table, "logistic", priors=priors, **FIT)
            interval = post.predict(new, groups="any", newgroups=newgroups, prob=0.9)
        chance = expit(intercept + sd * rng.normal(size=20))
        found.append(np.mean((interval.lower < chance) & (chance < interval.upper)))
    return np.array(found)


def holds(covered, promised=0.9):
    """Whether a coverage is as promised, but for four Monte Carlo errors."""
    error = np.std(covered, ddof=1) / np.sqrt(len(covered))
    return abs(covered.mean() - promised) < 4 * error and error < 0.3 / np.sqrt(len(covered))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gaussian", "logistic"])
def test_bands_of_curves_cover_them(family):
    covered = curves_covered(family, SETS)
    assert holds(covered), covered.mean()


@pytest.mark.slow
def test_intervals_of_new_groups_cover_them():
    covered = new_groups_covered("one", SETS)
    assert holds(covered), covered.mean()


@pytest.mark.slow
def test_bands_with_a_third_of_the_smoothing_sd_do_not_cover(monkeypatch):
    def a_third(density, rng, count):
        return np.tile(density.mode - np.log(3), (count, 1)), np.zeros(count)

    monkeypatch.setattr(nested_draws.ScaleDensity, "draw", a_third)
    covered = curves_covered("logistic", FEW)
    assert not holds(covered), covered.mean()


@pytest.mark.slow
def test_intervals_of_the_average_group_do_not_cover_new_groups():
    covered = new_groups_covered("average", FEW)
    assert not holds(covered), covered.mean()

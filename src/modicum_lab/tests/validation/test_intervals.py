"""Intervals of smooths and of new groups cover: two hundred tables simulated from the priors."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from scipy.interpolate import BSpline

import modicum as mo

pytestmark = pytest.mark.slow

K, GROUPS, ROWS = 8, 12, 120
AT = np.array([0.05, 0.3, 0.6, 0.95])  # where curves are compared
PROB = 0.9
FORMULA, FAMILY = "y ~ s(x, k=8) + (1 | g)", mo.models.Gaussian(scale=0.5)
X = np.linspace(0, 1, ROWS)
G = np.random.default_rng(0).permutation(np.arange(ROWS) % GROUPS)


def columns(x):
    """Return the line and the wiggles of the smooth as the docs define them, by SciPy's splines."""
    knots = np.arange(-3, K + 1) / (K - 3)
    root = np.linalg.pinv(np.diff(np.eye(K), 2, axis=0))

    def wiggles(at):
        return BSpline.design_matrix(np.clip(at, 0, 1 - 1e-9), knots, 3).toarray() @ root

    of_rows = wiggles(X)
    size = np.sqrt(np.sum(of_rows.var(axis=0)))
    return np.column_stack([x - X.mean(), (wiggles(x) - of_rows.mean(axis=0)) / size])


class Simulated(NamedTuple):
    """A table, its curve where curves are compared, and the mean in a group that it lacks."""

    table: pd.DataFrame
    curve: np.ndarray
    mean: float


def simulated(seed):
    """Draw everything from the priors of the fit."""
    rng = np.random.default_rng(seed)
    sd_of_smooth, sd_of_groups = np.abs(rng.normal(size=2))
    c = np.r_[rng.normal(), sd_of_smooth * rng.normal(size=K - 2)]
    intercept, effects = rng.normal(), sd_of_groups * rng.normal(size=GROUPS + 1)
    eta = intercept + columns(X) @ c + effects[G]
    table = pd.DataFrame({"x": X, "g": G, "y": eta + FAMILY.scale * rng.normal(size=ROWS)})
    curve = columns(AT) @ c
    return Simulated(table, curve, intercept + curve[1] + effects[-1])


def covered(count, sd_of_scales=1.0):
    """Return the shares of the curve, and of the means in new groups, that intervals cover.

    Each has one line per table. Truths have scales of a half-normal prior with sd 1.
    """
    normal, half_normal = mo.priors.Normal(0, 1), mo.priors.HalfNormal(sd_of_scales)
    priors = {"common": normal, "intercept": normal, "smooth_sd": half_normal}
    new = pd.DataFrame({"x": AT[1:2], "g": GROUPS})
    found = []
    for seed in range(count):
        table, curve, mean = simulated(seed)
        post = mo.fit(
            FORMULA, table, FAMILY, priors=priors | {"group_sd": half_normal}, random_seed=seed,
            progressbar=False,
        )  # fmt: skip
        ours = post.effects("s(x)", levels=AT, prob=PROB).to_numpy()[:, 2:4].T
        predicted = post.predict(new, groups="new", prob=PROB)
        in_new = predicted.lower[0] < mean < predicted.upper[0]
        found.append([np.mean((ours[0] < curve) & (curve < ours[1])), in_new])
    return np.array(found, float).T


def off(shares):
    """Return how far coverage is from what it should be, in four standard errors."""
    return (shares.mean() - PROB) / (4 * shares.std() / np.sqrt(len(shares)))


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_intervals_of_smooths_and_of_new_groups_cover():
    curves, means = covered(200)
    assert abs(off(curves)) < 1
    assert abs(off(means)) < 1


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_intervals_by_a_prior_of_small_scales_do_not():
    curves, means = covered(60, sd_of_scales=0.05)
    assert off(curves) < -1
    assert off(means) < -1

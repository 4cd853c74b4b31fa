"""A logistic regression with a known posterior, hard enough to expose wrong samplers.

5,000 rows, four coefficients, one covariate with heavy tails. Mean and standard deviation come from
120,000 importance-weighted draws (worth 110,000). About a poor anchor, 4 to 8 posterior standard
deviations from the mode, residuals are so skewed that uniform subsamples of 100 rows are wrong by
0.1 to 0.2 posterior standard deviations.
"""

from contextlib import nullcontext
from functools import cache

import numpy as np

import modicum as mo
from helpers.compiling import optimised_chains
from helpers.pilots import small_pilots
from helpers.refusals import unwarned
from helpers.targets import TIMES, flat_draws, mean_and_error

MEAN = np.array([-1.5067808, 0.9974667, -0.66914148, 0.49903137])
SD = np.array([0.04382126, 0.04342949, 0.03962698, 0.0320494])
TRUTH_ERROR = 0.003  # Monte Carlo error of MEAN, in units of SD
PRIOR_SCALE = 10**0.5
MODEL = mo.models.Logistic(prior_scale=PRIOR_SCALE, intercept=False)
N, D = 5000, 4

POOR = {"subsample": 100, "blocks": 20, "refreshes": 20}


def _data():
    rng = np.random.default_rng(42)
    x = rng.normal(size=(N, D))
    x[:, 0] = 1.0
    x[:, 3] = rng.standard_t(5, size=N)
    chance = 1 / (1 + np.exp(-x @ [-1.5, 1.0, -0.7, 0.5]))
    return x, (rng.uniform(size=N) < chance) * 1.0


X, Y = _data()


@cache
def rows():
    return mo.Rows(x=X, y=Y)


def newton(picked, scale):
    """Return the posterior mode of some rows, with their likelihood raised to a power."""
    x, y, t = X[picked], Y[picked], np.zeros(D)
    for _ in range(15):
        p = 1 / (1 + np.exp(-x @ t))
        slope = scale * x.T @ (y - p) - t / PRIOR_SCALE**2
        precision = scale * (x.T * (p * (1 - p))) @ x + np.eye(D) / PRIOR_SCALE**2
        t = t + np.linalg.solve(precision, slope)
    return t


@cache
def poor_anchor():
    """Return the mode of 5 % of the rows."""
    return tuple(newton(np.random.default_rng(7).choice(N, 250, replace=False), N / 250))


@cache
def posterior(draws=3000, chains=4, seed=1, **settings):
    """Run HMC-ECS with these settings, cached for all tests."""
    return sample(mo.HMCECS(**settings), draws=draws, chains=chains, random_seed=seed)


def sample(method, tune=300, long=True, **settings):
    """Sample the posterior; chains that are not `long` are compiled as quickly as possible."""
    compiling = optimised_chains() if long else nullcontext()
    with unwarned(), compiling, small_pilots():
        return mo.sample(MODEL, rows(), method=method, tune=tune, progressbar=False, **settings)


def distance(post):
    """Return the error of the posterior means, in posterior sds, and its Monte Carlo error."""
    at, error = mean_and_error((flat_draws(post) - MEAN) / SD)
    return at, np.hypot(error, TRUTH_ERROR)


def faults(post, times=TIMES):
    """List disagreements with the known posterior beyond Monte Carlo error."""
    found = []
    off, error = distance(post)
    if not np.all(np.abs(off) <= times * error):
        found.append("mean")
    squares, error = mean_and_error(((flat_draws(post) - MEAN) / SD) ** 2)
    if not np.all(np.abs(squares - 1) <= times * np.hypot(error, 2 * TRUTH_ERROR)):
        found.append("sd")
    return found

"""One short run of every family: draws with a few rows per step, against all rows."""

import numpy as np
import pytest

import modicum as mo
from helpers.laws import TRUTH
from helpers.outcomes import family, family_rows
from helpers.refusals import unwarned
from helpers.targets import all_of, disagreements, exact_draws, flat_draws, softplus

CHAINS = mo.Auto(laplace=False)
RUN = {"draws": 500, "tune": 400, "chains": 2, "random_seed": 3, "progressbar": False}
pytestmark = pytest.mark.slow  # the quick tests have chains of other families


def _run(name, rows, **settings):
    with unwarned():  # the runs are short
        return mo.sample(family(name), rows, **({"method": CHAINS} | RUN | settings))


def _exactly(rows):
    """Return exact draws of the binomial posterior; with so many rows the prior is flat."""
    batch = all_of(rows)
    x = np.c_[batch["x"], np.ones(len(rows))]

    def log_density(points):
        eta = points @ x.T
        return eta @ batch["y"] - softplus(eta) @ batch["trials"]

    return exact_draws(log_density, np.zeros(x.shape[1]))


OTHERS = {"Logistic", "Poisson", "Gaussian", "StudentT", "Loglogistic"}  # which other tests sample


@pytest.mark.parametrize("name", sorted(TRUTH.keys() - OTHERS))
def test_a_few_rows_per_step_give_the_posterior_of_all(name):
    rows = family_rows(name, 4_000)
    post = _run(name, rows)
    by_all = _exactly(rows) if name == "Binomial" else flat_draws(_run(name, rows, method="nuts"))
    assert post.settings["method"] == "hmc-ecs"
    assert post.tuning["subsample"]["value"] < 1_000
    assert disagreements(flat_draws(post), by_all) == []
    score = post.score(rows)
    assert np.isfinite(score.log_density)
    classes = ("Probit", "Cloglog", "Ordinal", "StoppingRatio", "AdjacentCategory")
    assert np.isnan(score.accuracy) == (name not in classes)
    assert np.all(np.isfinite(post.predict({"x": rows.slice(0, 3)["x"]}).mean))
    if name == "Binomial":  # negative control: the posterior of other rows of the same model
        assert disagreements(flat_draws(post), _exactly(family_rows(name, 4_000, seed=2))) != []

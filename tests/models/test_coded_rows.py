"""Coded rows are equivalent to the same rows with every column formed.

Sums, residuals, moments and bounds agree to rounding; one short run per family of methods gives
the same draws, because only rounding differs.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.coded import Pair, crossed, pair
from helpers.refusals import unwarned
from helpers.slow import slowly
from helpers.targets import sums_of
from modicum.rows import ingest

FAMILIES = {
    "binary": mo.models.Logistic(),
    "count": mo.models.Poisson(),
    "real": mo.models.Gaussian(),
    "class": mo.models.Softmax(classes=3),
    # only codes say which columns are a level times a number, whose default prior is another
    "crossed": mo.models.Logistic(prior_scale=2.5),
}


def points(start):
    rng = np.random.default_rng(2)
    return start + 0.2 * rng.normal(size=(3, len(start)))


PAIRS = {
    **{name: (lambda name=name: pair(outcome=name, weight=name == "count")) for name in FAMILIES},
    "binary": lambda: pair(3000),  # many chunks
    "without numbers": lambda: pair(numbers=0),
    "crossed": crossed,
}


@cases("kind", "count", "class", "without numbers", "crossed", *slowly("binary", "real"))
def test_sums_over_rows_agree(kind):
    both, model = PAIRS[kind](), FAMILIES.get(kind, mo.models.Logistic())
    (coded, start), (dense, _) = (sums_of(model, rows) for rows in both)
    assert coded.target.size == dense.target.size
    at = points(start)
    for t in at[:1]:
        for ours, theirs in zip(coded.hessian(t, "p"), dense.hessian(t, "p"), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-9)
        for ours, theirs in zip(coded.gradient(t, "p"), dense.gradient(t, "p"), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(coded.values(at, "p"), dense.values(at, "p"), rtol=1e-11)
    np.testing.assert_allclose(coded.gradients(at, "p"), dense.gradients(at, "p"), atol=1e-9)
    moved = both.coded._description.coding.densely(both.coded.slice(0, 5))
    assert not np.allclose(moved, moved[:, ::-1])  # otherwise any order of columns would pass


@pytest.fixture(scope="module")
def shared() -> Pair:
    return pair(6000)


SETTINGS = {"draws": 40, "tune": 10, "chains": 1, "random_seed": 4, "progressbar": False}


# Weights are computed in float32, so rounding may put a row of one of the two into the next class
# of weights, and another row into the subsample. Uniform designs draw the same rows.
UNIFORM = mo.HMCECS(design="uniform", subsample=600)


def fitted(rows, method):
    with unwarned():  # the chains are short
        return mo.sample(mo.models.Logistic(), rows, method=method, **SETTINGS)


def same_draws(ours, theirs):
    """Check that only rounding distinguishes the draws."""
    np.testing.assert_allclose(ours["beta"], theirs["beta"], atol=1e-5)
    assert np.ptp(theirs["beta"]) > 0.01  # chains move
    assert ours.summary().index.tolist() == theirs.summary().index.tolist()


@pytest.fixture(scope="module")
def fits(shared):
    return Pair(*(fitted(rows, mo.Laplace(weighted=False)) for rows in shared))


def test_normal_draws_are_the_same(fits):
    same_draws(*fits)


@pytest.mark.slow
@cases(
    "method",
    *(UNIFORM, mo.SignedHMCECS(design="uniform")),
    *("flymc", "sgld", "cp-sghmc", "ewsg", "svrg-ld", "hmc"),
)
def test_chains_draw_the_same(shared, method):
    same_draws(*(fitted(rows, method) for rows in shared))


@pytest.mark.slow
def test_from_a_store_too_and_streamed(shared, tmp_path):
    store = ingest(shared.coded, tmp_path / "s", dtype=None, progressbar=False)
    for method in (replace(UNIFORM, memory_limit=0), mo.NUTS(memory_limit=0)):
        same_draws(fitted(store, method), fitted(shared.dense, method))


def expected(post, rows):
    return post.predict(rows).mean


def test_predictions_do_not_depend_on_how_rows_are_held(shared, fits, tmp_path):
    whole = shared.coded.slice(0, len(shared.coded))
    gas, month = (np.asarray(shared.coded.levels[name])[whole[name]] for name in ("gas", "month"))
    answer = expected(fits.dense, shared.dense)
    for post in fits:
        for rows in shared:
            np.testing.assert_allclose(expected(post, rows), answer, atol=1e-6)
    answer = expected(fits.coded, shared.coded)
    numbers = {"x0": whole["x"][:, 0], "x1": whole["x"][:, 1]}
    table = pd.DataFrame({"month": month, "gas": gas, **numbers})
    by_name = {"x": whole["x"], "gas": gas, "month": month}
    as_codes = {"x": whole["x"], "codes": {"month": month, "gas": gas}}
    formed = {"x": shared.dense.slice(0, len(gas))["x"]}
    reference = pd.Categorical(gas, ["xenon", "argon", "neon", "radon"])
    recoded = mo.Rows(x=whole["x"], codes={"month": month, "gas": gas})
    turned = {**by_name, "x": pd.DataFrame(numbers)[["x1", "x0"]]}
    for rows in (table, by_name, as_codes, formed, recoded, turned):
        np.testing.assert_allclose(expected(fits.coded, rows), answer, atol=1e-6)
    fits.coded.save(tmp_path / "post.npz")
    again = mo.Posterior.load(tmp_path / "post.npz")
    np.testing.assert_allclose(expected(again, by_name), answer, atol=1e-6)
    with pytest.raises(mo.DataError, match="coded against the reference level 'xenon'"):
        expected(fits.coded, mo.Rows(x=whole["x"], codes={"gas": reference, "month": month}))


@cases(
    "change said",
    ({"gas": ["helium"]}, "'gas' holds 'helium' in row 0, which the rows of the fit did not"),
    ({"gas": None}, "lack the factor 'gas'"),
    ({"gas": None, "month": None}, "x has 2 columns, but the fit had 7"),
    ({"x": np.zeros((1, 3))}, "x has 3 columns besides the factors"),
)
def test_rows_that_are_not_like_those_of_the_fit_are_refused(fits, change, said):
    rows = {"x": np.zeros((1, 2)), "gas": ["neon"], "month": [3]} | change
    with pytest.raises(mo.ModicumError, match=said):
        expected(fits.coded, {k: v for k, v in rows.items() if v is not None})

"""Signed and weighted estimates against known answers; ignoring the signs must fail."""

import numpy as np
import pytest
from scipy.stats import norm

from helpers import signed_chain as truth
from modicum.diagnostics import batch_means_variance, inefficiency, r_hat
from modicum.diagnostics.weighted import (
    influence,
    kish_share,
    weighted_ess,
    weighted_ess_tail,
    weighted_mcse,
    weighted_mean,
    weighted_quantile,
    weighted_variance,
)

REPLICATES, DRAWS = 300, 2_000


@pytest.fixture(scope="module")
def long():
    return truth.signed_chain((8, 50_000), seed=1)


def test_quantiles_do_not_cross_where_signs_make_the_distribution_function_fall():
    psi, sign = truth.signed_chain((1, 60), seed=2)
    levels = np.linspace(0.01, 0.99, 99)
    found = weighted_quantile(psi, sign, levels)
    assert np.all(np.diff(found) >= 0)
    order = np.argsort(psi[0])
    climb = np.cumsum(sign[0][order]) / sign.sum()
    assert np.any(np.diff(climb) < 0)
    # negative control: the last crossing of the raw sums differs from the first
    first = [psi[0][order][np.argmax(climb >= p)] for p in levels]
    assert np.any(np.asarray(first) != found)


def test_error_matches_the_spread_of_replicates():
    """Delta method and batch means match 300 independent runs; the naive formula is too wide."""
    psi, sign = truth.signed_chain((REPLICATES, DRAWS), seed=4)
    runs = [(x[None], s[None]) for x, s in zip(psi, sign, strict=True)]
    means, delta = np.array([(weighted_mean(*run), weighted_mcse(*run)) for run in runs]).T
    zeta = np.concatenate([influence(*run) for run in runs])

    def autocorrelated(x):  # one chain of as many scalars as there are runs
        return np.sqrt(inefficiency(x.T[None]) * x.var(axis=1) / DRAWS)

    autoregressive, naive = autocorrelated(zeta), autocorrelated(psi) / sign.mean(axis=1)
    spread, tolerance = means.std(), 4 / np.sqrt(2 * REPLICATES)
    rms = [np.sqrt(np.mean(e**2)) / spread for e in (delta, autoregressive, naive)]
    assert rms[0] == pytest.approx(1, abs=tolerance)
    assert rms[1] == pytest.approx(1, abs=tolerance)
    assert rms[2] > 1 + 2 * tolerance
    assert abs(means.mean() - truth.MEAN) < 4 * spread / np.sqrt(REPLICATES)


def test_ess_is_what_the_error_is_worth(long):
    psi, sign = long
    worth = truth.SD**2 / float(weighted_mcse(psi, sign)) ** 2
    assert weighted_ess(psi, sign) == pytest.approx(worth, rel=0.05)
    # zeta's white part is 1/.36 and its slow part 2 * .8 / .2, both of unit variance about
    assert weighted_ess(psi, sign) == pytest.approx(psi.size / (1 / 0.36 + 8), rel=0.4)
    assert 0 < weighted_ess_tail(psi, sign) < psi.size * 0.36
    naive = psi.size / float(batch_means_variance(psi))
    assert naive != pytest.approx(weighted_ess(psi, sign), rel=0.05)


def test_importance_weights_move_one_normal_to_another():
    x = np.random.default_rng(5).normal(size=(4, 10_000, 1))
    w = np.exp(0.5 * x[..., 0])  # N(0, 1) -> N(.5, 1), up to a constant
    for scale in (1.0, 1e-30):
        assert weighted_mean(x, scale * w) == pytest.approx(0.5, abs=4 * weighted_mcse(x, w)[0])
        assert weighted_variance(x, scale * w) == pytest.approx(1, rel=0.05)
        assert weighted_quantile(x, scale * w, 0.9) == pytest.approx(0.5 + norm.ppf(0.9), abs=0.05)
    assert kish_share(w) == pytest.approx(np.exp(-0.25), rel=0.05)
    assert abs(x.mean() - 0.5) > 0.4


def test_r_hat_of_zeta_notices_chains_that_disagree(long):
    psi, sign = long[0][:4, :2_000], long[1][:4, :2_000]
    assert r_hat(influence(psi, sign)) < 1.02
    assert r_hat(influence(psi + np.arange(4)[:, None], sign)) > 1.1


@pytest.mark.filterwarnings("error")
def test_signs_that_cancel_say_nothing():
    x = np.random.default_rng(6).normal(size=(1, 100, 2))
    for sign in (np.tile([1.0, -1.0], (1, 50)), -np.ones((1, 100))):
        for measure in (weighted_mean, weighted_variance, weighted_mcse, weighted_ess):
            assert np.isnan(measure(x, sign)).all()
        assert np.isnan(weighted_quantile(x, sign, [0.1, 0.9])).all()
        assert np.isnan(weighted_ess_tail(x, sign)).all()


def test_scalars_of_many_draws_are_measured_side_by_side_as_they_are_alone():
    x = np.random.default_rng(1).normal(size=(8, 90_000, 3, 2))  # shared between threads
    one = x[:, :, 1:2, 1:2]
    for measure in (lambda x: weighted_quantile(x, None, [0.05, 0.95]),
                    lambda x: weighted_variance(x, None)):  # fmt: skip
        many = measure(x)
        assert many.shape[-2:] == (3, 2)
        np.testing.assert_allclose(many[..., 1:2, 1:2], measure(one))

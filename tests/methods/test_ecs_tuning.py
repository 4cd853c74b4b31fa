"""The pilot study measures correctly, and m, G and K follow from it."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy.stats import binom

import modicum as mo
from helpers.expansion import Expansion
from helpers.interrupted import planned
from helpers.pilots import moments
from helpers.slow import slowly
from helpers.targets import logistic_rows
from modicum.kernels.control_variates import LinearTaylor
from modicum.methods import weights
from modicum.methods.ecs.subsample import choose, refresh_acceptance
from modicum.methods.pilot.pilot_residuals import Bias, evaluate
from modicum.methods.weights import expected_residuals

DRAWS = np.random.default_rng(1).normal(size=(8, 4))


def log_bias(study, m, ddof):
    return Bias(study, m).log(m, ddof)


def study(cv, batch, ratio, proxy, draws):
    """Study rows drawn with another probability than their own, which is `ratio` times that."""
    probability = np.asarray(batch["probability"])
    drawn_with = dict(batch) | {"probability": probability / ratio}
    return evaluate(cv, drawn_with, proxy, draws).pilot(probability)


# Moments of the residuals ------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    with jax.enable_x64(True):
        return Expansion(mo.models.Logistic(), logistic_rows(200), 1, form=LinearTaylor)


def brute_force(e, probability):
    """Return moments of D = d/w over the design at each pilot draw, from all rows."""
    moments = []
    for z in DRAWS:
        D = e.residuals(z) / probability
        centred = D - probability @ D
        moments.append([probability @ centred**k for k in (2, 3, 4)])
    return np.array(moments).T


def studied(e, count, probability):
    """Return a study of rows drawn exactly in the proportions `count`."""
    picked = np.repeat(np.arange(e.n), count)
    drawn_with = (count / count.sum())[picked]
    batch = e.rows.take(picked) | {"probability": probability[picked]}
    ratio = probability[picked] / drawn_with
    return study(e.cv, batch, ratio, e.proxy, DRAWS)


@pytest.mark.parametrize("design", ["uniform", "weighted"])
def test_reweighted_rows_have_the_moments_of_the_design(small, design, x64):
    count = np.random.default_rng(2).integers(1, 9, small.n)
    drawn_with = count / count.sum()
    probability = np.full(small.n, 1 / small.n) if design == "uniform" else drawn_with
    found = studied(small, count, probability)
    right = brute_force(small, probability)
    for moment, expected in zip((found.variance, found.third, found.fourth), right, strict=True):
        np.testing.assert_allclose(moment, expected, rtol=1e-9)
    # negative control: without reweighting, the moments are another design's
    if design == "uniform":
        batch = small.rows.take(np.repeat(np.arange(small.n), count))
        batch |= {"probability": np.full(count.sum(), 1 / small.n)}
        careless = study(small.cv, batch, np.ones(count.sum()), small.proxy, DRAWS)
        assert np.max(np.abs(careless.variance / right[0] - 1)) > 0.05


def test_the_slope_is_the_gradient_noise(small, x64):
    probability = np.full(small.n, 1 / small.n)
    found = studied(small, np.ones(small.n, int), probability)
    for z, slope in zip(DRAWS, found.slope, strict=True):
        h = 1e-6
        c = np.stack([(small.residuals(z + h * s) - small.residuals(z - h * s)) / (2 * h)
                      for s in np.eye(4)], axis=1) * small.n  # fmt: skip
        assert slope == pytest.approx(np.linalg.eigvalsh(np.cov(c.T, ddof=0))[-1], rel=1e-6)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_expected_residuals_are_those_over_the_laplace_approximation(order, x64):
    e = Expansion(mo.models.Logistic(), logistic_rows(400), order, form=LinearTaylor)
    found = expected_residuals(e.sums, e.cv, e.proxy, np.zeros((1, 4)))
    draws = np.random.default_rng(4).normal(size=(400, 4))
    right = np.sqrt(np.mean([e.residuals(z) ** 2 for z in draws], axis=0))
    ratio = found / right
    # two terms of an expansion, and 400 draws of a heavy-tailed square
    assert 0.8 < np.median(ratio) < 1.25
    assert np.corrcoef(np.log(found), np.log(right))[0, 1] > 0.9
    assert e.sums.ledger.by_purpose["design"] == 400


def test_in_many_columns_expected_residuals_are_estimated(monkeypatch, x64):
    e = Expansion(mo.models.Logistic(), logistic_rows(400), 2, form=LinearTaylor)
    exact = expected_residuals(e.sums, e.cv, e.proxy, np.zeros((1, 4)))
    monkeypatch.setattr(weights, "WIDE", 1)
    off = np.log(expected_residuals(e.sums, e.cv, e.proxy, np.zeros((1, 4))) / exact)
    assert 0 < np.std(off) < 0.25
    assert abs(np.mean(off)) < 0.25  # four columns share their probes
    monkeypatch.setattr(weights, "PROBES", 4)  # negative control: too few
    few = expected_residuals(e.sums, e.cv, e.proxy, np.zeros((1, 4)))
    assert np.std(np.log(few / exact)) > 0.25


def test_residuals_at_draws_match_the_rows_themselves(x64):
    e = Expansion(mo.models.Logistic(), logistic_rows(400), 2, form=LinearTaylor)
    draws = 3 * DRAWS  # far out, where the terms after the second are no longer small
    found = np.asarray(expected_residuals(e.sums, e.cv, e.proxy, draws, by_draws=True))
    right = np.sqrt(np.mean([e.residuals(z) ** 2 for z in draws], axis=0))
    np.testing.assert_allclose(found, right, rtol=1e-5)
    assert e.sums.ledger.by_purpose["design"] == len(draws) * 400


# The perturbation --------------------------------------------------------------------------

SHAPES = {  # third and fourth central moments of residuals of unit variance
    "normal": (lambda r, s: r.standard_normal(s, np.float32), 0.0, 3.0),
    "gamma": (lambda r, s: r.standard_gamma(4.0, s, np.float32) / 2 - 2, 1.0, 4.5),
    "minus gamma": (lambda r, s: 2 - r.standard_gamma(4.0, s, np.float32) / 2, -1.0, 4.5),
    "laplace": (lambda r, s: r.laplace(0, 0.5**0.5, s).astype(np.float32), 0.0, 6.0),
}


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("m", [30, *slowly(100)])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_expansion_of_the_log_bias(shape, m, ddof):
    make, third, fourth = SHAPES[shape]
    # D_i with Var(D_i) = m, so that sigma^2 = 1
    found = log_bias(moments(m, third * m**1.5, fourth * m**2), m, ddof)[0]
    rng = np.random.default_rng(5)
    D = make(rng, (6_000_000 // m, m)) * m**0.5
    log = D.mean(1, dtype=np.float64) - D.var(1, dtype=np.float64) * m / (m - ddof) / (2 * m)
    weights = np.exp(log)
    error = weights.std() / weights.mean() / np.sqrt(len(weights))
    # error of the expansion: at most .008 was measured for |b| up to .08
    assert abs(found - np.log(weights.mean())) < 4.5 * error + 0.009 * 30 / m


def test_only_the_variation_of_the_bias_over_the_posterior_counts():
    assert moments(100.0, third=5e3).bias(50, 1) == pytest.approx(0, abs=1e-12)
    varying = moments(100.0, third=np.linspace(-50, 50, 32))
    small = np.std(np.linspace(-50, 50, 32)) / (3 * 50**2)  # to first order the sd of b
    assert varying.bias(50, 1) == pytest.approx(small, rel=0.01)
    varying = moments(100.0, third=np.linspace(-5e3, 5e3, 32))
    tilt = np.exp(log_bias(varying, 50, 1))
    assert varying.bias(50, 1) == pytest.approx(np.std(tilt) / np.mean(tilt))


def test_the_log_bias_of_rare_and_large_residuals_is_exact():
    """One row in a thousand has a residual beyond m, so moments are not enough."""
    chance, size, m = 1e-3, -250.0, 100
    values = np.array([[0.0, size]])
    weight = np.array([1 - chance, chance])
    mean = values @ weight
    by_draw = [(values - mean[:, None]) ** k @ weight for k in (2, 3, 4)]
    study = moments(*by_draw, draws=1, mean=mean, values=values, weight=weight)
    hits = np.arange(m + 1)
    variance = hits * (1 - hits / m) * size**2 / (m - 1)
    log = hits * size / m - variance / (2 * m) - chance * size
    right = np.log(binom.pmf(hits, m, chance) @ np.exp(log))
    assert log_bias(study, m, 1)[0] == pytest.approx(right, abs=0.005)
    third, fourth = (by_draw[k][0] / d for k, d in ((1, 3 * m**2), (2, 12 * m**3)))
    by_moments = -third - fourth + (by_draw[0][0] / m) ** 2 / (2 * m)
    assert abs(by_moments - right) > 0.04


def test_the_bound_holds_for_every_mean_and_is_no_larger_than_it_must_be():
    """At a few draws the perturbed target is e^4 times too high."""
    rng = np.random.default_rng(7)
    z = rng.normal(size=(512, 3))
    share = np.full(512, 1 / 512)
    share[:2] = 1e-6
    share /= share.sum()
    third = np.where(np.arange(512) < 2, -4.0, 0.05 * z[:, 0]) * 3 * 50**2
    distance = np.linalg.norm(z - share @ z, axis=1)
    study = moments(0.0, third, draws=512, share=share, distance=distance)
    tilt = share * np.exp(log_bias(study, 50, 1))
    shift = np.linalg.norm(tilt / tilt.sum() @ z - share @ z)
    assert shift / z[:, 0].std() <= 1.001 * study.bias(50, 1)
    assert study.bias(50, 1) < 1.1 * shift
    careless = replace(study, distance=np.full(512, np.inf))  # over all draws at once
    assert careless.bias(50, 1) > 1.5 * shift


def test_the_slope_of_many_parameters_is_that_of_few():
    """Power iterations agree with the covariance formed for few parameters."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=(300, 20)) * np.linspace(0.2, 1.5, 20)
    y = (rng.random(300) < 0.5) * 1.0
    with jax.enable_x64(True):
        e = Expansion(mo.models.Logistic(intercept=False), mo.Rows(x=x, y=y), 1, form=LinearTaylor)
        z = rng.normal(size=(2, 20))
        batch = e.rows.take(np.arange(300)) | {"probability": np.full(300, 1 / 300)}
        found = study(e.cv, batch, np.ones(300), e.proxy, z).slope
        for at, slope in zip(z, found, strict=True):
            c = [(e.residuals(at + s) - e.residuals(at - s)) / 2e-6 for s in 1e-6 * np.eye(20)]
            right = np.linalg.eigvalsh(np.cov(np.array(c) * 300, ddof=0))[-1]
            assert slope == pytest.approx(right, rel=0.03)


def test_the_study_is_the_same_for_every_seed():
    """It differs for other rows. (Weights of rows once depended on the seed.)"""
    rows = logistic_rows(2_000)
    first, again, other = (
        planned(mo.models.Logistic(), data, mo.HMCECS(), seed)[0]
        for data, seed in ((rows, 1), (rows, 2), (logistic_rows(2_000, seed=5), 1))
    )
    same = [
        np.allclose(first.context.design.probability, plan.context.design.probability, rtol=1e-6)
        for plan in (again, other)
    ]
    assert same == [True, False]
    assert first.tuning["variance"] == again.tuning["variance"] != other.tuning["variance"]


# m, G and K --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "least", "word"),
    [
        ({"variance": 1.0}, 30, "at least 30"),
        ({"variance": 500.0}, 500, "median pilot draw"),
        ({"variance": np.r_[np.full(31, 1.0), 4_000.0]}, 3_333, "99 of 100 draws"),
        ({"slope": 100.0}, 400, "gradient noise"),
        ({"third": np.linspace(-1e5, 1e5, 32)}, 600, "perturbation"),
    ],
)
def test_each_criterion_can_bind(given, least, word):
    study = moments(**given)
    choice = choose(study, steps=4)
    assert word in choice.why["subsample"]
    # the next multiple of G, and the search for the bias goes up by a tenth
    assert least <= choice.subsample <= 1.1 * least + choice.blocks
    assert choice.subsample % choice.blocks == 0
    assert study.bias(choice.subsample, 1) <= 0.05
    assert np.median(study.variance) <= choice.subsample
    assert np.max(study.variance) <= 1.2 * choice.subsample


def test_no_variance_is_too_large():
    """Where pilot draws expect e^90 counts of a level without any: this was an OverflowError."""
    assert choose(moments(1e120), steps=4).subsample >= 10**12  # no table has so many rows


def test_what_is_set_by_hand_stays():
    choice = choose(moments(500.0), steps=4, subsample=120, blocks=12, refreshes=7)
    assert (choice.subsample, choice.blocks, choice.refreshes) == (120, 12, 7)
    assert all(choice.why[name] == "set by hand" for name in ("subsample", "blocks", "refreshes"))
    assert choose(moments(500.0), steps=4, blocks=7).subsample % 7 == 0
    for m in (2, 37, 101, 1300):
        choice = choose(moments(50.0), steps=4, subsample=m)
        assert m % choice.blocks == 0
        assert 1 <= choice.refreshes <= choice.blocks
        assert choice.blocks >= min(m, 20)


def test_refreshes_balance_cost_and_noise():
    choice = choose(moments(100.0, slope=2.0), steps=5, subsample=100)
    accept = refresh_acceptance(1.0, choice.blocks)
    sweep = np.sqrt(2 * 0.02 * 6 / accept)
    assert choice.refreshes == np.ceil(choice.blocks * sweep)
    # if a fresh row costs sixteen evaluations, it is requested a quarter as often
    dear = choose(moments(100.0, slope=2.0), steps=5, subsample=100, fresh=16.0)
    assert dear.refreshes == np.ceil(choice.blocks * sweep / 4)

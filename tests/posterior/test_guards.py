"""Each fault gives a one-sentence warning; healthy runs give none."""

import warnings

import numpy as np
import pytest
from scipy.signal import lfilter

from helpers import signed_chain as truth
from helpers.posteriors import bare
from modicum import Rows, models, sample
from modicum.posterior import convergence_warnings
from modicum.posterior.doubts import open_ended


def healthy(chains=4, draws=500, seed=1, size=3):
    return np.random.default_rng(seed).normal(size=(chains, draws, size))


def check(x, stats=None, weights=None, labels=None):
    doubts = convergence_warnings({"beta": x}, stats or {}, weights, labels)
    found = [str(doubt) for doubt in doubts]
    for sentence in found:
        assert sentence.endswith(".")
        assert sentence.count(". ") == 0
        assert ";" in sentence  # says what to do
    return found


@pytest.mark.parametrize("draws", [1, 2, 10, 20, 50, 200, 1_000])
@pytest.mark.parametrize("chains", [1, 2, 4])
def test_independent_draws_are_not_blamed_for_being_few(chains, draws):
    for seed in range(4):
        assert check(healthy(chains, draws, seed)) == []


def test_names_the_worst_parameter():
    x = healthy()
    x[0, :, 1] += 5
    (sentence,) = [s for s in check(x, labels={"beta": ("a", "b", "c")}) if "R-hat" in s]
    assert "beta[b]" in sentence


def test_slow_chains():
    noise = np.random.default_rng(2).normal(size=(4, 1_000))
    slow = lfilter([1], [1, -0.98], noise, axis=1)
    assert any("independent ones for beta" in s for s in check(slow))
    assert check(lfilter([1], [1, -0.3], noise, axis=1)) == []


def test_divergences_acceptance_and_depth():
    x, no = healthy(), np.zeros((4, 500))
    fine = {"diverging": no, "acceptance_rate": no + 0.8, "reached_max_treedepth": no}
    assert check(x, fine) == []
    one = no.copy()
    one[2, 7] = 1
    assert check(x, {**fine, "diverging": one})[0].startswith("1 of 2000 trajectories diverged")
    low = no + 0.8
    low[3] = 0.3
    assert "chain 3 accepted only 30%" in check(x, {**fine, "acceptance_rate": low})[0]
    assert "100% of the trajectories" in check(x, {**fine, "reached_max_treedepth": no + 1})[0]
    assert check(x, {**fine, "reached_max_treedepth": one}) == []


def test_chains_that_stand_still():
    x = healthy()
    x[2] = x[2, 0]
    assert check(x)[0].startswith("1 of 4 chains never moved (the first is chain 2)")
    x = healthy()
    x[1, 100:250] = x[1, 100]
    assert check(x)[0].startswith("chain 1 stood still for 150 of its 500 draws")
    # occasional rejections are normal for Metropolis chains
    x = np.repeat(healthy(draws=1_000), 3, axis=1)
    assert check(x) == []
    # one constant coordinate among moving ones is not a frozen chain
    x = healthy()
    x[:, :, 0] = 1.0
    assert check(x) == []


def test_not_finite():
    x = healthy()
    x[1, 40:, 2] = np.nan
    (sentence,) = check(x)
    assert "not finite from draw 40 of chain 1" in sentence


def test_signs():
    psi, sign = truth.signed_chain((4, 2_000), seed=3, phi=0.3)
    assert check(psi, weights=sign) == []
    assert check(psi, weights=np.ones((4, 2_000))) == []
    rng = np.random.default_rng(4)
    weak = np.where(rng.uniform(size=psi.shape) < 0.65, 1.0, -1.0)
    assert any("mean sign is only" in s for s in check(psi, weights=weak))
    none = np.where(rng.uniform(size=psi.shape) < 0.5, 1.0, -1.0)
    assert any("signs cancel" in s for s in check(psi, weights=none))
    assert any("signs cancel" in s for s in check(psi, weights=-np.ones(psi.shape)))
    apart = sign.copy()
    apart[0] = 1.0
    assert any("disagree about the signs" in s for s in check(psi, weights=apart))


def test_weights():
    x = healthy(draws=2_000)
    assert check(x, weights=np.exp(0.3 * x[..., 0])) == []
    assert any("weights are concentrated" in s for s in check(x, weights=np.exp(4 * x[..., 0])))


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("BetaBinomial", "precision"),
        ("NegativeBinomial", "overdispersion"),
        ("HurdleNegativeBinomial", "overdispersion"),
        ("ZeroInflatedNegativeBinomial", "overdispersion"),
    ],
)
def test_a_dispersion_that_only_its_prior_bounds(family, name):
    """It spans powers of ten; the control spans one."""
    model = getattr(models, family)()
    logs = np.random.default_rng(1).normal(size=(2, 300))
    (doubt,) = open_ended(bare(model, {name: np.exp(3.0 + 2.0 * logs)}))
    assert doubt.code == "dispersion-open"
    assert f"family='{model.simpler}', so only the prior bounds {name}" in str(doubt)
    assert model.simpler in models.FAMILIES
    assert doubt.numbers["low"] == pytest.approx(np.exp(3 - 2 * 1.64), rel=0.2)
    assert list(open_ended(bare(model, {name: np.exp(3.0 + 0.5 * logs)}))) == []
    # it may have a formula, and other families' parameters may span what they do
    assert list(open_ended(bare(model, {"beta": logs}))) == []
    assert list(open_ended(bare(models.Gamma(), {"shape": np.exp(9 * logs)}))) == []


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_counts_that_vary_no_more_than_simpler_ones_say_so(spread):
    rng, n = np.random.default_rng(2), 500
    trials = rng.integers(5, 30, n)
    chance = 1 / (1 + np.exp(-spread * rng.normal(size=n)))
    binomial = Rows(x=rng.normal(size=(n, 1)), y=rng.binomial(trials, chance), trials=trials)
    poisson = Rows(
        x=rng.normal(size=(n, 1)), y=rng.poisson(np.exp(1 + spread * rng.normal(size=n)))
    )
    for model, rows in ((models.BetaBinomial(), binomial), (models.NegativeBinomial(), poisson)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            post = sample(model, rows, random_seed=1, progressbar=False)
        codes = [doubt.code for doubt in post.warnings]
        assert codes == ["dispersion-open"] * (spread == 0.0)

"""Diagnostics equal ArviZ's, for all scalars at once, including edge cases."""

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy.signal import lfilter

import modicum as mo
from helpers.refusals import refused
from modicum.diagnostics import ess, ess_tail, mcse, nested_r_hat, r_hat
from modicum.diagnostics.convergence import LARGE
from modicum.errors import SettingError
from modicum.posterior.doubts import convergence_warnings

MEASURES = [ess, ess_tail, mcse, r_hat]


@pytest.fixture
def draws():
    return np.random.default_rng(1).normal(size=(4, 500, 3, 2))


def arviz_of(x):
    tail = (1 - 0.9) / 2
    return {
        ess: array_stats.ess(x, method="bulk"),
        ess_tail: array_stats.ess(x, method="tail", prob=(tail, 1 - tail)),
        mcse: array_stats.mcse(x, method="mean"),
        r_hat: array_stats.rhat(x, method="rank"),
    }


def some_series(seed):
    """Few and many draws, odd numbers of them, ties, rejections, long tails, chains apart."""
    rng = np.random.default_rng(seed)
    chains, n = rng.integers(1, 6), rng.choice([4, 5, 6, 7, 8, 9, 11, 16, 50, 99, 201])
    phi = rng.choice([-0.9, -0.5, 0, 0.5, 0.9, 0.99])
    x = lfilter([1], [1, -phi], rng.normal(size=(chains, n)), axis=1)
    kinds = [
        lambda: x,
        lambda: np.round(x),
        lambda: x[:, np.sort(rng.integers(0, n, n))],
        lambda: np.exp(3 * x),
        lambda: x + rng.normal(size=(chains, 1)),
    ]
    return kinds[seed % len(kinds)]()


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
def test_agree_with_arviz_on_all_kinds_of_series():
    compared = dict.fromkeys(MEASURES, 0)
    for seed in range(150):
        x = some_series(seed)
        if np.ptp(x) == 0:
            continue
        for measure, theirs in arviz_of(x).items():
            if measure is r_hat and len(x) == 1:  # ArviZ has none
                continue
            ours = measure(x)
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, err_msg=f"{measure} of {seed}")
            compared[measure] += np.isfinite(ours)
    assert min(compared.values()) > 100
    x = some_series(1)
    assert mcse(1e-20 * x) == pytest.approx(1e-20 * mcse(x))


def test_scalars_do_not_depend_on_each_other():
    x = np.stack([some_series(seed=k)[:1, :4] for k in range(30)], axis=-1)
    x = np.concatenate([x, x[:, ::-1] + 0.1, x * 1.3 - 0.2])
    whole = {measure: measure(x) for measure in MEASURES}
    for measure, values in whole.items():
        np.testing.assert_array_equal([measure(x[..., k]) for k in range(30)], values)


def test_r_hat_notices_shift_and_scale(draws):
    assert np.all(r_hat(draws) < 1.02)
    assert np.all(r_hat(draws + np.arange(4)[:, None, None, None]) > 1.1)
    assert np.all(r_hat(draws * np.array([1, 1, 1, 5])[:, None, None, None]) > 1.1)


def test_r_hat_of_one_chain_compares_its_halves(draws):
    one = draws[:1]
    assert np.all(r_hat(one) < 1.02)
    drifting = one + np.linspace(0, 4, 500)[None, :, None, None]
    assert np.all(r_hat(drifting) > 1.1)
    assert r_hat(one[0, :, 0, 0]) == r_hat(one)[0, 0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("measure", MEASURES)
def test_edge_cases_are_nan_without_a_warning(measure, draws):
    assert np.isnan(measure(draws[:, :3])).all()
    assert np.isnan(measure(draws[:, :0])).all()
    assert measure(draws).shape == (3, 2)
    assert isinstance(measure(draws[:, :, 0, 0]), float)
    assert np.isnan(measure(np.full((4, 100), 0.1)))
    assert np.isnan(measure(np.full((1, 100), 1e10)))
    broken = draws.copy()
    broken[2, 7, 0, 0] = np.inf
    assert np.isnan(measure(broken)).sum() == 1
    assert np.isfinite(measure(draws[:, :8])).all()
    assert measure(draws[:, :, :0]).shape == (0, 2)
    assert np.isnan(r_hat(draws[:1, :6])).all()
    assert np.isfinite(r_hat(draws[:1, :8])).all()


def test_nested_r_hat_by_hand():
    # superchains {1, 3; 5, 7} and {2, 2; 2, 6}: means 4 and 3, of chains 2, 6 and 2, 4
    x = np.array([[1.0, 3.0], [5.0, 7.0], [2.0, 2.0], [2.0, 6.0]])
    between = 0.5
    within = ((8 + (2 + 2) / 2) + (2 + (0 + 8) / 2)) / 2
    assert nested_r_hat(x, 2) == pytest.approx(np.sqrt(1 + between / within))
    assert nested_r_hat(x[..., None], 2)[0] == nested_r_hat(x, 2)
    refused(SettingError, "4 chains cannot be divided into 3 superchains", nested_r_hat, x, 3)


@pytest.mark.parametrize("draws", [1, 6])
def test_nested_r_hat_of_three_variances(draws):
    # x = start of the superchain + level of the chain + noise, of sds .5, .7 and 1
    groups, size = 20_000, 4
    rng = np.random.default_rng(3)
    start = 0.5 * rng.normal(size=(groups, 1, 1))
    level = 0.7 * rng.normal(size=(groups, size, 1))
    noise = rng.normal(size=(groups, size, draws))
    x = (start + level + noise).reshape(groups * size, draws)
    between = 0.25 + (0.49 + 1 / draws) / size
    within = 0.49 + 1 / draws + (1.0 if draws > 1 else 0.0)
    exact = np.sqrt(1 + between / within)
    error = 3 * np.sqrt(2 / groups) * between / within / exact
    assert nested_r_hat(x, groups) == pytest.approx(exact, abs=error)
    # negative control: chains of one superchain with different starts
    mixed = rng.permutation(x)
    assert nested_r_hat(mixed, groups) != pytest.approx(exact, abs=error)


@pytest.mark.filterwarnings("error")
def test_nested_r_hat_at_the_edges():
    assert nested_r_hat(np.repeat([1.0, 1.0, 2.0, 2.0], 5).reshape(4, 5), 2) == np.inf
    assert np.isnan(nested_r_hat(np.ones((4, 5)), 2))
    assert np.isnan(nested_r_hat(np.ones((4, 0)), 2))
    broken = np.random.default_rng(1).normal(size=(4, 5, 2))
    broken[0, 0, 0] = np.inf
    assert np.isnan(nested_r_hat(broken, 2)).tolist() == [True, False]


@pytest.mark.filterwarnings("error")
def test_chains_frozen_in_different_places():
    x = np.repeat(np.arange(4.0)[:, None], 50, axis=1)
    assert r_hat(x) == np.inf
    assert ess(x) < 10


def test_some_of_very_many_chains_stand_for_all():
    """Autoregressions of known autocorrelation time; one stray chain among them is noticed."""
    rng = np.random.default_rng(6)
    x = lfilter([1.0], [1.0, -0.6], rng.normal(size=(600, 2_000)), axis=1)
    times = (1 + 0.6) / (1 - 0.6)
    assert ess(x) == pytest.approx(x.size / times, rel=0.05)
    assert mcse(x) == pytest.approx(x.std() * np.sqrt(times / x.size), rel=0.05)
    assert ess(x[::4]) == pytest.approx(ess(x) / 4, rel=0.05)  # of the chains that are used
    assert r_hat(x) < 1.01
    stray = x.copy()
    stray[1] += 50 * x.std()  # a chain that is not ranked
    assert r_hat(stray) > 1.01


def test_draws_by_the_million_are_measured_as_few_are():
    """Threads take some chains each; a scalar alone is small enough for one thread."""
    x = np.random.default_rng(7).normal(size=(300, 2_000, 8)) * np.arange(1, 9) + 3
    assert x.size > LARGE > x[..., 0].size
    x[7, :, 1] += 9  # a chain that is not ranked
    x[8, 5, 2] = np.nan
    x[..., 3] = 2.0
    alone = [r_hat(x[..., j]) for j in range(8)]
    assert r_hat(x) == pytest.approx(alone, nan_ok=True)
    assert alone[1] > 1.01 > alone[0]
    assert np.isnan(alone[2:4]).tolist() == [True, True]
    by_group = [nested_r_hat(x[..., j], 20) for j in range(8)]
    assert nested_r_hat(x, 20) == pytest.approx(by_group, nan_ok=True)
    assert by_group[1] > by_group[0]  # the superchain of the chain that strays
    post = mo.Posterior({"beta": x[..., 4:], "b": x}, {}, mo.Ledger(rows=1))
    for name in ("beta", "b"):
        assert np.allclose(post.mean(name), post[name].mean(axis=(0, 1)), equal_nan=True)
        assert np.allclose(post.sd(name), post[name].std(axis=(0, 1), ddof=1), equal_nan=True)
    ends = np.quantile(x, [0.05, 0.95], axis=(0, 1))
    assert np.allclose(post.quantile("b", [0.05, 0.95]), ends, equal_nan=True)
    (doubt,) = convergence_warnings({"b": x}, {})
    assert (doubt.code, doubt.numbers["chain"], doubt.numbers["draw"]) == ("not-finite", 8, 5)

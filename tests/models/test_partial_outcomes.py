"""Censored and truncated outcomes, and those with a known error, against scipy's distributions."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import modicum as mo
from helpers.laws import LAWS, Distribution
from helpers.refusals import refused
from helpers.slow import slowly
from modicum import DataError
from modicum.arrays import expansion
from modicum.models.families import FAMILIES
from modicum.rows.reading import read_formula

M = mo.models
N = 60
NONE, RIGHT, LEFT, BETWEEN = 0, 1, -1, 2

COUNTS = ("Poisson", "NegativeBinomial")
TAILED = (
    *("Gaussian", "StudentT", "Gamma", "InverseGaussian", "Lognormal"),
    *("Exponential", "Weibull", "Loglogistic", "AsymmetricLaplace", "Beta", *COUNTS),
)
CLOSED = (
    "Gaussian",
    "Weibull",
    "Gamma",
    "AsymmetricLaplace",
)  # and one integral, which compile in a moment
INTEGRATED = ("StudentT", "InverseGaussian", "Poisson", "NegativeBinomial", "Loglogistic")
slow = pytest.mark.slow


def test_every_family_with_tails_is_compared():
    partial = {kind.__name__ for kind in FAMILIES.values() if kind.partial_fields()}
    assert partial == {*TAILED, *SUMMED}
    assert {"Tweedie", "VonMises", "Softmax"}.isdisjoint(partial)


def _predictors(name):
    """Return predictors of rows, with that of the scale, and the distributions of outcomes."""
    rng = np.random.default_rng(3)
    eta = np.stack([rng.normal(0.3, 0.7, N), rng.normal(0.2, 0.3, N)], axis=1)
    return eta, LAWS[name](eta[:, 0], np.exp(eta[:, 1]))


def _observed(name, law):
    """Return outcomes of which some are censored, in every way, within bounds."""
    u = np.sort(np.random.default_rng(4).random((4, N)), axis=0)
    lb, y, y2, ub = (law.ppf(0.84 * each + 0.05 * k) for k, each in enumerate(u))
    if name in COUNTS:
        y2, ub = np.maximum(y2, y + 1), np.maximum(ub, y + 2)
    cens = np.resize([NONE, RIGHT, LEFT, BETWEEN], N)
    return {"y": y, "cens": cens, "y2": y2, "lb": lb, "ub": ub}


def _truth(name, law, b):
    """Return the log-likelihood of each row by scipy; counts include the ends of their bounds."""
    whole = name in COUNTS
    lb = b["lb"] - whole if "lb" in b else np.full(N, -np.inf)
    ub = b.get("ub", np.full(N, np.inf))
    low = np.where(b["cens"] == LEFT, lb, b["y"])
    high = np.select([b["cens"] == RIGHT, b["cens"] == BETWEEN], [ub, b["y2"]], b["y"])
    density = (law.logpmf if whole else law.logpdf)(b["y"])
    with np.errstate(divide="ignore"):
        chance = np.log(law.cdf(high) - law.cdf(low))
    return np.where(b["cens"] == NONE, density, chance) - np.log(law.cdf(ub) - law.cdf(lb))


def _density(name, fields, eta):
    model = getattr(M, name)(observed=getattr(M, name).partial_among(fields))
    eta = eta[:, : 1 + len(model.extras)]
    outcome = np.stack([fields[key] for key in model.row_fields], axis=-1)
    return np.asarray(jax.jit(jax.vmap(model.row_density))(eta, outcome))


DEAR = ("StudentT", "NegativeBinomial", "Beta")  # whose tails compile for seconds


@pytest.mark.parametrize("name", DEAR)
def test_tails_are_those_of_the_distribution(name, x64):
    eta, law = _predictors(name)
    y = _observed(name, law)["y"]
    tails = jax.jit(jax.vmap(getattr(M, name)().log_tails))(eta, y)
    np.testing.assert_allclose(tails, [law.logcdf(y), law.logsf(y)], atol=2e-8)
    assert np.abs(tails[0] - law.logcdf(y + 1)).max() > 0.1  # negative control


@pytest.mark.parametrize("name", [*sorted({*TAILED} - {*DEAR}), *slowly(*DEAR)])
def test_likelihoods_are_chances_of_what_is_known(name, x64):
    eta, law = _predictors(name)
    fields = _observed(name, law)
    np.testing.assert_allclose(_density(name, fields, eta), _truth(name, law, fields), atol=2e-8)
    # without the bounds, and as if nothing were censored: other numbers
    known = {key: fields[key] for key in ("y", "cens", "y2")}
    truth = _truth(name, law, known)
    wrong = _truth(name, law, known | {"cens": np.zeros(N)})
    assert np.median(np.abs(wrong - truth)[fields["cens"] != NONE]) > 0.1
    assert np.median(np.abs(_truth(name, law, fields) - truth)) > 0.05


@pytest.mark.parametrize("name", [*CLOSED, *slowly(*INTEGRATED)])
def test_tails_have_derivatives_wherever_predictors_go(name, x64):
    model = getattr(M, name)()
    far = np.array([-60.0, -9.0, 3.0, np.log(3.0), 12.0, 60.0])
    if name in ("Gaussian", "StudentT"):
        far *= 1e6
    eta = np.stack([far, np.full(6, 0.3)], axis=1)[:, : 1 + len(model.extras)]
    expanded = [expansion(lambda e, k=k: model.log_tails(e, 3.0)[k]) for k in (0, 1)]
    for parts in jax.jit(jax.vmap(lambda e: [each(e) for each in expanded]))(eta):
        assert all(np.isfinite(np.asarray(part)).all() for part in parts)


@pytest.mark.parametrize("name", ["Poisson", *slowly("NegativeBinomial")])
def test_a_bound_of_counts_between_two_is_the_lower(name, x64):
    """A count of at most 3.5 is one of at most 3; bounds were taken for numbers of a gamma."""
    fields = {"y": np.ones(4), "cens": np.full(4, 2.0)}
    fields |= {"y2": np.array([3.5, 3.0, 4.0, 3.0]), "ub": np.array([5.25, 5.0, 5.0, 6.0])}
    between, whole, *others = _density(name, fields, np.full((4, 2), 0.4))
    assert between == whole
    assert np.abs(others - whole).min() > 1e-3  # the control: bounds that are one higher


MOST = 6  # trials
SUMMED = {  # predictors, and outcomes up to which probabilities are compared
    "ZeroInflatedPoisson": ([0.4, -0.7], (0, 3)),
    "ZeroInflatedNegativeBinomial": ([0.4, -0.7, 0.2], (0, 3)),
    "HurdlePoisson": ([0.4, -0.7], (0, 3)),
    "HurdleNegativeBinomial": ([0.4, -0.7, 0.2], (0, 3)),
    "HurdleGamma": ([0.4, 0.7, -0.2], (0, 2.5)),
    "HurdleLognormal": ([0.4, -0.7, -0.2], (0, 2.5)),
    "Binomial": ([-0.6], (0, 2, 5)),
    "BetaBinomial": ([-0.6, 0.9], (0, 2, 5)),
    "ZeroOneInflatedBeta": ([0.4, 0.7, -1.2, 0.3], (0, 0.3, 0.9)),
    "SkewNormal": ([0.4, -0.7, -3.0], (-0.9, 0.8, 1.3)),
    "GaussianLog": ([0.4, -0.7], (1.2, 1.8)),
}
SUMMED_QUICKLY = ("HurdleLognormal", "SkewNormal", "GaussianLog")  # compiled in a moment


def _row(name, **fields):
    """Return the family that reads some fields, predictors, and a function of these and of y."""
    trials = {"trials": float(MOST)} if "Binomial" in name else {}
    kind = getattr(M, name)
    model = kind(observed=kind.partial_among(fields))
    known = trials | fields

    def of(function, eta, y):
        values = [y, *(known[field] for field in model.row_fields[1:])]
        return function(eta, jnp.stack(values) if len(values) > 1 else y)

    return model, jnp.array(SUMMED[name][0]), of


def _law(name):
    model, eta, of = _row(name)
    most = MOST + 1 if "trials" in model.outcome_fields else 999
    density = jax.jit(jax.vmap(lambda y: of(model.log_density, eta, y)))
    return Distribution(name, lambda y: np.asarray(density(y)), most)


@pytest.mark.parametrize(
    "name", [n if n in SUMMED_QUICKLY else pytest.param(n, marks=slow) for n in SUMMED]
)
def test_tails_are_sums_and_integrals_of_densities(name, x64):
    """Points among amounts and shares too; derivatives are those of finite differences."""
    (model, eta, of), ends, law = _row(name), np.array(SUMMED[name][1], float), _law(name)
    assert law.total == pytest.approx(1, abs=1e-7)

    def tails(eta, y):
        return jnp.exp(jnp.stack(of(model.log_tails, eta, y)))

    found = np.asarray(jax.jit(jax.vmap(tails, (None, 0)))(eta, ends))
    beyond = law.quantile_of(ends + 1e-9, np.random.default_rng(1))  # that of the end itself too
    np.testing.assert_allclose(found, np.stack([beyond, 1 - beyond], axis=1), atol=1e-6)
    before = law.quantile_of(ends - 0.3, np.random.default_rng(1))
    assert np.abs(found[:, 0] - before).max() > 0.03  # negative control
    path = jnp.linspace(1.0, 2.0, len(eta))  # a direction in which all predictors move
    along_it = lambda t, y: tails(eta + t * path, y)[0]  # noqa: E731
    expanded = jax.jit(jax.vmap(expansion(along_it), (None, 0)))
    _, slopes, curves = expanded(jnp.zeros(()), ends)
    (after, slopes_after, _), (less, slopes_before, _) = (
        expanded(jnp.array(t), ends) for t in (1e-5, -1e-5)
    )
    np.testing.assert_allclose(slopes, (after - less) / 2e-5, atol=1e-6)
    np.testing.assert_allclose(curves, (slopes_after - slopes_before) / 2e-5, atol=1e-6)


BOUNDED = {  # an outcome, what is known of it, and the probability by the distribution function F
    "HurdleLognormal": [
        (0.0, {"cens": 1.0}, lambda F: 1 - F(0)),
        (0.0, {"cens": -1.0, "lb": 0.0, "ub": 3.0}, lambda F: F(0) / F(3)),
        (0.0, {"cens": 2.0, "y2": 2.0}, lambda F: F(2) - F(0)),
        (1.0, {"cens": 1.0, "lb": 0.0, "ub": 3.0}, lambda F: (F(3) - F(1)) / F(3)),
    ],
    "Binomial": [  # a lower bound of 0 is none
        (2.0, {"cens": 1.0, "lb": 0.0}, lambda F: 1 - F(2)),
        (0.0, {"cens": -1.0, "lb": 0.0}, lambda F: F(0)),
        (2.0, {"cens": 1.0, "lb": 1.0}, lambda F: (1 - F(2)) / (1 - F(0))),
    ],
    "BetaBinomial": [
        (2.0, {"cens": 2.0, "y2": 4.0, "lb": 1.0}, lambda F: (F(4) - F(2)) / (1 - F(0))),
        (3.0, {"cens": 1.0, "ub": 9.0}, lambda F: 1 - F(3)),
    ],
    "ZeroOneInflatedBeta": [
        (0.4, {"cens": 1.0, "lb": 0.0}, lambda F: 1 - F(0.4)),
        (0.4, {"cens": -1.0, "lb": 0.2, "ub": 1.0}, lambda F: (F(0.4) - F(0.2)) / (1 - F(0.2))),
        (0.5, {"cens": 1.0, "ub": 0.9}, lambda F: (F(0.9) - F(0.5)) / F(0.9)),
    ],
    "SkewNormal": [(0.8, {"cens": -1.0, "lb": -0.9}, lambda F: 1 - (1 - F(0.8)) / (1 - F(-0.9)))],
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[slow] * (n not in ("HurdleLognormal", "Binomial"))) for n in BOUNDED],
)
def test_bounds_include_points_that_have_a_probability(name, x64):
    law, both = _law(name), cache(lambda model: jax.jit(jax.value_and_grad(model.row_density)))
    for y, fields, chance in BOUNDED[name]:
        model, eta, of = _row(name, **fields)
        value, slope = of(both(model), eta, y)
        truth = chance(lambda t: law.quantile_of(np.array([t + 1e-9]), np.random.default_rng(1)))
        np.testing.assert_allclose(np.exp(value), truth[0], atol=1e-6)
        assert np.isfinite(slope).all()


# Fields and formulas ----------------------------------------------------------------------


def _table(n=60):
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"x": rng.normal(size=n), "y": rng.gamma(3.0, 1.0, n)})
    how = np.resize(["none", "left", "right", "interval"], n)
    return table.assign(how=how, code=np.resize([0, -1, 1, 2], n), late=table["y"] + 1, s=0.5)


def test_a_formula_says_what_is_known():
    names = ("y", "cens", "y2")
    by_name = read_formula("y | cens(how, late) ~ x", _table())
    by_code = read_formula("y | cens(code, y2=late) + trunc(lb=0, ub=40) ~ x", _table())
    for name in names:
        np.testing.assert_array_equal(by_name.slice(0, 60)[name], by_code.slice(0, 60)[name])
    assert set(zip(*(by_code.slice(0, 60)[end] for end in ("lb", "ub")), strict=True)) == {
        (0.0, 40.0)
    }
    right = read_formula("y | cens(y > 3) ~ x", _table()).slice(0, 60)
    np.testing.assert_array_equal(right["cens"], right["y"] > 3)
    added = read_formula("y | se(s, sigma=TRUE) ~ x", _table())
    assert {"se", "added_se"} & set(added.fields) == {"added_se"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cens": 3.0}, "'cens' is 3 in row 0; it must be 0"),
        ({"cens": 2.0, "y2": 1.0}, "lies between 2 and 1; the upper end"),
        ({"y2": 3.0}, "hold 'y2' and no 'cens'"),
        ({"event": 1.0, "cens": 0.0}, "both 'event' and 'cens'"),
        ({"lb": 3.0}, "outcome of row 0 is 2, outside its bounds 3 and inf"),
        ({"ub": 2.0, "cens": 1.0}, "outside its bounds"),
        ({"lb": 2.0, "cens": -1.0}, "is at most 2, outside its bounds"),
        ({"lb": 5.0, "ub": 4.0}, "bounds of row 0 are 5 and 4"),
        ({"se": 0.0}, "standard error of row 0 is 0, and must be positive"),
        ({"added_se": -1.0}, "is -1, and must not be negative"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(changed, words):
    rows = mo.Rows(
        x=np.ones((3, 1)), y=np.full(3, 2.0), **{k: np.full(3, v) for k, v in changed.items()}
    )
    with pytest.raises(mo.DataError) as caught:
        M.Gaussian().check(rows)
    assert words in str(caught.value)


def test_families_and_models_that_do_not_read_a_field_say_so():
    rows = mo.Rows(x=np.ones((3, 1)), y=np.ones(3), cens=np.ones(3))
    refused(mo.DataError, "'cens', which Logistic does not read", M.Logistic().check, rows)
    with pytest.raises(mo.DataError, match=r"take model.resolved\(rows\)"):
        M.Poisson().outcome({"y": np.ones(3), "cens": np.ones(3)})
    known = mo.Rows(x=np.ones((3, 1)), y=np.arange(3.0), se=np.ones(3))
    refused(mo.SettingError, "leave one of them out", M.Gaussian(scale=1.0).check, known)


# A known error ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Gaussian", "StudentT"])
def test_a_known_error_is_the_scale_or_adds_to_it(name, x64):
    eta, _ = _predictors(name)
    law, scale = LAWS[name], np.exp(eta[:, 1])
    y, s = eta[:, 0] + 1, np.linspace(0.1, 3, N)
    known = _density(name, {"y": y, "se": s}, eta)
    np.testing.assert_allclose(known, law(eta[:, 0], s).logpdf(y))
    both = _density(name, {"y": y, "added_se": s}, eta)
    np.testing.assert_allclose(both, law(eta[:, 0], np.hypot(scale, s)).logpdf(y))
    assert np.abs(known - both).max() > 0.1


def test_the_mode_of_known_errors_is_weighted_least_squares():
    """Rows with the error s count 1 / s^2: a meta-analysis, which no chain is needed for."""
    rng = np.random.default_rng(2)
    x, s = rng.normal(size=300), rng.uniform(0.2, 4, 300)
    table = pd.DataFrame({"x": x, "s": s, "y": 1 + 2 * x + s * rng.normal(size=300)})
    post = mo.fit("y | se(s) ~ x", table, "gaussian", draws=2000, random_seed=1, progressbar=False)
    X = np.c_[x, np.ones(300)] / s[:, None]
    covariance = np.linalg.inv(X.T @ X)
    best = covariance @ X.T @ (table["y"] / s)
    found = np.array([post.mean("beta")[0], post.mean("intercept")])
    sd = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(found - best) < 5 * sd / np.sqrt(2000) + 0.01 * sd)
    unweighted = np.linalg.lstsq(np.c_[x, np.ones(300)], table["y"], rcond=None)[0]
    assert np.abs((unweighted - best) / sd).max() > 0.5
    assert "scale" not in post.draws


# After the fit ----------------------------------------------------------------------------


def test_outcomes_are_drawn_within_bounds():
    rng = np.random.default_rng(1)
    lb, ub = np.full(N, 1.0), np.linspace(1.5, 4, N)
    eta = np.zeros((2000, N, 1))
    model = M.Exponential(observed=("lb", "ub"))
    drawn = model.draw_rows(rng, eta, {"lb": lb, "ub": ub})
    law = stats.expon()
    below = (law.cdf(np.clip(drawn, 1, ub)) - law.cdf(lb)) / (law.cdf(ub) - law.cdf(lb))
    assert np.all((drawn >= 1) & (drawn <= ub))
    assert stats.kstest(below.ravel()[::7], "uniform").pvalue > 1e-3
    free = replace(model, observed=()).draw_rows(rng, eta, {"lb": lb, "ub": ub})
    assert free.min() < 0.1


@pytest.mark.parametrize("name", ["Gaussian", "Weibull", *slowly("StudentT", "Gamma", "Poisson")])
def test_outcomes_are_drawn_within_bounds_that_none_reaches_by_chance(name):
    """Draws outside the bounds were once repeated 10,000 times, and then refused."""
    rng, model = np.random.default_rng(5), getattr(M, name)(observed=("lb", "ub"))
    eta, law = _predictors(name)
    lb, ub = law.isf(1e-7), law.isf(1e-10)
    eta = np.broadcast_to(eta[:, : 1 + len(model.extras)], (40, N, 1 + len(model.extras)))
    drawn = model.draw_rows(rng, eta, {"lb": lb, "ub": ub})
    assert np.all((drawn >= lb) & (drawn <= ub))

    def fits(y):
        own = law.pmf(y) * rng.random(y.shape) if name in COUNTS else 0
        all_above = law.sf(lb - (name in COUNTS))
        share = (law.sf(y) + own - law.sf(ub)) / (all_above - law.sf(ub))
        return stats.kstest(share.ravel(), "uniform").pvalue > 1e-3

    assert fits(drawn)
    evenly = np.floor(lb + (ub + 1 - lb) * rng.random(drawn.shape))
    assert not fits(np.minimum(evenly, ub))


def test_outcomes_with_a_mass_at_their_least_value_reach_it_exactly():
    model = M.HurdleGamma(observed=("ub",))
    eta = np.broadcast_to([30.0, 2.0, -1.0], (200, 1, 3))
    drawn = model.draw_rows(np.random.default_rng(6), eta, {"ub": np.ones(1)})
    assert np.all(drawn == 0)
    free = model.draw_rows(np.random.default_rng(6), eta, {"ub": np.full(1, np.inf)})
    assert 0.6 < np.mean(free > 1) < 0.85


def test_outcomes_of_new_rows_are_whole_and_need_their_bounds():
    rng = np.random.default_rng(2)
    times = rng.exponential(1.0, 600)
    table = pd.DataFrame({"y": np.minimum(times, 0.4), "seen": times < 0.4})
    settings = {"draws": 500, "method": "laplace", "random_seed": 1, "progressbar": False}
    post = mo.fit("y | event(seen) ~ 1", table, "exponential", **settings)
    drawn = post.predictive(pd.DataFrame(index=range(40)))
    assert stats.kstest(drawn[:, :5].ravel(), stats.expon().cdf).statistic < 0.1
    assert stats.kstest(np.minimum(drawn, 0.4)[:, :5].ravel(), stats.expon().cdf).statistic > 0.5
    short = pd.DataFrame({"y": times[times < 1.5], "most": 1.5})
    post = mo.fit("y | trunc(ub=most) ~ 1", short, "exponential", **settings)
    refused(DataError, "field 'ub', which these rows lack", post.predictive, short[["y"]])
    assert post.predictive(short[["most"]]).max() <= 1.5
    none = pd.DataFrame({"most": [1.0, -1.0]})
    refused(DataError, "bounds of row 1 are -inf and -1, between which", post.predictive, none)

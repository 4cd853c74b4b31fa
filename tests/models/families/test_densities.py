"""Densities of all families equal scipy's, at whose maxima their modes are.

Formulas for derivatives are those of the densities.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import modicum as mo
from helpers.laws import LAWS, TRUTH, WITH_SETTINGS, sigmoid
from helpers.outcomes import family, family_rows
from helpers.slow import slowly
from helpers.targets import all_of, gaussian_rows, logistic_rows, poisson_rows, sums_of
from modicum.models import LinearPredictorModel
from modicum.passes import anchor_at_mode

M = mo.models
N = 60


OTHER_ROWS = {
    "Logistic": logistic_rows, "Poisson": poisson_rows,
    "Gaussian": gaussian_rows, "StudentT": gaussian_rows,
}  # fmt: skip
COMPARED = sorted(TRUTH.keys() - {"Loglogistic"})  # whose distribution tests of tails compare
CASES = [(name, {}, TRUTH[name]) for name in COMPARED]
CASES += slowly(*WITH_SETTINGS)
FAR_OUT = {
    "Beta": 100.0, "Ordinal": 100.0, "Gamma": 20.0, "NegativeBinomial": 100.0, "Lognormal": 100.0,
    "HurdleNegativeBinomial": 100.0, "HurdleGamma": 20.0, "BetaBinomial": 800.0, "Tweedie": 60.0,
    "ZeroOneInflatedBeta": 100.0, "GaussianLog": 100.0,
}  # fmt: skip


def _rows(name, n, **seed):
    return (OTHER_ROWS[name] if name in OTHER_ROWS else partial(family_rows, name))(n, **seed)


def _case(name, settings, seed=3):
    rows = _rows(name, N)
    model = family(name, **settings).resolved(rows)
    rng = np.random.default_rng(seed)
    theta = jax.tree.map(
        lambda a: np.asarray(0.5 * rng.normal(size=np.shape(a))), model.start(rows)
    )
    return model, theta, all_of(rows)


def _seen(model, theta, batch):
    """Return the linear predictor in scipy's form, and the reported extra parameters."""
    named = {name: np.asarray(x) for name, x in model.report(theta).items()}
    intercept = named.pop("intercept", 0.0)
    eta = batch["x"] @ named.pop("beta") + intercept + batch.get("offset", 0.0)
    return eta, *(named.values() or [None])


@pytest.mark.parametrize(("name", "settings", "truth"), CASES)
def test_log_likelihood_is_scipys_density(name, settings, truth, x64):
    model, theta, batch = _case(name, settings)
    log_likelihood = jax.jit(model.log_likelihood)
    ours = log_likelihood(theta, batch)
    np.testing.assert_allclose(
        ours, truth(batch, *_seen(model, theta, batch)), rtol=1e-9, atol=1e-18
    )
    wrong = jax.tree.map(lambda a: np.asarray(a + 0.01), theta)  # negative control
    assert np.max(np.abs(np.subtract(log_likelihood(wrong, batch), ours))) > 1e-4


NEAR = 0.04  # posterior sds: effect of the priors of extra parameters with 400 rows
MORE = {"ZeroInflatedNegativeBinomial": 4_000}  # rows, where they say little about a parameter
QUICK = {"Probit", "Binomial", "GaussianLog", "ZeroInflatedPoisson", "HurdlePoisson", "Gamma",
         "InverseGaussian", "Ordinal", "Weibull"}  # fmt: skip
SEARCHED = sorted({*COMPARED} - {"AsymmetricLaplace"})  # whose mode may be on a kink


@pytest.mark.parametrize("name", [*sorted(QUICK), *slowly(*sorted({*SEARCHED} - QUICK))])
def test_mode_is_the_maximum_of_scipys_density(name, x64):
    """Under nearly flat priors: there the density does not rise in any posterior direction."""
    rows = _rows(name, MORE.get(name, 400))
    sums, start = sums_of(family(name, prior_scale=1e4, intercept_scale=1e4), rows)
    anchor = anchor_at_mode(sums, start)
    assert anchor.record.passes < 25

    def log_density(batch, t):
        seen = _seen(sums.target.model, sums.target.unravel(t), batch)
        return np.sum(TRUTH[name](batch, *seen))

    def largest_slope(rows):
        batch, step = all_of(rows), 1e-3 * np.asarray(anchor.factor).T
        ends = [[log_density(batch, anchor.point + s * by) for s in (-1, 1)] for by in step]
        return np.abs(np.diff(ends)).max() / 2e-3

    assert largest_slope(rows) < NEAR
    assert largest_slope(_rows(name, len(rows), seed=5)) > 5 * NEAR  # negative control


@pytest.mark.parametrize("name", COMPARED)
def test_report_and_restore_are_inverse(name, x64):
    model, theta, _ = _case(name, {})
    back = model.restore(model.report(theta))
    assert back.keys() == theta.keys()
    for key in theta:
        np.testing.assert_allclose(back[key], theta[key], rtol=1e-10, atol=1e-12)
    flat = jax.tree.leaves(theta)
    reported = jax.tree.leaves(dict(model.report(theta)))
    assert sum(map(np.size, flat)) == sum(map(np.size, reported))  # names match the flat vector


@pytest.mark.parametrize("name", ["Poisson", "BetaBinomial", "Weibull"])
def test_expected_outcomes_need_offsets_but_neither_trials_nor_events(name, x64):
    model, theta, batch = _case(name, {})
    eta, extra, *_ = _seen(model, theta, batch)
    known = {k: v for k, v in batch.items() if k in ("x", "offset")}
    truth = LAWS["Weibull"](eta, extra).mean() if name == "Weibull" else np.exp(eta)
    truth = sigmoid(eta) if name == "BetaBinomial" else truth
    np.testing.assert_allclose(jax.jit(model.expected)(theta, known), truth, rtol=1e-9)


BINARY, REAL = [0.0, 1.0], [-2.0, 0.3, 5.0]
BY_HAND = {
    "Logistic": ({}, BINARY),
    "Probit": ({}, BINARY),
    "Cloglog": ({}, BINARY),
    "Poisson": ({}, [0.0, 1.0, 7.0]),
    "Binomial": ({"link": "probit"}, [(3.0, 10.0), (0.0, 4.0)]),
    "Exponential": ({"observed": ("event",)}, [(0.2, 1.0), (3.0, 0.0)]),
    "Gaussian": ({"scale": 0.6}, REAL),
    "StudentT": ({"scale": 0.6, "df": 3.0}, REAL),
}
ETA = np.linspace(-9.01, 9.0, 73)


def _derivatives(model, outcomes):
    """Return all orders by NumPy, compiled, and the derivative of the order before, (order, row).

    Each is in units of its largest: where it crosses 0, terms of the size of the largest cancel.
    """
    eta, y = np.tile(ETA, len(outcomes)), np.repeat(np.array(outcomes), len(ETA), axis=0)

    def formulas(eta, y):
        return *model.derivatives(eta, y, 6), model.value(eta, y)

    def compiled(eta):
        f = jax.vmap(model.row_density)(eta[:, None], jnp.asarray(y))
        return jnp.stack([f, *formulas(eta, y)])

    with np.errstate(over="ignore"):
        by_numpy = formulas(eta, y)
    assert all(isinstance(part, np.ndarray) for part in by_numpy)
    theirs, slope = jax.jit(lambda e: jax.jvp(compiled, (e,), (jnp.ones_like(e),)))(eta)
    largest = np.abs(by_numpy).max(axis=1, keepdims=True)
    largest[largest == 0] = 1
    slopes = np.stack([theirs[0], *slope[1:7], theirs[0]])
    return by_numpy / largest, theirs[1:] / largest, slopes / largest


@pytest.mark.parametrize("name", BY_HAND)
def test_formulas_are_the_derivatives_of_f_by_numpy_too(name, x64):
    settings, outcomes = BY_HAND[name]
    by_numpy, compiled, true = _derivatives(family(name, **settings), outcomes)
    np.testing.assert_allclose(by_numpy, compiled, rtol=1e-7, atol=1e-11)
    near = np.tile(np.abs(ETA) < 3.1, len(outcomes))  # further out, JAX's derivatives cancel
    np.testing.assert_allclose(compiled[:, near], true[:, near], rtol=1e-6, atol=1e-8)


def test_every_family_without_a_compiler_is_compared():
    assert {kind.__name__ for kind in M.FAMILIES.values() if kind.on_numpy} == set(BY_HAND)


def test_another_formula_is_noticed(x64):
    class Broken(M.Logistic):
        def derivatives(self, eta, y, highest=3):
            *others, last = super().derivatives(eta, y, highest)
            return (*others, last if isinstance(eta, np.ndarray) else 1.001 * last)

    by_numpy, compiled, true = _derivatives(Broken(), BINARY)
    assert not np.allclose(by_numpy, compiled, rtol=1e-7, atol=1e-11)
    assert not np.allclose(compiled, true, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["Poisson", "Exponential"])
def test_derivatives_are_automatic_without_formulas(name, x64):
    settings, (first, *_) = BY_HAND[name]
    model = family(name, **settings)
    eta, y = ETA[:, None], np.tile(first, (len(ETA), 1, *[1] * np.ndim(first)))  # at nodes too
    automatic = jax.jit(lambda e: LinearPredictorModel.derivatives(model, e, y))(eta)
    for ours, formula in zip(automatic, model.derivatives(eta, y), strict=True):
        np.testing.assert_allclose(ours, np.broadcast_to(formula, ours.shape), rtol=1e-9)


@pytest.mark.parametrize(("name", "size"), FAR_OUT.items())
def test_values_and_slopes_stay_finite_far_out(name, size, x64):
    model, theta, batch = _case(name, {})
    both = jax.jit(jax.value_and_grad(lambda t: model.log_likelihood(t, batch).sum()))
    for end in (-size, size):
        far = theta | {"intercept": np.asarray(end)}
        value, slope = both(far)
        assert np.isfinite(value)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slope))


def test_beyond_a_hurdle_large_counts_have_the_curvature_of_all_counts(x64):
    """The chance of a zero vanishes, and its derivatives with it: in 64 bits they overflowed."""
    curvature = jax.jit(jax.hessian(lambda e: M.HurdlePoisson().log_density(e, 3_000.0)))
    np.testing.assert_allclose(curvature(jnp.array([8.0, 0.3]))[0], [-np.exp(8.0), 0], rtol=1e-12)


@pytest.mark.parametrize(
    ("link", "log_pdf"),
    [*slowly(("probit", stats.norm.logpdf)), ("cloglog", lambda x: x - np.exp(x))],
)
def test_classes_far_from_eta_and_narrow_ones(link, log_pdf, x64):
    """Both cumulative probabilities round to 0 or 1, or their difference is tiny."""
    both = jax.jit(jax.value_and_grad(lambda e: M.Ordinal(3, link).log_density(e, 1.0)))
    node, weight = np.polynomial.legendre.leggauss(60)
    for eta, gap in ((12.0, 1.0), (-3.0, 0.5), (0.3, 1e-7)):
        inside = log_pdf(gap * (node + 1) / 2 - eta)  # from cutpoint to cutpoint
        truth = special.logsumexp(inside, b=weight * gap / 2)
        value, slopes = both(jnp.array([eta, np.log(gap)]))
        np.testing.assert_allclose(value, truth, rtol=1e-7)
        assert np.all(np.isfinite(slopes))


def test_beta_near_its_ends(x64):
    y = np.array([1e-300, 1e-12, 0.5, 1 - 1e-12])
    theta = {"beta": np.zeros(1), "intercept": 0.4, "log_precision": np.log(3.0)}
    mu = sigmoid(0.4)
    ours = jax.jit(M.Beta().log_likelihood)(theta, {"x": np.zeros((4, 1)), "y": y})
    np.testing.assert_allclose(ours, stats.beta.logpdf(y, 3 * mu, 3 * (1 - mu)), rtol=1e-9)


def test_negative_binomial_becomes_poisson(x64):
    batch = {"x": np.zeros((3, 1)), "y": np.array([0.0, 3.0, 20.0])}
    theta = {"beta": np.zeros(1), "intercept": 1.0, "log_overdispersion": np.log(1e-14)}
    truth = stats.poisson.logpmf(batch["y"], np.e)
    ours = jax.jit(M.NegativeBinomial().log_likelihood)(theta, batch)
    np.testing.assert_allclose(ours, truth, rtol=1e-11)


@pytest.mark.parametrize("width", [0.5, *slowly(0.1, 2)])
def test_smooth_asymmetric_laplace_is_a_density_with_its_quantile(width):
    """It integrates to 1, and eta is the quantile up to the square of the width."""
    model = M.AsymmetricLaplace(scale=1.5, quantile=0.8, smoothing=width)

    with jax.enable_x64(True):
        y = np.linspace(-299.7, 100.3, 800_001)  # 0.3 is one of them, the 600,001st
        log_density = jax.jit(jax.vmap(lambda y: model.log_density(jnp.full(1, 0.3), y)))(y)
        density = np.exp(log_density)
    below = integrate.simpson(density[:600_001], dx=5e-4)
    above = integrate.simpson(density[600_000:], dx=5e-4)
    assert abs(below + above - 1) < 1e-6
    assert abs(below - 0.8) < 0.3 * width**2

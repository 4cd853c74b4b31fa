"""Group terms: their meaning, the prior of their effects, correlations, and what is refused."""

from dataclasses import replace
from decimal import Decimal, localcontext

import jax
import numpy as np
import pytest
from scipy import stats

import modicum as mo
from helpers.refusals import refused
from helpers.slow import slowly
from modicum.arrays import as_either
from modicum.kernels.whitening import Warp, Whitening
from modicum.linalg.arrow import ArrowMatrix
from modicum.models import Target
from modicum.models.constraints import (
    Correlations,
    correlation_factor,
    covariance_factor,
    log_unexplained,
    partial_exponents,
    partials_of_factor,
    unnormalized_lkj,
    unnormalized_lkj_integral,
)
from modicum.models.priors.distributions import HalfNormal, as_tree
from modicum.models.priors.exact import Effects, log_hyper_density

M, P, G = mo.models, mo.priors, mo.models.GroupTerm


def rows(n=120, **codes):
    rng = np.random.default_rng(1)
    codes = codes or {"g": np.arange(n) % 6, "h": rng.choice(["a", "b", "c"], n)}
    x = rng.normal(size=(n, 2))
    return mo.Rows(x=x, y=(rng.random(n) < 0.5) * 1.0, columns=["a", "b"], codes=codes)


# Layout ----------------------------------------------------------------------------------------


def test_a_factor_that_is_not_a_group_keeps_its_contrasts():
    model = M.Logistic(groups="g", priors={"h": P.Flat(), "g": P.Exponential(1)}).resolved(rows())
    assert model.labels(rows())["beta"] == (("a", "b", "h[b]", "h[c]"),)
    assert model.resolved_priors.coefficients[2:] == (P.Flat(), P.Flat())
    assert model.resolved_priors.pooled[0].sds == (P.Exponential(1),)


def test_one_standard_deviation_may_have_a_prior_of_its_own(x64):
    """Under its name in the summary; it takes precedence over that of its group, and of all."""
    slope, group, all_groups = P.Exponential(3), P.HalfNormal(2), P.HalfCauchy(1)
    given = {"group_sd[h:a]": slope, "h": group, "group_sd": all_groups, "beta[b]": P.Normal(0, 9)}
    model = M.Logistic(groups=["g", G("h", ("1", "a"))], priors=given)
    priors = model.resolved(rows()).resolved_priors
    assert [term.sds for term in priors.pooled] == [(all_groups,), (group, slope)]
    assert priors.coefficients[1] == P.Normal(0, 9)
    # The density is that of another model which has the exponential prior as that of all groups.
    targets = [
        Target.of(M.Logistic(groups=[G("h", ("1", "a"))], priors=of), rows())[0]
        for of in ({"group_sd": slope}, {"group_sd": slope, "group_sd[h]": group})
    ]
    t = np.linspace(-1, 1, targets[0].size)
    gap = np.subtract(*(target.log_priors(t[None])[0] for target in targets))
    sd = targets[0].reports(t[None])["group_sd"][0, 0]
    truth = stats.expon.logpdf(sd, scale=1 / 3) - stats.halfnorm.logpdf(sd, scale=2)
    np.testing.assert_allclose(gap, truth, atol=1e-9)


def test_the_likelihood_is_that_of_the_columns_written_out(x64):
    held = rows()
    target, start = Target.of(M.Logistic(groups=["h", G("g", ("1", "b"))]), held)
    rng = np.random.default_rng(2)
    t = start + rng.normal(size=len(start))
    batch = held.slice(0, len(held))
    theta = jax.tree.map(np.asarray, jax.jit(target.report)(t))
    eta = batch["x"] @ theta["beta"] + theta["intercept"] + theta["1|h"][batch["h"]]
    eta += theta["1|g"][batch["g"]] + theta["b|g"][batch["g"]] * batch["x"][:, 1]
    truth = batch["y"] * eta - np.logaddexp(0, eta)
    np.testing.assert_allclose(jax.jit(target.log_likelihood)(t, batch), truth, atol=1e-6)


# The prior -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, *slowly(3)])
def test_correlated_effects_have_an_lkj_prior(count, x64):
    """It is log det(R)^(eta - 1) in R, plus the log-Jacobian of the sampled coordinates."""
    rng = np.random.default_rng(count)
    levels, pairs, eta = 4, count * (count - 1) // 2, 1.7
    where = tuple(range(count * levels))
    sds = tuple(range(len(where), len(where) + count))
    partials = tuple(range(sds[-1] + 1, sds[-1] + 1 + pairs))
    term = Effects((as_tree(HalfNormal(1.0)),) * count, np.asarray(eta), where, sds, partials)

    known = Correlations(count)

    @jax.jit
    def transformed(own):
        below, jacobian = known.constrain(own), jax.jacobian(known.constrain)
        return below, jacobian(own), known.free(below)

    def without_constant(t):
        below, jacobian, _ = transformed(t[np.array(partials)])
        r = np.eye(count)
        r[np.tril_indices(count, -1)] = below
        r = np.tril(r) + np.tril(r, -1).T
        sd = np.exp(t[list(sds)])
        u = t[: len(where)].reshape(count, levels).T
        log = stats.multivariate_normal(np.zeros(count), np.outer(sd, sd) * r).logpdf(u).sum()
        log += stats.halfnorm.logpdf(sd).sum() + np.log(sd).sum()
        volume = np.linalg.slogdet(jacobian)[1]
        return log + (eta - 1) * np.linalg.slogdet(r)[1] + volume

    ours = jax.jit(lambda term, t: term.log_density(t))
    points = 0.5 * rng.normal(size=(3, partials[-1] + 1))
    gaps = [float(ours(term, t)) - without_constant(t) for t in points]
    assert np.ptp(gaps) < 1e-8
    wrong = replace(term, eta=np.asarray(eta + 0.3))
    assert np.ptp([float(ours(wrong, t)) - without_constant(t) for t in points]) > 1e-3
    own = points[0][list(partials)]
    np.testing.assert_allclose(transformed(own)[2], own, atol=1e-10)


def test_the_scale_settles_at_its_closed_form(x64):
    """tau^4 / s^2 + (L - 1) tau^2 - S = 0 for HalfNormal(s), in the sampled log tau."""
    term = Effects((as_tree(HalfNormal(0.8)),), np.asarray(2.0), tuple(range(20)), (20,), ())
    t = np.append(np.random.default_rng(1).normal(size=20), 0.0)
    covariance = ArrowMatrix.of(0.1 * np.eye(21))
    settled = term.settle(t, covariance)[20]
    S = np.sum(t[:20] ** 2 + 0.1)
    assert np.exp(2 * settled) == pytest.approx(0.8**2 * (-19 + np.sqrt(19**2 + 4 * S / 0.64)) / 2)


@pytest.mark.parametrize("eta", [0.5, 2.0])
def test_a_covariance_settles_at_its_closed_form(eta, x64):
    """S / (L - 1), where wide scales and LKJ(1/2) make up for the coordinates; else not."""
    wide, places = (as_tree(HalfNormal(1e4)),) * 2, (tuple(range(40)), (40, 41), (42,))
    term, rng = Effects(wide, np.asarray(eta), *places), np.random.default_rng(1)
    u = np.array([[2.0, 0.0], [0.9, 0.3]]) @ rng.normal(size=(2, 20))
    t = np.append(u.ravel(), np.zeros(3))
    own = term.settle(t, ArrowMatrix.of(0.1 * np.eye(43)))[40:]
    factor = np.asarray(covariance_factor(as_either(own), 2))
    right = np.allclose(factor @ factor.T, (u @ u.T + 2 * np.eye(2)) / 19, rtol=1e-6)
    assert right == (eta == 0.5)


@pytest.mark.parametrize("ratio", [*slowly(0.0), 0.4])
def test_effects_move_as_their_conditional_distribution_does(ratio, x64):
    """If the data give N(u; c, 1 / A) for a level, its mean is V A c, with 1 / V = A + tau^-2."""
    rng = np.random.default_rng(1)
    factor = np.linalg.inv(np.triu(rng.normal(size=(5, 5))) + 3 * np.eye(5))
    where, whole, scale = np.array([0, 2]), 1, 4
    w = np.array([0.3, 0.7])

    @jax.jit
    def both(z, maps):
        jacobian = jax.jacobian(lambda z: maps.straighten(z)[0])(z)
        return *maps.straighten(z), jacobian, *maps.parameters(z)

    def moved(shared):
        into = np.linalg.inv(factor)[:, [*where, whole]]
        arrays = (where, np.zeros(2, int), ratio * w, [scale], [shared], into, [whole])
        warp = Warp(*map(np.asarray, arrays))
        maps = Whitening(at, factor, warp=warp)
        s, growth, jacobian, t, directly = map(np.asarray, both(z, maps))
        assert float(growth) == pytest.approx(np.linalg.slogdet(jacobian)[1], abs=1e-10)
        assert float(directly) == pytest.approx(float(growth), abs=1e-12)
        np.testing.assert_allclose(t, at + factor @ s, atol=1e-12)
        return t

    at, z = rng.normal(size=5), rng.normal(size=5)
    r = at + factor @ z
    away, tau_square = (r - at)[where], np.exp(2 * np.array([at[scale], r[scale]]))
    V = 1 / (ratio * w / tau_square[0] + 1 / tau_square[:, None])  # at the anchor, and here
    narrower = np.sqrt(V[1] / V[0])
    expected = r.copy()
    # V A c is the anchor's entry at the anchor, hence V / V* times that here
    expected[where] = at[where] * narrower**2 + away * narrower
    np.testing.assert_allclose(moved(0 * w), expected, atol=1e-10)
    # the common part moves with tau, and the common coefficient the other way
    common, wider = w @ away, np.sqrt(tau_square[1] / tau_square[0])
    expected[where] += common * (wider - narrower)
    expected[whole] -= common * (wider - 1)
    np.testing.assert_allclose(moved(w), expected, atol=1e-10)
    assert np.ptp(expected - r) > 1e-3  # the map does something


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "priors", "says"),
    [
        ("town", None, "'town' is not a group of the rows.* hold .* g, h"),
        ("y", None, "'y' is not a group .* it is a plain field, and"),
        ("(1 | g)", None, "is a group term of a formula"),
        ({"g": ["1", "a"]}, None, "must be names of fields, or .*, not dict"),
        ([0], None, "must be the name of a field, or .*, not 0"),
        (G("g", ("1", "c")), None, "slope 'c' is to vary by 'g', but x has no column"),
        (3, None, "groups must be names"),
        ("g", {"g": P.Normal(0, 1)}, "positive number"),
        ("g", {"group_cor": P.Flat()}, "correlation mat"),
    ],
)
def test_bad_groups_are_refused_with_a_reason(groups, priors, says):
    made = {"groups": groups, "priors": priors or {}}
    refused(mo.ModicumError, says, lambda: Target.of(M.Logistic(**made), rows()))


def test_what_cannot_be_a_group_is_refused():
    classes = M.Softmax(classes=3, groups="g")
    refused(mo.SettingError, "for which mo.fit has names", Target.of, classes, rows())
    refused(mo.SettingError, "must be a list of names", G, "g", "a")
    refused(mo.SettingError, "must be True or False, not 'no'", G, "g", ("1", "a"), "no")


@pytest.mark.parametrize("method", ["flymc", "sgld"])
def test_methods_that_cannot_sample_scales_say_so(method):
    with pytest.raises(mo.SettingError, match="does not sample the parameters of priors"):
        mo.sample(M.Logistic(groups="g"), rows(), method=method, progressbar=False)


# Correlation matrices from unconstrained numbers: accurate for strong correlations, and LKJ --


POINTS = np.array([0.0, 5.0, 19.0, 40.0, -19.0])


def reference(x):
    """Return log(1 - r^2), its two derivatives in x, and sqrt(1 - r^2), with 80 digits."""
    with localcontext() as context:
        context.prec = 80
        up, down = Decimal(x).exp(), Decimal(-x).exp()
        sech, tanh = 2 / (up + down), (up - down) / (up + down)
        return [float(v) for v in (2 * sech.ln(), -2 * tanh, -2 * sech**2, sech)]


@jax.jit
def measured(x):
    slope = jax.grad(log_unexplained)
    corner = correlation_factor(x[:, None], 2)[:, 1, 1]
    return jax.vmap(log_unexplained)(x), jax.vmap(slope)(x), jax.vmap(jax.grad(slope))(x), corner


def test_what_a_partial_correlation_leaves_over_is_exact_to_its_last_digits(x64):
    truth = np.array([reference(float(x)) for x in POINTS]).T
    ours = np.array(measured(POINTS))
    np.testing.assert_allclose(ours[[0, 1, 3]], truth[[0, 1, 3]], rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(ours[2], truth[2], atol=1e-14)  # at 0 it is -2, not 0
    np.testing.assert_allclose(log_unexplained(POINTS), truth[0], rtol=1e-14, atol=1e-15)
    with np.errstate(divide="ignore"):
        naive = np.log1p(-(np.tanh(POINTS) ** 2))
    assert abs(naive[2] - truth[0, 2]) > 0.1  # negative control: digits lost


def test_both_models_of_group_effects_use_it(x64):
    """At x = 19 and 40, rounding r would put the log-density off, or at minus infinity."""
    scales, eta = (as_tree(HalfNormal(1.0)),) * 2, np.asarray(1.7)
    term = Effects(scales, eta, (0, 1), (2, 3), (4,))

    @jax.jit
    def densities(t):
        effects = term.log_effects(t)
        integrated = log_hyper_density(scales, eta, t[2:])
        return integrated, term.log_density(t) - effects, effects

    gaps = []
    for x in (0.0, 19.0, 40.0):
        known = 1.7 * reference(x)[0]  # LKJ(1.7) of two effects: alpha = eta
        integrated, explicit, effects = map(float, densities(np.array([0.0, 0.0, 0.0, 0.0, x])))
        gaps.append([integrated - known, explicit - known])
        log_det = -effects - np.log(2 * np.pi)  # effects are 0
        assert log_det == pytest.approx(reference(x)[0] / 2, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(gaps, 2 * stats.halfnorm.logpdf(1.0), rtol=1e-12)


@pytest.mark.parametrize("eta", [0.8, 3.0])
def test_the_density_integrates_to_one(eta, x64):
    x = np.linspace(-40, 40, 200_001)
    log_density = jax.jit(jax.vmap(lambda x: unnormalized_lkj(x[None], 2, eta)))(x)
    normalized = np.exp(np.asarray(log_density) - unnormalized_lkj_integral(2, eta))
    assert np.trapezoid(normalized, x) == pytest.approx(1, abs=1e-10)
    wrong = np.exp(np.asarray(log_density) - unnormalized_lkj_integral(2, eta + 0.1))
    assert np.trapezoid(wrong, x) != pytest.approx(1, abs=1e-2)


def test_every_correlation_has_its_known_distribution(x64):
    """(1 + R_ij) / 2 is Beta(a, a), a = eta + count / 2 - 1, for every pair (LKJ 2009)."""
    rng, count, eta = np.random.default_rng(1), 3, 1.5
    alpha = partial_exponents(count, eta)
    x = np.arctanh(2 * rng.beta(alpha, alpha, size=(4_000, 3)) - 1)
    drawn = np.asarray(jax.jit(jax.vmap(Correlations(count).constrain))(x))
    known = stats.beta(eta + count / 2 - 1, eta + count / 2 - 1, loc=-1, scale=2)
    wrong = stats.beta(eta, eta, loc=-1, scale=2)
    assert all(stats.kstest(drawn[:, k], known.cdf).pvalue > 0.01 for k in range(3))
    assert all(stats.kstest(drawn[:, k], wrong.cdf).pvalue < 0.01 for k in range(3))


def test_numbers_are_found_again_also_where_correlations_round_to_one(x64):
    x = np.array([[0.3, -0.7, 1.1], [40.0, -25.0, 30.0]])
    two, three = Correlations(2), Correlations(3)
    factor = correlation_factor(x, 3)
    assert isinstance(factor, np.ndarray)

    @jax.jit
    def found(x):
        factor = correlation_factor(x, 3)
        again = three.free(three.constrain(x[0]))
        return factor, partials_of_factor(factor), again, two.free(two.constrain(x[1, :1]))

    compiled, partials, again, (near,) = found(x)
    np.testing.assert_allclose(compiled, factor, rtol=1e-12)
    np.testing.assert_allclose(np.sum(factor**2, axis=-1), 1, rtol=1e-14)
    np.testing.assert_allclose(partials, x, rtol=1e-12)
    np.testing.assert_allclose(again, x[0], rtol=1e-10)
    assert 18 < near < 20  # a correlation of 1 tells no more

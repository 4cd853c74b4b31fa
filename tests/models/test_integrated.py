"""Integrated groups, against brute-force quadrature, autodiff and explicit effects."""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from scipy.stats import norm

import modicum as mo
from helpers.refusals import refused
from helpers.slow import slowly
from helpers.targets import exact_draws, softplus, sums_of
from modicum import plots
from modicum.errors import DataError
from modicum.kernels.control_variates import control_variate
from modicum.kernels.expansion import group_proxy, variance_unit
from modicum.methods.whole_groups import quadrature_doubts
from modicum.models import FAMILIES, IntegratedEffects, integrated
from modicum.models.model import unflattened
from modicum.passes import anchor_at, with_nodes
from modicum.passes.integrated_groups import draw_effects
from modicum.passes.sums import _hessian_sum
from modicum.posterior.group_effects import _check_acceptance

GROUPS = 40


def simulated(family, seed=1):
    """Return rows in groups of 1 to 11, in random order."""
    rng = np.random.default_rng(seed)
    g = rng.permutation(np.repeat(np.arange(GROUPS), rng.integers(1, 12, GROUPS)))
    x = rng.normal(size=(len(g), 3))
    eta = x @ [0.5, -0.3, 0.2] - 0.5 + 0.5 * rng.normal(size=GROUPS)[g]
    y = {
        "Logistic": lambda: rng.random(len(g)) < 1 / (1 + np.exp(-eta)),
        "Gaussian": lambda: eta + rng.normal(size=len(g)),
        "Poisson": lambda: rng.poisson(np.exp(eta)),
    }[type(family).__name__]()
    return mo.Rows(x=x, y=np.asarray(y, float), g=g)


def problem(family, effects, **settings):
    """Return sums over groups, and a point near the start."""
    model = IntegratedEffects(family, "g", slopes=("x0", "x1")[: effects - 1], **settings)
    sums, start = sums_of(model, model.units(simulated(family)))
    return sums, start + 0.1 * np.random.default_rng(2).normal(size=len(start))


def brute_force(sums, t, nodes):
    """Return the log-likelihood by a fine product rule about 0, group by group in NumPy."""
    model, rows = sums.target.model, sums.rows.members.slice(0, len(sums.rows.members))
    theta = sums.target.unravel(t)
    xi, w = np.polynomial.hermite_e.hermegauss(nodes)
    points = np.array(list(product(xi, repeat=model.effects)))
    weights = np.log(np.array(list(product(w, repeat=model.effects)))).sum(1)
    weights -= model.effects * 0.5 * np.log(2 * np.pi)
    z = np.column_stack([np.ones(len(rows["y"])), *rows["x"].T[: model.effects - 1]])
    T = np.asarray(model.factor(theta))
    eta = rows["x"] @ theta["beta"] + theta["intercept"]
    f = model.row_values(jnp.asarray(eta[:, None] + z @ T @ points.T), model.extras_of(theta), rows)
    f = np.asarray(f)
    return sum(logsumexp(weights + f[rows["g"] == j].sum(0)) for j in range(GROUPS))


@pytest.fixture(autouse=True)
def double():
    """Use double precision everywhere here."""
    with jax.enable_x64(True):
        yield


CASES = [(mo.models.Logistic(), 1, 1e-8), (mo.models.Gaussian(), 2, 1e-10)]


@pytest.mark.parametrize(("family", "effects", "error"), [CASES[0], *slowly(CASES[1])])
def test_quadrature_and_derivatives(family, effects, error):
    sums, t = problem(family, effects)
    value, gradient, hessian = sums.hessian(t, "mode")
    assert abs(value - brute_force(sums, t, 50)) < error
    plain = sums._sweep(_hessian_sum, t, "mode", "hessian")
    for mine, autodiff in zip((value, gradient, hessian), plain, strict=True):
        np.testing.assert_allclose(mine, autodiff, rtol=1e-9, atol=1e-9)


def test_too_few_nodes_fail_the_check(monkeypatch):
    monkeypatch.setattr(integrated, "FEWEST_NODES", 1)
    sums, t = problem(mo.models.Logistic(), 1, nodes=1)  # Laplace's approximation
    assert abs(sums.value(t, "mode") - brute_force(sums, t, 50)) > 1e-3


class Standing(IntegratedEffects):
    """Negative control: nodes that stay where they are at the anchor."""

    def nodes_of(self, theta, flat, known):
        """Return the nodes of the anchor."""
        if known is not None:
            theta = unflattened(theta, known.point)
        return super().nodes_of(theta, flat, known)


@pytest.mark.parametrize("kind", [IntegratedEffects, Standing])
def test_few_large_groups(kind):
    """The posterior moves a group's effect by more than the width of its integrand."""
    rng = np.random.default_rng(4)
    g = np.repeat(np.arange(5), 300)
    x, u = rng.normal(size=(len(g), 1)), 0.3 * rng.normal(size=5)
    y = rng.random(len(g)) < 1 / (1 + np.exp(0.5 - 0.7 * x[:, 0] - u[g]))
    model = kind(mo.models.Logistic(), "g", group_sd=1.0)
    sums, _ = sums_of(model, model.units(mo.Rows(x=x, y=y, g=g)))
    t = np.array([0.7, np.log(0.25), -0.5])
    away = np.array(list(product([0.0], [-0.7, 0.0, 1.2], [-0.4, 0.0, 0.3])))
    target, groups = with_nodes(sums, t)
    kept = replace(sums, target=target, rows=groups)
    error = kept.values(t + away, "mode") - sums.values(t + away, "mode")
    assert (np.abs(error).max() < 1e-6) == (kind is IntegratedEffects)
    # the guard that checks the draws of a run notices
    codes = [note.code for note in quadrature_doubts(kept, t + away, 1)]
    assert codes == ([] if kind is IntegratedEffects else ["quadrature-coarse"])
    # proposals of effects follow the draws as well
    drawn = draw_effects(target.likelihood, groups.slice(0, 5), t + away, 1, 0)
    assert drawn.acceptance.min() > 0.6


@pytest.mark.parametrize(("family", "effects", "error"), [CASES[0], *slowly(CASES[1])])
def test_residuals_of_chains_and_passes_agree(family, effects, error):
    del error
    sums, t = problem(family, effects)
    target, groups = with_nodes(sums, t)
    there = replace(sums, target=target, rows=groups)
    anchor = anchor_at(there, t)
    cv = control_variate(target, 2)
    proxy = group_proxy(anchor, target, 2, variance_unit(target.likelihood, t, groups))
    ids = np.array([3, 0, 7, 7])
    chance = {"probability": np.array([0.1, 0.2, 0.3, 0.4])}
    everything = groups.slice(0, GROUPS) | {"probability": np.ones(GROUPS)}
    index, width = groups.index, groups.largest
    within = np.minimum(np.arange(width), index.size[ids][:, None] - 1)
    rows = groups.members.take(index.row_ids(index.start[ids][:, None] + within))
    beside = {"group_rows": index.size[ids], "group_centre": groups.nodes.centre[ids]}
    z = np.random.default_rng(5).normal(size=len(t))

    @jax.jit
    def loss(batch):
        cached = cv.cache(batch, proxy)
        return jax.value_and_grad(lambda z: jnp.sum(cv.values(cached, z, proxy) ** 2))(z)

    one, other = loss(groups.take(ids) | chance), loss(rows | beside | chance)
    np.testing.assert_allclose(one[0], other[0], rtol=1e-6)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-6)
    # sum of proxies and residuals over all groups: the log-likelihood itself
    moved = np.asarray(anchor.point + anchor.factor @ z)

    @jax.jit
    def added_up(batch):
        residuals = cv.values(cv.cache(batch, proxy), z, proxy)
        return cv.log_proxy(z, proxy) - target.log_prior(moved) + jnp.sum(residuals)

    total = anchor.C + added_up(everything)
    assert abs(float(total) - there.value(moved, "mode")) < 1e-8


@pytest.fixture(scope="module")
def fitted():
    """Return a fit with integrated groups, and its rows."""
    rng = np.random.default_rng(3)
    J = 200
    g = np.repeat(np.arange(J), rng.integers(2, 16, J))
    x = rng.normal(size=(len(g), 1))
    effect = 0.6 * rng.normal(size=J)
    y = rng.random(len(g)) < 1 / (1 + np.exp(0.5 - x[:, 0] * 0.8 - effect[g]))
    rows = mo.Rows(x=x, y=y, g=g)
    model = IntegratedEffects(
        mo.models.Logistic(prior_scale=2.0, intercept_scale=2.0), "g", group_sd=1.0
    )
    run = {"draws": 400, "tune": 200, "chains": 2, "random_seed": 1, "progressbar": False}
    post = mo.sample(model, rows, method="hmc-ecs", **run)
    return post, rows, model, effect


def test_posterior_of_all_rows(fitted):
    """HMC-ECS on groups has the means and sds of draws by brute-force quadrature."""
    post, rows, _, _ = fitted
    batch = rows.slice(0, len(rows))
    starts = np.flatnonzero(np.diff(batch["g"], prepend=-1))  # rows are sorted by group
    xi, w = np.polynomial.hermite_e.hermegauss(15)
    positive = batch["y"] > 0

    def log_density(points):
        found = []
        for beta, log_tau, intercept in points:
            # a row adds -log(1 + exp(-eta)) or -log(1 + exp(eta)), and a group the log of a product
            odds = np.exp(intercept + beta * batch["x"][:, 0])
            at_nodes = np.exp(np.exp(log_tau) * xi)
            ratio = np.where(positive, 1 / odds, odds)[:, None] * np.where(
                positive[:, None], 1 / at_nodes, at_nodes
            )
            likelihood = np.log((1 / np.multiply.reduceat(1 + ratio, starts)) @ w).sum()
            prior = -0.5 * (beta / 2) ** 2 - 0.5 * (intercept / 2) ** 2
            found.append(likelihood + prior - 0.5 * np.exp(2 * log_tau) + log_tau)
        return np.array(found)

    exact = exact_draws(log_density, [0.8, -0.5, -0.5], count=240).reshape(-1, 3)
    exact[:, 1] = np.exp(exact[:, 1])
    a, mean, sd = post.summary(), exact.mean(axis=0), exact.std(axis=0)
    assert list(a.index) == ["beta[x0]", "group_sd[g]", "intercept"]
    error = np.hypot(a["mcse_mean"], sd / np.sqrt(len(exact)))
    assert np.all(np.abs(a["mean"] - mean) < 4 * error)
    assert np.all(np.abs(a["mean"] - mean + 0.5 * sd) > 4 * error)  # the check has teeth
    assert np.all(np.abs(np.log(a["sd"] / sd)) < 0.2)
    corrected = post.correct(rows, progressbar=False)
    assert corrected.tuning["correction"]["pareto_k"] < 0.7


@pytest.fixture(scope="module")
def effects(fitted):
    """Return the effects of three groups, and of all."""
    post, *_ = fitted
    with jax.enable_x64(True):
        return post.effects("g", levels=[5, 2, 8], draws=400), post.effects("g", draws=400)


def test_effects_drawn_afterwards(fitted, effects):
    """Compare means and sds of effects with integrals over a grid at the posterior draws."""
    post, rows, _, effect = fitted
    table, covered = effects
    assert list(table.index) == [5, 2, 8]
    everything = rows.slice(0, len(rows))
    grid = np.linspace(-5, 5, 401)
    draws = {name: x.reshape(-1, *x.shape[2:])[::8] for name, x in post.draws.items()}
    for level in (5, 2, 8):
        mine = everything["g"] == level
        x, y = everything["x"][mine, 0], everything["y"][mine]
        tau = draws["group_sd"] * grid  # (draws, grid)
        eta = (draws["intercept"][:, None] + draws["beta"] * x)[:, :, None] + tau[:, None, :]
        h = np.sum(y[:, None] * eta - softplus(eta), axis=1) - grid**2 / 2
        p = np.exp(h - logsumexp(h, axis=1, keepdims=True))
        mean = np.sum(p * tau, axis=1)
        sd = np.sqrt(np.mean(np.sum(p * tau**2, axis=1)) - np.mean(mean) ** 2)
        # 400 draws with four Metropolis steps each are worth some 250
        assert abs(table.loc[level, "mean"] - mean.mean()) < 4 * sd / np.sqrt(250)
        assert abs(np.log(table.loc[level, "sd"] / sd)) < 4 / np.sqrt(2 * 250)
    inside = (covered["5%"] < effect) & (effect < covered["95%"])
    assert abs(inside.mean() - 0.9) < 4 * np.sqrt(0.09 / len(effect))
    assert covered["rows"].sum() == len(rows)
    refused(DataError, "no 'g' 777", post.effects, "g", levels=[777])


def test_what_the_rows_of_a_group_say_by_themselves(fitted):
    post, rows, _, _ = fitted
    ax = plots.shrinkage(post, "g", levels=[5, 2, 8])
    drawn = dict(zip(*(ax.lines[1].get_data()), strict=True))  # by the number of rows
    batch, m = rows.slice(0, len(rows)), post.summary()["mean"]
    for level in (5, 2, 8):
        own = batch["g"] == level
        y, base = batch["y"][own], m["intercept"] + m["beta[x0]"] * batch["x"][own, 0]
        best = minimize_scalar(lambda u: np.sum(np.logaddexp(0, base + u) - y * (base + u)))  # noqa: B023
        if 0 < y.mean() < 1:
            assert drawn[own.sum()] == pytest.approx(best.x, abs=1e-3)


def test_prediction_for_new_and_known_groups(fitted, effects):
    post, *_ = fitted
    x = np.zeros((2, 1))
    new = post.predict({"x": x})
    tau, intercept = post.draws["group_sd"].mean(), post.draws["intercept"].mean()
    xi, w = np.polynomial.hermite_e.hermegauss(40)
    average = np.sum(w / w.sum() / (1 + np.exp(-(intercept + tau * xi))))
    assert abs(new.mean[0] - average) < 0.01
    table = effects[1]["mean"]
    best, worst = table.idxmax(), table.idxmin()
    both = {"x": x, "g": np.array([best, worst], float)}
    known = post.predict(both, draws=400, groups="known")
    assert known.mean[0] > new.mean[0] > known.mean[1]
    expected = 1 / (1 + np.exp(-(intercept + table[best])))
    assert abs(known.mean[0] - expected) < 0.05
    with pytest.raises(DataError, match="among the rows of the fit"):
        post.predict({"x": x, "g": np.array([0.0, 777.0])}, groups="known")


def over_normal(family, predictors, sd):
    """Return the mean outcome over a first predictor with this sd, by a fine trapezoid rule."""
    z = np.linspace(-9, 9, 4001)
    weights = np.exp(-(z**2) / 2)
    means = _means(family, np.asarray(predictors), sd, z)
    return np.tensordot(weights / weights.sum(), np.asarray(means), 1)


@partial(jax.jit, static_argnums=0)
def _means(family, predictors, sd, z):
    return jax.vmap(lambda z: jax.vmap(family.mean)(predictors.at[:, 0].add(sd * z)))(z)


QUICKLY = ("probit", "poisson", "ordinal")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICKLY else [pytest.mark.slow])
        for name in FAMILIES
        if not FAMILIES[name].predictor_per_class
    ],
)
def test_means_over_groups_that_rows_do_not_name(name):
    """For one integrated and one explicit factor, in every family."""
    x = np.array([[0.5, -1.0], [1.0, 0.3], [-0.2, 0.8], [0.1, 0.1]])
    y = [0.2, 0.4, 0.6, 0.9] if name.endswith("beta") else [1.0, 2.0, 3.0, 2.0]
    y = [0.0, 1.0, 2.0, 1.0] if FAMILIES[name].has_order else y
    y = [0.0, 1.0, 1.0, 0.0] if name in ("logistic", "probit", "cloglog") else y
    fields = {"trials": np.full(4, 3.0), "event": np.ones(4)}
    kept = {k: fields[k] for k in FAMILIES[name]().outcome_fields if k != "y"}
    rows = mo.Rows(x=x, y=y, columns=["a", "b"], g=[0, 0, 1, 1], codes={"h": [0, 1, 0, 1]}, **kept)
    family = FAMILIES[name](prior_scale=1.0, groups=[mo.models.GroupTerm("h", ("1", "b"))])
    model = IntegratedEffects(family, "g", slopes="a", group_sd=1.0).resolved(rows)
    theta = jax.tree.map(jnp.asarray, model.start(rows))
    theta["group_log_sd"] = jnp.log(jnp.array([0.7, 0.5]))
    theta["group_partial"] = jnp.array([0.3])
    batch = {k: v for k, v in rows.slice(0, 4).items() if k not in ("y", "g")}
    alone = {k: v for k, v in batch.items() if k != "h"}
    u = np.array([[0.4, -0.2], [0.4, -0.2], [-0.6, 0.5], [-0.6, 0.5]])
    shift = u[:, 0] + x[:, 0] * u[:, 1]

    def given(theta, rows):
        predictors = model.family.predictor_vector(theta, rows).at[:, 0].add(shift)
        variance = sum(model.family.new_group_variances(theta, rows))
        sd = jnp.broadcast_to(jnp.sqrt(variance), 4)
        return model.family.mean_over(predictors, sd[:, None], (0,))

    @jax.jit
    def evaluated(theta):
        means = [model.expected(theta, rows) for rows in (batch, alone)]
        means += [given(theta, rows) for rows in (batch, alone)]
        (factor,) = model.family.effect_factors(theta)
        of_start = model.family.predictor_vector(theta, batch)  # where effects of h are 0
        return means, of_start, model.factor(theta), factor

    means, predictors, T, factor = jax.tree.map(np.asarray, evaluated(theta))
    of_g = np.linalg.norm(np.column_stack([np.ones(4), x[:, 0]]) @ T, axis=1)
    of_h = np.linalg.norm(np.column_stack([np.ones(4), x[:, 1]]) @ factor, axis=1)
    known = predictors.copy()
    known[:, 0] += shift
    points = [predictors, predictors, known, known]
    checks = list(zip(means, points, (of_g, np.hypot(of_g, of_h), 0 * of_g, of_h), strict=True))
    for mean, at, sd in checks:
        np.testing.assert_allclose(mean, over_normal(model.family, at, sd), rtol=1e-4, atol=1e-12)
    if name == "probit":  # Phi(eta / sqrt(1 + s^2))
        closed = norm.cdf(known[:, 0] / np.sqrt(1 + of_h**2))
        np.testing.assert_allclose(checks[3][0], closed, rtol=1e-6)
        assert np.abs(norm.cdf(known[:, 0]) - closed).max() > 0.01  # of an average h
    if name == "poisson":
        closed = np.exp(predictors[:, 0] + (of_g**2 + of_h**2) / 2)
        np.testing.assert_allclose(checks[1][0], closed, rtol=1e-6)


def test_effects_that_hardly_move_are_named():
    names = np.array(["a", "b"])
    _check_acceptance(np.array([0.8, 0.5]), names, "ward")
    with pytest.warns(mo.ModicumWarning, match=r"1 of 2 groups badly \(5% were accepted for b\)"):
        _check_acceptance(np.array([0.8, 0.05]), names, "ward")


X4, Y4, PAIRS = np.zeros((4, 1)), np.array([0.0, 1.0, 1.0, 0.0]), {"g": [0, 0, 1, 1]}


@pytest.mark.parametrize(
    ("settings", "fields", "words"),
    [
        ({}, {"g": np.ones(4)}, "same 'g'"),
        ({}, {}, "no field 'g'"),
        ({}, {"codes": PAIRS}, "cannot also be groups"),
        ({}, {"g": [0.5, 1, 2, 2]}, "whole number"),
        ({"group": "y"}, {}, "by their outcome 'y'"),
        ({"group": "x"}, {}, "'x' has several numbers per row"),
        ({"slopes": "x0"}, PAIRS, "'x0' does not vary within any level of 'g'"),
        ({"slopes": (0,)}, PAIRS, "slopes must be names of columns of x"),
        ({"nodes": 1000}, PAIRS, "a whole number from 5 to 99 or None, not 1000"),
        ({"slopes": "dose"}, PAIRS, "no column of that name"),
        ({"family": mo.models.Softmax()}, PAIRS, "one linear predictor"),
        ({"slopes": ("a", "b", "c")}, PAIRS, "one to three"),
    ],
)
def test_refusals(settings, fields, words):
    usual = {"family": mo.models.Logistic(), "group": "g"}
    with pytest.raises(mo.ModicumError, match=words):
        IntegratedEffects(**usual | settings).units(mo.Rows(x=X4, y=Y4, **fields))


def test_slopes_without_effects_on_the_intercept_may_be_constant_within_groups():
    alone = IntegratedEffects(mo.models.Logistic(), "g", slopes="x0", intercept=False)
    assert len(alone.units(mo.Rows(x=X4, y=Y4, **PAIRS))) == 2


def test_the_likelihood_alone_has_all_effects():
    """It has no names, by which code would be compiled again, and as many effects."""
    for slopes in ((), ("a",), ("a", "b")):
        model = IntegratedEffects(mo.models.Logistic(), "g", slopes=slopes)
        alone = model.without_priors()
        assert len(alone.term.effects) == 1 + len(slopes)
        assert alone.term.has_correlations == (len(slopes) > 0)
        other = IntegratedEffects(mo.models.Logistic(), "h", slopes=tuple(s + "2" for s in slopes))
        assert other.without_priors() == alone

"""Draws of scales and, given these, of coefficients, against quadrature."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, gammaln, log_expit, logsumexp

import modicum as mo
from helpers.interrupted import task_of
from helpers.quadrature import mixed, moments
from helpers.refusals import unwarned
from helpers.slow import slowly
from modicum.fit import model_for
from modicum.linalg.arrow import ArrowMatrix
from modicum.methods import given_scales, laplace, nested_draws, quadratics, skewed_axes
from modicum.methods.given_scales import LevelProposals
from modicum.methods.laplace import NestedDensity
from modicum.models.priors import exact
from modicum.posterior.doubts import convergence_warnings
from modicum.rows.reading import read_formula

FIT = {"draws": 1000, "chains": 4, "random_seed": 3, "progressbar": False}
PRIORS = {"intercept": mo.priors.Normal(0, 1.5), "group_sd": mo.priors.HalfNormal(1)}


def few_groups(groups, size, sd, seed=1):
    """Return a table of 0/1 outcomes in `groups` groups of `size` rows."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(groups), size)
    eta = 0.3 + sd * rng.normal(size=groups)[g]
    return pd.DataFrame({"y": (rng.random(len(g)) < expit(eta)).astype(float), "g": g})


def integrated(table, log_chance, nodes, a, log_sd, *others):
    """Return log-posterior, intercept, sd and other parameters on a grid, without the effects.

    `log_chance` is that of the values of a row, the outcome last, given its predictor and the other
    parameters, which are N(0, 5^2).
    """
    a, log_sd, *others = np.ix_(a, log_sd, *others)
    xi, weight = np.polynomial.hermite_e.hermegauss(nodes)
    eta, given = a[..., None] + np.exp(log_sd)[..., None] * xi, [x[..., None] for x in others]
    total = log_sd - np.exp(2 * log_sd) / 2 - a**2 / (2 * 1.5**2)
    total = total - sum(x**2 for x in others) / (2 * 5.0**2)
    columns = [name for name in ("x", "y") if name in table]
    groups = (map(tuple, rows.to_numpy()) for _, rows in table.groupby("g")[columns])
    for group, times in Counter(tuple(sorted(rows)) for rows in groups).items():
        logs = np.log(weight / weight.sum())
        for row, number in Counter(group).items():
            logs = logs + number * log_chance(*row, eta, *given)
        total = total + times * logsumexp(logs, axis=-1)
    return total, a, np.exp(log_sd), *others


def by_quadrature(table):
    """Posterior moments of the intercept and the standard deviation of the groups' effects."""
    grid = np.linspace(-4, 4, 161), np.linspace(-9, 2.5, 93)
    return moments(*integrated(table, lambda y, eta: log_expit(eta if y else -eta), 60, *grid))


def fitted(table, draws=1000):
    settings = {"family": "logistic", "priors": PRIORS, "method": "laplace"} | FIT
    with unwarned():  # few draws may be effective
        return mo.fit("y ~ (1 | g)", table, **settings | {"draws": draws})


def errors(post, means, sds, names=("intercept", "group_sd[g]")):
    """Distances of posterior means from known ones, in their Monte Carlo errors."""
    found = post.summary().loc[list(names)]
    error = sds / np.sqrt(found["ess_bulk"].to_numpy())
    return np.abs(found["mean"].to_numpy() - means) / error


@pytest.mark.parametrize(
    ("groups", "size", "sd"),
    [(3, 50, 0.5), (8, 20, 0.01), *slowly((30, 5, 0.5), (50, 100, 0.05))],
)
def test_draws_of_few_groups_and_small_scales_agree_with_quadrature(groups, size, sd):
    table = few_groups(groups, size, sd)
    post, (means, sds) = fitted(table), by_quadrature(table)
    assert np.all(errors(post, means, sds) < 4)
    assert post.summary().loc["group_sd[g]", "sd"] == pytest.approx(sds[1], rel=0.1)


def test_a_density_without_its_determinant_is_noticed(monkeypatch):
    table = few_groups(8, 20, 0.3)
    monkeypatch.setattr(given_scales.Given, "half_log_det", np.zeros(1))
    monkeypatch.setattr(NestedDensity, "_by_levels", lambda self, best, better: best)
    assert not np.all(errors(fitted(table), *by_quadrature(table)) < 4)


THIN = few_groups(60, 3, 1.0)  # their effects are skewed given the sd


def test_draws_of_thin_groups_follow_the_posterior_and_not_its_mode(monkeypatch):
    post = fitted(THIN, 400)
    means, sds = by_quadrature(THIN)
    assert np.all(errors(post, means, sds) < 4)
    assert post.summary().loc["group_sd[g]", "sd"] == pytest.approx(sds[1], rel=0.1)
    monkeypatch.setattr(given_scales.Pooled, "averaged", lambda *_: None)
    monkeypatch.setattr(NestedDensity, "_by_levels", lambda self, best, better: best)
    at_mode = fitted(THIN, 400)
    assert np.sum(at_mode.weights) ** 2 / np.sum(at_mode.weights**2) < 0.4 * at_mode.weights.size
    assert np.sum(post.weights) ** 2 / np.sum(post.weights**2) > 0.5 * post.weights.size


def scores(post, table):
    """Mean slopes of the log-posterior in effects of groups alike, which are 0, in their errors."""
    eta = post.draws["1|g"] + post.draws["intercept"][..., None]
    sums, rows = (table.groupby("g")["y"].agg(name).to_numpy() for name in ("sum", "count"))
    slopes = sums - rows * expit(eta) - post.draws["1|g"] / post.draws["group_sd"] ** 2
    weights = post.weights / post.weights.sum()
    for number in np.unique(sums):
        slope = slopes[..., sums == number].mean(axis=-1)
        mean = np.sum(weights * slope)
        yield mean / np.sqrt(np.sum(weights**2 * (slope - mean) ** 2))


def test_effects_of_thin_groups_are_one_of_several_proposals(monkeypatch):
    means, sds = by_quadrature(THIN)
    monkeypatch.setattr(given_scales.Pooled, "averaged", lambda *_: None)
    post = fitted(THIN, 600)
    assert post.tuning["proposals per level"] > 1
    assert np.all(errors(post, means, sds) < 4)
    assert post.summary().loc["group_sd[g]", "sd"] == pytest.approx(sds[1], rel=0.1)
    assert np.max(np.abs(list(scores(post, THIN)))) < 4
    assert np.sum(post.weights) ** 2 / np.sum(post.weights**2) > 0.5 * post.weights.size

    others = LevelProposals.others

    def takes_the_heaviest(self, *given):
        found = others(self, *given)
        found.gumbels[:] = 0.0
        return found

    monkeypatch.setattr(LevelProposals, "others", takes_the_heaviest)
    post = fitted(THIN, 600)
    assert post.tuning["proposals per level"] > 1
    assert np.max(np.abs(list(scores(post, THIN)))) > 4


@pytest.mark.parametrize("rest", [0.0, 1.0])
def test_what_more_proposals_would_gain_is_foreseen(rest):
    """The weights of 100 levels, and of what levels have no part in."""
    rng = np.random.default_rng(3)

    def share(number):
        of_levels = np.exp(rng.normal(0, 0.15, (4_000, 100, number))).mean(axis=2)
        weights = np.exp(np.log(of_levels).sum(axis=1) + rng.normal(0, rest, 4_000))
        return weights.mean() ** 2 / np.mean(weights**2)

    shares = [(number, share(number)) for number in (1, 8)]
    assert laplace._foreseen(shares, 32) == pytest.approx(share(32), rel=0.15)
    assert laplace._foreseen(shares, 32) > 1.15 * shares[1][1]  # more than there were


def with_level_of_ones():
    """Return groups in which a few rows have a level all of whose outcomes are one."""
    table = few_groups(8, 20, 0.5).assign(x=0.0)
    table.loc[::25, ["x", "y"]] = 1.0
    return table


def by_quadrature_with_level(table):
    """Posterior moments of the intercept, the sd of the effects and the level's coefficient."""

    def log_chance(x, y, eta, b):
        return log_expit((eta + b * x) * (1 if y else -1))

    grid = np.linspace(-2, 3, 31), np.linspace(-7, 2, 31), np.linspace(-3, 22, 41)
    return moments(*integrated(table, log_chance, 16, *grid))


def test_a_coefficient_that_is_skewed_whatever_the_scales_is_drawn_with_them(monkeypatch):
    table = with_level_of_ones()
    means, sds = by_quadrature_with_level(table)
    priors = PRIORS | {"common": mo.priors.Normal(0, 5)}

    def distances(**method):
        """Distances of posterior means from quadrature, in their Monte Carlo errors."""
        with unwarned():  # of a level without zeros
            post = mo.fit("y ~ x + (1 | g)", table, "logistic", priors=priors, **method, **FIT)
        assert method or post.tuning["skewed coefficients"] == 1
        return errors(post, means, sds, ["intercept", "group_sd[g]", "beta[x]"])

    assert np.all(distances() < 3.5)

    monkeypatch.setattr(given_scales.Given, "half_log_det", np.zeros(1))
    monkeypatch.setattr(NestedDensity, "_by_levels", lambda self, best, better: best)
    assert not np.all(distances(method="laplace") < 3.5)


def overdispersed(groups, size, seed=3):
    """Return counts in `groups` groups of `size` rows."""
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(groups), size)
    mean = np.exp(0.5 + 0.6 * rng.normal(size=groups)[g])
    return pd.DataFrame({"y": rng.negative_binomial(2, 2 / (2 + mean)), "g": g})


def by_quadrature_of_counts(table):
    """Posterior moments of the intercept, the sd of the effects and the overdispersion."""

    def log_chance(y, eta, log_phi):
        r, mean = np.exp(-log_phi), np.exp(eta)
        ways = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
        return ways - r * np.log1p(mean / r) + y * (eta - np.log(r + mean))

    grid = np.linspace(-1, 2, 31), np.linspace(-6, 1.5, 31), np.linspace(-6, 2, 31)
    total, a, sd, log_phi = integrated(table, log_chance, 24, *grid)
    return moments(total, a, sd, np.exp(log_phi))


@pytest.mark.slow
def test_an_overdispersion_is_drawn_with_the_scales_of_thin_groups(monkeypatch):
    table = overdispersed(40, 3)
    means, sds = by_quadrature_of_counts(table)

    def distances(**method):
        with unwarned():
            post = mo.fit("y ~ (1 | g)", table, "negbinomial", priors=PRIORS, **method, **FIT)
        assert method or post.tuning["skewed coefficients"] == 1
        return errors(post, means, sds, ["intercept", "group_sd[g]", "overdispersion"])

    assert np.all(distances() < 3.5)
    monkeypatch.setattr(given_scales.Given, "half_log_det", np.zeros(1))
    monkeypatch.setattr(NestedDensity, "_by_levels", lambda self, best, better: best)
    assert not np.all(distances(method="laplace") < 3.5)


@pytest.mark.slow
def test_draws_with_effects_integrated_out_agree_with_quadrature():
    table, fit = few_groups(60, 10, 0.5), FIT | {"priors": PRIORS, "groups": "integrate"}
    post, (means, sds) = mo.fit("y ~ (1 | g)", table, "logistic", **fit), by_quadrature(table)
    assert post.tuning["skewed axes"]
    assert np.all(errors(post, means, sds) < 4)
    assert post.summary().loc["group_sd[g]", "sd"] == pytest.approx(sds[1], rel=0.1)
    assert not np.all(errors(post, *by_quadrature(few_groups(60, 3, 0.5))) < 4)


def expanded(groups):
    """Return a task with groups of twenty rows, and its quadratic at the mode."""
    rows = read_formula("y ~ (1 | g)", few_groups(groups, 20, 0.5), progressbar=False)
    task = task_of(model_for(rows, "logistic", PRIORS, "explicit").model, rows)
    with jax.enable_x64(True):
        return task, given_scales.Pooled.of(task.target, task.anchor_at_mode())


@pytest.mark.filterwarnings("error::modicum.ModicumWarning")
def test_proposals_that_are_often_refused_are_not_told_to_make_smaller_steps():
    rng = np.random.default_rng(1)
    g, x = np.repeat(np.arange(27), 4), np.tile([8.0, 10.0, 12.0, 14.0], 27)
    effects = rng.normal(size=(27, 2)) * [1.8, 0.1]
    y = 17 + 0.6 * x + effects[g, 0] + effects[g, 1] * x + 1.3 * rng.normal(size=108)
    post = mo.fit("y ~ x + (x | g)", pd.DataFrame({"y": y, "x": x, "g": g}), "gaussian", **FIT)
    assert 0.3 < post.stats["acceptance_rate"].mean(axis=1).min() < 0.5
    (told,) = convergence_warnings(post.draws, post.stats, mixing=False)
    assert told.code == "acceptance-low"


def quadratic_of(groups, draws, slope, bend):
    """Average a log-likelihood that differs by a known quadratic from that of the expansion."""
    pooled = expanded(groups)[1]
    scales = nested_draws.ScaleDensity.of(pooled)
    drawn = nested_draws.nested_draws(pooled, scales, np.random.default_rng(1), (draws, 1))
    c = drawn.t[:, 0, : len(pooled.origin)]
    more = c @ slope - c**2 @ bend / 2
    proposed = drawn.log_marginal - drawn.log_proposal  # log-weight, were it not for `more`
    return pooled, pooled.averaged(*drawn.gaps(proposed[:, 0] + more))


def test_a_quadratic_difference_is_found_from_draws(monkeypatch):
    monkeypatch.setattr(skewed_axes, "CLIPPED", 0.0)  # which would cut off a quadratic
    slope, bend = np.linspace(-0.3, 0.3, 9), np.linspace(0.1, 0.5, 9)
    before, after = quadratic_of(8, 2_000, slope, bend)
    added = after.information.diagonal() - before.information.diagonal()
    np.testing.assert_allclose(added, bend, rtol=1e-6)
    # cross terms are scaled too, so that slopes agree at the mean of the draws alone
    assert not np.allclose(after.quadratic.pull - before.quadratic.pull, 0)
    few = quadratic_of(8, 50, slope, bend)[1]
    assert few is None  # fifty draws do not tell nineteen numbers


def test_information_is_mended_where_it_is_negative():
    dense = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, -0.2]])
    arrow = ArrowMatrix(  # with two levels
        np.array([[1], [2]]),
        np.array([0]),
        dense[[1, 2], [1, 2]].reshape(2, 1, 1),
        dense[[1, 2], 0].reshape(2, 1, 1),
        dense[:1, :1],
    )
    np.testing.assert_array_equal(arrow.dense()[1:, 0], dense[1:, 0])
    mended = quadratics._concave(ArrowMatrix.of(dense))
    assert np.linalg.eigvalsh(mended.dense()).min() > 0 > np.linalg.eigvalsh(dense).min()
    positive = ArrowMatrix.of(dense + 0.3 * np.eye(3))
    assert quadratics._concave(positive) is positive


def test_information_mended_for_one_quadratic_may_be_an_arrow_for_the_next(monkeypatch):
    """That of kidney catheters with slopes by patient ended in an error of NumPy."""
    task, pooled = expanded(8)

    def following(before):
        with jax.enable_x64(True):
            return before.bent(task.sums, task.anchor_at_mode(), before.start, [0])

    arrow = following(pooled)
    h = arrow.start + np.array([[0.0, 0.0], [0.5, -0.1]])
    monkeypatch.setattr(quadratics, "_concave", lambda found: ArrowMatrix.of(found.dense()))
    dense = following(pooled)
    assert pooled.information.levels == arrow.information.levels == 8 > dense.information.levels
    np.testing.assert_allclose(dense.log_marginals(h), arrow.log_marginals(h), rtol=1e-9)
    with pytest.raises(ValueError, match="broadcast"):
        replace(dense, common=pooled.common).log_marginals(h)


def test_scales_far_below_all_others_are_conditioned_on_without_overflow():
    pooled = quadratic_of(8, 50, np.zeros(9), np.zeros(9))[0]
    h, u = np.array([[-20.0], [-500.0]]), np.zeros((2, 1, 9))
    with np.errstate(all="raise", under="ignore"):
        c, log_density, log_marginal = pooled.draw(h, u)
        near = pooled.draw(np.array([[0.0]]), u[:1])[0]
    # effects are zero at both, and the same is known of the intercept; not so at a scale of 1
    np.testing.assert_allclose(c[0], c[1], atol=1e-8)
    assert np.abs(near - c[:1]).max() > 0.1
    assert np.all(np.isfinite(log_density))
    assert np.all(np.isfinite(log_marginal))


def test_coefficients_that_scales_leave_open_are_refused_in_a_sentence(monkeypatch):
    def open_(*_):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(given_scales.Pooled, "draw", open_)
    with pytest.raises(mo.ConvergenceError, match=r"given some scales .* not determined"):
        fitted(few_groups(3, 50, 0.5))


@pytest.mark.slow
def test_a_pool_of_groups_is_weighed_by_compiled_code_too():
    rng = np.random.default_rng(3)
    g, x = np.repeat(np.arange(40), 10), rng.uniform(0, 10, 400)
    mean = expit(np.sin(x) + 0.5 * rng.normal(size=40)[g])
    table = pd.DataFrame({"y": rng.beta(5 * mean, 5 * (1 - mean)), "x": x, "g": g})
    found = {}
    for groups in ("integrate", "explicit"):
        method = "laplace"
        post = mo.fit("y ~ s(x) + (1 | g)", table, "beta", groups=groups, method=method, **FIT)
        found[groups] = post.summary().loc[["precision", "intercept", "group_sd[g]"]]
    one, other = found.values()
    error = one["sd"] * np.sqrt(1 / one["ess_bulk"] + 1 / other["ess_bulk"])
    assert np.all(np.abs(one["mean"] - other["mean"]) < 4 * error)
    np.testing.assert_allclose(one["sd"], other["sd"], rtol=0.12)


def test_scales_of_a_horseshoe_are_not_drawn():
    rng = np.random.default_rng(1)
    table = few_groups(8, 20, 0.3).assign(x=rng.normal(size=160))
    priors = PRIORS | {"common": mo.priors.Horseshoe()}
    with pytest.raises(mo.SettingError, match="no scale of a horseshoe"):
        mo.fit("y ~ x + (1 | g)", table, "logistic", priors=priors, method="laplace", **FIT)


# Normal noise ---------------------------------------------------------------------------------

NOISY = {
    "intercept": mo.priors.Normal(5, 2),
    "common": mo.priors.Normal(0, 1),
    "group_sd": mo.priors.HalfNormal(1),
    "scale": mo.priors.Exponential(0.7),
}


def noisy_groups():
    """Return a table of real outcomes in eight groups of six rows."""
    rng = np.random.default_rng(4)
    g, x = np.repeat(np.arange(8), 6), rng.normal(size=48)
    y = 4.0 + 0.5 * x + 0.7 * rng.normal(size=8)[g] + 1.2 * rng.normal(size=48)
    return pd.DataFrame({"y": y, "x": x, "g": g})


@cache
def noisy_quadrature(grouped=True):
    """Posterior moments of the scale, the slope, the intercept and the sd of effects."""
    table = noisy_groups()
    log_sd, log_scale = (
        np.linspace(-7, 1.5, 60) if grouped else [-np.inf],
        np.linspace(-0.7, 1.2, 50),
    )
    g = table["g"].to_numpy()
    X = np.column_stack([table["x"], np.ones(len(g))])
    away, same = table["y"] - 5.0, (g[:, None] == g).astype(float)
    prior, logs, means, variances = np.diag([1.0, 4.0]), [], [], []
    for a, b in product(np.exp(log_sd), np.exp(log_scale)):
        V = X @ prior @ X.T + a**2 * same + b**2 * np.eye(len(g))
        half = np.linalg.solve(np.linalg.cholesky(V), np.column_stack([away, X @ prior]))
        log = -half[:, 0] @ half[:, 0] / 2 - np.linalg.slogdet(V)[1] / 2
        logs.append(log - a**2 / 2 + (np.log(a) if grouped else 0) - 0.7 * b + np.log(b))
        means.append([b, *half[:, 1:].T @ half[:, 0], a])
        variances.append([0, *np.diag(prior - half[:, 1:].T @ half[:, 1:]), 0])
    means, sds = mixed(logs, means, np.array(variances))
    return means + np.array([0, 0, 5.0, 0]), sds


def noisy_errors(grouped=True):
    """Distances from quadrature of means by nested draws, in their Monte Carlo errors."""
    priors = NOISY if grouped else {name: NOISY[name] for name in ("intercept", "common", "scale")}
    formula, names = "y ~ x", ["scale", "beta[x]", "intercept"]
    if grouped:
        formula, names = formula + " + (1 | g)", [*names, "group_sd[g]"]
    post = mo.fit(formula, noisy_groups(), "gaussian", priors=priors, **FIT)
    means, sds = (moment[: len(names)] for moment in noisy_quadrature(grouped))
    found = post.summary().loc[names]
    return np.abs(found["mean"] - means).to_numpy() / (sds / np.sqrt(found["ess_bulk"])), post


@pytest.mark.parametrize("dear", [False, True], ids=["alone", "sharing scales"])
def test_draws_with_normal_noise_agree_with_quadrature(monkeypatch, dear):
    if dear:  # as with thousands of crossed levels: levels are eliminated by interpolation
        monkeypatch.setattr(given_scales, "DEAR", 0)
        monkeypatch.setattr(given_scales, "POINTS", 7)
    off, post = noisy_errors()
    assert post.settings["method"] == "laplace"
    assert np.all(off < 4)
    few = post.summary().loc["group_sd[g]", "ess_bulk"] < 2 * nested_draws.SHARED
    assert few == dear  # draws that share scales are not counted as independent


def test_draws_without_pooled_terms_need_no_pool_of_rows_either():
    off, post = noisy_errors(grouped=False)
    assert "normal given the scale of the noise" in post.tuning["method"]
    assert np.all(off < 4)
    assert post.summary().loc["beta[x]", "sd"] == pytest.approx(
        noisy_quadrature(False)[1][1], rel=0.05
    )
    assert post.ledger.evaluations < 4 * 48  # one pass, or another where the mean explains most


@pytest.mark.parametrize("grouped", [False, True])
def test_noise_whose_rows_are_miscounted_is_noticed(monkeypatch, grouped):
    right = quadratics.NoiseQuadratic.at
    wrong = lambda noise, h: right(replace(noise, rows=noise.rows - 8), h)  # noqa: E731
    monkeypatch.setattr(quadratics.NoiseQuadratic, "at", wrong)
    assert not np.all(noisy_errors(grouped)[0] < 4)


def test_collinear_columns_are_left_to_their_priors():
    table = noisy_groups()
    priors = {"common": mo.priors.Normal(0, 1)}
    one = mo.fit("y ~ x", table, "gaussian", priors={"common": mo.priors.Normal(0, 2**0.5)}, **FIT)
    with pytest.warns(mo.ModicumWarning, match="collinear"):
        two = mo.fit(
            "y ~ x + again", table.assign(again=table["x"]), "gaussian", priors=priors, **FIT
        )
    assert "normal given the scale of the noise" in two.tuning["method"]
    total = two.draws["beta"].sum(axis=-1)
    assert np.mean(total) == pytest.approx(np.mean(one.draws["beta"]), abs=0.02)
    assert np.std(total) == pytest.approx(np.std(one.draws["beta"]), rel=0.06)
    assert np.std(two.draws["beta"][..., 0] - total / 2) == pytest.approx(0.5**0.5, rel=0.06)


def test_sums_by_level_make_the_same_draws_as_dense_ones(monkeypatch):
    table = noisy_groups().assign(h=np.arange(48) % 5)
    settings = {"family": "gaussian", "priors": NOISY, "method": "laplace", **FIT, "draws": 250}
    with unwarned():  # five levels say little about their sd
        dense = mo.fit("y ~ x + (1 | g) + (1 | h)", table, **settings)
        monkeypatch.setattr("modicum.models.target.DENSE_LIMIT", 5)  # as with thousands of levels
        by_level = mo.fit("y ~ x + (1 | g) + (1 | h)", table, **settings)
    for name in ("scale", "1|h", "1|g"):
        np.testing.assert_allclose(by_level.draws[name], dense.draws[name], rtol=1e-5, atol=1e-6)


def test_noise_whose_scale_has_a_formula_is_not_of_one_scale():
    assert mo.models.Gaussian().at_known_scale() == mo.models.Gaussian(scale=1.0)
    assert replace(mo.models.Gaussian(), modelled=("scale",)).at_known_scale() is None


def test_weights_count_as_rows_for_normal_noise():
    table = noisy_groups()
    twice = pd.concat([table, table], ignore_index=True)
    settings = {"family": "gaussian", "priors": NOISY, **FIT}
    one = mo.fit("y ~ x + (1 | g)", twice, **settings)
    other = mo.fit("y ~ x + (1 | g)", table.assign(w=2.0), weights="w", **settings)
    np.testing.assert_allclose(one.draws["scale"], other.draws["scale"], rtol=1e-6)


def log_densities(table, family):
    """Log-posterior of draws at known numbers, and these draws."""
    settings = {"priors": NOISY, "weights": "w", **FIT}
    post = mo.fit("y ~ x + (1 | g)", table.assign(w=2.0), family, **settings)
    assert post.settings["method"] == "laplace"
    return post.stats["lp"], post.draws["scale"]


def test_lognormal_outcomes_have_normal_noise_after_taking_logarithms(monkeypatch):
    table = noisy_groups()
    normal, scale = log_densities(table, "gaussian")
    logs, same = log_densities(table.assign(y=np.exp(table["y"])), "lognormal")
    np.testing.assert_allclose(same, scale, rtol=1e-5)
    off = 2 * table["y"].sum()  # the density of y is that of its logarithm, over y
    np.testing.assert_allclose(normal - logs, off, rtol=1e-5)
    monkeypatch.setattr("modicum.models.families.positive.NormalLogs.of_logs", False)
    forgotten, _ = log_densities(table.assign(y=np.exp(table["y"])), "lognormal")
    assert np.all(np.abs(normal - forgotten - off) > 100)


SETS, BINS = 250, 10
SBC = {  # groups, rows of each, and the scale of the prior of their sd
    "few groups": (3, 50, 0.5),
    "eight": (8, 20, 0.5),
    "thin groups": (30, 5, 0.3),
}


def ranks(groups, size, scale, sets):
    """Return where simulated parameters lie among their draws, and how many sets were enough."""
    rng, found = np.random.default_rng([groups, size]), []
    priors = {
        "intercept": mo.priors.Normal(0, 1),
        "common": mo.priors.Normal(0, 1),
        "group_sd": mo.priors.HalfNormal(scale),
    }
    g = np.repeat(np.arange(groups), size)
    for _ in range(sets):
        a, b, sd = rng.normal(), rng.normal(), scale * abs(rng.normal())
        u, x = sd * rng.normal(size=groups), rng.normal(size=len(g))
        y = (rng.random(len(g)) < expit(a + b * x + u[g])).astype(float)
        if y.min() == y.max():
            continue
        table = pd.DataFrame({"y": y, "x": x, "g": g})
        with unwarned():
            post = mo.fit("y ~ x + (1 | g)", table, priors=priors, method="laplace", **FIT)
        if post.tuning["pareto_k"] < 0.5:  # what the default accepts; a choice by the data alone
            w = post.weights / post.weights.sum()
            draws = (post.draws["intercept"], post.draws["beta"][..., 0])
            draws += (post.draws["group_sd"][..., 0], post.draws["1|g"][..., 0])
            values = zip(draws, (a, b, sd, u[0]), strict=True)
            found.append([np.sum(w * (drawn < value)) for drawn, value in values])
    return np.array(found)


def unevenness(shares):
    """Chi-squared of the counts in ten bins: 9 on average if shares are uniform, 28 at most."""
    counts = np.histogram(shares, BINS, (0, 1))[0]
    return float(np.sum((counts - len(shares) / BINS) ** 2) / (len(shares) / BINS))


@pytest.mark.slow
@pytest.mark.parametrize("case", SBC)
def test_ranks_of_simulated_parameters_are_uniform(case):
    """Talts et al. 2018: chance 10^-3 to fail for each of four parameters."""
    found = ranks(*SBC[case], SETS)
    assert len(found) > SETS / 2
    assert all(unevenness(shares) < 28 for shares in found.T)


def at_their_mode(density, rng, count):
    return np.tile(density.mode, (count, 1)), np.zeros(count)


def without_prior(scales, eta, hyper):
    return hyper[..., : len(scales)].sum(axis=-1)  # a flat density of the standard deviations


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        pytest.param(nested_draws.ScaleDensity, "draw", at_their_mode, id="scales at their mode"),
        pytest.param(exact, "log_hyper_density", without_prior, id="scales without their prior"),
    ],
)
def test_ranks_tell_scales_that_are_drawn_wrongly(monkeypatch, owner, name, broken):
    monkeypatch.setattr(owner, name, broken)
    of_sd = ranks(*SBC["few groups"], 80)[:, 2]
    assert len(of_sd) > 40
    assert unevenness(of_sd) > 28

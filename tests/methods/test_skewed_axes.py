"""Curves along skewed axes: their quantiles, their effect, and which methods use them."""

import numpy as np
import pytest
from scipy.special import digamma, expit, ndtri, polygamma
from scipy.stats import norm

import modicum as mo
from helpers.interrupted import task_of
from helpers.quadrature import moments
from modicum.kernels.whitening import along_curves
from modicum.methods import full_data, laplace
from modicum.methods.skewed_axes import AxisMoments, curves_on_all_rows, skewed_axes
from modicum.passes import Anchor

M = mo.models
RUN = {"random_seed": 3, "progressbar": False}
EVENTS, ROWS_A, ROWS_E = 30, 100, 200  # the second level has no event


def level_without_events():
    x = np.r_[np.zeros(ROWS_A), np.ones(ROWS_E)][:, None]
    y = np.zeros(ROWS_A + ROWS_E)
    y[:EVENTS] = 1
    return mo.Rows(x=x, y=y, columns=["late_stage"])


MODEL = M.Logistic(prior_scale=10.0, intercept_scale=10.0)


def exact_moments():
    """Return mean and sd of the level's coefficient, by a sum over a grid of both parameters."""
    a = np.linspace(-1.9, 0.2, 121)[:, None]
    b = np.linspace(-60, 0, 4_001)[None]
    log = EVENTS * a - ROWS_A * np.log1p(np.exp(a)) - ROWS_E * np.log1p(np.exp(a + b))
    return [found.item() for found in moments(log - (a**2 + b**2) / 200, b)]


def anchor_of(factor):
    d = len(factor)
    return Anchor(np.zeros(d), 0.0, np.zeros(d), -np.eye(d), factor)


def walled(z):
    """A half-normal of scale 3 in the first coordinate, ending at 0, times a standard normal."""
    wall = -np.exp(np.minimum(40 * z[:, 0], 50))
    return wall - z[:, 0] ** 2 / 18 - 0.5 * np.sum(z[:, 1:] ** 2, axis=1)


def test_moments_are_learned_from_the_weights_of_draws():
    """Independent log-gamma variables, whose moments are known, and a normal that is too wide."""
    shape = np.array([16.0, 36.0, 64.0])
    rng = np.random.default_rng(2)

    def weights(z):  # of log(gamma) in units about its mode, over a standard normal
        x = np.log(shape) + z[:, :3] / np.sqrt(shape)
        gammas = (shape * x - np.exp(x)).sum(axis=1)
        return gammas + (z**2).sum(axis=1) / 2 - (z[:, 3] / 1.1) ** 2 / 2

    z = rng.standard_normal((40_000, 4))
    first = AxisMoments.at_mode(4).followed(z, weights(z))
    mean = np.r_[np.sqrt(shape) * (digamma(shape) - np.log(shape)), 0.0]
    third = np.r_[polygamma(2, shape) / polygamma(1, shape) ** 1.5, 0.0]
    np.testing.assert_allclose(first.mean, mean, atol=0.03)
    # draws far out count less, so that of the third moments a part is seen
    seen = 3 * first.bend[:3] / third[:3]
    assert np.all((seen > 0.5) & (seen < 1))
    assert abs(first.bend[3]) < 0.02
    # draws with these have weights that vary less, and show what is left
    u = rng.standard_normal((40_000, 4))
    bent, log_volume = first.along(u)
    left = weights(bent) - (bent**2).sum(axis=1) / 2 + (u**2).sum(axis=1) / 2 + log_volume
    assert np.std(left) < np.std(weights(z)) / 3
    again = first.followed(u, left)
    assert again.passes == 2
    np.testing.assert_allclose(again.mean, mean, atol=0.02)
    np.testing.assert_allclose(again.sd[3], 1.1, atol=0.01)
    # negative control: without the Jacobian they do not
    assert np.std(left - log_volume) > np.std(weights(z)) / 3
    # draws that are worth nothing, in thousands or not at all, tell where not to go, and no more
    lost = weights(z)
    lost[z[:, 3] > 1], lost[z[:, 3] > 1.5] = -1e9, np.nan
    away = AxisMoments.at_mode(4).followed(z, lost)
    assert -2 < away.mean[3] < -0.5
    np.testing.assert_allclose(away.mean[:3], mean[:3], atol=0.1)


def test_moments_of_more_axes_than_draws_tell_together_are_told_one_by_one():
    def weights(z):  # of log-gamma variables with shape 25
        return (25 * z / 5 - 25 * np.expm1(z / 5) + z**2 / 2).sum(axis=1)

    z = np.random.default_rng(3).standard_normal((2_000, 400))
    truth = 5 * (digamma(25) - np.log(25))
    for draws, least, most in ((z, 0.0, 0.5), (z[:40], 0.5, 1.2)):  # few are shrunk to the mode
        found = AxisMoments.at_mode(400).followed(draws, weights(draws))
        assert least < np.mean((found.mean - truth) ** 2) / truth**2 < most
        assert np.abs(found.bend).max() < 0.2
    assert AxisMoments.at_mode(400).followed(z, np.full(2_000, -np.inf)) is None


def test_along_an_axis_quantiles_are_the_posteriors():
    curves = skewed_axes(walled, np.zeros(3), anchor_of(np.eye(3)))
    assert curves.axes.shape == (3, 1)
    np.testing.assert_allclose(np.abs(curves.axes[:, 0]), [1, 0, 0], atol=1e-12)
    u = np.zeros((5, 3))
    u[:, 0] = [-3.0, -1.0, 0.0, 1.0, 2.0]
    z, _ = along_curves(u, curves)
    exact = 3 * ndtri(norm.cdf([-3.0, -1.0, 0.0, 1.0, 2.0]) / 2)  # of the half-normal itself
    np.testing.assert_allclose(z[:, 0], exact, atol=0.1)
    assert np.all(z[:, 1:] == 0)
    normal = lambda z: -0.5 * np.sum(z**2, axis=1)  # noqa: E731
    assert skewed_axes(normal, np.zeros(3), anchor_of(np.eye(3))) is None


def test_collinear_columns_do_not_hide_the_wall_of_a_level():
    # t1 + t2 is known well and t1 - t2 is not; the wall is on t1 + t2
    factor = np.array([[10.0, 0.1], [-10.0, 0.1]])
    t = lambda z: z @ factor.T  # noqa: E731

    def log_posterior(z):
        return walled(np.c_[t(z).sum(axis=1) / 0.2, z[:, 0]])

    B = -np.linalg.inv(factor @ factor.T)
    anchor = Anchor(np.zeros(2), 0.0, np.zeros(2), B + np.eye(2) / 400, factor)
    curves = skewed_axes(log_posterior, np.zeros(2), anchor)
    assert np.abs(curves.axes[1]).max() > 0.99
    coefficients_alone = Anchor(np.zeros(2), 0.0, np.zeros(2), np.zeros((2, 2)), factor)
    missed = skewed_axes(log_posterior, np.zeros(2), coefficients_alone)
    assert np.abs(missed.axes[1]).max() < 0.1


@pytest.fixture(scope="module")
def rows():
    return level_without_events()


@pytest.fixture(scope="module")
def post(rows):
    with pytest.warns(mo.ModicumWarning, match="separation"):
        return mo.sample(MODEL, rows, draws=2_000, **RUN)


def test_a_level_without_events_takes_draws_along_its_axis_and_no_chain(post):
    assert post.settings["method"] == "laplace"
    assert post.tuning["skewed axes"]["value"] == 1
    assert post.tuning["method"].startswith("weighted draws, normal but for 1 skewed axis: about ")
    assert [doubt.code for doubt in post.warnings] == ["separation"]


def test_its_posterior_is_that_of_a_sum_over_a_grid(post, rows, monkeypatch):
    mean, sd = exact_moments()
    error = 4 * sd / np.sqrt(4_000)  # of 8,000 draws, by the independence sampler
    assert abs(post.mean("beta")[0] - mean) < error
    assert post.sd("beta")[0] == pytest.approx(sd, rel=0.05)

    def by_name():
        with pytest.warns(mo.ModicumWarning, match="separation"):
            return mo.sample(MODEL, rows, method="laplace", draws=2_000, **RUN)

    assert abs(by_name().mean("beta")[0] - mean) < error
    # plain normal draws are far off
    monkeypatch.setattr(laplace, "skewed_axes", lambda *where, **settings: None)
    normal = by_name()
    assert "skewed axes" not in normal.tuning
    assert abs(normal.mean("beta")[0] - mean) > error


def test_lp_is_the_log_posterior_of_all_rows(post, rows):
    exact = post.correct(rows, draws=200, progressbar=False)
    assert exact.tuning["correction"]["weight_variance"] < 1e-8


def test_nuts_moves_along_the_curves(rows, monkeypatch):
    task = task_of(MODEL, rows)
    plan = mo.NUTS().plan(task)
    assert plan.context.where.curves is not None
    assert plan.tuning["skewed axes"]["value"] == 1
    assert mo.NUTS(step_size=0.3).plan(task_of(MODEL, rows)).context.where.curves is None
    task.known[curves_on_all_rows] = None  # as if draws had been weighted and no axis were skewed
    assert mo.NUTS().plan(task).context.where.curves is None


@pytest.mark.slow
def test_nuts_does_not_diverge_and_is_right(rows, monkeypatch):
    mean, sd = exact_moments()
    with pytest.warns(mo.ModicumWarning, match="predicts"):
        post = mo.sample(MODEL, rows, method="nuts", **RUN)
    assert post.stats["diverging"].sum() == 0
    ess = float(post.summary()["ess_bulk"].iloc[0])
    assert abs(post.mean("beta")[0] - mean) < 4 * sd / np.sqrt(ess)
    monkeypatch.setattr(full_data, "curves_on_all_rows", lambda task: None)
    separated = pytest.warns(mo.ModicumWarning, match="predicts")
    with separated, pytest.warns(mo.ModicumWarning, match="diverged"):
        mo.sample(MODEL, rows, method="nuts", **RUN)


def test_where_hmc_ecs_would_be_in_doubt_all_rows_are_used(rows):
    method, plan = mo.Auto(laplace=False).decide(task_of(MODEL, rows))
    assert method.name == "nuts"
    assert "posterior sd from its mode, about which HMC-ECS expands; about" in plan.tuning["method"]


@pytest.mark.slow
def test_a_share_of_zeros_near_0_is_drawn_before_all_else():
    """The share of zeros beyond Poisson's runs to 0, and the intercept makes up for it."""
    counts = np.random.default_rng(1).poisson(1.6, 2_000)
    post = mo.fit("y ~ 1", {"y": counts}, family="zero-inflated-poisson", draws=2_000, **RUN)
    assert post.tuning["skewed coefficients"] == 1
    assert post.warnings == []
    a, u = np.linspace(0.2, 0.8, 401)[:, None], np.linspace(-18, 0, 1_801)[None]
    zeros, total = np.sum(counts == 0), counts.sum()
    log = zeros * np.logaddexp(u, -np.exp(a)) - 2_000 * np.logaddexp(0, u)
    log = log + total * a - (2_000 - zeros) * np.exp(a) - (a - np.log(total / 2_000)) ** 2 / 200

    off = []
    for prior_sd in (2.5, 0.5):  # the default prior, and another as a negative control
        found = post.summary().loc[["intercept", "zero_inflation"]]
        means, _ = moments(log - u**2 / (2 * prior_sd**2), a, expit(u))
        off.append(np.max(np.abs(found["mean"] - means) / found["mcse_mean"]))
    assert off[0] < 4 < off[1]

"""The posterior mode and the anchor there: found in few passes, or refused with a reason."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.interrupted import task_of
from helpers.refusals import refused
from helpers.slow import slowly
from helpers.targets import (
    Conjugate,
    all_of,
    class_rows,
    gaussian_rows,
    logistic_rows,
    poisson_rows,
    sums_of,
)
from modicum.errors import NoModeError
from modicum.passes import NEAR, anchor_at_mode, find_mode, hyperparameters, mode
from modicum.passes.hyperparameters import settle
from modicum.passes.mode import TOLERANCE
from modicum.runtime import in_double_precision
from modicum_lab.tests.validation.ported import RUBIN, eight_schools

M = mo.models


def mode_of(model, rows, **kwargs):
    sums, start = sums_of(model, rows)
    return find_mode(sums, start, **kwargs)


# of many rows, the search starts from a subset
@pytest.mark.parametrize(("family", "n"), [("poisson", 500), ("logistic", 45_000)])
def test_mode_is_statsmodels_maximum_likelihood(family, n):
    sm = pytest.importorskip("statsmodels.api")
    # so wide a prior moves the mode by a relative 1e-11 at most
    wide = {"prior_scale": 1e6, "intercept_scale": 1e6}
    model, rows, kind = {
        "logistic": (M.Logistic(**wide), logistic_rows(n), sm.families.Binomial()),
        "poisson": (M.Poisson(**wide), poisson_rows(n), sm.families.Poisson()),
    }[family]
    at, record = mode_of(model, rows)
    batch = all_of(rows)
    x = np.c_[batch["x"], np.ones(len(rows))]
    glm = sm.GLM(batch["y"], x, family=kind, offset=batch.get("offset"))
    truth = glm.fit(tol=1e-14, maxiter=100).params
    np.testing.assert_allclose(at.point, truth, rtol=1e-8)
    assert record.converged
    assert record.passes <= 10


def test_gaussian_mode_is_the_closed_form_with_its_prior():
    target = Conjugate()
    at, record = mode_of(target.model, target.rows)
    np.testing.assert_allclose(at.point, target.mean, rtol=1e-9)
    np.testing.assert_allclose(at.precision, target.precision, rtol=1e-10, atol=1e-9)
    assert record.passes <= 3  # a quadratic needs one step


@pytest.mark.parametrize(
    ("model", "make"),
    [
        (M.Softmax(prior_scale=1.0), class_rows),
        *slowly((M.Gaussian(prior_scale=1.0), gaussian_rows)),
        (M.StudentT(prior_scale=1.0), gaussian_rows),
        (M.Poisson(prior_scale=(0.1, 1.0, 5.0)), poisson_rows),
    ],
)
def test_gradient_of_the_log_posterior_vanishes(model, make, x64):
    rows = make(250)
    sums, start = sums_of(model, rows)
    at, record = find_mode(sums, start)

    def log_posterior(t):
        return sums.target.log_likelihood(t, all_of(rows)).sum() + sums.target.log_prior(t)

    gradient = jax.jit(jax.grad(log_posterior))(at.point)
    spread = np.linalg.cholesky(np.linalg.inv(at.precision))
    assert np.linalg.norm(spread.T @ gradient) < 2 * TOLERANCE
    assert record.gradient_norm < TOLERANCE


def test_a_subset_saves_passes_and_near_the_mode_they_are_fewer():
    rows = logistic_rows(50_000, 5)
    sums, start = sums_of(M.Logistic(), rows)
    at, record = find_mode(sums, start, seed=3)
    assert record.subset <= 25_000
    assert sums.ledger.sweeps == record.passes <= 5
    assert sums.ledger.evaluations > record.passes * len(rows)  # the subset's rows count too
    again, _ = find_mode(sums, start, seed=4)  # another subset, the same mode
    np.testing.assert_allclose(again.point, at.point, rtol=1e-7)
    close, fewer = find_mode(sums, start, within=NEAR)
    assert fewer.passes < record.passes
    assert fewer.converged
    assert TOLERANCE < fewer.gradient_norm < NEAR
    # the reported norm is the distance in posterior sds
    away = np.linalg.cholesky(at.precision).T @ (close.point - at.point)
    assert np.linalg.norm(away) == pytest.approx(fewer.gradient_norm, rel=0.01)


def test_many_parameters_share_the_hessians_of_a_subset(monkeypatch):
    rows, found, hessians = logistic_rows(50_000, 5), [], []
    for wide in (1, mode.WIDE):  # the second: the control
        monkeypatch.setattr(mode, "WIDE", wide)
        sums, start = sums_of(M.Logistic(), rows)
        found.append(find_mode(sums, start, seed=3)[0].point)
        hessians.append(sums.ledger.by_kind["hessian"])
    np.testing.assert_allclose(*found, rtol=1e-7)
    assert hessians[0] < hessians[1]


# Hard cases --------------------------------------------------------------------------------


def separated(columns=None):
    x = np.linspace(-1, 1, 60)[:, None]
    return mo.Rows(x=x, y=(x[:, 0] > 0) * 1.0, columns=columns)


def test_an_unconverged_point_is_never_called_a_mode(monkeypatch):
    monkeypatch.setattr(mode, "MAX_STEPS", 1)
    with pytest.raises(mo.ConvergenceError, match="no mode was found: after 2 passes") as caught:
        mode_of(M.Logistic(), separated())
    assert "init" not in str(caught.value)  # a family has none
    assert "prior_scale" in str(caught.value)


def mixture(init):
    """Two normals at -a and a: concave at neither 0 nor far out, with modes in between."""

    def log_likelihood(th, batch):
        left, right = (-0.5 * (batch["y"] - s * th["a"]) ** 2 for s in (-1, 1))
        return jnp.logaddexp(left, right)

    return mo.Model(lambda th: -0.5 * (th["a"] / 5) ** 2, log_likelihood, {"a": init})


def two_heaps():
    rng = np.random.default_rng(5)
    return mo.Rows(y=np.r_[rng.normal(-2, 1, 100), rng.normal(2, 1, 100)])


def test_a_model_that_is_not_concave_everywhere_still_has_its_mode():
    at, record = mode_of(mixture(0.3), two_heaps())  # the start lies where curvature is positive
    assert record.converged
    assert abs(at.point[0] - 2.0) < 0.3
    assert at.precision[0, 0] > 0


@pytest.mark.parametrize(
    ("unit", "shift", "priors"),
    [(1e6, 0, None), (1e-6, 0, None), (1, 2_000, None), (1, 1e5, None), (1e6, 0, "flat")],
)
def test_units_and_shifts_do_not_hide_a_mode(unit, shift, priors):
    """If columns explain most of an outcome, the search starts where it is not concave."""
    flat = {"common": mo.priors.Flat(), "intercept": mo.priors.Flat()}
    x, noise = np.random.default_rng(1).normal(size=(2, 500))
    y = 1 + 2 * x + noise
    model = M.Gaussian(priors=flat if priors else None)

    def fitted(x, y):
        at, record = mode_of(model, mo.Rows(x=x[:, None], y=y))
        assert record.passes < 20
        return at.point[0], np.exp(at.point[-1])

    plain, other = fitted(x, y), fitted(x + shift, y * unit)
    np.testing.assert_allclose(np.array(other) / unit, plain, rtol=1e-6)


@pytest.mark.parametrize("noise", [0.1, 0.01, 3e-3, 1e-3, 1e-4])
def test_a_scale_that_has_not_moved_yet_may_fall_far(noise):
    """Its coefficients found, a step back to the start was taken for the end of the search."""
    for seed in range(2):
        x, e = np.random.default_rng(seed).normal(size=(2, 500))
        at, _ = mode_of(M.Gaussian(), mo.Rows(x=x[:, None], y=1 + 2 * x + noise * e))
        residual = np.linalg.lstsq(np.c_[x, np.ones(500)], 1 + 2 * x + noise * e)[1][0]
        assert np.exp(at.point[-1]) == pytest.approx(np.sqrt(residual / 500), rel=0.01)


@in_double_precision
def test_scales_of_groups_do_not_depend_on_units():
    rng = np.random.default_rng(1)
    g, x = rng.integers(0, 20, 400), rng.normal(size=400)
    y = 2 * x + rng.normal(size=20)[g] + 0.5 * rng.normal(size=400)

    def log_scales(unit):
        rows = mo.Rows(x=x[:, None], y=y * unit, codes={"g": g})
        at, record = mode_of(M.Gaussian(groups="g"), rows)
        assert record.passes < 30
        return at.point[-2:] - np.log(unit)  # of the noise, and of the groups

    np.testing.assert_allclose(log_scales(1e6), log_scales(1), atol=1e-3)


def test_a_stationary_point_that_is_not_a_maximum_is_reported():
    sums, start = sums_of(mixture(0.0), two_heaps())
    assert "not concave at the anchor" in str(anchor_at_mode(sums, start).notes[0])


# Warnings and errors are true ---------------------------------------------------------------


def note_of(model, rows, names=()):
    sums, start = sums_of(model, rows)
    (note,) = anchor_at_mode(sums, start, names).notes
    return note


def test_a_prior_that_is_too_tight_is_named():
    names = ("beta[a]", "beta[b]", "beta[c]", "intercept")
    model = M.Gaussian(scale=0.7, prior_scale=1e-3)
    note = note_of(model, gaussian_rows(200, size=0.0), names)
    assert note.code == "prior-decides"  # where the data disagree with it, a trap has the warning
    assert "collinear" not in str(note)
    assert "widen it (prior_scale)" in str(note)
    assert note.numbers["prior_sd"] == pytest.approx(1e-3)
    assert note.numbers["data_sd"] > 0.01


def test_a_hierarchy_has_no_columns():
    port = eight_schools(RUBIN)
    note = note_of(port.model, port.rows)
    assert note.code == "prior-decides"
    assert "column" not in str(note)
    assert "the prior says about" in str(note)


def test_effects_integrated_where_no_mode_is_found_may_be_held_instead():
    y, x = np.r_[np.full(9, -20.0), np.full(9, 20.0)], np.tile([[-1.0], [1.0]], (9, 1))
    rows = mo.Rows(x=x, y=y, g=np.arange(18) % 3)
    family = M.StudentT(scale=1.0, df=3.0)
    for model in (family, M.IntegratedEffects(family, "g")):
        sums, start = sums_of(model, model.units(rows))
        places = sums.target.unravel(np.arange(len(start)))
        start[places.get("group_log_sd", [])] = -3.0  # effects too small to reach either heap
        between = mode.curvature(sums, start, "mode")
        assert not between.concave
        why = mode.why_no_mode(sums, between, 3, stuck=True)
        assert ("groups='explicit'" in why) == (model.integrated_group is not None)


def with_kinks():
    """Return a model with kinks: flat between two heaps of outcomes, with a corner at each."""
    return mo.Model(
        lambda th: -0.5 * th["a"] ** 2, lambda th, b: -jnp.abs(b["y"] - th["a"]), {"a": 0.05}
    )


def test_a_kink_is_not_called_silence_of_the_data():
    note = note_of(with_kinks(), mo.Rows(y=np.r_[np.full(9, -0.1), np.full(9, 0.1)]))
    assert note.code == "not-quadratic"
    assert "data" not in str(note)


def own(log_likelihood, start=0.0, log_prior=lambda th: 0.0):
    return mo.Model(log_prior, log_likelihood, {"a": start})


def dosed(log_likelihood):
    """Return a model of rows of which the seventh has no dose, and these rows."""
    dose = np.where(np.arange(30) == 7, 0.0, 2.0)
    model = own(log_likelihood, 0.5, lambda th: -0.5 * (th["a"] - 0.5) ** 2)
    return model, mo.Rows(y=np.ones(30), dose=dose)


SOME = gaussian_rows(20)
REFUSED = {
    r"of row 0 \(x = .*at a = 0": (own(lambda th, b: jnp.log(th["a"] - 1.0) * b["y"]), SOME),
    "derivative of the .* a kink": (own(lambda th, b: 0 * b["y"] - jnp.abs(th["a"]) ** 1.5), SOME),
    "no step increases .* kink": (with_kinks(), mo.Rows(y=np.r_[np.full(9, 0.1), -1.0, 1.0])),
    r"of row 7 \(y = 1\., dose = 0\.\)": dosed(
        lambda th, b: b["y"] * jnp.log(b["dose"] - 1 - th["a"] ** 2 / 9)
    ),
    "gradient .* of row 7": dosed(lambda th, b: b["y"] * jnp.sqrt(jnp.abs(b["dose"] * th["a"]))),
    r"the log-prior is nan at a = -?[0-9.]+;": (
        own(lambda th, b: -((b["y"] - th["a"]) ** 2), -1.0, lambda th: jnp.log(-(th["a"] ** 2))),
        SOME,
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_has_no_mode_is_refused_with_the_reason(words):
    refused(mo.ConvergenceError, words, mode_of, *REFUSED[words])


def test_levels_without_events_in_a_subset_come_back_within_a_few_passes():
    """There the curvature is next to nothing, and a Newton step back goes far past the mode."""
    rng = np.random.default_rng(5)
    level = rng.integers(0, 40, 42_000)
    level[rng.random(42_000) > 0.028] = 40  # 30 rows in each of the others
    number = rng.standard_normal(42_000) + 0.1 * level
    x = np.c_[np.eye(41)[level][:, :40], number]
    y = rng.random(42_000) < 0.15
    sums, start = sums_of(M.Logistic(prior_scale=30.0), mo.Rows(x=x, y=y))
    assert find_mode(sums, start)[1].passes <= 12  # by damping alone, more than 16


def own_quantile(rows):
    """Return a quantile regression as an `mo.Model`: its mode is on a kink."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, 2))
    y = x @ [1.0, -0.5] + rng.standard_t(4, rows)

    def log_likelihood(theta, batch):
        r = batch["y"] - batch["x"] @ theta["beta"] - theta["a"]
        return -r * (0.9 - (r < 0))

    def log_prior(theta):
        return -0.5 * jnp.sum(theta["beta"] ** 2) - 0.5 * theta["a"] ** 2

    model = mo.Model(log_prior, log_likelihood, {"beta": np.zeros(2), "a": 0.0})
    return task_of(model, mo.Rows(x=x, y=y))


@pytest.mark.parametrize(("rows", "most"), [(3_000, 250), (41_000, 2)])
def test_a_kink_ends_the_search_for_a_mode_soon_and_on_a_subset(rows, most):
    task = own_quantile(rows)
    refused(NoModeError, "has a kink there", task.anchor_at_mode)
    assert 0 < task.ledger.sweeps <= most


def censored_times(groups=60, n=240):
    """Return times of which 17 are observed, so that they say little of how much groups differ."""
    rng = np.random.default_rng(1)
    g = rng.integers(0, groups, n)
    time = np.exp(0.5 * rng.normal(size=groups)[g]) * rng.weibull(1.5, n)
    until = rng.exponential(0.1, n)
    fields = {"event": time < until, "codes": {"g": g}}
    return mo.Rows(x=rng.normal(size=(n, 1)), y=np.minimum(time, until), **fields)


@in_double_precision
def test_a_scale_that_jumps_to_and_fro_is_held_back():
    sums, start = sums_of(mo.models.Weibull(groups="g"), censored_times())
    at, record = find_mode(sums, start, within=NEAR)
    assert record.converged
    again, _ = settle(at, sums.target)
    assert np.abs(again.point - at.point).max() < 0.05  # a fixed point; its log has an sd of 0.4


@in_double_precision
def test_a_scale_at_which_effects_are_not_concave_counts_for_nothing():
    """Its integral over the effects does not exist, and once ended the default in a LinAlgError."""
    rng = np.random.default_rng(1)
    g, x = rng.integers(0, 60, 240), rng.normal(size=(240, 1))
    y = np.exp(0.5 * x[:, 0] + rng.normal(size=60)[g]) * rng.gamma(1.0, size=240)
    sums, start = sums_of(M.InverseGaussian(groups="g"), mo.Rows(x=x, y=y, codes={"g": g}))
    at, _ = find_mode(sums, start, within=NEAR)
    widths = -1 / np.diag(hyperparameters.with_scale_widths(at, sums.target).prior_hessian)
    assert 0 < widths[-1] <= hyperparameters.WIDEST**2
    wide = at.point + 6 * np.eye(len(at.point))[-1]  # of the log standard deviation
    assert hyperparameters._marginal(at, sums.target, wide[None]) == -np.inf

"""NUTS and HMC without a useful mode: kinks, funnels, hierarchies, searches that fail."""

import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.interrupted import task_of
from helpers.ported import RUBIN, marginal_of_mu_and_tau
from helpers.targets import (
    TIMES,
    Conjugate,
    all_of,
    logistic_rows,
    mean_and_error,
    means_apart,
    quick,
)
from modicum.methods import cost
from modicum.passes import mode

Y = np.r_[np.full(9, 0.1), -1.0, 1.0]


def kinked(th):
    return -3 * jnp.abs(th["a"]) - th["s"]


def absolute(th, batch):
    return -jnp.abs(batch["y"] - th["a"]) / th["s"] - jnp.log(th["s"])


KINKED = mo.Model(kinked, absolute, constraints={"s": mo.positive})


def moments_by_quadrature():
    a = np.linspace(-2, 2, 1_601)[:, None]
    s = np.exp(np.linspace(-4, 3, 1_401))[None]
    log = -3 * np.abs(a) - s - np.abs(Y[:, None, None] - a).sum(axis=0) / s - len(Y) * np.log(s)
    weight = np.exp(log - log.max()) * s  # the grid is even in log s
    weight /= weight.sum()
    return {name: [(weight * x**k).sum() for k in (1, 2)] for name, x in (("a", a), ("s", s))}


def sampled(model, rows, **changes):
    given = {"method": "nuts", "draws": 1_000, "tune": 600, "chains": 4, "random_seed": 4}
    return quick(model, rows, **given | changes)


def faults(post, known):
    return [
        (name, power)
        for name, moments in known.items()
        for power, moment in enumerate(moments, 1)
        if means_apart(post[name] ** power, moment)
    ]


@pytest.fixture(scope="module")
def kink():
    return sampled(KINKED, mo.Rows(y=Y))


def test_a_posterior_with_kinks(kink):
    assert "chains start from dispersed points" in kink.tuning["mode"]
    assert kink.tuning["metric"] == "dense"
    assert faults(kink, moments_by_quadrature()) == []
    kink.draws["a"] = kink["a"] + 0.4 * kink["a"].std()  # negative control
    assert ("a", 1) in faults(kink, moments_by_quadrature())


def test_hmc_and_a_diagonal_metric():
    method = mo.HMC(jitter=0.3, metric="diagonal")
    post = sampled(KINKED, mo.Rows(y=Y), method=method, draws=2_000)
    assert post.tuning["metric"] == "diagonal"
    assert faults(post, moments_by_quadrature()) == []


def test_by_default_too_all_rows_are_used_and_a_fixed_step_is_refused():
    method, plan = mo.Auto(laplace=False).decide(task_of(KINKED, mo.Rows(y=np.tile(Y, 300))))
    assert method.name == "nuts"
    assert "no mode that could be found" in plan.tuning["method"]
    with pytest.raises(mo.ConvergenceError, match="no mode was found"):
        sampled(KINKED, mo.Rows(y=Y), method=mo.NUTS(step_size=0.1))


# A family's mode that is not found ---------------------------------------------------------


@pytest.fixture
def no_climb(monkeypatch):
    """Let the search for a mode stop where it starts."""
    monkeypatch.setattr(mode, "MAX_STEPS", 0)


def test_by_default_a_family_is_sampled_on_all_rows_with_one_warning(no_climb):
    # Columns in units of a millionth and a million: chains must start in the prior's units.
    exact = Conjugate()
    units = np.array([1e6, 1.0, 1e-6])
    fields = all_of(exact.rows)
    prior_scale = tuple(0.3 / units)
    model = mo.models.Gaussian(scale=0.7, prior_scale=prior_scale, intercept_scale=0.5)
    rows = mo.Rows(x=fields["x"] * units, y=fields["y"])
    post = sampled(model, rows, method="auto", draws=500)
    assert post.settings["method"] == "nuts"
    assert [doubt.code for doubt in post.warnings] == ["no-mode"]
    assert "NUTS runs on all rows from dispersed points" in str(post.warnings[0])
    assert "no mode that could be found" in post.tuning["method"]
    post.draws["beta"] = post["beta"] * units
    known = {"intercept": [exact.mean[3], exact.mean[3] ** 2 + exact.cov[3, 3]]}
    assert faults(post, known) == []
    for k in range(3):
        mean, error = mean_and_error(post["beta"][..., k])
        assert abs(mean - exact.mean[k]) < TIMES * error
        assert abs(mean + 0.5 * exact.cov[k, k] ** 0.5 - exact.mean[k]) > TIMES * error  # control


def test_other_methods_refuse_it_and_name_nuts(no_climb, monkeypatch):
    for method in ("hmc-ecs", "laplace"):
        with pytest.raises(mo.ConvergenceError, match=r"or use method='nuts', which needs no mode"):
            sampled(mo.models.Logistic(), logistic_rows(), method=method)
    monkeypatch.setattr(cost, "AFFORDABLE", 0.0)  # as if there were many rows
    with pytest.raises(mo.ConvergenceError, match=r"or use method='nuts', which needs no mode"):
        sampled(mo.models.Logistic(), logistic_rows(), method="auto")


def test_where_the_mode_would_show_that_there_is_no_posterior_it_is_required(no_climb):
    flat = {"common": mo.priors.Flat(), "intercept": mo.priors.Flat()}
    remote = mo.Rows(x=np.eye(40)[:, :2], y=1e12 + np.arange(40.0) % 7)
    for model, rows in (
        (mo.models.Logistic(priors=flat), logistic_rows()),
        (mo.models.Gaussian(), remote),
    ):
        for method in ("auto", "nuts"):
            with pytest.raises(mo.ConvergenceError, match="no mode was found") as caught:
                sampled(model, rows, method=method)
            assert "nuts" not in str(caught.value)


def normal(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd)


def centred_schools():
    def log_prior(th):
        scale = -jnp.log1p((th["tau"] / 5) ** 2)
        return jnp.sum(normal(th["theta"], th["mu"], th["tau"])) + normal(th["mu"], 0, 5.0) + scale

    def log_likelihood(th, batch):
        return normal(batch["y"], th["theta"][batch["school"]], batch["sigma"])

    y, sigma = (np.array(RUBIN[name], float) for name in ("y", "sigma"))
    rows = mo.Rows(y=y, sigma=sigma, school=np.arange(8))
    constraints = {"tau": mo.positive}
    return mo.Model(log_prior, log_likelihood, constraints=constraints, shapes={"theta": 8}), rows


@pytest.mark.slow
def test_eight_schools_centred():
    """The density is unbounded, in a funnel that NUTS enters with a small step."""
    model, rows = centred_schools()
    post = sampled(model, rows, method=mo.NUTS(target_accept=0.98), draws=3_000, tune=1_500)
    exact = marginal_of_mu_and_tau()
    ours = {"mu": post["mu"], "log_tau": np.log(post["tau"]), "mu2": post["mu"] ** 2}
    for name, values in ours.items():
        mean, error = mean_and_error(values)
        assert abs(mean - exact[name]) < 5 * error, name
    mean, error = mean_and_error(ours["mu"])
    assert abs(mean - exact["mu"] - 1.0) > 5 * error


@pytest.mark.slow
def test_a_gaussian_process_of_counts_agrees_with_numpyro():
    """posteriordb's gp_pois_regr: the mass that warm-up learns is far from the one it begins with.

    The reference is 40,000 draws of NumPyro's NUTS (target_accept=0.99, a dense mass, float64).
    """
    x = jnp.arange(-10.0, 11.0, 2.0)
    counts = np.array([40, 37, 29, 12, 4, 3, 9, 19, 77, 82, 33.0])

    def log_prior(th):
        rho, alpha = th["rho"], th["alpha"]
        return 24 * jnp.log(rho) - 4 * rho - alpha**2 / 8 - 0.5 * jnp.sum(th["f"] ** 2)

    def log_likelihood(th, batch):
        near = jnp.exp(-0.5 * ((x[:, None] - x) / th["rho"]) ** 2)
        lower = jnp.linalg.cholesky(th["alpha"] ** 2 * near + 1e-10 * jnp.eye(11))
        log_rate = (lower @ th["f"])[batch["k"].astype(int)]
        return batch["y"] * log_rate - jnp.exp(log_rate)

    start = {"rho": 6.0, "alpha": 1.0, "f": jnp.zeros(11)}
    own = mo.Model(
        log_prior, log_likelihood, start, constraints=dict.fromkeys(("rho", "alpha"), mo.positive)
    )
    post = sampled(own, mo.Rows(y=counts, k=np.arange(11.0)), method="auto", tune=1_000)
    assert not {"r-hat", "acceptance-low"} & {warning.code for warning in post.warnings}
    known = {  # mean and sd, of 7,500 effective draws and more
        "log_alpha": (np.log(post["alpha"]), 1.0330, 0.2643),
        "log_rho": (np.log(post["rho"]), 1.7242, 0.1207),
        "first": (post["f"][..., 0], 1.3393, 0.3551),
        "middle": (post["f"][..., 5], 1.4407, 0.7843),
    }
    for name, (values, mean, sd) in known.items():
        of_reference = np.array([sd, np.sqrt(2) * sd**2]) / np.sqrt(7_500)
        moments = np.stack([values, (values - mean) ** 2], axis=-1)
        at, error = mean_and_error(moments)
        allowed = TIMES * np.hypot(error, of_reference)
        assert np.all(np.abs(at - [mean, sd**2]) < allowed), name
        assert abs(at[1] - (1.25 * sd) ** 2) > allowed[1], name  # negative control

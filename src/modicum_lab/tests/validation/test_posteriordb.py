"""Posteriors of posteriordb against its reference draws, and others that have no mode.

posteriordb.json has the tables and the moments of the reference draws, and says where they come
from.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.refusals import unwarned
from helpers.targets import TIMES, mean_and_error, quick
from modicum_lab.tests.validation.ported import (
    PORTS,
    RUBIN,
    eight_schools,
    marginal_of_mu_and_tau,
    normal,
)

REFERENCE = json.loads(Path(__file__).with_name("posteriordb.json").read_text())["posteriors"]
RUN = {
    "method": mo.NUTS(target_accept=0.95), "draws": 1_000, "tune": 600, "chains": 4,
    "random_seed": 3, "progressbar": False,
}  # fmt: skip
SHORTER = {"draws": 400, "tune": 400}  # if a gradient solves a differential equation
DYNAMICS = {"hudson_lynx_hare-lotka_volterra", "one_comp_mm_elim_abs-one_comp_mm_elim_abs"}
BROKEN = {"r-hat", "other-modes", "modes-apart"}  # chains did not reach one answer


def data_of(name):
    """Return the data of a posterior; several posteriors share theirs."""
    data = REFERENCE[name]["data"]
    return REFERENCE[data]["data"] if isinstance(data, str) else data


def drawn(port, **changes):
    with unwarned():  # a flat prior, a hierarchy
        post = mo.sample(port.model, port.rows, **RUN | changes)
    assert not BROKEN & {warning.code for warning in post.warnings}, post.warnings
    return port.named(post.draws)


def side_by_side(named, names):
    return np.stack([np.asarray(named[name], float) for name in names], axis=-1)


def disagreements(ours, moments):
    """Name the moments in which draws differ from the reference beyond both errors."""
    mean, mean_error, variance, variance_error = np.transpose(moments)
    found = []
    for name, values, known, known_error in (
        ("mean", ours, mean, mean_error),
        ("variance", (ours - mean) ** 2, variance, variance_error),
    ):
        at, error = mean_and_error(values)
        if not np.all(np.abs(at - known) <= TIMES * np.hypot(error, known_error)):
            found.append(name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PORTS))
def test_draws_agree_with_the_reference(name):
    reference = REFERENCE[name]
    moments = np.array(list(reference["moments"].values()))
    changes = SHORTER if name in DYNAMICS else {}
    named = drawn(PORTS[name](data_of(name)), **changes)
    ours = side_by_side(named, list(reference["moments"]))
    assert disagreements(ours, moments) == []
    # The same comparison notices a mean that is off by 0.4 of a standard deviation.
    assert "mean" in disagreements(ours + 0.4 * np.sqrt(moments[:, 2]), moments)


def test_the_reference_is_that_of_the_ports():
    assert set(REFERENCE) == set(PORTS)
    assert REFERENCE["eight_schools-eight_schools_noncentered"]["data"] == RUBIN


@pytest.mark.slow
def test_eight_schools_agree_with_quadrature():
    named = drawn(eight_schools(RUBIN))
    exact = marginal_of_mu_and_tau()
    ours = {"mu": named["mu"], "log_tau": np.log(named["tau"]), "mu2": named["mu"] ** 2}
    for name, values in ours.items():
        mean, error = mean_and_error(values[..., None])
        assert abs(mean[0] - exact[name]) < 4.5 * error[0], name
    mean, error = mean_and_error(ours["mu"][..., None])
    assert abs(mean[0] - (exact["mu"] + 1.0)) > 4.5 * error[0]  # negative control


# Without a mode ------------------------------------------------------------------------------


def sampled(model, rows, **changes):
    given = {"method": "nuts", "draws": 1_000, "tune": 600, "chains": 4, "random_seed": 4}
    return quick(model, rows, **given | changes)


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

"""Posteriors of posteriordb against its reference draws, and eight schools against quadrature.

posteriordb.json has the tables and the moments of the reference draws, and says where they come
from.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import modicum as mo
from helpers.ported import PORTS, RUBIN, eight_schools, marginal_of_mu_and_tau
from helpers.refusals import unwarned
from helpers.targets import TIMES, mean_and_error

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

"""The evidence, by averages and by bridge sampling, against closed forms and quadrature."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import t as student
from scipy.integrate import quad
from scipy.stats import bernoulli, multivariate_normal, norm

import modicum as mo
from helpers.posteriors import made, normal_draws
from helpers.refusals import refused
from helpers.targets import Conjugate
from modicum.errors import ModicumWarning, SettingError

CONJUGATE = Conjugate()


def posterior(of=CONJUGATE, wide=1.0, model=None, number=1000):
    draws = normal_draws(of.mean, wide * of.cov, (2, number))
    return made(model or of.model, of.rows, draws)


def exact(of=CONJUGATE, used=slice(None), prior=1.0):
    """Return the log marginal density of the outcomes, which are jointly normal."""
    x = of.x[:, used] * prior * of.prior_sd[used]
    return multivariate_normal.logpdf(of.y, cov=of.scale**2 * np.eye(len(x)) + x @ x.T)


def agrees(found, truth):
    return found.error < 0.1 and abs(found.value - truth) < 4 * found.error + 1e-3


def test_conjugate_rows_in_closed_form():
    found = posterior().log_evidence(CONJUGATE.rows)
    assert agrees(found, exact())
    assert found == (found.value, found.error)
    # negative control: another prior has another evidence
    assert not agrees(found, exact(prior=2))
    # draws of another width only change where the density is evaluated
    wide = posterior(wide=1.5).log_evidence()
    assert wide.error > found.error
    assert abs(wide.value - exact()) < 4 * wide.error


def test_more_parameters_than_draws_can_show_the_covariance_of():
    many = Conjugate(d=29)
    found = posterior(many, number=100).log_evidence()
    assert found.error < 0.2
    assert abs(found.value - exact(many)) < 4 * found.error


def heavy(df=3, size=1, number=2000):
    """Return draws of t distributions, whose tails no normal covers: the evidence is 2^-4."""
    model = mo.Model(
        lambda th: jnp.sum(student.logpdf(th["a"], df)),
        lambda th, batch: 0 * batch["y"] * th["a"][0] - jnp.log(2.0),
        init={"a": np.zeros(size)},
    )
    draws = np.random.default_rng(1).standard_t(df, size=(2, number, size))
    return made(model, mo.Rows(y=np.zeros(4)), {"a": draws})


def test_the_bridge_is_right_where_an_average_is_not():
    found = heavy().log_evidence(points=2000)
    assert agrees(found, -4 * np.log(2))
    assert not agrees(found, -4 * np.log(2) + 0.3)


def test_signs_of_draws_count_in_the_bridge():
    post, at = heavy(), np.arange(0, 2000, 5)
    post.draws["a"][:, at] = 2 + 0.3 * np.random.default_rng(2).normal(size=(2, 400, 1))
    post.weights = np.ones((2, 2000))
    post.weights[:, at[(at // 5 + 1) % 4 > 1]] = -1.0  # half of the inserted draws
    found = post.log_evidence(points=2000)
    assert agrees(found, -4 * np.log(2))
    # negative control: without their signs
    post.weights = None
    assert not agrees(post.log_evidence(points=2000), -4 * np.log(2))


def test_few_rows_of_a_logistic_model_by_quadrature():
    x, y = np.array([-1.0, 0.5, 1.5, 2.0]), np.array([0, 0, 1, 1])

    def joint(b, sd=2):
        return np.prod(bernoulli.pmf(y, 1 / (1 + np.exp(-x * b)))) * norm.pdf(b, 0, sd)

    grid = np.linspace(-5, 15, 4001)
    chances = np.cumsum([joint(b) for b in grid])
    draws = np.interp(np.random.default_rng(1).random((2, 1000)), chances / chances[-1], grid)
    model = mo.models.Logistic(prior_scale=2.0, intercept=False)
    post = made(model, mo.Rows(x=x[:, None], y=y), {"beta": draws[..., None]})
    found = post.log_evidence(points=2000)
    assert agrees(found, np.log(quad(joint, -20, 20)[0]))
    assert not agrees(found, np.log(quad(joint, -30, 30, args=(4,))[0]))  # a wider prior


def test_compare_has_bayes_factors():
    less = CONJUGATE.x[:, 1:]
    rows = mo.Rows(x=less[:, :-1], y=CONJUGATE.y)
    at = CONJUGATE.of(less, CONJUGATE.y, CONJUGATE.prior_sd[1:])
    other = made(CONJUGATE.model, rows, normal_draws(*at, (2, 1000), 2))
    table = mo.compare({"all": posterior(), "less": other}, evidence=True)
    factor = exact(used=slice(1, None)) - exact()
    error = np.hypot(*table["evidence_error"])
    assert table.loc["less", "log_bayes_factor"] == pytest.approx(factor, abs=4 * error + 1e-3)
    assert table.loc["all", "log_bayes_factor"] == 0


def test_what_has_no_evidence_is_refused_and_an_uncertain_one_says_so():
    flat = mo.models.Gaussian(scale=0.7, priors={"common": mo.priors.Flat()})
    improper = posterior(model=flat.resolved(CONJUGATE.rows))
    refused(SettingError, "not defined for a flat prior", improper.log_evidence)
    refused(SettingError, "30 draws are too few", posterior(number=15).log_evidence)
    refused(SettingError, "points must be a whole number", posterior().log_evidence, points=3)
    with pytest.warns(ModicumWarning, match="known to within") as caught:
        heavy(1, 8, 100).log_evidence()
    assert caught[0].message.code == "evidence-uncertain"

"""The evidence, by averages and by bridge sampling, against closed forms and quadrature."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import bernoulli, multivariate_normal, norm

import modicum as mo
from helpers.targets import Conjugate, all_of
from modicum.errors import ModicumWarning, SettingError
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import evidence

CONJUGATE = Conjugate()
N, SCALE = 200, 0.7
X = np.c_[all_of(CONJUGATE.rows)["x"], np.ones(N)]
Y = all_of(CONJUGATE.rows)["y"]
PRIOR_SD = np.r_[np.full(3, 0.3), 0.5]


def posterior(cov=CONJUGATE.cov, model=CONJUGATE.model, rows=CONJUGATE.rows, number=1000):
    z = np.random.default_rng(1).multivariate_normal(CONJUGATE.mean, cov, size=(2, number))
    draws = {"beta": z[..., :3], "intercept": z[..., 3]}
    return mo.Posterior(draws, {}, mo.Ledger(rows=N), predictor=ModelPredictor(model), rows=rows)


def exact(x=X, prior_sd=PRIOR_SD):
    """Return the log marginal density of the outcomes, which are jointly normal."""
    cov = SCALE**2 * np.eye(N) + (x * prior_sd**2) @ x.T
    return multivariate_normal.logpdf(Y, cov=cov)


def agrees(found, truth):
    return found.error < 0.1 and abs(found.value - truth) < 4 * found.error + 1e-3


def test_conjugate_rows_in_closed_form():
    found = posterior().log_evidence(CONJUGATE.rows)
    assert agrees(found, exact())
    assert found == (found.value, found.error)
    # negative control: another prior has another evidence
    assert not agrees(found, exact(prior_sd=2 * PRIOR_SD))


def test_draws_of_the_wrong_width_give_the_same_with_a_larger_error():
    """The draws only determine where the density is evaluated."""
    right, wide = posterior().log_evidence(), posterior(1.5 * CONJUGATE.cov).log_evidence()
    assert wide.error > right.error
    assert abs(wide.value - exact()) < 4 * wide.error


def test_the_bridge_agrees_with_the_average(monkeypatch):
    monkeypatch.setattr(evidence, "WORST_TAIL", -np.inf)
    assert agrees(posterior().log_evidence(), exact())


def test_signs_of_draws_count_in_the_bridge(monkeypatch):
    monkeypatch.setattr(evidence, "WORST_TAIL", -np.inf)
    post = posterior()
    z = np.random.default_rng(2).multivariate_normal(CONJUGATE.mean + 0.1, CONJUGATE.cov, (2, 200))
    post.draws["beta"][:, ::5], post.draws["intercept"][:, ::5] = z[..., :3], z[..., 3]
    post.weights = np.ones((2, 1000))
    post.weights[:, ::10] = -1.0  # every other one of the inserted draws
    found = post.log_evidence()
    assert abs(found.value - exact()) < 4 * found.error + 1e-3 < 0.5
    # negative control: without their signs
    post.weights = None
    ignored = post.log_evidence()
    assert abs(ignored.value - exact()) > 4 * ignored.error


def test_the_bridge_is_right_where_an_average_is_not():
    """The density is bimodal, and a normal around both modes covers it badly."""
    rng = np.random.default_rng(3)
    z = np.where(rng.random(4000) < 0.5, -3, 3) + rng.normal(size=4000) * 0.3
    proposal = rng.normal(0, 1.0, size=4000)  # too narrow: a tail of huge weights

    def log_q(at):
        return 5 + np.logaddexp(norm.logpdf(at, -3, 0.3), norm.logpdf(at, 3, 0.3)) - np.log(2)

    at_draws, at_new = (log_q(x) - norm.logpdf(x) for x in (z, proposal))
    found = evidence._bridge_sampling(at_draws, np.ones(4000), at_new)
    assert abs(found.value - 5) < 4 * found.error < 0.8
    average, tail = evidence.average(at_new)
    assert tail > 0.7 or abs(average.value - 5) > 4 * average.error


def test_curvature_stands_in_for_a_noisy_covariance(monkeypatch):
    monkeypatch.setattr(evidence, "NOISY", 0.0)
    assert agrees(posterior().log_evidence(), exact())


def test_few_rows_of_a_logistic_model_by_quadrature():
    x, y = np.array([-1.0, 0.5, 1.5, 2.0]), np.array([0, 0, 1, 1])
    rows = mo.Rows(x=x[:, None], y=y)
    model = mo.models.Logistic(prior_scale=2.0, intercept=False)

    def joint(b):
        chance = bernoulli.pmf(y, 1 / (1 + np.exp(-x * b)))
        return np.prod(chance) * norm.pdf(b, 0, 2)

    truth = np.log(quad(joint, -20, 20)[0])
    grid = np.linspace(-5, 15, 4001)
    chances = np.cumsum([joint(b) for b in grid])
    draws = np.interp(np.random.default_rng(1).random((2, 1000)), chances / chances[-1], grid)
    ledger = mo.Ledger(rows=4)
    post = mo.Posterior(
        {"beta": draws[..., None]}, {}, ledger, predictor=ModelPredictor(model), rows=rows
    )
    found = post.log_evidence(rows, points=2000)
    assert agrees(found, truth)
    wider = np.log(quad(lambda b: joint(b) * norm.pdf(b, 0, 4) / norm.pdf(b, 0, 2), -30, 30)[0])
    assert not agrees(found, wider)


def test_compare_has_bayes_factors():
    less = X[:, 1:]
    precision = less.T @ less / SCALE**2 + np.diag(PRIOR_SD[1:] ** -2.0)
    mean = np.linalg.solve(precision, less.T @ Y) / SCALE**2
    z = np.random.default_rng(2).multivariate_normal(mean, np.linalg.inv(precision), (2, 1000))
    rows = mo.Rows(x=less[:, :-1], y=Y)
    draws = {"beta": z[..., :2], "intercept": z[..., 2]}
    other = mo.Posterior(
        draws, {}, mo.Ledger(rows=N), predictor=ModelPredictor(CONJUGATE.model), rows=rows
    )
    table = mo.compare({"all": posterior(), "less": other}, evidence=True)
    factor = exact(less, PRIOR_SD[1:]) - exact()
    error = np.hypot(*table["evidence_error"])
    assert table.loc["less", "log_bayes_factor"] == pytest.approx(factor, abs=4 * error + 1e-3)
    assert table.loc["all", "log_bayes_factor"] == 0


def test_what_has_no_evidence_is_refused():
    flat = mo.models.Gaussian(scale=SCALE, priors={"common": mo.priors.Flat()})
    with pytest.raises(SettingError, match="not defined for a flat prior"):
        posterior(model=flat.resolved(CONJUGATE.rows)).log_evidence()
    with pytest.raises(SettingError, match="30 draws are too few"):
        posterior(number=15).log_evidence()
    with pytest.raises(SettingError, match="points must be a whole number"):
        posterior().log_evidence(points=3)


def test_an_uncertain_evidence_says_so():
    with pytest.warns(ModicumWarning, match="known to within 2") as caught:
        evidence._warn_if_uncertain(evidence.Evidence(-3.0, 2.0), 1.2)
    assert caught[0].message.code == "evidence-uncertain"

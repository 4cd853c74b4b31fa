"""What contenders share: the timed loop, forecasts of draws, and problems read from a folder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from modicum_lab.bench.contenders.approximations import laplace
from modicum_lab.bench.contenders.common import forecast, scan_until
from modicum_lab.bench.problems import Problem, ProblemData
from modicum_lab.bench.runs import Budget, Infeasible
from modicum_lab.datasets import Dataset

SHORT = Budget(seconds=60.0, draws=50, chains=2, cores=2)


def counting(state, step):
    """Return positions 0, 1, 2 ..., ten per call, with three gradients each."""

    def iteration(state, _):
        return state + step, (jnp.full(2, state), 3)

    return jax.lax.scan(iteration, state, None, length=10)


def test_warm_up_is_dropped_and_draws_are_bounded():
    ran = scan_until(counting, jnp.zeros(()), (jnp.ones(()),), 20, SHORT)
    assert ran.draws.shape == (1, 100, 2)  # as many as two chains of 50 have
    np.testing.assert_array_equal(ran.draws[0, :, 0], np.arange(20, 120))
    assert (ran.gradients_before, ran.gradients) == (60, 300)
    assert 1 <= ran.credit <= 2


def test_when_time_is_up_what_there_is_counts():
    ran = scan_until(counting, jnp.zeros(()), (jnp.ones(()),), 0, Budget(seconds=1e-9))
    assert ran.draws.shape[1] == 10


def test_a_gradient_too_slow_is_left_out_with_what_it_would_take():
    with pytest.raises(Infeasible, match="minutes"):
        forecast(2.0, Budget(seconds=20))


def test_a_problem_is_handed_over_whole(tmp_path):
    rng = np.random.default_rng(1)
    x, years = rng.normal(size=(500, 2)), rng.uniform(0.5, 2, 500)
    y = rng.poisson(years * np.exp(0.3 * x[:, 0])).astype(float)
    rows = mo.Rows(x=x, y=y, offset=np.log(years))
    model = mo.models.Poisson(prior_scale=1.5, intercept_scale=10.0)
    problem = Problem("tiny", "a tiny one", lambda: Dataset("t", rows, model, "made up", "here"))
    kept = problem.write(tmp_path)
    data = ProblemData(tmp_path)
    assert data.model == model
    assert len(data) == len(data.rows) == len(data.store()) == 500
    np.testing.assert_array_equal(data.rows.slice(0, 500)["offset"], np.log(years))
    np.testing.assert_array_equal(data.prior, [1.5, 1.5, 10.0])
    run = laplace(data, SHORT)
    assert np.max(np.abs(np.subtract(run.mean, kept.mean)) / kept.sd) < 0.2
    assert run.rows_before > 500
    assert run.known_moments

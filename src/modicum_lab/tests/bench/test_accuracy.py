"""A fast wrong answer is marked wrong, and a right one is not."""

import numpy as np
import pytest

import modicum as mo
from modicum_lab.bench.accuracy import KeptReference, by_importance, judge, judge_all
from modicum_lab.bench.runs import RunResult, flat_scalars, from_draws
from modicum_lab.tests.bench.made_up import REFERENCE, run_result

COSTS = {"before": 1.0, "sampling": 1.0, "rows_before": 0, "rows_sampling": 0}


def drawn(shift=0.0, wide=1.0, number=4_000):
    rng = np.random.default_rng(1)
    z = rng.normal(size=(2, number, 3)) * wide + shift
    return from_draws(np.array(REFERENCE.mean) + z * REFERENCE.sd, **COSTS)


def test_draws_of_the_reference_itself_are_right():
    assert judge(drawn(), REFERENCE).mark == "right"


@pytest.mark.parametrize("settings", [{"shift": 0.3}, {"wide": 1.2}, {"wide": 0.8}])
def test_shifted_or_stretched_draws_are_wrong(settings):
    assert judge(drawn(**settings), REFERENCE).mark == "wrong"


def test_a_small_bias_that_many_draws_reveal_is_called_slight():
    assert judge(drawn(shift=0.06, number=20_000), REFERENCE).mark == "slightly off"


def test_few_draws_are_neither_right_nor_wrong():
    assert judge(run_result(ess=20.0, shift=0.2), REFERENCE).mark == "too few draws"


def test_known_moments_have_no_noise_to_hide_behind():
    exact = run_result(ess=20.0, shift=0.2)
    exact.known_moments = True
    assert judge(exact, REFERENCE).mark == "wrong"
    exact.known_moments = False
    exact.notes.append("no Monte Carlo error")  # notes have no effect
    assert judge(exact, REFERENCE).mark == "too few draws"


def test_the_commonest_mark_counts():
    runs = [run_result(), run_result(), run_result(shift=1.0)]
    assert judge_all(runs, REFERENCE).mark == "right"
    assert judge_all(runs[1:], REFERENCE).mark == "wrong"  # as many of both: the worse one


def test_a_chain_that_stands_still_has_one_effective_draw():
    still = from_draws(np.ones((1, 100, 3)), **COSTS)
    assert still.effective == 1.0
    assert RunResult.from_dict(still.to_dict()) == still


def test_the_reference_by_importance_is_that_of_a_long_chain():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 2))
    y = (rng.random(300) < 1 / (1 + np.exp(2 - 2 * x[:, 0]))).astype(float)  # a skewed posterior
    model, rows = mo.models.Logistic(), mo.Rows(x=x, y=y)
    kept = by_importance(model, rows, draws=4_000)
    post = mo.sample(
        model, rows, method="hmc", draws=2_000, tune=200, random_seed=1, progressbar=False
    )
    chain = from_draws(flat_scalars(post.draws), **COSTS)
    assert judge(chain, kept).mark == "right"
    assert max(kept.mean_error) < 0.03
    # negative control: the normal approximation alone is not the posterior here
    mode = np.array(kept.mean) - 0.3 * np.array(kept.sd)
    moved = KeptReference(mode.tolist(), kept.sd, kept.mean_error, kept.sd_error, "moved")
    assert judge(chain, moved).mark == "wrong"

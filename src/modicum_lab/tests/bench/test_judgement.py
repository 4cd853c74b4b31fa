"""A fast wrong answer is marked wrong, and a right one is not."""

import numpy as np
import pytest

import modicum as mo
from helpers.made_up_bench import REFERENCE, found
from modicum_lab.bench.judgement import judge, judge_all
from modicum_lab.bench.references import KeptReference, by_importance
from modicum_lab.bench.run_result import Found, from_draws


def drawn(shift=0.0, wide=1.0, number=4_000):
    rng = np.random.default_rng(1)
    z = rng.normal(size=(2, number, 3)) * wide + shift
    told = {"before": 1.0, "sampling": 1.0, "rows_before": 0, "rows_sampling": 0}
    return from_draws(np.array(REFERENCE.mean) + z * REFERENCE.sd, **told)


def test_draws_of_the_reference_itself_are_right():
    assert judge(drawn(), REFERENCE).mark == "right"


@pytest.mark.parametrize("settings", [{"shift": 0.3}, {"wide": 1.2}, {"wide": 0.8}])
def test_shifted_or_stretched_draws_are_wrong(settings):
    assert judge(drawn(**settings), REFERENCE).mark == "wrong"


def test_a_small_bias_that_many_draws_reveal_is_called_slight():
    assert judge(drawn(shift=0.06, number=20_000), REFERENCE).mark == "slightly off"


def test_few_draws_are_neither_right_nor_wrong():
    assert judge(found(ess=20.0, shift=0.2), REFERENCE).mark == "too few draws"


def test_known_moments_have_no_noise_to_hide_behind():
    exact = found(ess=20.0, shift=0.2)
    exact.notes.append("no Monte Carlo error: its moments are known")
    assert judge(exact, REFERENCE).mark == "wrong"


def test_the_commonest_mark_counts():
    runs = [found(), found(), found(shift=1.0)]
    assert judge_all(runs, REFERENCE).mark == "right"
    assert judge_all(runs[1:], REFERENCE).mark == "wrong"  # as many of both: the worse one


def test_a_chain_that_stands_still_has_one_effective_draw():
    told = {"before": 1.0, "sampling": 1.0, "rows_before": 0, "rows_sampling": 0}
    still = from_draws(np.ones((1, 100, 3)), **told)
    assert still.effective == 1.0
    assert Found.from_dict(still.to_dict()) == still


def test_the_reference_by_importance_is_that_of_a_long_chain():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 2))
    y = (rng.random(300) < 1 / (1 + np.exp(2 - 2 * x[:, 0]))).astype(float)  # a skewed posterior
    model, rows = mo.models.Logistic(), mo.Rows(x=x, y=y)
    kept = by_importance(model, rows, draws=4_000)
    post = mo.sample(
        model, rows, method="hmc", draws=2_000, tune=200, random_seed=1, progressbar=False
    )
    flat = np.concatenate([post["beta"], post["intercept"][..., None]], axis=2)
    told = {"before": 1.0, "sampling": 1.0, "rows_before": 0, "rows_sampling": 0}
    chain = from_draws(flat, **told)
    assert judge(chain, kept).mark == "right"
    assert max(kept.mean_error) < 0.03
    # the normal approximation alone is not the posterior here: the check has something to see
    mode = np.array(kept.mean) - 0.3 * np.array(kept.sd)
    moved = KeptReference(mode.tolist(), kept.sd, kept.mean_error, kept.sd_error, "moved")
    assert judge(chain, moved).mark == "wrong"

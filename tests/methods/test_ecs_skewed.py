"""HMC-ECS with levels of few or no events, where straight trajectories hit walls."""

import numpy as np
import pytest

import modicum as mo
from helpers.interrupted import planned
from modicum.diagnostics import mcse, r_hat
from modicum.methods.pilot import short_chains

pytestmark = pytest.mark.slow  # normal draws along curves have quick tests

WITHOUT = [(rows, 0) for rows in (5, 10, 15, 20, 25, 30)]
LEVELS = [(600, 150), (300, 15), (40, 2), *WITHOUT]  # rows and events of each
PRIOR = 100.0
MODEL = mo.models.Logistic(prior_scale=PRIOR, intercept=False)


def levels():
    """Return rows with one column per level, so that coefficients are independent."""
    counts, events = np.array(LEVELS).T
    level = np.repeat(np.arange(len(LEVELS)), counts)
    place = np.concatenate([np.arange(count) for count in counts])
    return mo.Rows(x=np.eye(len(LEVELS))[level], y=(place < events[level]) * 1.0)


def exact_moments():
    """Return means and sds of the coefficients, each by a sum over a grid."""
    b = np.linspace(-600, 20, 60_001)
    counts, events = np.array(LEVELS)[:, :, None].swapaxes(0, 1)
    log = events * b - counts * np.logaddexp(0, b) - b**2 / (2 * PRIOR**2)
    weight = np.exp(log - log.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    mean = weight @ b
    return mean, np.sqrt(weight @ b**2 - mean**2)


MEAN, SD = exact_moments()
RUN = {"method": "hmc-ecs", "chains": 2, "random_seed": 2, "progressbar": False}


def is_right(post):
    """Whether all means are exact to five standard errors and chains have mixed."""
    b = post.draws["beta"]
    error = np.abs(b.mean(axis=(0, 1)) - MEAN)
    return bool(np.all((error < 5 * mcse(b)) & (error < 0.3 * SD) & (r_hat(b) < 1.02)))


@pytest.fixture(scope="module")
def rows():
    return levels()


@pytest.fixture(scope="module")
def post(rows):
    with pytest.warns(mo.ModicumWarning, match="predicts"):
        return mo.sample(MODEL, rows, draws=700, tune=300, **RUN)


def test_draws_along_curves_match_the_posterior(post):
    assert is_right(post)
    np.testing.assert_allclose(post.sd("beta"), SD, rtol=0.12)
    assert post.stats["diverging"].sum() == 0


def test_nothing_is_doubted_and_curves_and_rows_are_explained(post):
    assert [doubt.code for doubt in post.warnings] == ["separation"]
    assert post.tuning["skewed axes"]["value"] >= len(WITHOUT)
    assert post.tuning["bias_bound"]["value"] < 0.05
    # the rows of a level move together, so that few of them are read
    assert post.tuning["levels"]["value"] >= len(WITHOUT)
    assert post.tuning["subsample"]["value"] + post.tuning["certainty"]["value"] <= 100


def test_lp_is_that_of_the_parameters_and_not_of_where_chains_move(post, rows):
    b = post.draws["beta"].reshape(-1, len(LEVELS))
    counts, events = np.array(LEVELS).T
    lp = b @ events - np.logaddexp(0, b) @ counts - np.sum(b**2, axis=1) / (2 * PRIOR**2)
    off = post.stats["lp"].ravel() - lp
    assert np.std(off) < 0.3  # the noise of the estimate; growth along curves varies by more than 1


def test_chains_that_run_into_walls_are_seen_before_the_run(post, rows, monkeypatch):
    assert "skewed axes" in post.tuning
    assert [doubt.code for doubt in post.warnings] == ["separation"]
    monkeypatch.setattr(short_chains, "may_be_curved", lambda task, anchor: False)
    plan, _ = planned(MODEL, rows, mo.HMCECS())
    assert plan.context.proxy.where.curves is None
    assert "skewed axes" not in plan.tuning
    assert [note.code for note in plan.notes] == ["separation", "posterior-not-normal"]
    assert "hardly moved" in plan.notes[1].sentence
    assert "method='nuts'" in plan.notes[1].remedy


@pytest.mark.slow
def test_straight_trajectories_are_not_right(rows, monkeypatch):
    monkeypatch.setattr(short_chains, "may_be_curved", lambda task, anchor: False)
    with pytest.warns(mo.ModicumWarning):
        straight = mo.sample(MODEL, rows, draws=700, tune=300, **RUN)
    assert "posterior-not-normal" in [doubt.code for doubt in straight.warnings]
    assert not is_right(straight)

"""Prediction, chunk by chunk."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.posteriors import bare, of_formula
from helpers.refusals import refused
from modicum.errors import SettingError
from modicum.models.over_draws import ModelPredictor

LINEAR = mo.models.Gaussian(scale=1.0, intercept=False)


def own(predict):
    """Return a model of a user's own that predicts so."""
    return mo.Model(
        lambda theta: 0.0,
        lambda theta, batch: batch["x"] @ theta["beta"],
        {"beta": np.zeros(2)},
        predict=predict,
    )


THREE = own(lambda theta, batch: (batch["x"] @ theta["beta"])[:, None] * jnp.arange(1.0, 4.0))


def make(model=LINEAR, vectors=()):
    beta = np.random.default_rng(1).normal([1.0, -2.0], 0.3, size=(4, 250, *vectors, 2))
    return bare(model, {"beta": beta})


X = np.random.default_rng(2).normal(size=(1_001, 2))


def test_all_draws_are_the_exact_posterior_and_the_error_of_fewer_is_told():
    post = make()
    found, some = post.predict({"x": X}), post.predict({"x": X}, draws=300)
    outcome = X @ post["beta"].reshape(-1, 2).T
    assert (found.draws, some.draws) == (1_000, 300)
    np.testing.assert_allclose(found.mean, outcome.mean(axis=1))
    np.testing.assert_allclose(found.lower, np.quantile(outcome, 0.05, axis=1))
    np.testing.assert_allclose(found.upper, np.quantile(outcome, 0.95, axis=1))
    assert len(found) == 1_001
    # predictions from 200 of 1,000 draws once did not tell their error
    error = np.abs(some.mean - found.mean)
    assert (error < 4.5 * some.mcse_mean).all()
    assert (error > 4.5 * found.mcse_mean / 10).any()
    sd = np.sqrt(0.3**2 * (X**2).sum(axis=1) / 300)
    assert 0.6 < np.median(some.mcse_mean / sd) < 1.5


def test_quantiles_on_request():
    post = make(THREE)
    outcome = X @ post["beta"].reshape(-1, 2).T
    columns = post.predict({"x": X}, quantiles=[0.025, 0.5]).columns()
    assert list(columns)[:5] == ["mean[0]", "lower[0]", "upper[0]", "2.5%[0]", "50%[0]"]
    np.testing.assert_allclose(columns["2.5%[1]"], np.quantile(2 * outcome, 0.025, axis=1))
    assert not np.allclose(columns["2.5%[1]"], columns["lower[1]"])  # that of 5%
    for wrong in (1.5, "half", [0.5, np.nan]):
        refused(SettingError, "probabilities from 0 to 1", post.predict, {"x": X}, quantiles=wrong)


@pytest.mark.parametrize("post", [make(), make(mo.models.Softmax(3, intercept=False), (2,))])
def test_rows_are_predicted_in_pieces_as_they_are_alone(post):
    """Five thousand rows at a thousand draws are several chunks, of one number or three."""
    x = np.tile(X, (5, 1))
    whole, part = post.predict(mo.Rows(x=x)), post.predict({"x": X})
    for end in ("mean", "lower", "upper"):
        each = getattr(part, end)
        np.testing.assert_allclose(getattr(whole, end), np.concatenate([each] * 5), rtol=1e-12)


class Scaled(mo.models.Gaussian):
    """A family of a user's own, which may read anything: here, a global."""

    def mean(self, eta):
        """Return what `FACTOR` makes of it."""
        return FACTOR * eta[0]


FACTOR = 1.0


def test_families_of_users_are_traced_as_they_are_now(monkeypatch):
    own = Scaled(scale=1.0, intercept=False)
    for factor in (1.0, 2.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        (found,) = ModelPredictor(own)({"beta": np.ones((1, 2))}, {"x": X[:5]})
        np.testing.assert_allclose(found, factor * X[:5].sum(axis=1))


def test_signs_are_respected():
    post = make()
    # signs that leave exactly the draws with a large first coefficient
    large = post["beta"][..., 0] > 1
    draws = np.concatenate([post["beta"].reshape(-1, 2), post["beta"][~large]])[None]
    signs = np.concatenate([np.ones(1_000), -np.ones((~large).sum())])[None]
    signed = bare(LINEAR, {"beta": draws}, weights=signs)
    found = signed.predict({"x": X[:50]}, draws=10_000)
    kept = X[:50] @ post["beta"][large].T
    np.testing.assert_allclose(found.mean, kept.mean(axis=1), atol=1e-12)
    assert np.abs(found.lower - np.quantile(kept, 0.05, axis=1)).max() < 0.2
    # negative control: ignore the signs
    ignored = make().predict({"x": X[:50]}, draws=10_000)
    assert np.abs(ignored.mean - found.mean).max() > 0.2


def test_a_model_must_predict_one_value_per_row():
    wrong = make(own(lambda theta, batch: jnp.zeros(3)))
    refused(SettingError, "one value per draw and row", wrong.predict, {"x": X})


def test_some_groups_are_known_and_others_are_new(tmp_path):
    """Each row is predicted as if alone, with the groups that the fit knows."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"x": rng.normal(size=60), "ward": list("abc") * 20, "bed": [1, 2] * 30})
    formula, table["y"] = "y ~ x + (1 | ward) + (1 | ward:bed)", table["x"]
    post = of_formula(formula, table, mo.models.Gaussian(scale=1.0))
    columns = {"x": [0.1, 0.2, 0.3, 0.4], "ward": ["b", "z", "a", "b"], "bed": [1, 2, 9, 2]}
    new = pd.DataFrame(columns, index=[4, 3, 2, 1])
    predicted = post.predict(new, groups="any")
    one_by_one = [
        post.predict(new.iloc[[0]]),
        post.predict(new.iloc[[1]], groups="new"),  # neither the ward nor its beds are known
        post.predict(new.iloc[[2]].drop(columns="bed"), newgroups="one"),  # the ward is known
        post.predict(new.iloc[[3]]),
    ]
    for end in ("mean", "lower", "upper"):
        apart = np.concatenate([getattr(each, end) for each in one_by_one])
        np.testing.assert_allclose(getattr(predicted, end), apart)
    assert list(predicted.to_frame().index) == [4, 3, 2, 1]
    new.to_csv(tmp_path / "new.csv", index=False)
    from_file = post.predict(tmp_path / "new.csv", groups="any")
    np.testing.assert_array_equal(from_file.mean, predicted.mean)
    with pytest.raises(mo.SettingError, match=r"needs a table, and a posterior of mo\.fit"):
        post.predict(post.rows, groups="any")

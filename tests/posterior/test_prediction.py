"""Prediction, chunk by chunk."""

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from modicum.cli.output import write_predictions
from modicum.errors import SettingError
from modicum.fit import model_for
from modicum.ledger import Ledger
from modicum.models import over_draws as models_prediction
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import FitRows, Posterior, predict
from modicum.posterior import draws as draws_module
from modicum.rows.reading import read_formula


def linear(draws, batch):
    return draws["beta"] @ batch["x"].T


class Rows(mo.Rows):
    """Rows that record the requests for them."""

    def __init__(self, x):
        super().__init__(x=x)
        self.sizes = []

    def chunks(self, size):
        self.sizes.append(size)
        return super().chunks(size)


def make(weights=None, predictor=linear):
    beta = np.random.default_rng(1).normal([1.0, -2.0], 0.3, size=(4, 250, 2))
    return Posterior({"beta": beta}, {}, Ledger(rows=1), weights=weights, predictor=predictor)


X = np.random.default_rng(2).normal(size=(1_001, 2))


def test_all_draws_are_the_exact_posterior():
    post = make()
    found = post.predict({"x": X}, draws=10_000)
    outcome = X @ post["beta"].reshape(-1, 2).T
    assert found.draws == 1_000
    np.testing.assert_allclose(found.mean, outcome.mean(axis=1))
    np.testing.assert_allclose(found.lower, np.quantile(outcome, 0.05, axis=1))
    np.testing.assert_allclose(found.upper, np.quantile(outcome, 0.95, axis=1))
    assert len(found) == 1_001


def test_chunks_change_nothing_and_bound_the_memory(monkeypatch):
    post, rows = make(), Rows(X)
    whole = post.predict(rows)
    monkeypatch.setattr(predict, "CHUNK_BYTES", 8 * 1000 * 64)
    pieces = post.predict(rows)
    assert rows.sizes[1] == 64
    np.testing.assert_allclose(pieces.mean, whole.mean)
    np.testing.assert_allclose(pieces.upper, whole.upper)
    # thinned draws are the same each time, and close to all draws
    assert np.array_equal(post.predict(rows).mean, pieces.mean)
    everything = post.predict(rows, draws=1_000)
    assert np.abs(whole.mean - everything.mean).max() < 4 * 0.3 * 5 / np.sqrt(200)


def test_several_classes_are_cut_smaller(monkeypatch):
    sizes = []

    def classes(draws, batch):
        sizes.append(len(batch["x"]))
        eta = linear(draws, batch)
        return np.stack([eta, 2 * eta, 3 * eta], axis=-1)

    post = make(predictor=classes)
    monkeypatch.setattr(predict, "CHUNK_BYTES", 8 * 1000 * 90)
    found = post.predict(Rows(X))
    assert found.mean.shape == found.upper.shape == (1_001, 3)
    np.testing.assert_allclose(found.mean[:, 2], 3 * found.mean[:, 0])
    assert sizes[0] == 90
    assert max(sizes[1:]) == 30
    # the first piece is small, whatever the chunk
    sizes.clear()
    monkeypatch.setattr(predict, "FIRST_ROWS", 5)
    post.predict({"x": X})
    assert sizes[:2] == [5, 30]


class Doubled(mo.models.Gaussian):
    """A family of a user's own, which may read anything: here, a global."""

    def mean(self, eta):
        """Return what `FACTOR` makes of it."""
        return FACTOR * eta[0]


FACTOR = 1.0


def test_built_in_families_are_traced_once_and_others_as_they_are_now(monkeypatch):
    def predicted(family, x):
        return ModelPredictor(family)({"beta": np.ones((3, 2))}, {"x": x})[0]

    traced = []
    trace = models_prediction._trace
    monkeypatch.setattr(models_prediction, "_trace", lambda *a: traced.append(1) or trace(*a))
    monkeypatch.setattr(models_prediction, "TRACED", {})
    gaussian = mo.models.Gaussian(scale=1.0, intercept=False)
    for x in (X[:5], X[5:10]):
        np.testing.assert_allclose(predicted(gaussian, x), x.sum(axis=1))
    assert len(traced) == 1
    np.testing.assert_allclose(predicted(gaussian, X[:4]), X[:4].sum(axis=1))  # another shape
    logistic = mo.models.Logistic(intercept=False)
    np.testing.assert_allclose(predicted(logistic, X[:5]), 1 / (1 + np.exp(-X[:5].sum(axis=1))))
    assert len(traced) == 3
    for factor in (1.0, 2.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        own = Doubled(scale=1.0, intercept=False)
        np.testing.assert_allclose(predicted(own, X[:5]), factor * X[:5].sum(axis=1))
    assert len(traced) == 5


def test_signs_are_respected():
    post = make()
    # signs that leave exactly the draws with a large first coefficient
    large = post["beta"][..., 0] > 1
    draws = np.concatenate([post["beta"].reshape(-1, 2), post["beta"][~large]])[None]
    signs = np.concatenate([np.ones(1_000), -np.ones((~large).sum())])[None]
    signed = Posterior({"beta": draws}, {}, Ledger(rows=1), weights=signs, predictor=linear)
    found = signed.predict({"x": X[:50]}, draws=10_000)
    kept = X[:50] @ post["beta"][large].T
    np.testing.assert_allclose(found.mean, kept.mean(axis=1), atol=1e-12)
    assert np.abs(found.lower - np.quantile(kept, 0.05, axis=1)).max() < 0.2
    # negative control: ignore the signs
    ignored = make().predict({"x": X[:50]}, draws=10_000)
    assert np.abs(ignored.mean - found.mean).max() > 0.2


def test_refusals():
    with pytest.raises(SettingError, match="has no model"):
        make(predictor=None).predict({"x": X})
    with pytest.raises(SettingError, match="dict of arrays"):
        make().predict(X)
    with pytest.raises(SettingError, match="there are no arrays"):
        make().predict({})
    with pytest.raises(SettingError, match="at least 1"):
        make().predict({"x": X}, draws=0)
    with pytest.raises(SettingError, match="one value per draw and row"):
        make(predictor=lambda d, b: np.zeros(3)).predict({"x": X})


def test_some_groups_are_known_and_others_are_new(tmp_path):
    """Each row is predicted as if alone, with the groups that the fit knows."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"x": rng.normal(size=60), "ward": list("abc") * 20, "bed": [1, 2] * 30})
    formula = "y ~ x + (1 | ward) + (1 | ward:bed)"
    rows = read_formula(formula, table.assign(y=table["x"]), progressbar=False).rows
    draws = {
        "beta": rng.normal(size=(2, 40, 1)),
        "intercept": rng.normal(size=(2, 40)),
        "1|ward": rng.normal(size=(2, 40, 3)),
        "1|ward:bed": rng.normal(size=(2, 40, 6)),
        "group_sd": np.full((2, 40, 2), 0.7),
    }
    model = model_for(rows, mo.models.Gaussian(scale=1.0)).model.resolved(rows)
    about = {"predictor": ModelPredictor(model), "rows": rows, "fit_rows": FitRows.of(rows)}
    post = mo.Posterior(draws, {}, mo.Ledger(rows=60), **about)
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
    odd, out = new.replace({"ward": {"z": "Zürich"}}), tmp_path / "out.csv"
    odd.to_csv(tmp_path / "odd.csv", index=False, encoding="latin-1")
    before, after = (post, str(tmp_path / "odd.csv"), out, 200, 0.9, "refuse", "any", None), (True,)
    write_predictions(*before, "latin-1", *after)
    np.testing.assert_allclose(pd.read_csv(out)["mean"], predicted.mean)
    with pytest.raises(mo.DataError, match="latin-1"):
        write_predictions(*before, "utf-8", *after)
    with pytest.raises(mo.DataError, match="groups='any' if some groups are new"):
        post.predict(new)
    with pytest.raises(mo.DataError, match="missing value in row 3"):  # numbered as in the table
        post.predict(new.assign(x=[0, 0, 0, None]), groups="any")
    with pytest.raises(mo.SettingError, match=r"needs a table, and a posterior of mo\.fit"):
        post.predict(rows, groups="any")


def test_all_draws_are_used_where_they_are_affordable(monkeypatch):
    """Predictions used 200 of 1,000 draws in silence, and did not tell their error."""
    post = make()
    exact = X @ post["beta"].reshape(-1, 2).mean(axis=0)
    whole = post.predict({"x": X})
    assert whole.draws == 1_000
    np.testing.assert_allclose(whole.mean, exact)
    monkeypatch.setattr(draws_module, "EVALUATIONS", 300 * len(X))
    some = post.predict({"x": X})
    assert some.draws == 300
    error = np.abs(some.mean - exact)
    assert (error < 4.5 * some.mcse_mean).all()
    assert (error > 4.5 * whole.mcse_mean / 10).any()
    sd = np.sqrt(0.3**2 * (X**2).sum(axis=1) / 300)
    assert 0.6 < np.median(some.mcse_mean / sd) < 1.5
    monkeypatch.setattr(draws_module, "EVALUATIONS", 1)
    assert post.predict({"x": X}).draws == 200
    assert post.predict({"x": X}, draws=50).draws == 50

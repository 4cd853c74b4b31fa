"""The posterior object: estimates, table, text, ArviZ."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from helpers import signed_chain as truth
from helpers.refusals import refused
from modicum.errors import ModicumWarning, SettingError
from modicum.ledger import Ledger
from modicum.posterior import Posterior


@pytest.fixture
def post():
    rng = np.random.default_rng(1)
    ledger = Ledger(rows=1_000, full_data=10**7)
    ledger.add("sampling", 20_000, "gradient")
    return Posterior(
        draws={
            "intercept": rng.normal(3, 1, size=(4, 500)),
            "beta": rng.normal(size=(4, 500, 2, 3)).astype(np.float32),
        },
        stats={"acceptance_rate": np.full((4, 500), 0.8), "diverging": np.zeros((4, 500), bool)},
        ledger=ledger,
        labels={"beta": (("class 1", "class 2"), ("age", "income", "debt"))},
        settings={"method": "hmc-ecs", "seed": 7, "progressbar": False, "versions": {"jax": "0"}},
    )


@pytest.fixture
def signed():
    psi, sign = truth.signed_chain((4, 5_000), seed=2)
    return Posterior({"psi": psi}, {}, Ledger(rows=10), weights=sign)


def test_table(post):
    table = post.summary()
    assert " ".join(table) == "mean sd 5% 95% mcse_mean ess_bulk ess_tail r_hat"
    assert table.index[0] == "intercept"
    assert table.index[-1] == "beta[class 2, debt]"
    assert len(table) == 7
    line = table.loc["beta[class 2, age]"]
    x = post["beta"][:, :, 1, 0].astype(float)
    assert line["mean"] == pytest.approx(x.mean())
    assert line["sd"] == pytest.approx(x.std(ddof=1))
    assert line["95%"] == pytest.approx(np.quantile(x, 0.95))
    assert line["ess_bulk"] == pytest.approx(float(array_stats.ess(x)))
    assert table.loc["intercept", "mean"] == pytest.approx(3, abs=0.1)
    assert list(post.summary("intercept", prob=0.95).columns[2:4]) == ["2.5%", "97.5%"]
    refused(KeyError, "there are", post.summary, "gamma")


def test_signed_table(signed):
    line = signed.summary().loc["psi"]
    assert abs(line["mean"] - truth.MEAN) < 4 * line["mcse_mean"]
    assert line["sd"] == pytest.approx(truth.SD, rel=0.1)
    assert line["5%"] == pytest.approx(truth.quantile(0.05), abs=0.25)
    assert line["95%"] == pytest.approx(truth.quantile(0.95), abs=0.25)
    assert line["r_hat"] < 1.02
    assert signed.summary().attrs["mean_weight"] == pytest.approx(truth.MEAN_SIGN, abs=0.05)
    assert signed.summary().attrs["r_hat_weight"] < 1.02
    # negative control: the same draws without their signs
    ignored = Posterior(signed.draws, {}, signed.ledger).summary().loc["psi"]
    assert abs(ignored["mean"] - truth.MEAN) > 4 * line["mcse_mean"]
    assert ignored["ess_bulk"] != pytest.approx(line["ess_bulk"], rel=0.02)


def test_equal_weights_count_as_none(post):
    same = Posterior(post.draws, {}, post.ledger, weights=np.ones((4, 500)), labels=post.labels)
    assert not same.weighted
    assert same.summary().equals(post.summary())
    assert same.to_datatree().sample_stats["sign"].shape == (4, 500)


def test_short_and_constant_draws_give_a_table():
    post = Posterior({"a": np.ones((1, 2)), "b": np.arange(2.0)[None]}, {}, Ledger(rows=1))
    table = post.summary()
    assert table["r_hat"].isna().all()
    assert table["mean"].tolist() == [1, 0.5]
    one = Posterior({"a": np.ones((1, 1))}, {}, Ledger(rows=1))
    assert np.isnan(one.summary().loc["a", "sd"])


def test_text(post, signed):
    assert repr(post) == (
        "<Posterior hmc-ecs: 4 chains of 500 draws; intercept, beta (2, 3); "
        "20.0 passes over 1,000 rows>"
    )
    assert f"mean sign {signed.weights.mean():.3g}" in repr(signed)
    signed.warnings.append(ModicumWarning("doubt", "it is doubtful"))
    assert repr(signed).endswith("1 warning>")


def test_datatree_of_signed_draws_says_so(signed):
    with pytest.warns(ModicumWarning, match="ArviZ's summaries and plots ignore"):
        tree = signed.to_datatree()
    np.testing.assert_array_equal(tree.sample_stats["sign"], signed.weights)
    signed.weights = signed.weights + 3.0
    with pytest.warns(ModicumWarning, match="weight"):
        assert "weight" in signed.to_datatree().sample_stats


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"draws": {"a": np.zeros(5)}}, "start with"),
        ({"stats": {"lp": np.zeros((4, 3))}}, "'lp' has shape"),
        ({"labels": {"a": (("x", "y"), ("z",))}}, "lengths"),
    ],
)
def test_refusals(change, sentence):
    good = {"draws": {"a": np.zeros((4, 5, 2))}, "stats": {}, "ledger": Ledger(rows=1)}
    Posterior(**good)
    refused(SettingError, sentence, Posterior, **{**good, **change})


def test_jax_arrays_and_bfloat16():
    jnp = pytest.importorskip("jax.numpy")
    post = Posterior({"a": jnp.ones((2, 8), jnp.bfloat16)}, {}, Ledger(rows=1))
    assert type(post["a"]) is np.ndarray
    assert post["a"].dtype == np.float32

"""Hypotheses about parameters, and ratios, against distributions that are known."""

import numpy as np
import pytest
from scipy.stats import norm

import modicum as mo
from helpers import posteriors
from helpers.refusals import refused, unwarned
from modicum.errors import SettingError, UnknownNameError

LABELS = ["dose", "carrier[DL]", "dose:carrier[DL]", "carrier[New York]"]


@pytest.fixture(scope="module")
def post():
    rng = np.random.default_rng(1)
    draws = {
        "beta": rng.normal([1.0, 1.2, 0.5, 0.0], 0.1, size=(4, 1000, 4)),
        "1|ward": rng.normal(size=(4, 1000, 2)),
    }
    labels = {"beta": LABELS, "1|ward": ["a", "b"]}
    return posteriors.bare(mo.models.Logistic(), draws, labels=labels)


def test_probabilities_are_those_of_the_distribution(post):
    table = post.hypothesis(["dose < carrier[DL]", "beta[dose] > 2 * dose:carrier[DL]"])
    right = np.array([norm.cdf(0.2 / np.hypot(0.1, 0.1)), 0.5])
    error = table["mcse_probability"]
    assert (np.abs(table["probability"] - right) < 4 * error).all()
    np.testing.assert_allclose(error, np.sqrt(right * (1 - right) / 4000), rtol=0.2)
    assert table["mean"].iloc[0] == pytest.approx(-0.2, abs=4 * table["mcse_mean"].iloc[0])
    odds = table["probability"] / (1 - table["probability"])
    np.testing.assert_allclose(table["evidence_ratio"], odds)
    # negative control: the opposite hypothesis has another probability, far beyond its error
    opposite = post.hypothesis("dose > carrier[DL]")["probability"].iloc[0]
    assert abs(opposite - right[0]) > 100 * error.iloc[0]


def test_names_are_read_in_full_in_short_and_the_longest_first(post):
    x = {label: post[f"beta[{label}]"] for label in LABELS}
    right = {
        "dose:carrier[DL] < dose": (x["dose:carrier[DL]"] < x["dose"]).mean(),
        "1|ward[a]>1|ward[b]": (post["1|ward[a]"] > post["1|ward[b]"]).mean(),
        "(dose < 1) & (`carrier[DL]` < 1.2)": ((x["dose"] < 1) & (x["carrier[DL]"] < 1.2)).mean(),
        "abs(dose - 1) < .1": (abs(x["dose"] - 1) < 0.1).mean(),
        "dose < carrier[DL] < 1.2": (
            (x["dose"] < x["carrier[DL]"]) & (x["carrier[DL]"] < 1.2)
        ).mean(),
    }
    table = post.hypothesis(list(right))
    np.testing.assert_allclose(table["probability"], list(right.values()))
    assert table["mean"].isna().tolist() == [False, False, True, False, True]


def test_names_may_hold_backticks():
    draws = {"beta": np.random.default_rng(3).normal([1.0, 2.0], 1.0, size=(4, 1000, 2))}
    labels = {"beta": ["s(`air time`, k=6)[linear]", "dose"]}
    post = posteriors.bare(mo.models.Logistic(), draws, labels=labels)
    asked = ["beta[s(`air time`, k=6)[linear]] < dose", "2 * s(`air time`, k=6)[linear] < `dose`"]
    first, second = draws["beta"][..., 0], draws["beta"][..., 1]
    right = [(first < second).mean(), (2 * first < second).mean()]
    np.testing.assert_allclose(post.hypothesis(asked)["probability"], right)
    assert right[0] - right[1] > 0.1  # negative control: the two are not alike


def test_equalities_have_a_difference_and_no_probability(post):
    table = post.hypothesis(["exp(dose) = 2", "exp(dose) - 2"])
    right = np.exp(post["beta[dose]"]) - 2
    np.testing.assert_allclose(table["mean"], right.mean())
    np.testing.assert_allclose(table["5%"], np.quantile(right, 0.05))
    assert table[["probability", "evidence_ratio"]].isna().all(axis=None)


def test_draws_that_all_agree_do_not_prove_it(post):
    line = post.hypothesis("dose < 9").iloc[0]
    assert line["probability"] == 1
    assert np.isinf(line["evidence_ratio"])
    assert 1 / 5000 < line["mcse_probability"] < 1 / 3000


@pytest.mark.parametrize("signed", [False, True])
def test_weights_and_signs_count(signed):
    """Draws of N(0, 2) weigh as N(1, 1); of signs, pairs with opposite ones cancel."""
    rng = np.random.default_rng(2)
    x = rng.normal(0, 2, size=(2, 20_000))
    weights = norm.pdf(x, 1, 1) / norm.pdf(x, 0, 2)
    if signed:
        x = np.where(rng.random(x.shape) < 0.1, 5.0, rng.normal(1, 1, x.shape))
        weights = np.where(x == 5.0, np.where(rng.random(x.shape) < 0.5, 1, -1), 1)
    post = mo.Posterior({"beta": x}, {}, mo.Ledger(rows=1), weights=weights)
    line = post.hypothesis("beta < 0").iloc[0]
    right = norm.cdf(-1)
    assert abs(line["probability"] - right) < 4 * line["mcse_probability"] < 0.02
    # negative control: without the weights, the probability is another one
    assert abs((x < 0).mean() - right) > 4 * line["mcse_probability"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dos < 1", "there is no 'dos': did you mean 'dose'"),
        ("carrier[XX] < 1", r"there is no 'carrier\[XX\]'"),
        ("1 < 2", "must be about parameters"),
        ("dose <", "not an expression"),
        ("__import__('os').system('ls') < dose", "there is no"),
        ("log(-dose) < 1", "not a finite number"),
        (3, "a hypothesis is a text"),
    ],
)
def test_what_is_no_hypothesis_is_refused(post, text, words):
    refused((SettingError, UnknownNameError), words, post.hypothesis, text)


def test_a_line_called_like_a_column_is_said_to_be_the_line():
    scale = np.random.default_rng(1).normal(2.0, 0.1, size=(2, 200))
    draws = {"beta": scale[..., None] - 3, "scale": scale}
    post = posteriors.bare(mo.models.Gaussian(), draws, labels={"beta": ["scale"]})
    with pytest.warns(mo.ModicumWarning, match=r"write beta\[scale\] if you mean the") as caught:
        table = post.hypothesis(["scale > 0", "beta[scale] > 0"])
    assert [each.message.code for each in caught] == ["name-twice"]
    assert list(table["probability"]) == [1.0, 0.0]
    with unwarned():  # negative control: nothing is said of the full name
        post.hypothesis("beta[scale] > 0")


def test_ratios_are_of_transformed_draws(post):
    table = post.summary(exponentiate=True)
    odds = np.exp(post["beta[dose]"])
    assert table.loc["beta[dose]", "mean"] == pytest.approx(odds.mean())
    ends = table.loc["beta[dose]", ["5%", "95%"]]
    np.testing.assert_allclose(ends, np.quantile(odds, [0.05, 0.95]))
    # negative control: the exponential of the mean is another number
    assert table.loc["beta[dose]", "mean"] != pytest.approx(np.exp(post.mean("beta[dose]")))


def test_only_coefficients_on_a_scale_of_logarithms_are_exponentiated():
    x = np.zeros((2, 50))
    draws = {"beta": x[..., None], "intercept": x, "overdispersion": x + 1, "group_sd": x + 1}
    counts = posteriors.bare(mo.models.NegativeBinomial(), draws)
    table = counts.summary(exponentiate=True)
    assert list(table.index) == ["beta[0]", "intercept"]
    assert table.attrs["multiplies"] == "rate"
    spread = {"beta": x[..., None], "scale.beta": x[..., None] + 1, "scale.intercept": x}
    normal = posteriors.bare(mo.models.Gaussian(), spread).summary(exponentiate=True)
    assert normal["mean"].to_dict() == pytest.approx({"scale.beta[0]": np.e, "scale.intercept": 1})
    for model in (mo.models.Gaussian(), mo.models.Probit(), mo.models.Binomial(link="probit")):
        fit = posteriors.bare(model, draws)
        refused(SettingError, "are no logarithms", fit.summary, exponentiate=True)
    refused(SettingError, "has no model", posteriors.bare(None, draws).summary, exponentiate=True)

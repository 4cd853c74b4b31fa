"""A row of weight 3 is three rows, also in what a formula learns from all rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.refusals import refused
from modicum.models.priors.units import moments
from modicum.rows.formula.transforms import learned_state
from modicum.rows.reading import read_formula

SPLINE = "cr(x, df=4, constraints='center')"
LEARNED = {
    "center(x)": ["center"],
    "scale(x)": ["center", "scale"],
    "standardize(x)": ["center", "scale"],
    "poly(x, 3)": ["alpha", "norms2"],
    "bs(x, df=7)": ["knots"],
    "bs(x, df=5, lower_bound=0.5, upper_bound=3, extrapolation='clip')": ["knots"],
    SPLINE: ["knots", "constraints"],
    "cc(x, df=4, constraints='center')": ["knots", "constraints"],
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    x, times = rng.gamma(2, size=80), rng.integers(0, 5, 80)
    times[[x.argmin(), x.argmax()]] = 1  # the range of x is that of all rows
    y = 1 + 2 * x + rng.normal(size=80)
    return pd.DataFrame({"y": y, "x": x, "g": np.where(x > 1, "a", "b"), "times": times})


@pytest.fixture(scope="module")
def repeated(table):
    return table.loc[table.index.repeat(table["times"])].reset_index(drop=True)


def rows_of(formula, data, weight=None, **settings):
    return read_formula(formula, data, weights=weight, progressbar=False, **settings)


def states(rows):
    """Return the numbers that the transforms of a formula have learned, by name."""
    (state,) = rows.schema.origin["states"].values()
    plain = dict(zip(state["keys"], state["values"], strict=True))
    return {k: v["values"] if isinstance(v, dict) else v for k, v in plain.items()}


@pytest.mark.parametrize("term", LEARNED)
@pytest.mark.parametrize("kind", ["memory", "csv", "store"])
def test_transforms_learn_from_repeated_rows(table, repeated, tmp_path, term, kind):
    settings = {"store": tmp_path / "rows"} if kind == "store" else {}
    data = table
    if kind != "memory":
        data = tmp_path / f"table.{'csv' if kind == 'csv' else 'parquet'}"
        table.to_csv(data, index=False) if kind == "csv" else table.to_parquet(data)
    weighted = rows_of(f"y ~ {term}", data, "times", **settings)
    full, alike = rows_of(f"y ~ {term}", repeated), rows_of(f"y ~ {term}", table)
    for name in LEARNED[term]:
        np.testing.assert_allclose(states(weighted)[name], states(full)[name], rtol=1e-9)
        if not (name == "knots" and term.startswith("c")):  # those are of different values
            assert not np.allclose(states(alike)[name], states(full)[name], rtol=1e-3)
    one_by_one = np.repeat(weighted.slice(0, 80)["x"], table["times"], axis=0)
    np.testing.assert_allclose(one_by_one, full.slice(0, len(full))["x"], atol=1e-9)


def test_default_priors_are_those_of_repeated_rows(table, repeated):
    formula = "y ~ scale(x) + I(x**2) + g + bs(x, df=9)"
    weighted, full = moments(rows_of(formula, table, "times")), moments(rows_of(formula, repeated))
    alike = moments(rows_of(formula, table))
    for name in ("x_mean", "x_sd", "y_mean", "y_sd", "weight"):
        np.testing.assert_allclose(
            getattr(weighted, name), getattr(full, name), rtol=1e-9, atol=1e-12
        )
        assert not np.allclose(getattr(alike, name), getattr(full, name), rtol=1e-3)


def test_the_intercept_of_a_weighted_fit_is_at_the_mean_of_repeated_rows(table, repeated):
    post = mo.fit(
        "y ~ scale(x)", table, "gaussian", weights="times", method="laplace", draws=1000,
        random_seed=1, progressbar=False,
    )  # fmt: skip
    intercept = post.summary().loc["intercept"]
    error = 4 * intercept["sd"] / np.sqrt(1000)
    assert abs(intercept["mean"] - repeated["y"].mean()) < error
    slope = np.polyfit(repeated["x"], repeated["y"], 1)[0]
    elsewhere = slope * (table["x"].mean() - repeated["x"].mean())  # where x alone had been centred
    assert abs(elsewhere) > 2 * error


def test_fractions_of_rows_count_as_fractions():
    rng = np.random.default_rng(2)
    x, weights = rng.gamma(2, size=30), rng.choice([0.3, 0.7, 1.2, 2.6], 30)
    total = weights.sum()
    scaled = learned_state(weights, "scale", x, [], {})
    mean = np.average(x, weights=weights)
    np.testing.assert_allclose(scaled["center"], mean)
    np.testing.assert_allclose(scaled["scale"] ** 2, weights @ (x - mean) ** 2 / (total - 1))
    # Knots: pieces of a tenth of a row each, of which those of one row are averaged.
    pieces = np.repeat(np.sort(x), np.rint(10 * weights[np.argsort(x)]).astype(int))
    found = learned_state(weights, "bs", x, [4], {"degree": 1})["knots"][2:-2]
    for knot, q in zip(found, (0.25, 0.5, 0.75), strict=True):
        start = q * (len(pieces) - 10)
        first, part = int(start), start % 1
        edges = np.r_[1 - part, np.ones(9), part]
        np.testing.assert_allclose(knot, np.average(pieces[first : first + 11], weights=edges))


def test_columns_are_orthogonal_and_centred_over_weighted_rows(table):
    frame = table.assign(share=table["times"] * 0.37 + 0.2)
    poly = rows_of("y ~ poly(x, 3)", frame, "share").slice(0, 80)["x"]
    np.testing.assert_allclose(
        poly.T @ (frame["share"].to_numpy()[:, None] * poly), np.eye(3), atol=1e-9
    )
    spline = rows_of(f"y ~ {SPLINE}", frame, "share").slice(0, 80)["x"]
    np.testing.assert_allclose(frame["share"] @ spline, 0, atol=1e-9)


def test_small_weights_do_not_move_all_knots_to_the_mean():
    x = np.arange(101.0)
    knots = learned_state(np.full(101, 1 / 101), "bs", x, [6], {})["knots"][4:-4]
    np.testing.assert_allclose(knots, [25, 50, 75])


def test_rows_without_weight_only_widen_the_range(table):
    frame = pd.concat([table, table[:1].assign(x=50.0, times=0)])
    for term in ("bs(x, df=5)", "scale(x)"):
        with_it = rows_of(f"y ~ {term}", frame, "times")
        assert np.isfinite(with_it.slice(0, len(frame))["x"]).all()
    state = states(rows_of("y ~ scale(x)", frame, "times"))
    assert state == states(rows_of("y ~ scale(x)", table, "times"))


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([1.0, -2.0, 1.0], r"negative weight -2.0 in row 1"),
        ([0.0, 0.0, 0.0], "zero in every row"),
        ([0.3, 0.3, 0.3], r"scale\(x\) cannot be computed \(the rows count as 0.9, and more than"),
        (["a", "b", "c"], r"'w' holds text \('a' in row 0\): convert it to numbers"),
    ],
)
def test_weights_that_cannot_be_learned_from_are_refused(weights, reason):
    frame = pd.DataFrame({"y": [0.0, 1.0, 2.0], "x": [1.0, 2.0, 4.0], "w": weights})
    refused(mo.ModicumError, reason, rows_of, "y ~ scale(x)", frame, "w")


def test_offsets_and_weights_of_rows_are_not_ignored(table):
    x = table["x"].to_numpy()[:, None]
    rows = mo.Rows(x=x, y=table["y"], columns=["x"], weight=table["times"], offset=x[:, 0])
    for arguments, reason in (({}, "pass offset='offset'"), ({"offset": "offset"}, "pass weights")):
        with pytest.raises(mo.SettingError, match=reason):
            read_formula("y ~ x", rows, progressbar=False, **arguments)
    again = rows_of("y ~ .", rows, "weight", offset="offset")
    assert (again.columns, set(again.fields)) == (("x",), {"x", "y", "offset", "weight"})
    assert rows_of("y ~ x + weight + offset(offset)", rows).columns == ("x", "weight")


def test_weights_that_a_table_lost_are_missed(table):
    """Every row would count once, or a digest would subtract what it never added."""
    settings = {"family": "gaussian", "random_seed": 1, "progressbar": False}
    post = mo.fit("y ~ x", table, weights="times", **settings)
    digest = mo.digest(post, table, random_seed=1, progressbar=False)
    assert len(digest.remove(table[:5])) == len(table) - 5  # with its weights it is taken
    lost = table.drop(columns="times")
    asked = (
        lambda: mo.digest(post, lost, random_seed=1, progressbar=False),
        lambda: digest.remove(lost[:5]),
        lambda: digest.add(lost[:5]),
        lambda: post.loo(lost),
    )
    for ask in asked:
        refused(mo.DataError, "have weights and these have none", ask)
    assert np.isfinite(post.score(lost).log_density)  # every row counts once, as it says


def test_averages_over_other_rows_count_them_by_their_weights(table, repeated):
    """Those of a census, say, which has weights and no outcome; they counted once."""
    run = {"random_seed": 1, "progressbar": False}
    census = table.drop(columns="y")
    people = repeated.drop(columns=["y", "times"])
    formula = mo.fit("y ~ poly(x, 2) + g", table, "gaussian", weights="times", **run)
    coded = mo.Rows.from_table(table, outcome="y", categorical=["g"], weight="times")
    for post in (formula, mo.sample(mo.models.Gaussian(), coded, **run)):
        each, one_by_one = (
            np.r_[
                post.marginal("x", at=[1, 2], data=data)["mean"],
                post.contrast("g", data=data)["mean"],
            ]
            for data in (census, people)
        )
        np.testing.assert_allclose(each, one_by_one, rtol=1e-9)
        unweighted = post.marginal("x", at=[1, 2], data=census.drop(columns="times"))["mean"]
        assert (np.abs(unweighted - each[:2]) > 1e-4).all()
        shares = [post.bayes_R2(data)["mean"].item() for data in (census, people, table)]
        np.testing.assert_allclose(shares, shares[1], rtol=1e-9)
    predicted = formula.predict(census.assign(times=np.nan)).mean  # which needs no weights
    np.testing.assert_array_equal(predicted, formula.predict(census).mean)

"""The columns of smooths: B-splines, their penalty, what they learn, and what they refuse."""

import numpy as np
import pandas as pd
import pytest

from helpers.refusals import refused
from modicum.errors import DataError, SettingError
from modicum.rows.coding import LevelArray
from modicum.rows.formula.smooths import Basis, learn_smooth, smooth_columns
from modicum.rows.reading import read_formula

rng = np.random.default_rng(3)
X = rng.gamma(2.0, size=400)
TABLE = pd.DataFrame(
    {"y": rng.normal(size=400), "x": X, "z": rng.normal(size=400), "hour": rng.integers(0, 24, 400)}
).assign(f=np.where(X > 1.5, "late", "early"))


def columns_of(formula, table=TABLE, **options):
    rows = read_formula(formula, table, progressbar=False, **options)
    (chunk,) = rows.chunks(len(rows))
    return rows.columns, np.asarray(chunk["x"])


def test_splines_go_on_as_lines_and_cycles_meet():
    basis, ends = Basis(0.0, 2.0, 7), np.array([2.0, 3.0, 5.0])
    at, one, three = basis.at(ends)
    np.testing.assert_allclose(three - at, 3 * (one - at), atol=1e-12)
    step = 1e-6
    before = basis.at(np.array([2.0 - step]))[0]
    np.testing.assert_allclose((at - before) / step, one - at, atol=1e-5)
    cycle = Basis(0.0, 24.0, 8, cyclic=True)
    np.testing.assert_allclose(cycle.at(np.array([0.0, 5.0])), cycle.at(np.array([24.0, 29.0])))
    assert np.abs(basis.at(np.array([0.0])) - basis.at(np.array([2.0]))).max() > 0.1


@pytest.mark.parametrize("cyclic", [False, True])
def test_penalty_of_coefficients_is_their_square(cyclic):
    basis = Basis(0.0, 1.0, 8, cyclic)
    u = rng.normal(size=basis.roots.shape[1])
    c = basis.roots @ u
    second = np.diff(np.r_[c[-1], c, c[0]] if cyclic else c, 2)
    assert second @ second == pytest.approx(u @ u)


def test_a_row_of_weight_three_counts_as_three():
    weight = rng.integers(0, 4, len(X)).astype(float)
    ends = {"lower_bound": 0.0, "upper_bound": 20.0}  # which rows without weight would move
    weighted = learn_smooth(X[:, None], weight, k=6, **ends)
    repeated = learn_smooth(np.repeat(X, weight.astype(int))[:, None], None, k=6, **ends)
    ours, theirs = (smooth_columns(state, X[:, None]) for state in (weighted, repeated))
    np.testing.assert_allclose(ours, theirs, atol=1e-10)
    plain = smooth_columns(learn_smooth(X[:, None], None, k=6, **ends), X[:, None])
    assert np.abs(plain - theirs).max() > 0.01


def test_levels_have_columns_of_their_own():
    names, x = columns_of("y ~ f + s(x, k=5, by=f)")
    early = (TABLE["f"] == "early").to_numpy()
    ends = ("[early][linear]", "[late][linear]", "[early][1]")
    assert names[1:4] == tuple(f"s(x, by=f){end}" for end in ends)
    of_early = [names.index(name) - 1 for name in names if "[early]" in name]  # f is a code
    assert np.all(x[np.ix_(~early, of_early)] == 0)
    np.testing.assert_allclose(x[np.ix_(early, of_early)].mean(axis=0), 0.0, atol=1e-12)


def test_a_surface_has_all_products():
    _, x = columns_of("y ~ te(x, z, k=5)")
    pair = np.column_stack([X, TABLE["z"]])
    splines = [Basis(v.min(), v.max(), 5).at(v) for v in pair.T]
    products = np.einsum("na,nb->nab", *splines).reshape(len(X), -1)
    every = np.column_stack([np.ones(len(x)), x])
    assert every.shape[1] == np.linalg.matrix_rank(np.column_stack([every, products])) == 25


def test_by_reads_codes_in_the_order_of_the_fit():
    codes = rng.integers(0, 2, len(X))
    state = learn_smooth(X[:, None], None, LevelArray(("a", "b"), codes), k=5)
    swapped = smooth_columns(state, X[:, None], LevelArray(("a", "b"), 1 - codes))
    own = smooth_columns(state, X[:, None], LevelArray(("a", "b"), codes))
    assert np.all((swapped != 0) != (own != 0))


@pytest.mark.parametrize(
    ("term", "reason"),
    [
        ("s(hour, k=30)", "use k=24 or fewer"),
        ("s(x, k=3)", "of each variable, must be a whole number, at least 4"),
        ("s(x, k=5000)", "more than 1,000"),
        ("s(hour, bs='cc')", "upper_bound=24"),
        ("s(x, extrapolation='zero')", "extrapolation must be"),
        ("s(f)", "is levels: use a column of numbers"),
        ("s(x, z)", "takes one column"),
        ("te(x)", "takes two or three"),
        ("s(x, df=5)", "no argument df"),
        ("log(s(x))", "part of another"),
        ("s(x):z", "a term of its own"),
        ("s(x) + s(x, k=5)", "twice"),
        ("s(x, by=f)", "add f"),
        ("C(hour) + s(x, by=hour)", "by= needs levels"),
        ("f + s(x, by=f + z)", "by must be the name"),
        ("s(log(x - x))", "not finite"),
    ],
)
def test_what_cannot_be_a_smooth_is_refused(term, reason):
    refused((SettingError, DataError), reason.replace("(", r"\("), columns_of, f"y ~ {term}")


def test_equal_values_have_the_columns_of_one():
    x = np.column_stack([np.linspace(0, 1, 40), np.linspace(2, 0, 40) ** 2])
    times, by = np.arange(40) % 7 + 3, LevelArray(("a", "b"), np.arange(40) % 2)
    again = np.repeat(np.arange(40), times)
    repeated = LevelArray(by.values, by.codes[again])
    state = learn_smooth(x, times.astype(float), by, k=5)
    learned = learn_smooth(x[again], None, repeated, k=5)
    columns = smooth_columns(state, x, by)
    np.testing.assert_allclose(smooth_columns(learned, x[again], repeated), columns[again])
    assert not np.allclose(smooth_columns(learn_smooth(x, None, by, k=5), x, by), columns)

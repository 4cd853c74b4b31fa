"""Group terms that cannot be fitted raise an error that says why."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.interrupted import planned
from helpers.refusals import refused
from modicum.errors import CrudeControlVariateError
from modicum.fit import model_for
from modicum.rows.formula import FormulaEncoding
from modicum.rows.reading import encode_table, read_formula


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng, n = np.random.default_rng(4), 120
    made = pd.DataFrame(
        {
            "dose": rng.normal(size=n),
            "ward": rng.choice(list("abcd"), n),
            "level": 0.0,
            "one": "same",
            "patient": [f"p{i}" for i in range(n)],
            "well": rng.integers(0, 2, n),
        }
    )
    made["x"] = made["ward"]
    made["gap"] = made["ward"].where(np.arange(n) != 7)
    made["height"] = made["ward"].map({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
    return made


@pytest.mark.parametrize("how", ["explicit", "integrate"])
@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("well ~ ward + (1 | ward)", "'ward' is both a common term and a group"),
        ("well ~ patient + (patient | ward)", "'ward' would have .* effects .* the limit is 20"),
        ("well ~ dose + (1 | one)", "the group 'one' has a single level"),
        (
            "well ~ dose + (1 | patient)",
            "every row has its own 'patient', and the class of a single",
        ),
        ("well ~ dose + (1 | gap)", "column 'gap' holds a missing value in row 7: .*missing='drop"),
        ("well ~ dose + (1 | wards)", "column 'wards' .* did you mean 'ward'"),
        ("well ~ dose + (1 | ward) + (1 | ward)", "an effect twice"),
        ("well ~ dose + (1 | x)", "a group cannot be called 'x'"),
        ("well ~ dose + (| ward)", "has no effects before"),
        ("well ~ dose + (1 | dose)", "'dose' holds .* fractional numbers"),
    ],
)
def test_what_groups_cannot_be(frame: pd.DataFrame, formula: str, words: str, how) -> None:
    refused(mo.ModicumError, words, mo.fit, formula, frame, groups=how, draws=5, progressbar=False)


def test_a_slope_that_is_constant_within_groups(frame: pd.DataFrame) -> None:
    with pytest.raises(mo.DataError, match="'height' does not vary within any level of 'ward'"):
        mo.fit("well ~ height + (height | ward)", frame, groups="explicit", progressbar=False)


@pytest.mark.parametrize("how", ["explicit", "integrate"])
def test_a_slope_far_from_its_intercepts_is_to_be_centred(frame: pd.DataFrame, how) -> None:
    """Slopes of years had a standard deviation of 0.0002, where that of the data was 0.1."""
    dated = frame.assign(year=2010.0 + 5 * frame["dose"])
    with pytest.raises(mo.DataError, match=r"slope 'year' .* use center\(year\) in place of year"):
        mo.fit("well ~ year + (year | ward)", dated, groups=how, progressbar=False)
    for formula, priors in (
        ("well ~ center(year) + (center(year) | ward)", None),
        ("well ~ year + (0 + year | ward)", None),
        ("well ~ year + (year | ward)", {"ward": mo.priors.HalfNormal(500)}),
    ):
        rows = read_formula(formula, dated, progressbar=False)
        model = model_for(rows, "logistic", priors, how).model
        model.resolved(rows)


def test_groups_is_for_formulas_with_groups(frame: pd.DataFrame) -> None:
    with pytest.raises(mo.SettingError, match="the formula has none"):
        mo.fit("well ~ dose", frame, groups="explicit", progressbar=False)
    with pytest.raises(mo.SettingError, match="must be 'explicit' or 'integrate', not 'both'"):
        mo.fit("well ~ (1 | ward)", frame, groups="both", progressbar=False)  # type: ignore[arg-type]


def test_combinations_of_levels_with_colons_stay_apart() -> None:
    """("p", "q:r") and ("p:q", "r") are two groups, also in a new table."""
    outer, inner = ["p", "p:q", "p", "p:q"], ["q:r", "r", "r", 's"']
    table = pd.DataFrame({"outer": outer, "inner": inner, "y": [0.0, 1.0, 2.0, 3.0]})
    rows = read_formula("y ~ 1 + (1 | outer:inner)", table, progressbar=False)
    names = np.array(rows.levels["outer:inner"])[rows.slice(0, 4)["outer:inner"].astype(int)]
    assert names.tolist() == ['p:"q:r"', '"p:q":r', "p:r", '"p:q":"s"""']
    known = read_formula("y ~ 1 + (1 | outer:inner)", table[1:], progressbar=False)
    with pytest.raises(mo.DataError, match="a group that the rows of the fit did not have"):
        encode_table(FormulaEncoding.from_dict(known.schema.origin), table, outcome=False)


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")  # tau may be 0
def test_every_study_of_a_meta_analysis_has_an_effect() -> None:
    """Of rows whose noise is known: the eight schools, by quadrature over their spread tau."""
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    schools = pd.DataFrame(
        {"y": y, "s": [15.0, 10, 16, 11, 9, 11, 10, 18], "school": list("abcdefgh")}
    )
    priors = {"intercept": mo.priors.Normal(0, 20), "group_sd": mo.priors.HalfNormal(25)}
    formula, run = "y | se(s) ~ 1 + (1 | school)", {"random_seed": 1, "progressbar": False}
    post = mo.fit(formula, schools, "gaussian", priors=priors, groups="explicit", **run)
    tau = np.linspace(0.01, 150, 20_000)[:, None]
    variance = schools["s"].to_numpy() ** 2 + tau**2
    precision = (1 / variance).sum(1) + 1 / 400  # of the mean of schools given tau
    mean = (y / variance).sum(1) / precision
    logs = mean**2 * precision - np.log(precision) - np.log(variance).sum(1)
    logs -= (y**2 / variance).sum(1) + (tau[:, 0] / 25) ** 2
    weight = np.exp((logs - logs.max()) / 2)
    expected = np.average(np.stack([tau[:, 0], mean]), weights=weight, axis=1)
    spread = np.sqrt(np.average((tau[:, 0] - expected[0]) ** 2, weights=weight))
    summary = post.summary(["group_sd", "intercept"])
    assert (np.abs(summary["mean"] - expected) < 4 * summary["mcse_mean"]).all()
    assert abs(summary["sd"].iloc[0] / spread - 1) < 0.1
    assert spread > 20 * summary["mcse_mean"].iloc[0]  # which could tell if tau were always 0
    with pytest.raises(mo.DataError, match=r"every row has its own 'school', .* noise of a row"):
        mo.fit("y ~ 1 + (1 | school)", schools, "gaussian", groups="explicit", **run)


@pytest.mark.slow
def test_where_times_overflow_near_the_mode_the_default_runs_nuts():
    """Slopes by group of a column with a long tail, and three quarters of the times censored."""
    rng, n = np.random.default_rng(1), 300
    g, x = rng.integers(60, size=n), np.exp(1.5 * rng.normal(size=n))
    offset = 3 * rng.normal(size=n)
    slope = 0.4 + 0.05 * rng.normal(size=60)[g]
    time = np.exp(1 + slope * x / x.std() + offset) * rng.weibull(4.0, size=n)
    ends = np.quantile(time, 0.24) * rng.uniform(0.3, 1.7, size=n)
    table = {"y": np.minimum(time, ends), "seen": (time < ends) * 1, "x": x, "o": offset, "g": g}
    rows = read_formula("y | event(seen) ~ x + offset(o) + (0 + x | g)", pd.DataFrame(table))
    model = model_for(rows, "weibull").model
    with pytest.raises(CrudeControlVariateError, match=r"not finite .* use method='nuts'"):
        planned(model, rows, mo.HMCECS())
    plan, _ = planned(model, rows, mo.Auto())
    assert plan.tuning["method"].startswith("NUTS on all rows, since")


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_level_without_rows_of_a_class_divides_by_nothing():
    rng, n = np.random.default_rng(0), 2_000
    g, f = rng.integers(0, 12, n), rng.integers(0, 2, n)
    f[g == 1] = 0
    chance = 1 / (1 + np.exp(-rng.normal(size=12)[g] - f * rng.normal(size=12)[g]))
    table = pd.DataFrame({"g": g, "f": np.array(["a", "b"])[f], "y": rng.random(n) < chance})
    run = {"method": "laplace", "random_seed": 1, "progressbar": False}
    effects = mo.fit("y ~ f + (1 + f | g)", table, **run).effects("g")["mean"].unstack("effect")
    slopes = effects[next(name for name in effects if "f[b]" in name)].abs()
    assert slopes[1] < slopes.median()  # nothing but its intercept tells of it

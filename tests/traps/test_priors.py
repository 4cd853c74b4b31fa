"""Priors that override the data: defaults use the data's units, tight priors are reported."""

import warnings
from dataclasses import replace
from itertools import product

import jax
import numpy as np
import pytest
from scipy import stats

import modicum as mo
from helpers.cases import cases
from helpers.interrupted import planned
from helpers.laws import LAWS, log_density
from helpers.slow import slowly
from helpers.targets import (
    TIMES,
    class_rows,
    disagreements,
    flat_draws,
    gaussian_rows,
    logistic_rows,
    mean_and_error,
    poisson_rows,
    quick,
    sums_of,
)
from modicum.ledger import Ledger
from modicum.methods.ecs import paper_schedule
from modicum.models import Target
from modicum.models.over_draws import ModelPredictor, rebuild
from modicum.models.priors import LogNormal, Normal
from modicum.models.priors.resolved import prior_warnings
from modicum.models.priors.units import moments
from modicum.passes import anchor_at_mode, find_mode
from modicum.rows import ingest
from modicum.runtime import in_double_precision

M, P = mo.models, mo.priors
RAW = {"prior_scale": 2.5, "intercept_scale": 10.0}
RUN = {"draws": 400, "chains": 2, "random_seed": 1, "progressbar": False}


def year_rows(n=3_000, dtype=None):
    """Return rows with a column like a year and a slope of one per year."""
    rng = np.random.default_rng(1)
    x = 2000 + rng.normal(size=(n, 1))
    y = rng.random(n) < 1 / (1 + np.exp(2000 - x[:, 0]))
    return mo.Rows(x=x, y=y * 1.0, dtype=dtype)


def large_rows(n=200):
    """Return rows with an outcome of scale 100."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n, 1))
    return mo.Rows(x=x, y=199 + 98.8 * x[:, 0] + 10 * rng.normal(size=n))


def small_rows(n=3_000):
    """Return rows with a column of sd .001 and a slope of 1,000."""
    rng = np.random.default_rng(3)
    x = 0.001 * rng.normal(size=(n, 1))
    y = rng.random(n) < 1 / (1 + np.exp(-1000 * x[:, 0]))
    return mo.Rows(x=x, y=y * 1.0)


def codes(post):
    return [w.code for w in post.warnings]


def maximum_likelihood(rows):
    """Return estimates and standard errors of slope and intercept, by a GLM on centred columns."""
    import statsmodels.api as sm

    batch = rows.slice(0, len(rows))
    x = batch["x"].astype(float)
    fit = sm.GLM(batch["y"], np.c_[x - x.mean(), np.ones(len(x))], sm.families.Binomial()).fit()
    return fit.params, fit.bse


# The three cases ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", *slowly("float32")])
def test_a_slope_on_years_is_that_of_the_data(dtype):
    rows = year_rows(dtype=dtype)
    params, errors = maximum_likelihood(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mo.ModicumWarning)
        post = mo.sample(M.Logistic(), rows, **RUN)
    mean, error = mean_and_error(post["beta"][..., 0])
    # a prior of N(0, 2.5) on standardised columns moves it by less than a tenth of its error
    assert abs(mean - params[0]) < TIMES * error + 0.1 * errors[0]
    at_mean = post["intercept"] + post["beta"][..., 0] * moments(rows).x_mean[0]
    mean, error = mean_and_error(at_mean)
    assert abs(mean - params[1]) < TIMES * error + 0.1 * errors[1]


def test_a_raw_prior_overrides_years_and_says_so():
    rows = year_rows()
    with pytest.warns(mo.ModicumWarning, match="the prior of intercept and the data disagree"):
        post = mo.sample(M.Logistic(**RAW), rows, **RUN)
    assert post.mean("beta")[0] < 0.2  # instead of 1
    assert "prior-far" in codes(post)
    assert "prior-decides" not in codes(post)  # the columns are not to blame


def test_a_constant_column_does_not_disagree_with_its_prior():
    """The data say nothing about its coefficient: the noise of its mean over draws is no pull."""
    rng = np.random.default_rng(3)
    table = {"x": rng.normal(size=300), "k": np.full(300, 3.0), "y": rng.normal(size=300)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mo.ModicumWarning)
        post = mo.fit("y ~ x + k", table, family="gaussian", **RUN)
        pulled = post.update(priors={"k": Normal(50, 1), "intercept": Normal(0, 1)})
    assert codes(post) == ["prior-decides"]
    assert "prior-far" in codes(pulled)  # negative control


@pytest.mark.parametrize("formula", ["y ~ x + z", "y ~ x + z + (1 | g)"])
@pytest.mark.parametrize("sd", [1e-12, 1e-2])
def test_what_the_data_say_is_told_beside_any_prior(sd, formula):
    """As the precision of both less that of the prior it would have no digits at 1e-12."""
    rng = np.random.default_rng(3)
    x, z, y = rng.normal(size=(3, 300))
    table = {"x": x, "z": x + z, "y": y, "g": np.arange(300) % 20}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mo.ModicumWarning)
        post = mo.fit(formula, table, family="gaussian", priors={"x": Normal(0, sd)}, **RUN)
    (note,) = (note for note in post.warnings if note.code == "prior-decides")
    columns = np.c_[x, x + z, np.ones(300)]
    expected = post.mean("scale") * np.sqrt(np.linalg.inv(columns.T @ columns)[0, 0])
    assert note.numbers["data_sd"] == pytest.approx(expected, rel=0.05)
    assert note.numbers["prior_sd"] == pytest.approx(sd)


def test_a_column_of_zeros_has_no_sd_of_the_likelihood():
    rng = np.random.default_rng(3)
    table = {"x": rng.normal(size=300), "k": np.zeros(300), "y": rng.normal(size=300)}
    with pytest.warns(mo.ModicumWarning, match="2.4, and the likelihood does not depend on it"):
        mo.fit("y ~ x + k", table, family="gaussian", **RUN)


def test_numbers_whose_coefficient_has_no_square_are_refused():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 100))
    for big in (1e120, 1e-120):
        with pytest.raises(mo.DataError, match=r"column 'x' and of 'y' differ so much in size"):
            mo.fit("y ~ x", {"x": x * big, "y": y / big}, family="gaussian", **RUN)
    mo.fit("y ~ x", {"x": x * 1e70, "y": y / 1e70}, family="gaussian", **RUN)  # negative control


def test_an_outcome_of_scale_100_has_its_closed_form():
    """With a known scale the posterior is normal, including the prior of the centred intercept."""
    rows = large_rows()
    model = M.Gaussian(scale=10.0)
    batch = rows.slice(0, len(rows))
    x, y = batch["x"][:, 0], batch["y"]
    design = np.c_[x, np.ones(len(x))]
    centred = np.array([[1.0, 0.0], [x.mean(), 1.0]])  # to the quantities with priors
    sd = np.array([2.5 * y.std() / x.std(), 2.5 * y.std()])
    prior = centred.T @ np.diag(sd**-2) @ centred
    cov = np.linalg.inv(design.T @ design / 100 + prior)
    mean = cov @ (design.T @ y / 100 + centred.T @ (np.array([0.0, y.mean()]) / sd**2))
    sums, start = sums_of(model, rows)
    anchor = anchor_at_mode(sums, start)
    np.testing.assert_allclose(anchor.point, mean, rtol=1e-9)
    np.testing.assert_allclose(anchor.factor @ anchor.factor.T, cov, rtol=1e-9)
    assert anchor.notes == []
    assert abs(mean[0] - 98.8) < 3
    assert abs(mean[1] - 199) < 3
    raw, start = sums_of(M.Gaussian(scale=10.0, **RAW), rows)
    held = anchor_at_mode(raw, start, ("beta", "intercept"))
    assert held.point[0] < 97  # negative control: pulled towards zero
    assert [note.code for note in held.notes] == ["prior-far"]


@pytest.mark.slow
def test_an_outcome_of_scale_100_with_its_scale_estimated():
    post = mo.sample(M.Gaussian(), large_rows(), **RUN)
    truth = stats.linregress(large_rows().slice(0, 200)["x"][:, 0], large_rows().slice(0, 200)["y"])
    mean, error = mean_and_error(flat_draws(post)[..., :2])
    aim = np.array([truth.slope, truth.intercept])
    allowed = TIMES * error + 0.1 * np.array([truth.stderr, truth.intercept_stderr])
    assert np.all(np.abs(mean - aim) < allowed)
    assert abs(post.mean("scale") - 10) < 2
    assert "prior-far" not in codes(post)


def test_a_steep_slope_on_a_small_column():
    rows = small_rows()
    params, errors = maximum_likelihood(rows)
    sums, start = sums_of(M.Logistic(), rows)
    anchor = anchor_at_mode(sums, start)
    assert abs(anchor.point[0] - params[0]) < 0.1 * errors[0]
    assert anchor.notes == []
    sums, start = sums_of(M.Logistic(**RAW), rows)
    held = anchor_at_mode(sums, start, ("beta[x0]", "intercept"))
    assert held.point[0] < 30
    assert [n.code for n in held.notes] == ["prior-far"]
    assert "beta[x0]" in str(held.notes[0])


# Invariance --------------------------------------------------------------------------------

FEW = ("logistic", "softmax", "student")  # the others are like these
FAMILIES = {
    "logistic": (M.Logistic, logistic_rows(300)),
    "poisson": (M.Poisson, poisson_rows(300)),
    "softmax": (M.Softmax, class_rows(300)),
    "gaussian": (M.Gaussian, gaussian_rows(300)),
    "student": (M.StudentT, gaussian_rows(300)),
}


def in_other_units(rows, unit, shift, y_unit=1.0, y_shift=0.0):
    fields = dict(rows.slice(0, len(rows)))
    fields["x"] = fields["x"] * unit + shift
    fields["y"] = fields["y"] * y_unit + y_shift
    return mo.Rows(**fields)


@pytest.mark.parametrize("family", [*FEW, *slowly("poisson", "gaussian")])
def test_posteriors_do_not_depend_on_units(family, x64):
    """In other units, the log-posterior of the same line differs by a constant only."""
    kind, rows = FAMILIES[family]
    columns = rows.fields["x"][0]
    unit, shift = np.geomspace(1e-3, 1e4, columns), np.linspace(-500, 2000, columns)
    real = family in ("gaussian", "student")
    y_unit, y_shift = (100.0, 7e3) if real else (1.0, 0.0)
    other = in_other_units(rows, unit, shift, y_unit, y_shift)

    def gaps(**settings):
        (a, start), (b, _) = sums_of(kind(**settings), rows), sums_of(kind(**settings), other)
        prior_of_a, prior_of_b = (jax.jit(sums.target.log_prior) for sums in (a, b))
        rng = np.random.default_rng(1)
        found = []
        for _ in range(4):
            theta = a.target.unravel(start + 0.3 * rng.normal(size=len(start)))
            moved = dict(theta)
            moved["beta"] = theta["beta"] * y_unit / unit
            moved["intercept"] = theta["intercept"] * y_unit + y_shift - moved["beta"] @ shift
            if real:
                moved["log_scale"] = theta["log_scale"] + np.log(y_unit)
            t, s = (np.concatenate([np.ravel(th[k]) for k in theta]) for th in (theta, moved))
            here = a.value(t, "check") + float(prior_of_a(t))
            there = b.value(s, "check") + float(prior_of_b(s))
            found.append(here - there)
        return np.ptp(found)

    assert gaps() < 1e-5
    raw = RAW | ({"scale_prior": 2.5} if real else {})
    assert gaps(**raw) > 1  # negative control


@pytest.mark.parametrize("method", ["laplace", *slowly("nuts")])
def test_rescaled_columns_give_the_same_draws_in_their_units(method):
    rows = logistic_rows(2_000)
    unit = np.array([1e-3, 30.0, 1e4])
    a = mo.sample(M.Logistic(), rows, method=method, **RUN)
    b = mo.sample(M.Logistic(), in_other_units(rows, unit, 0.0), method=method, **RUN)
    np.testing.assert_allclose(b["beta"] * unit, a["beta"], atol=1e-6)
    np.testing.assert_allclose(b["intercept"], a["intercept"], atol=1e-6)


@pytest.mark.slow
def test_shifted_columns_give_the_same_posterior():
    """A shift rotates draws in whitened coordinates, so compare moments."""
    rows = gaussian_rows(300)
    shift = np.array([0.0, 2000.0, -50.0])
    a = mo.sample(M.Gaussian(), rows, **RUN)
    b = mo.sample(M.Gaussian(), in_other_units(rows, 1.0, shift), **RUN)
    back = dict(b.draws) | {"intercept": b["intercept"] + b["beta"] @ shift}
    theirs = np.concatenate([v.reshape(*v.shape[:2], -1) for v in back.values()], axis=2)
    assert disagreements(flat_draws(a), theirs) == []
    assert disagreements(flat_draws(a), flat_draws(b)) != []


# What the defaults are ---------------------------------------------------------------------


def test_the_defaults_in_numbers():
    x = np.c_[np.array([1.0, 2.0, 3.0, 4.0]), np.full(4, 7.0), np.zeros(4)]
    y = np.array([10.0, 20.0, 30.0, 60.0])
    gaussian = M.Gaussian().resolved(mo.Rows(x=x, y=y)).resolved_priors
    unit = y.std()
    expected = [2.5 * unit / x[:, 0].std(), 2.5 * unit / 7.0, 2.5 * unit]
    np.testing.assert_allclose([p.sd for p in gaussian.coefficients], expected)
    intercept, scale = gaussian.alone
    assert intercept == ("intercept", Normal(30.0, 2.5 * unit), (2.5, 7.0, 0.0))
    assert (scale.name, scale.prior.sd) == ("log_scale", 2.5)
    assert scale.prior.mean == pytest.approx(np.log(unit))
    logistic = M.Logistic().resolved(mo.Rows(x=x, y=(y > 25) * 1.0)).resolved_priors
    np.testing.assert_allclose(
        [p.sd for p in logistic.coefficients], [2.5 / x[:, 0].std(), 10 / 7.0, 2.5]
    )
    assert logistic.alone[0].prior == Normal(0.0, 10.0)
    years = np.array([0.5, 1.0, 2.0, 4.0])
    counts = mo.Rows(x=x, y=np.array([0.0, 1.0, 1.0, 3.0]), offset=np.log(years))
    poisson = M.Poisson().resolved(counts).resolved_priors.alone[0].prior
    assert poisson.mean == pytest.approx(np.log(5 / 7.5))
    none = mo.Rows(x=x, y=np.zeros(4), offset=np.log(years))
    assert M.Poisson().resolved(none).resolved_priors.alone[0].prior.mean == pytest.approx(
        np.log(0.5 / 7.5)
    )


def test_without_an_intercept_the_size_of_the_outcome_is_its_unit():
    x, y = np.ones((50, 1)), 1000 + np.random.default_rng(1).normal(size=50)
    sums, start = sums_of(M.Gaussian(intercept=False), mo.Rows(x=x, y=y))
    anchor = anchor_at_mode(sums, start)
    assert abs(anchor.point[0] - y.mean()) < 0.01
    assert "prior-far" not in [n.code for n in anchor.notes]


@pytest.mark.parametrize("family", ["exponential", "poisson"])
def test_levels_without_an_intercept_reach_the_logarithm_of_the_outcome(family):
    """Times in microseconds, or deaths per person: a level of few rows is not pulled to e^0."""
    levels = np.repeat(np.eye(2), [300, 3], axis=0)
    if family == "poisson":
        fields = {"y": np.r_[np.arange(300) % 3, 0.0, 1.0, 2.0], "offset": np.full(303, 11.5)}
    else:
        fields = {"y": np.r_[np.linspace(1, 9, 300), 3.0, 5.0, 7.0] * 1e6, "event": np.ones(303)}

    def pull(**settings):
        """How far the prior takes the rare level from its mean, in posterior sds."""
        kind = M.FAMILIES[family](intercept=False, **settings)
        sums, start = sums_of(kind, mo.Rows(x=levels, **fields))
        anchor = anchor_at_mode(sums, start)
        mean = np.log(fields["y"][-3:].mean()) - fields.get("offset", np.zeros(1))[-1]
        return abs(anchor.point[1] - mean) * np.sqrt(3)

    assert pull() < 0.1
    assert pull(prior_scale=2.5) > 0.5  # negative control


def test_an_outcome_that_never_varies_has_finite_priors():
    rows = mo.Rows(x=np.arange(6.0)[:, None], y=np.full(6, 3.0))
    priors = M.Gaussian().resolved(rows).resolved_priors
    assert np.isfinite(
        [*(p.sd for p in priors.coefficients), priors.alone[0].prior.sd, priors.alone[1].prior.mean]
    ).all()
    zero = mo.Rows(x=np.arange(6.0)[:, None], y=np.zeros(6))
    assert M.Gaussian().resolved(zero).resolved_priors.alone[0].prior.sd == 2.5


def test_numbers_given_stay_raw_each_by_itself():
    rows = gaussian_rows(100)
    of = moments(rows)
    some = M.Gaussian(prior_scale=0.5).resolved(rows).resolved_priors
    assert some.coefficients == (Normal(0.0, 0.5),) * 3
    assert some.alone[0].prior.mean == of.y_mean
    raw = M.Gaussian(intercept_scale=4.0).resolved(rows).resolved_priors
    assert raw.alone[0] == ("intercept", Normal(0.0, 4.0), ())
    each = M.Gaussian(prior_scale=[1, 2, 3], scale_prior=0.7).resolved(rows).resolved_priors
    assert each.coefficients == tuple(Normal(0.0, sd) for sd in (1.0, 2.0, 3.0))
    assert each.alone[1] == ("log_scale", LogNormal(0.0, 0.7), ())
    assert not M.Gaussian(**RAW, scale_prior=2.5).needs_moments  # nothing to compute: no pass


def test_frequency_weights_count_in_moments(tmp_path):
    rng = np.random.default_rng(1)
    fields = {"x": rng.normal(size=(40_000, 2)) + 5, "y": rng.normal(size=40_000)}
    weight = rng.integers(0, 4, 40_000)
    a = moments(mo.Rows(**fields, weight=weight * 1.0))
    repeated = {k: np.repeat(v, weight, axis=0) for k, v in fields.items()}
    b = moments(mo.Rows(**repeated))
    np.testing.assert_allclose(a.x_mean, repeated["x"].mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(a.x_sd, repeated["x"].std(axis=0), rtol=1e-12)
    np.testing.assert_allclose([a.y_mean, a.y_sd], [b.y_mean, b.y_sd], rtol=1e-9)
    ingest(repeated, tmp_path / "store", progressbar=False, dtype="float64")
    c = moments(mo.Rows.open(tmp_path / "store"))  # a store is streamed
    np.testing.assert_allclose(c.x_sd, b.x_sd, rtol=1e-12)


# Levels ------------------------------------------------------------------------------------


def rare_rows(n=40_000, **fields):
    """Return rows with numbers, and columns of two values, in several chunks."""
    rng = np.random.default_rng(4)
    rare = np.arange(n) < 4  # the other chunks are constant
    half = rng.random(n) < 0.5
    x = np.c_[rng.normal(size=n), rare, 1 + half, np.where(rare, 3.7, -1.3), 2023 + rare]
    x = np.c_[x, rng.integers(0, 3, n), np.where(np.arange(n) == 9, 0.5, half)]
    return mo.Rows(x=x, y=rng.random(n) * 8, codes={"ward": np.where(rare, "b", "a")}, **fields)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_column_of_two_values_has_their_difference_as_its_unit(dtype):
    """The prior of four rows of 200,000 had a standard deviation of 559."""
    rows = rare_rows(dtype=dtype)
    data = moments(rows)
    np.testing.assert_allclose(data.x_unit[[1, 2, 3, 4, -1]], [1, 1, 5, 1, 1], rtol=1e-6)
    numbers = [0, 5, 6]  # the last has three values: one row in 40,000 is neither 0 nor 1
    np.testing.assert_array_equal(data.x_unit[numbers], data.x_sd[numbers])
    assert data.x_sd[1] < 0.011  # negative control: by this unit the scale was 250
    assert M.Logistic().resolved(rows).resolved_priors.coefficients[-1] == Normal(0.0, 2.5)
    by_outcome = mo.priors.default(rows, "gaussian")["beta[ward[b]]"]
    assert by_outcome == f"normal(0, {2.5 * data.y_sd:.4g})"


def test_rows_of_weight_zero_are_no_values():
    rows = rare_rows(weight=(np.arange(40_000) != 9) * 1.0)
    assert moments(rows).x_unit[6] == 1  # without the row that is neither 0 nor 1


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")  # of few draws
def test_a_level_times_a_number_has_the_numbers_unit():
    import pandas as pd

    rng = np.random.default_rng(5)
    table = pd.DataFrame({"y": rng.integers(0, 2, 3000), "age": rng.normal(50, 10, 3000)})
    table["ward"] = np.where(np.arange(3000) < 5, "rare", rng.choice(["east", "west"], 3000))
    table["old"], table["flag"] = table["age"] > 60, (np.arange(3000) % 500 == 0) * 1
    run = {"method": "laplace", "draws": 50, "progressbar": False}

    def scales(formula):
        priors = mo.fit(formula, table, **run).tuning["priors"]
        return [float(text.split()[-1][:-1]) for key, text in priors.items() if "beta" in key]

    slope = 2.5 / table["age"].std(ddof=0)
    assert scales("y ~ age * ward") == pytest.approx([slope, 2.5, 2.5, slope, slope], rel=1e-3)
    assert scales("y ~ age:ward")[0] == pytest.approx(slope, rel=1e-3)  # all have one prior
    assert scales("y ~ ward:old") == scales("y ~ ward:flag") == [2.5]
    spline = np.array(scales("y ~ bs(age, df=9)"))
    assert np.all(spline > 5)  # its columns are numbers


def test_columns_too_large_for_a_variance_are_named():
    x = np.c_[np.ones(3), np.array([1e200, -1e200, 1e200])]
    with pytest.raises(mo.DataError, match="'huge' holds numbers so large"):
        M.Logistic().resolved(mo.Rows(x=x, y=np.array([0.0, 1, 0]), columns=["a", "huge"]))


def test_columns_too_small_for_a_variance_are_named():
    x = np.array([[1e-200], [-3e-200], [1e-200]])
    with pytest.raises(mo.DataError, match="'tiny' holds numbers so small"):
        M.Logistic().resolved(mo.Rows(x=x, y=np.array([0.0, 1, 0]), columns=["tiny"]))


def test_a_column_far_from_zero_is_refused_beside_an_intercept():
    """At a mean of 5e7 standard deviations the posterior sd was silently 50 % too large."""
    x = np.random.default_rng(1).normal(size=(200, 1))
    y = (x[:, 0] > 0) * 1.0

    def rows(shift):
        return mo.Rows(x=x + shift, y=y, columns=["stamp"])

    for shift in (5e7, 1e11):
        with pytest.raises(mo.DataError, match=r"'stamp' varies by .* subtract a constant"):
            M.Logistic().resolved(rows(shift))
        M.Logistic(intercept=False).resolved(rows(shift))  # without an intercept no digits are lost
    M.Logistic().resolved(rows(1e6))
    constant = mo.Rows(x=np.full((200, 1), 1 / 3 * 1e9), y=y, columns=["stamp"])
    assert moments(constant).x_sd == 0
    M.Logistic().resolved(constant)  # `prior-decides` warns of it


def test_priors_without_rows_are_refused_with_a_reason():
    with pytest.raises(mo.SettingError, match="in the units of the data"):
        M.Logistic().log_prior({"beta": np.zeros(2), "intercept": 0.0})


# Where they are reported -------------------------------------------------------------------


def test_the_priors_used_are_shown_counted_and_kept(tmp_path):
    rows = logistic_rows(300, columns=["age", "dose", "bmi"])
    post = quick(M.Logistic(), rows, method="laplace")
    sd = moments(rows).x_sd
    shown = post.tuning["priors"]
    assert shown["beta[age]"] == f"normal(0, {2.5 / sd[0]:.4g})"
    assert shown["intercept"] == "normal(0, 10), of the predictor at the mean of the columns"
    assert post.ledger.counts["priors", "density"] == 300
    post.save(tmp_path / "post")
    again = mo.Posterior.load(tmp_path / "post")
    assert again.tuning["priors"] == shown
    model = post.predictor.model
    assert model.resolved_priors is not None
    assert repr(model.resolved_priors) in post.settings["model"]
    kept = rebuild(ModelPredictor(model).to_dict()).model
    assert kept == model
    assert hash(kept) == hash(model)
    assert model.resolved(logistic_rows(50)) is model  # the prior of the fit, on any rows
    fixed = M.Logistic(**RAW).resolved(rows).describe_priors(rows)
    assert fixed == {"beta": "normal(0, 2.5)", "intercept": "normal(0, 10)"}


def test_models_of_other_rows_are_other_models_but_share_their_likelihood():
    a, _ = Target.of(M.Logistic(), logistic_rows(100))
    b, _ = Target.of(M.Logistic(), logistic_rows(100, seed=9))
    assert a.model.identity() != b.model.identity()
    assert a != b
    assert a.likelihood == b.likelihood
    assert hash(a.likelihood) == hash(b.likelihood)


def test_the_pass_is_entered_where_passes_are():
    ledger = Ledger(rows=100)
    Target.of(M.Poisson(), poisson_rows(100), ledger)
    assert (ledger.sweeps, ledger.by_purpose) == (1, {"priors": 100})
    Target.of(M.Poisson(**RAW), poisson_rows(100), ledger)
    assert ledger.sweeps == 1


# The guard ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [200, *slowly(5_000)])
def test_a_tight_prior_is_named(n):
    """Even if it is so tight that the mean has hardly moved."""
    sums, start = sums_of(M.Logistic(prior_scale=0.01), logistic_rows(n))
    notes = anchor_at_mode(sums, start, ("age", "dose", "bmi", "intercept")).notes
    assert [n.code for n in notes] == ["prior-far"]
    assert "prior_scale" in notes[0].remedy
    assert notes[0].numbers["score"] > 3


def test_a_prior_that_moves_nothing_is_not_blamed():
    """The default prior of the scale is centred at sd(y), and one outlier can make that 10^4."""
    x = np.random.default_rng(3).normal(size=2_000)
    y = x + np.random.default_rng(4).normal(size=2_000)
    y[7] = 1e6
    sums, start = sums_of(M.StudentT(), mo.Rows(x=x[:, None], y=y))
    assert anchor_at_mode(sums, start).notes == []
    assert prior_warnings(("scale",), np.array([4.0]), np.array([0.01])) == []
    (note,) = prior_warnings(("scale",), np.array([4.0]), np.array([0.1]))  # negative control
    assert "0.4 posterior standard deviations further away without the prior" in note.sentence


def test_it_is_said_how_far_a_prior_moves_the_mean():
    """With a known scale, the mean without the prior is that of least squares."""
    rows = large_rows()
    batch = rows.slice(0, len(rows))
    free = stats.linregress(batch["x"][:, 0], batch["y"]).slope
    priors = {"x0": mo.priors.Normal(0, 3), "intercept": mo.priors.Flat()}
    sums, start = sums_of(M.Gaussian(scale=10.0, priors=priors), rows)
    held = anchor_at_mode(sums, start, ("beta", "intercept"))
    moved = (free - held.point[0]) / np.linalg.norm(held.factor[0])
    assert f"about {moved:.2g} posterior standard deviations" in held.notes[0].sentence


@pytest.mark.parametrize("family", [*FEW, *slowly("poisson", "gaussian")])
def test_no_prior_is_blamed_without_cause(family):
    kind, rows = FAMILIES[family]
    for model in (kind(), kind(**RAW)):
        sums, start = sums_of(model, rows)
        assert anchor_at_mode(sums, start).notes == []


def test_the_papers_schedule_counts_what_it_looks_up_on_its_subset(monkeypatch):
    monkeypatch.setattr(paper_schedule, "STAGES", (100,))  # later stages cost the most
    # with separated rows the search reads every row again, here of a subset
    rng = np.random.default_rng(3)
    x = np.c_[rng.normal(size=3_000), np.arange(3_000) < 60]
    rows = mo.Rows(x=x, y=((rng.random(3_000) < 0.5) | (x[:, 1] > 0)).astype(float))
    paper = mo.HMCECS(expert=mo.ECSExpert(tuning="paper"))
    _, ledger = planned(M.Logistic(prior_scale=1.0), rows, paper)
    assert ledger.counts["separation", "density"] > 0


# A prior of one's own for a scale, in any units --------------------------------------------------

POSITIVE = {  # each prior with a typical size of s, and scipy's density of it
    "half-normal": (P.HalfNormal, lambda s: (s,), lambda s: stats.halfnorm(0, s)),
    "half-cauchy": (P.HalfCauchy, lambda s: (s,), lambda s: stats.halfcauchy(0, s)),
    "exponential": (P.Exponential, lambda s: (1 / s,), lambda s: stats.expon(0, s)),
    "gamma": (P.Gamma, lambda s: (2, 2 / s), lambda s: stats.gamma(2, 0, s / 2)),
    "log-normal": (P.LogNormal, lambda s: (np.log(s), 1.0), lambda s: stats.lognorm(1, 0, s)),
}
SCALED = {  # the parameter of each family
    **{"Gaussian": "scale", "StudentT": "scale", "InverseGaussian": "shape", "Gamma": "shape"},
    **{"Weibull": "shape", "NegativeBinomial": "overdispersion", "Beta": "precision"},
}
IN_UNITS = {"Gaussian", "StudentT"}  # of which coefficients have the unit of the outcome as well
HAS_UNIT = IN_UNITS | {"InverseGaussian"}


def scale_case(family, unit, rescaled):
    """Return rows and made-up outcomes; `rescaled` are measured in the unit of the prior."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(120, 1))
    y = LAWS[family](0.5 + 0.4 * x[:, 0], 1.0).rvs(random_state=rng) * (unit if rescaled else 1.0)
    return mo.Rows(x=x, y=y, **({"event": np.ones(120)} if family == "Weibull" else {}))


def wide(family, unit, rescaled):
    """Return the sd of the coefficients' priors."""
    return 10.0 * (unit if family in IN_UNITS and rescaled else 1.0)


def steps_of_scipy(family, prior, unit, rescaled, rows, at):
    """Return slopes and curvatures of scipy's log-posterior along the columns of our factor."""
    of_scale, sd = POSITIVE[prior][2](unit), wide(family, unit, rescaled)
    x, y = rows.slice(0, 120)["x"][:, 0], rows.slice(0, 120)["y"]

    def log_posterior(t):
        beta, intercept, log_scale = t
        scale = np.exp(log_scale)
        coefficients = stats.norm(0, sd).logpdf([beta, intercept]).sum()
        of_rows = log_density(LAWS[family](intercept + beta * x, scale), y).sum()
        return of_rows + coefficients + of_scale.logpdf(scale) + log_scale

    factor, h = np.linalg.inv(np.linalg.cholesky(at.precision)).T, 1e-3
    middle = log_posterior(at.point)
    up, down = ([log_posterior(at.point + s * h * v) for v in factor.T] for s in (1, -1))
    up, down = np.array(up), np.array(down)
    return (up - down) / (2 * h), (up - 2 * middle + down) / h**2


@cases(
    "family prior unit rescaled",
    ("StudentT", "half-cauchy", 1e3, True),  # as an own prior was first met, and crashed
    ("StudentT", "exponential", 1e3, True),
    ("InverseGaussian", "half-cauchy", 1e3, True),
    ("Weibull", "log-normal", 1e5, False),  # far from any shape that data have
    *slowly(
        *(
            (family, prior, unit, rescaled)
            for family, prior in product(SCALED, POSITIVE)
            for unit in (1e-3, 0.1, 1.0, 100.0, 1e5)
            for rescaled in ((True, False) if family in HAS_UNIT else (False,))
        )
    ),
)
def test_a_prior_of_a_scale_has_the_mode_and_the_width_of_scipy(family, prior, unit, rescaled):
    rows, sd = scale_case(family, unit, rescaled), wide(family, unit, rescaled)
    kind, arguments, _ = POSITIVE[prior]
    priors = {"common": P.Normal(0, sd), "intercept": P.Normal(0, sd)}
    priors[SCALED[family]] = kind(*arguments(unit))
    sums, start = sums_of(getattr(M, family)(priors=priors), rows)
    at, _ = in_double_precision(find_mode)(sums, start)
    slopes, curvatures = steps_of_scipy(family, prior, unit, rescaled, rows, at)
    assert np.all(np.abs(slopes) < 1e-4)  # in posterior standard deviations
    assert curvatures == pytest.approx(-np.ones(3), abs=0.01)
    # a point a tenth of a standard deviation away is no mode
    aside = replace(at, point=at.point + 0.1 * np.linalg.inv(np.linalg.cholesky(at.precision))[-1])
    assert np.abs(steps_of_scipy(family, prior, unit, rescaled, rows, aside)[0]).max() > 0.05


def test_a_prior_of_a_scale_beside_groups_is_the_same_in_other_units():
    rng = np.random.default_rng(2)
    x, ward = rng.normal(size=400), np.repeat(np.arange(8), 50)
    own = rng.normal(size=8)
    y = 1 + x + own[ward] + rng.normal(size=400)
    names = [f"w{k}" for k in ward]
    points = []
    for unit in (1.0, 0.05):
        rows = mo.Rows(x=x[:, None], y=unit * y, codes={"ward": names}, columns=["dose"])
        model = M.Gaussian(priors={"scale": P.Gamma(2, 1.7 / unit)}, groups="ward")
        sums, start = sums_of(model, rows)
        points.append(in_double_precision(find_mode)(sums, start)[0].point)
    named = sums.target.reports(np.stack(points))
    assert named["scale"][0] == pytest.approx(1.0, abs=0.1)  # about which y was drawn
    assert np.std(own) < named["group_sd"][0, 0] < 2 * np.std(own)
    for name, (at_one, at_other) in named.items():
        np.testing.assert_allclose(at_other, 0.05 * at_one, rtol=1e-3, atol=1e-4, err_msg=name)


@cases(
    "family priors in_summary",
    ("ZeroInflatedPoisson", {"logit_zero_inflation": P.Normal(-1, 1)}, "zero_inflation"),
    ("HurdlePoisson", {"logit_zero_chance": P.StudentT(3, 0, 1)}, "zero_chance"),
    ("Ordinal", {"intercept": P.Normal(0, 2), "gap_0001": P.HalfNormal(1)}, "cutpoint"),
)
def test_parameters_that_are_reported_on_another_scale_have_keys_of_their_own(
    family, priors, in_summary
):
    rows = mo.Rows(x=np.zeros((6, 1)), y=np.array([0, 0, 1, 1, 2, 2.0]))
    resolved = getattr(M, family)(priors=priors).resolved(rows).resolved_priors
    given = {f"log_{k}" if k.startswith("gap") else k: prior for k, prior in priors.items()}
    assert given.items() <= {name: prior for name, prior, _ in resolved.alone}.items()
    with pytest.raises(mo.SettingError, match=f"the possible keys are .*{list(priors)[-1]}"):
        getattr(M, family)(priors={in_summary: P.Normal(0, 1)}).resolved(rows)

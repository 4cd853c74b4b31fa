"""Errors and warnings of the families of counts, shares, times, orders and quantiles."""

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.outcomes import family, family_rows
from helpers.refusals import refused
from helpers.targets import all_of, sums_of
from modicum.cli.fitting import build_model
from modicum.fit import model_for
from modicum.models import FAMILIES, Target
from modicum.models.families import family_named
from modicum.models.separation import find_ordinal_separation, find_separation
from modicum.rows.reading import read_formula

M = mo.models


def _with(name, field, value):
    fields = all_of(family_rows(name, 30))
    fields[field] = np.where(np.arange(30) == 7, value, fields[field])
    return mo.Rows(**fields)


@cases(
    "name field value words",
    (
        "Probit",
        "y",
        2,
        "is 2 in row 7, but Probit needs outcomes that are 0 or 1 (numbers need",
    ),
    ("Binomial", "y", 1.5, "Binomial needs counts"),
    ("Binomial", "y", 90, "row 7 has 90 successes in"),
    ("Binomial", "trials", 2.5, "in 2.5 trials; 'y' must count the successes"),
    ("BetaBinomial", "y", 90, "row 7 has 90 successes in"),
    ("Beta", "y", 1, "is 1 in row 7, but Beta needs shares strictly between 0 and 1"),
    ("ZeroOneInflatedBeta", "y", 30, "ZeroOneInflatedBeta needs shares from 0 to 1"),
    ("NegativeBinomial", "y", -1, "NegativeBinomial needs counts"),
    ("HurdlePoisson", "y", 0.5, "HurdlePoisson needs counts"),
    ("HurdleNegativeBinomial", "y", 0.5, "HurdleNegativeBinomial needs counts"),
    ("Gamma", "y", 0, "Gamma needs positive numbers"),
    ("Lognormal", "y", 0, "Lognormal needs positive numbers"),
    ("VonMises", "y", 90, "VonMises needs angles from -pi to pi, in radians"),
    ("Tweedie", "y", -1, "Tweedie needs numbers from 0"),
    ("HurdleLognormal", "y", -0.1, "HurdleLognormal needs numbers from 0"),
    ("InverseGaussian", "y", -3, "InverseGaussian needs positive numbers"),
    ("Ordinal", "y", 1.5, "Ordinal needs classes"),
    ("Exponential", "y", 0, "Exponential needs positive times"),
    ("Weibull", "event", 2, "'event' is 2 in row 7; it must be 1 where"),
)
def test_rows_out_of_support_are_named(name, field, value, words):
    with pytest.raises(mo.DataError) as caught:
        Target.of(family(name), _with(name, field, value))
    assert words in str(caught.value)


@pytest.mark.parametrize(("name", "field"), [("Binomial", "trials"), ("Weibull", "event")])
def test_a_field_that_is_missing_is_named(name, field):
    fields = all_of(family_rows(name, 30))
    del fields[field]
    if name == "Binomial":
        with pytest.raises(mo.DataError, match=f"needs the field '{field}'"):
            Target.of(family(name), mo.Rows(**fields))
    with pytest.raises(mo.DataError, match=f"'{field}' must hold one number per row"):
        Target.of(family(name), mo.Rows(**fields, **{field: np.ones((30, 2))}))


def test_a_formula_without_the_field_says_what_belongs_there():
    frame = pd.DataFrame({"days": [1.0, 2.0, 3.0, 4.0], "dose": [0.0, 1.0, 0.5, 0.2]})
    words = "where COLUMN is the number of trials of each row,"
    refused(mo.SettingError, words, mo.fit, "days ~ dose", frame, family="binomial")


@cases(
    "make words",
    (lambda: M.Binomial(link="probitt"), "not 'probitt' (did you mean 'probit'"),
    (lambda: M.AsymmetricLaplace(quantile=1.0), "between 0 and 1"),
    (lambda: M.AsymmetricLaplace(smoothing=-1), "smoothing must be 0 or"),
    (lambda: M.Ordinal(intercept=False), "cutpoints in place of an intercept"),
    (lambda: M.Ordinal(classes=2), "classes"),
    (lambda: M.Tweedie(power=2), "power must be a number from 1.05 to 1.95"),
    (lambda: M.Ordinal(link="cauchit"), "probit, cloglog, not 'cauchit'"),
    (lambda: M.StoppingRatio(intercept=False), "StoppingRatio has cutpoints in place"),
    (lambda: M.Gamma().derivatives(np.zeros(1), np.zeros(1)), "the parameter shape beside"),
)
def test_impossible_settings_are_refused(make, words):
    with pytest.raises(mo.SettingError) as caught:
        make()
    assert words in str(caught.value)


def test_settings_by_position_are_those_of_the_family():
    """Not the prior scale of its coefficients, which every family has."""
    assert M.AsymmetricLaplace(0.9) == M.AsymmetricLaplace(quantile=0.9)
    assert M.StudentT(3.0) == M.StudentT(df=3.0)
    assert M.Ordinal(4) == M.Ordinal(classes=4)
    assert M.Binomial("probit") == M.Binomial(link="probit")
    for without_settings in (M.Logistic, M.Gaussian, M.Gamma):
        refused(TypeError, "positional argument", without_settings, 2.0)


def test_two_classes_have_no_order():
    rows = mo.Rows(x=np.eye(4), y=np.array([0.0, 1, 0, 1]))
    refused(mo.DataError, "fewer than three classes", Target.of, M.Ordinal(), rows)
    gap = mo.Rows(x=np.eye(4), y=np.array([0.0, 1, 3, 1]))
    refused(mo.DataError, "never occur", Target.of, M.Ordinal(), gap)
    assert Target.of(M.Ordinal(classes=4), gap)[0].size == 4 + 3


def test_units_of_an_outcome_do_not_matter():
    """Priors of log-link families are centred at the mean outcome, in its unit."""
    rows = family_rows("InverseGaussian", 300)
    x, y = all_of(rows).values()
    models = [M.InverseGaussian().resolved(mo.Rows(x=x, y=k * y)) for k in (1.0, 1e6)]
    small, large = (model.resolved_priors.alone[1].prior for model in models)
    np.testing.assert_allclose(large.mean - small.mean, np.log(1e6), rtol=1e-9)
    assert small.sd == large.sd


# Separation --------------------------------------------------------------------------------


def ordered(n, flip=None, level=False):
    rng = np.random.default_rng(n)
    x = rng.normal((0.0, 2000.0), size=(n, 2))
    eta = x @ [1.0, -0.5]
    y = np.searchsorted(np.quantile(eta, [0.3, 0.6]), eta)
    if level:  # a level with the highest class only; the others overlap
        y = rng.integers(0, 3, n)
        x = np.c_[x, rng.random(n) < 0.1]
        y[x[:, 2] == 1] = 2
    if flip is not None:
        y[flip] = (y[flip] + 1) % 3
    return mo.Rows(x=x, y=y * 1.0)


def _notes(model, rows):
    sums, start = sums_of(model, rows)
    target = sums.target
    theta = target.unravel(start)
    note, _ = target.model.separation(rows, theta)
    return None if note is None else note.code, note


def test_ordered_classes_that_columns_tell_apart():
    code, note = _notes(M.Ordinal(), ordered(300))
    assert code == "separation"
    assert note.numbers["complete"] == 1
    code, note = _notes(M.Ordinal(), ordered(300, level=True))
    assert code == "separation"
    assert note.numbers["complete"] == 0
    both = ordered(300, level=True)
    one = int(np.flatnonzero(all_of(both)["x"][:, 2] == 1)[0])
    assert _notes(M.Ordinal(), ordered(300, level=True, flip=one))[0] is None
    assert _notes(M.Ordinal(), family_rows("Ordinal", 300))[0] is None
    assert find_ordinal_separation(ordered(300), np.zeros(2), np.arange(3.0)) == (None, 1)


def test_trials_that_columns_tell_apart():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(200, 1))
    trials = np.full(200, 4.0)
    rows = mo.Rows(x=x, y=4.0 * (x[:, 0] > 0), trials=trials)
    assert _notes(M.Binomial(), rows)[0] == "separation"
    y = np.where(np.arange(200) == 5, 1.0, 4.0 * (x[:, 0] > 0))  # one exception is enough
    assert _notes(M.Binomial(), mo.Rows(x=x, y=y, trials=trials))[0] is None
    found, _ = find_separation(rows, np.ones((1, 1)), np.zeros(1), reversed=True, trials=True)
    assert found.numbers["complete"] == 1


@pytest.mark.parametrize("name", ["Probit", "Cloglog"])
def test_other_links_are_separated_too(name):
    x = np.linspace(-1, 1, 100)[:, None]
    y = (x[:, 0] > 0) * 1.0
    assert _notes(family(name), mo.Rows(x=x, y=y))[0] == "separation"
    y[10] = 1.0
    assert _notes(family(name), mo.Rows(x=x, y=y))[0] is None


def test_every_family_has_a_name_and_is_kept_in_a_file():
    from modicum.models import families
    from modicum.models.over_draws import ModelPredictor, rebuild

    unnamed = {"PoissonRates"}  # only in modicum.sklearn
    assert {kind.__name__ for kind in FAMILIES.values()} == set(families.__all__) - unnamed
    for kind in (*FAMILIES.values(), families.PoissonRates):
        model = kind(prior_scale=2.0)
        assert rebuild(ModelPredictor(model).to_dict()).model == model


@cases(
    "theirs ours",
    ("negbinomial", "negative-binomial"),
    ("zero_inflated_negbinomial", "zero-inflated-negative-binomial"),
    ("hurdle_negativebinomial", "hurdle-negative-binomial"),
    ("hurdle_lognormal", "hurdle-lognormal"),
    ("inverse.gaussian", "inverse-gaussian"),
    ("Student_T", "student-t"),
    ("gaussian(log)", "gaussian-log"),
    ("gaussian(link='log')", "gaussian-log"),
    ("cratio", "stopping-ratio"),
    ("sratio", "stopping-ratio"),
    ("acat", "adjacent-category"),
    ("von_mises", "von-mises"),
)
def test_names_of_brms_and_bambi_work(theirs, ours):
    assert family_named(theirs) is FAMILIES[ours]


@cases(
    "theirs words",
    ("cumulative('probit')", r"mo\.models\.Ordinal\(link='probit'\)"),
    ("bernoulli(link = 'probit')", "use 'probit'"),
    ("negbinomial(link='log')", "write 'negbinomial' without brackets"),
    ("cratio('cloglog')", "another model"),
    ("bernoulli(cauchit)", "use 'logistic', 'probit' or 'cloglog'"),
    ("mixture(gaussian, gaussian)", r"mo\.Model"),
    ("genpoisson", "'negative-binomial' for counts that vary more"),
)
def test_families_of_brms_that_are_not_here_are_refused_with_what_to_do(theirs, words):
    refused(mo.SettingError, words, family_named, theirs)


@pytest.mark.parametrize("family", ["poisson", "gamma"])
def test_links_whose_mean_may_be_negative_are_refused_with_a_reason(family):
    refused(mo.SettingError, "must be positive in every row", family_named, f"{family}(identity)")
    with pytest.raises(mo.SettingError, match=f"use '{family}', whose link is the logarithm"):
        build_model(family, {"link": "identity"})
    assert build_model("gaussian", {"link": "log"}) == M.GaussianLog()


def test_ordered_classes_are_not_made_of_an_alphabet():
    """high < low < medium silently reversed the sign of a slope."""
    ratings = pd.DataFrame({"x": np.arange(6.0), "r": ["low", "medium", "high"] * 2})

    def outcome(column, formula="r ~ x"):
        rows = read_formula(formula, ratings.assign(r=column), progressbar=False)
        for name in ("ordinal", "stopping-ratio", "adjacent-category"):
            model_for(rows, name)
        return rows.outcome_levels

    ordered = pd.Categorical(ratings.r, ["low", "medium", "high"])
    assert outcome(ordered) == ("low", "medium", "high")
    assert outcome(ratings.r, "C(r, levels=['low', 'medium', 'high']) ~ x") == outcome(ordered)
    stated = pd.Categorical(ratings.r, ordered=True)  # alphabetical, but declared as ordered
    assert outcome(stated) == ("high", "low", "medium")
    assert outcome(["1", "2", "10"] * 2) == ("1", "2", "10")
    for column in (ratings.r, ratings.r.astype("category")):
        refused(mo.SettingError, r"in alphabetical order \('high', 'low'", outcome, column)
    model_for(read_formula("r ~ x", ratings, progressbar=False), "softmax")  # needs no order


def test_without_any_trial_the_posterior_is_the_prior():
    x = np.random.default_rng(1).normal(size=(40, 1))
    rows = mo.Rows(x=x, y=np.zeros(40), trials=np.zeros(40))
    model = M.Binomial(prior_scale=0.5, intercept_scale=2.0)
    run = {"method": "laplace", "draws": 1_000, "chains": 2, "random_seed": 1, "progressbar": False}
    with pytest.warns(mo.ModicumWarning, match="prior"):
        post = mo.sample(model, rows, **run)
    assert {warning.code for warning in post.warnings} == {"prior-decides"}
    assert np.std(post["beta"]) == pytest.approx(0.5, rel=0.1)  # six Monte Carlo errors
    assert np.std(post["intercept"]) == pytest.approx(2.0, rel=0.1)

"""Outcomes, offsets and separation: what families check in the data."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from helpers.slow import slowly
from helpers.targets import logistic_rows, sums_of
from modicum.models import Target
from modicum.passes import anchor_at_mode

M = mo.models


def notes_of(model, rows, **kwargs):
    sums, start = sums_of(model, rows)
    names = tuple(f"beta[{c}]" for c in rows.columns)
    return anchor_at_mode(sums, start, (*names, "intercept"), **kwargs).notes


# Separation --------------------------------------------------------------------------------


def one_column(n, flip=None):
    rng = np.random.default_rng(n)
    x = rng.normal(size=n)
    y = (x > 0) * 1.0
    if flip is not None:
        at = np.argsort(np.abs(x))[flip]
        y[at] = 1 - y[at]
    return mo.Rows(x=x[:, None], y=y, columns=["dose"])


def three_columns(n, flip=None, **kwargs):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 3))
    eta = 0.3 + x @ [1.0, -1.0, 0.5]
    y = (eta > 0) * 1.0
    if flip is not None:
        at = np.argsort(np.abs(eta))[flip]
        y[at] = 1 - y[at]
    return mo.Rows(x=x, y=y, **kwargs)


RAW = {"prior_scale": 2.5, "intercept_scale": 10.0}
SIZES = [200, *slowly(2_000), 20_000]


@pytest.mark.parametrize(
    ("n", "settings"),
    [(200, {}), (20_000, RAW), *slowly((200, RAW), (2_000, {}), (2_000, RAW), (20_000, {}))],
)
def test_perfect_separation_is_warned_of_at_any_size(n, settings):
    (note,) = notes_of(M.Logistic(**settings), one_column(n))
    assert note.code == "separation"
    assert "the column dose alone predicts every outcome" in str(note)
    (note,) = notes_of(M.Logistic(**settings), three_columns(n))
    assert note.code == "separation"
    assert "the columns of x predict every outcome perfectly (complete separation)" in str(note)


@pytest.mark.parametrize("n", SIZES)
@cases("table flip", (one_column, 5), (one_column, 40), (three_columns, 150))
def test_one_row_on_the_other_side_is_enough_not_to(n, table, flip):
    found = notes_of(M.Logistic(), table(n, flip=flip))
    assert "separation" not in [note.code for note in found]


def test_informative_data_that_overlap_are_not_called_separated():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3_000, 3))
    y = rng.random(3_000) < 1 / (1 + np.exp(-4 * x @ [1.0, -1.0, 0.5]))
    assert notes_of(M.Logistic(), mo.Rows(x=x, y=y * 1.0)) == []


@pytest.mark.parametrize("one", [True, False])
def test_a_level_with_one_outcome_only_is_named(one):
    fields = dict(logistic_rows(2_000).slice(0, 2_000))
    level = np.arange(2_000) < 12
    y = np.where(level, 1.0 * one, fields["y"])
    x = np.c_[fields["x"], level]
    columns = ["age", "dose", "bmi", "town[b]"]
    (note,) = notes_of(M.Logistic(), mo.Rows(x=x, y=y, columns=columns))
    assert note.code == "separation"
    assert "town[b] predicts" in str(note)
    y[3] = 1.0 * (not one)  # the negative control: both outcomes occur
    assert notes_of(M.Logistic(), mo.Rows(x=x, y=y, columns=columns)) == []


def reference_without_events(flip=False):
    """Return two numeric columns and three levels, the first with no event or one."""
    fields, level = dict(logistic_rows(2_000).slice(0, 2_000)), np.arange(2_000) % 20 // 8
    y = np.where(level == 0, 0.0, fields["y"])
    y[0] = 1.0 * flip
    return fields["x"][:, :2], level, y


@pytest.mark.parametrize("coded", [True, False])
def test_a_reference_level_with_one_outcome_only_is_no_exception(coded):
    def found(flip):
        x, level, y = reference_without_events(flip)
        if coded:
            rows = mo.Rows(x=x, y=y, codes={"town": level}, columns=["age", "dose"])
        else:
            rows = mo.Rows(x=np.c_[x, level == 1, level == 2], y=y)
        return notes_of(M.Logistic(prior_scale=10.0), rows)

    (note,) = found(False)
    assert note.code == "separation"
    assert ("town[0] predicts" if coded else "a combination of columns") in str(note)
    assert "separation" not in [note.code for note in found(True)]


def test_quasi_separation_by_two_columns_together():
    """The difference of two columns predicts all rows but those on the diagonal."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 3, size=(2, 600))
    y = np.where(a == b, rng.random(600) < 0.5, a > b) * 1.0
    (note,) = notes_of(M.Logistic(), mo.Rows(x=np.c_[a, b], y=y))
    assert note.code == "separation"
    assert "a combination of columns" in str(note)
    at = np.flatnonzero(a != b)[0]
    y[at] = 1 - y[at]
    found = notes_of(M.Logistic(), mo.Rows(x=np.c_[a, b], y=y))
    assert "separation" not in [note.code for note in found]


def test_rows_of_weight_zero_do_not_overlap():
    fields = dict(one_column(300, flip=40).slice(0, 300))
    wrong = fields["y"] != (fields["x"][:, 0] > 0)
    rows = mo.Rows(**fields, weight=np.where(wrong, 0.0, 1.0))
    assert [n.code for n in notes_of(M.Logistic(), rows)] == ["separation"]


def test_classes_are_separated_too():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(900, 2))
    y = np.argmax(np.c_[x, np.full(900, 0.1)], axis=1) * 1.0
    assert [n.code for n in notes_of(M.Softmax(), mo.Rows(x=x, y=y))] == ["separation"]
    y[np.argmax(x[:, 0])] = 1.0
    assert "separation" not in [n.code for n in notes_of(M.Softmax(), mo.Rows(x=x, y=y))]


def test_a_column_of_years_hides_no_separation():
    fields = dict(three_columns(500).slice(0, 500))
    fields["x"] = fields["x"] + np.array([0.0, 0.0, 2000.0])
    rows = mo.Rows(**fields, dtype="float32")
    assert [n.code for n in notes_of(M.Logistic(), rows)] == ["separation"]


def test_looking_for_separation_is_entered_in_the_ledger():
    sums, start = sums_of(M.Logistic(), three_columns(300))
    anchor_at_mode(sums, start)
    assert sums.ledger.by_purpose["separation"] == 600  # single columns, then a direction of all


def silent_level(family, sd, n=1_500, silent=5):
    """Return a table with a level without counts, and moments of its coefficient by quadrature."""
    rng = np.random.default_rng(3)
    z, level = rng.normal(size=n), np.where(np.arange(n) < silent, "silent", "loud")
    rate = np.exp(0.5 * z - 1) * (level == "loud")
    y = rng.poisson(rate) if family == "poisson" else rng.random(n) < -np.expm1(-rate)
    table = pd.DataFrame({"y": y * 1, "z": z, "level": level})
    fit = sm.GLM(y[silent:], np.c_[np.ones(n - silent), z[silent:]], LINKS[family]).fit()
    beta = np.linspace(-12 * sd, 12, 200_001)
    expected = np.exp(fit.params[0] + fit.params[1] * z[:silent]).sum()
    density = np.exp(-0.5 * (beta / sd) ** 2 - expected * np.exp(beta))
    mean, square = (np.average(each, weights=density) for each in (beta, beta**2))
    return table, mean, np.sqrt(square - mean**2)


LINKS = {"poisson": sm.families.Poisson()}
LINKS["cloglog"] = sm.families.Binomial(sm.families.links.CLogLog())


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")  # of separation
@cases(
    "family sd method",
    ("poisson", 40.0, "auto"),
    *slowly(
        ("poisson", 5.0, "hmc-ecs"),
        ("poisson", 30.0, "hmc-ecs"),
        ("poisson", 5.0, "hmc-ecs-signed"),
        ("cloglog", 5.0, "auto"),
        ("cloglog", 100.0, "hmc-ecs"),
    ),
)
def test_a_level_without_counts_is_sampled_as_far_as_the_prior_reaches(family, sd, method):
    """The sums of such a level had false modes far away: every fit ended in an error."""
    table, mean, spread = silent_level(family, sd)
    priors = {"common": mo.priors.Normal(0, sd)}
    run = {"method": method, "priors": priors, "random_seed": 1, "progressbar": False}
    post = mo.fit("y ~ z + level", table, family=family, **run)
    line = post.summary().loc["beta[level[silent]]"]
    # the other coefficients, which quadrature holds fixed, add less than 0.1 to the sd
    assert line["mean"] == pytest.approx(mean, abs=4 * line["mcse_mean"] + 0.1)
    assert line["sd"] == pytest.approx(spread, rel=0.1)
    assert abs(mean) > 0.3 * sd  # negative control: at the prior's centre the test would fail


@pytest.mark.parametrize("sd", [2.5, 559.0])
def test_four_rows_without_an_event_are_warned_of_whatever_the_prior(sd):
    """With 559, their default once, the mean was -432 and no warning told why."""
    rng = np.random.default_rng(1)
    z, rare = rng.normal(size=20_000), np.arange(20_000) < 4
    y = (rng.random(20_000) < 1 / (1 + np.exp(1 - z))) & ~rare
    rows = mo.Rows(x=np.c_[z, rare], y=y * 1.0, columns=["z", "rare"])
    model = M.Logistic(priors={"rare": mo.priors.Normal(0, sd)})
    (note,) = notes_of(model, rows, within=0.05)  # a mode as rough as methods find it
    assert note.code == "separation"
    assert "rare" in str(note)


# Classes and offsets -----------------------------------------------------------------------


@pytest.mark.parametrize("model", [M.Softmax(), M.MLP(hidden=(3,))])
@cases(
    "change words",
    (lambda y: np.where(np.arange(50) == 7, 99_999, y), "99,996 never occur (class 3 is"),
    (lambda y: np.where(y == 1, 3, y), "1 never occur (class 1 is the first)"),
    (lambda y: y + 1, "has classes from 1 to 3, and their numbers must begin at 0; write C(y) ~"),
)
def test_classes_that_never_occur_are_refused(model, change, words):
    y = change(np.arange(50) % 3) * 1.0
    rows = mo.Rows(x=np.random.default_rng(1).normal(size=(50, 2)), y=y)
    with pytest.raises(mo.DataError, match="classes") as caught:
        mo.sample(model, rows, progressbar=False)
    assert words in str(caught.value)
    assert f"classes={int(y.max()) + 1}" in str(caught.value)


def test_given_classes_are_used():
    rows = mo.Rows(x=np.eye(6), y=np.array([1.0, 2, 1, 2, 1, 2]))
    assert Target.of(M.Softmax(classes=4), rows)[0].shapes[0] == (3, 6)


def test_names_of_rows_are_not_classes():
    rows = mo.Rows(x=np.zeros((300, 2)), y=np.arange(300) // 2 * 1.0)
    refused(mo.DataError, "150 classes in 300 rows", Target.of, M.Softmax(), rows)
    assert Target.of(M.Softmax(classes=150), rows)[0].size == 149 * 3


def test_an_offset_that_is_not_a_logarithm_is_named():
    offset = np.array([0.0, 800.0, 2.0])
    rows = mo.Rows(x=np.zeros((3, 1)), y=np.array([0.0, 1, 1]), offset=offset)
    with pytest.raises(mo.DataError, match=r"the offset is 800 in row 1.*np.log\(exposure\)"):
        mo.sample(M.Poisson(), rows, progressbar=False)
    mo.models.Logistic().check(rows)  # log-odds of 800 are strange, but do not overflow


@pytest.mark.parametrize("size", [-600.0, 600.0])
def test_large_offsets_that_can_be_held_are_fitted(size):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 1))
    y = rng.poisson(np.exp(0.5 * x[:, 0])) * 1.0
    sums, start = sums_of(M.Poisson(), mo.Rows(x=x, y=y, offset=np.full(400, size)))
    anchor = anchor_at_mode(sums, start)
    assert abs(anchor.point[0] - 0.5) < 0.2
    assert abs(anchor.point[1] + size) < 0.2


def test_outcomes_known_in_part_are_not_those_of_plain_normal_noise():
    """Beside smooths and groups the default took censored outcomes for values, errors for none."""
    rng = np.random.default_rng(1)
    n = 400
    data = pd.DataFrame({"x": rng.uniform(0, 6, n), "g": rng.choice(list("abcdefgh"), n)})
    data["y"] = np.sin(data["x"]) + rng.normal(size=8)[data["g"].map(ord) - 97]
    data["y"] += rng.normal(size=n)  # with an sd of 1, of which .8 is a known error
    data["seen"], data["late"] = np.minimum(data["y"], 0.0), data["y"] > 0.0
    data["error"] = 0.8
    post = fitted("seen | cens(late) ~ s(x, k=5) + (1 | g)", data, "gaussian")
    assert abs(post.mean("scale") - 1) < 4 * post.sd("scale")
    plain = fitted("seen ~ s(x, k=5) + (1 | g)", data, "gaussian")
    assert 1 - plain.mean("scale") > 6 * plain.sd("scale")
    post = fitted("y | se(error, sigma=True) ~ s(x, k=5) + (1 | g)", data, "gaussian")
    assert abs(post.mean("scale") - 0.6) < 4 * post.sd("scale")
    known = mo.models.Gaussian(scale=1.0, observed=("cens",))
    assert known.at_known_scale() is None is M.Lognormal(observed=("cens",)).at_known_scale()
    assert mo.models.Gaussian().at_known_scale() is not None


def fitted(formula, data, family):
    return mo.fit(formula, data, family=family, draws=250, random_seed=1, progressbar=False)

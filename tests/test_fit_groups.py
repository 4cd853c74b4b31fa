"""`mo.fit` with group terms, explicit or integrated: names, effects and predictions."""

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import modicum as mo
from helpers.refusals import refused, unwarned
from helpers.slow import slowly
from modicum.fit import model_for
from modicum.models.multilevel import multilevel
from modicum.models.over_draws import ModelPredictor, rebuild
from modicum.posterior.fit_rows import FitRows, rows_of_fit
from modicum.rows.reading import read_formula

FORMULA = "well ~ dose + (1 | ward)"
SETTINGS = {"method": "nuts", "draws": 100, "tune": 100, "chains": 2, "random_seed": 1}
EFFECTS = np.random.default_rng(5).normal(size=12)


@pytest.fixture(scope="module")
def frame():
    rng, n = np.random.default_rng(4), 900
    ward = rng.integers(0, 12, n)
    made = pd.DataFrame(
        {
            "dose": rng.normal(size=n),
            "ward": [f"w{i:02d}" for i in ward],
            "site": rng.choice(["east", "west"], n),
        }
    )
    eta = 0.3 + made["dose"] + EFFECTS[ward]
    return made.assign(well=(rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int))


@pytest.fixture(scope="module", params=["explicit", "integrate"])
def post(request, frame):
    with unwarned():  # of so few draws
        how = request.param
        return mo.fit(FORMULA, frame, groups=how, progressbar=False, **SETTINGS)


def names(formula, frame, how):
    rows = read_formula(formula, frame, progressbar=False)
    return dict(model_for(rows, "logistic", None, how).model.resolved(rows).labels(rows))


@pytest.mark.parametrize(
    ("term", "sds", "effects"),
    [
        ("(1 | ward)", ("ward",), {"1|ward": 12}),
        ("(dose | ward)", ("ward", "ward:dose"), {"1|ward": 12, "dose|ward": 12}),
        ("(dose || ward)", ("ward", "ward:dose"), {"1|ward": 12, "dose|ward": 12}),
        ("(0 + dose | ward)", ("ward:dose",), {"dose|ward": 12}),
        ("(1 | site:ward)", ("site:ward",), {"1|site:ward": 24}),
        ("(1 | site/ward)", ("site", "site:ward"), {"1|site": 2, "1|site:ward": 24}),
    ],
)
def test_names_of_draws(frame, term, sds, effects):
    labels = names(f"well ~ dose + {term}", frame, "explicit")
    assert labels["beta"] == (("dose",),)
    assert labels["group_sd"] == (sds,)
    assert {name: len(of[0]) for name, of in labels.items() if "|" in name} == effects
    correlated = term == "(dose | ward)"
    assert labels.get("group_cor") == ((("ward:1,dose",),) if correlated else None)
    integrated = names(f"well ~ dose + {term}", frame, "integrate")
    assert integrated.get("group_cor") == labels.get("group_cor")
    if "/" in term:  # the larger factor is integrated out, and comes first
        assert labels["1|site:ward"][0][:2] == ("east:w00", "east:w01")
        assert integrated["group_sd"] == (sds[::-1],)
        assert {name for name in integrated if "|" in name} == {"1|site"}
        return
    assert integrated["group_sd"] == (sds,)


SLOPES = {  # what multiplies each effect, by hand
    "(site | ward)": {"1": 1.0, "site[west]": "west"},
    "(0 + site || ward)": {"site[east]": "east", "site[west]": "west"},
    "(0 + dose | ward)": {"dose": "dose"},
    "(dose * site | ward)": {
        "1": 1.0,
        "dose": "dose",
        "site[west]": "west",
        "dose:site[west]": "both",
    },
}


@pytest.mark.parametrize("common", ["1", "dose", "site", "dose + site"])
@pytest.mark.parametrize("term", SLOPES)
def test_slopes_of_numbers_and_factors(frame, common, term):
    """The predictor is the common terms plus each ward's effects times their columns."""
    rows = read_formula(f"well ~ {common} + {term}", frame, progressbar=False)
    model = model_for(rows, "logistic", None, "explicit").model.resolved(rows)
    rng, labels = np.random.default_rng(1), model.labels(rows)
    shapes = {name: len(entries[0]) for name, entries in labels.items()}
    named = {name: rng.normal(size=n) for name, n in shapes.items() if "group" not in name}
    own = {"group_sd": rng.random(shapes["group_sd"])}
    own |= {"group_cor": np.zeros(shapes["group_cor"])} if "group_cor" in shapes else {}
    with jax.enable_x64(True):
        theta = model.restore(named | own | {"intercept": np.zeros(())})
        eta = np.asarray(model.linear(theta, rows.slice(0, len(rows))))
    west = (frame["site"] == "west").to_numpy(float)
    columns = {"dose": frame["dose"].to_numpy(), "west": west, "east": 1 - west}
    columns["both"] = columns["dose"] * west
    beta = dict(zip(labels.get("beta", ((),))[0], named.get("beta", ()), strict=True))
    expected = sum(b * columns[{"site[west]": "west"}.get(name, name)] for name, b in beta.items())
    level = frame["ward"].str[1:].astype(int).to_numpy()
    assert [f"{effect}|ward" for effect in SLOPES[term]] == [n for n in named if n != "beta"]
    for effect, column in SLOPES[term].items():
        expected = expected + columns.get(column, 1.0) * named[f"{effect}|ward"][level]
    np.testing.assert_allclose(eta, expected, atol=1e-6)
    # the default prior of a slope is in the unit of its column
    priors = model.describe_priors(rows)
    units = {"dose": frame["dose"].std(ddof=0), "dose:site[west]": columns["both"].std()}
    for effect in SLOPES[term]:
        name = "ward" if effect == "1" else f"ward:{effect}"
        scale = float(priors[f"group_sd[{name}]"].split("(")[1][:-1])
        assert scale == pytest.approx(2.5 / units.get(effect, 1.0), rel=0.01)


@pytest.mark.parametrize("how", ["explicit", *slowly("integrate")])
def test_slopes_of_a_factor_are_recovered(how):
    """Effects of a factor by group have their own sds, in known and in new groups."""
    rng, groups = np.random.default_rng(7), 150
    g = np.repeat(np.arange(groups), 12)
    kind = rng.choice(["a", "b"], len(g))
    u, v = rng.normal(size=(2, groups)) * [[0.5], [1.5]]
    y = 1 + u[g] + (0.7 + v[g]) * (kind == "b") + 0.5 * rng.normal(size=len(g))
    table = pd.DataFrame({"y": y, "kind": kind, "g": g})
    run = SETTINGS | {"method": "laplace" if how == "explicit" else "nuts", "progressbar": False}
    run |= {"family": mo.models.Gaussian(scale=0.5), "groups": how, "draws": 200, "tune": 200}
    post = mo.fit("y ~ kind + (kind | g)", table, **run)
    sds = post.summary(["group_sd"])
    truth = {"group_sd[g]": u.std(), "group_sd[g:kind[b]]": v.std()}
    for name, sd in truth.items():  # of the effects that were drawn, so within their noise
        assert abs(sds.loc[name, "mean"] - sd) < 4 * 0.1 * sd
    effects = post.effects("g")["mean"].unstack("effect")
    assert np.corrcoef(effects["g:kind[b]"], v)[0, 1] > 0.95
    new = post.predictive(pd.DataFrame({"kind": ["a", "b"]}), draws=400, random_seed=1)
    spread = np.std(np.asarray(new), axis=0)
    assert spread[1] > 2 * spread[0]  # sqrt(.5^2 + .5^2) and sqrt(.5^2 + .5^2 + 1.5^2)


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")  # of so few draws
def test_effects_are_joined_by_the_levels_of_the_table(frame, tmp_path):
    """Explicit effects were listed by text, '7', which joins with no number of the table."""
    numbered = frame.assign(ward=frame["ward"].str[1:].astype(int))
    few = SETTINGS | {"method": "laplace", "tune": None}
    post = mo.fit(FORMULA, numbered, groups="explicit", progressbar=False, **few)
    table = post.effects("ward")
    assert table.index.dtype == numbered["ward"].dtype
    assert list(table.index) == list(range(12))
    assert numbered.join(table["mean"], on="ward")["mean"].notna().all()
    assert list(post.effects("ward", levels=[7, "3"]).index) == [7, 3]
    post.save(tmp_path / "post")
    assert mo.Posterior.load(tmp_path / "post").effects("ward").index.equals(table.index)
    floats = numbered.assign(ward=numbered["ward"].astype(float))  # as beside missing values
    post = mo.fit(FORMULA, floats, groups="explicit", progressbar=False, **few)
    assert floats.join(post.effects("ward")["mean"], on="ward")["mean"].notna().all()


@pytest.mark.slow
def test_saved_and_loaded(frame, post, tmp_path):
    post.save(tmp_path / "post")
    loaded = mo.Posterior.load(tmp_path / "post")
    new = frame.iloc[:5]
    fresh = new.drop(columns="ward")
    np.testing.assert_allclose(loaded.predict(fresh).mean, post.predict(fresh).mean)
    if "1|ward" in post.draws:  # effects are in the file
        np.testing.assert_allclose(loaded.predict(new).mean, post.predict(new).mean)
        assert list(loaded.effects("ward")["mean"]) == list(post.effects("ward")["mean"])
        return
    refused(mo.SettingError, "need the rows of the fit", loaded.predict, new, groups="known")
    refused(mo.SettingError, "does not hold; give the rows", loaded.effects, "ward")
    rows = read_formula(FORMULA, frame, progressbar=False)
    for given in (rows, frame):
        again = loaded.effects("ward", rows=given)
        np.testing.assert_allclose(again["mean"], post.effects("ward")["mean"], atol=1e-6)
    held = mo.Posterior.load(tmp_path / "post", data=frame)
    np.testing.assert_allclose(held.predict(new).mean, post.predict(new).mean, atol=1e-6)
    page = loaded.report(tmp_path / "report.html", data=frame).read_text()
    assert page == held.report(tmp_path / "held.html").read_text()
    assert page.split("Effects of ward")[1].split("<section")[0].count('class="dot c0"') == 12


def test_slopes_are_called_as_their_columns_are(frame):
    spaced = frame.rename(columns={"dose": "air time"})
    labels = names("well ~ `air time` + (`air time` | ward)", spaced, "explicit")
    assert labels["group_sd"] == (("ward", "ward:air time"),)


def test_groups_without_a_common_column(frame):
    explicit = names("well ~ 1 + (1 | ward)", frame, "explicit")
    assert set(explicit) == {"1|ward", "group_sd"}
    assert set(names("well ~ 1 + (1 | ward)", frame, "integrate")) == {"group_sd"}


# What is refused ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def careless(frame):
    """Return a table with columns that cannot be groups or slopes."""
    n = len(frame)
    made = frame.assign(patient=[f"p{i}" for i in range(n)], age=np.arange(n) % 7 / 4)
    return made.assign(colour=[*"rgb"] * (n // 3))


REFUSED = {
    "well ~ dose + (1 | ward:patient)": "every row has its own",
    "well ~ dose + (1 |)": "names no column after",
    "well ~ dose + (1 | ward + site)": "must name columns after",
    "well ~ dose + (. | ward)": "'.' before |, but '.' means all columns only among the common",
    "well ~ dose + (1 | well)": "the outcome 'well' is determined by 'well'",
}


@pytest.mark.parametrize("formula", REFUSED)
@pytest.mark.parametrize("how", ["explicit", "integrate"])
def test_bad_groups_are_a_clear_error(careless, formula, how):
    with pytest.raises(mo.ModicumError, match=REFUSED[formula]):
        mo.fit(formula, careless, groups=how, progressbar=False)


def test_remedies_are_true(careless):
    """Following the advice of an error does not raise another one."""
    quiet = {"progressbar": False}
    with pytest.raises(mo.SettingError, match="each class has its own; use groups='explicit'"):
        mo.fit("colour ~ dose + (1 | ward)", careless, "softmax", groups="integrate", **quiet)
    for how in ("explicit", "integrate"):
        priors = {"group_sd": mo.priors.Normal(0, 1)}
        with pytest.raises(mo.SettingError, match="'group_sd' cannot be normal"):
            mo.fit(FORMULA, careless, priors=priors, groups=how, **quiet)
    infinite = careless.assign(age=np.where(np.arange(len(careless)) == 3, np.inf, 1.0))
    with pytest.raises(mo.DataError, match="'age' holds inf: replace it"):
        mo.fit("well ~ dose + (1 | age)", infinite, **quiet)


def test_scales_of_integrated_effects_have_any_priors(frame, x64):
    """Only half-normal ones, the same for all effects of a factor, were possible."""
    rows = read_formula("well ~ dose + (dose | ward)", frame, progressbar=False)
    own = {"group_sd[ward:dose]": mo.priors.Exponential(3), "group_sd": mo.priors.HalfCauchy(1)}
    targets = []
    for priors in (own, {"group_sd": mo.priors.HalfNormal(2)}):
        model = model_for(rows, "logistic", priors, "integrate").model
        targets.append(mo.models.Target.of(model, model.units(rows))[0])
        assert rebuild(ModelPredictor(targets[-1].model).to_dict()).model == targets[-1].model
    t = np.linspace(-1, 1, targets[0].size)
    gap = np.subtract(*(target.log_priors(t[None])[0] for target in targets))
    sds = targets[0].reports(t[None])["group_sd"][0]  # the intercepts' first

    def log_ratio(sd, slope):
        chosen = stats.halfcauchy.logpdf(sd) + stats.expon.logpdf(slope, scale=1 / 3)
        return chosen - stats.halfnorm.logpdf([sd, slope], scale=2).sum()

    np.testing.assert_allclose(gap, log_ratio(*sds), atol=1e-9)
    assert abs(gap - log_ratio(*sds[::-1])) > 0.1  # negative control: the other way round


# Stores ------------------------------------------------------------------------------------


def test_a_store_lies_in_the_order_of_its_largest_group(frame, tmp_path):
    """Its effects can be integrated out; a table in another order still matches the fit."""
    formula = "well ~ dose + (1 | site) + (1 | ward)"
    store = read_formula(formula, frame, store=tmp_path / "s", progressbar=False)
    ordered = frame.sort_values("ward", kind="stable")
    memory = read_formula(formula, ordered, progressbar=False)
    assert store.is_store
    assert store.fingerprint() == memory.fingerprint()
    known = FitRows.of(store)
    assert rows_of_fit(frame, known, "a check").fingerprint() == store.fingerprint()
    other = frame.assign(dose=frame["dose"] + 1)
    assert rows_of_fit(other, known, "a check").fingerprint() != store.fingerprint()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_integrated_from_a_store(tmp_path):
    """Groups fetched from disk, a resumed run, a correction and signed draws."""
    rng, n = np.random.default_rng(3), 1_200
    g, x = rng.integers(0, 150, n), rng.normal(size=n)
    y = rng.random(n) < 1 / (1 + np.exp(0.5 - 0.8 * x - 0.6 * rng.normal(size=150)[g]))
    frame = pd.DataFrame({"y": y, "x": x, "g": [f"l{k:03d}" for k in g]})
    frame.to_parquet(tmp_path / "table.parquet")
    run = {"groups": "integrate", "draws": 60, "tune": 40, "chains": 2, "random_seed": 1}
    run |= {"progressbar": False, "dtype": "float64"}
    term = "y ~ x + (1 | g)"
    fetched = mo.HMCECS(memory_limit=0)
    path = tmp_path / "table.parquet"
    first = mo.fit(term, path, store=tmp_path / "s", method=fetched, **run)
    ordered = frame.sort_values("g", kind="stable")
    second = mo.fit(term, ordered, method="hmc-ecs", **run)
    for name, draws in first.draws.items():
        np.testing.assert_allclose(draws, second.draws[name], atol=1e-6)
    assert first.correct(frame, progressbar=False).tuning["correction"]["pareto_k"] < 0.7
    table = first.effects("g")
    np.testing.assert_allclose(table["mean"], second.effects("g")["mean"], atol=1e-6)
    np.testing.assert_array_equal(table["rows"], frame.groupby("g").size())
    # a finished run is loaded from its checkpoint, with rows from the store
    rows = mo.Rows.open(tmp_path / "s")
    model = model_for(rows, "logistic", None, "integrate").model
    again = {k: v for k, v in run.items() if k not in ("groups", "dtype")}
    for _ in range(2):
        kept = mo.sample(model, rows, method=fetched, checkpoint=tmp_path / "run", **again)
        np.testing.assert_array_equal(kept.draws["group_sd"], first.draws["group_sd"])
    with pytest.raises(mo.ModicumError, match="150 groups are too few for subsampling"):
        mo.fit(term, frame, method="hmc-ecs-signed", **run)


@pytest.mark.parametrize(("levels", "how"), [(100, "explicit"), (1_000, "integrate")])
def test_many_levels_of_some_rows_are_integrated_out(levels, how):
    rng, n = np.random.default_rng(9), 100 * levels
    codes = {"g": np.arange(n) % levels, "h": rng.integers(0, 12, n)}
    rows = mo.Rows(x=rng.normal(size=(n, 1)), y=rng.random(n) < 0.5, codes=codes)
    terms = [mo.models.GroupTerm("g"), mo.models.GroupTerm("h")]
    held = multilevel(mo.models.Logistic(), terms, rows)
    assert held.how == how
    assert ("explicit parameters would take" in held.why) == (how == "integrate")


def test_thin_groups_are_explicit_where_they_need_no_chain():
    n = 6_000
    codes = {"g": np.arange(n) % 1_500}
    rows = mo.Rows(x=np.arange(n)[:, None] % 5.0, y=np.arange(n) % 7.0, codes=codes)
    terms, M = [mo.models.GroupTerm("g")], mo.models

    def how(family, no_chain=True):
        return multilevel(family, terms, rows, no_chain=no_chain).how

    assert how(M.Gaussian()) == "explicit"
    assert how(M.Gaussian(), no_chain=False) == how(M.StudentT()) == "integrate"
    assert how(M.Gaussian(priors={"intercept": mo.priors.StudentT(3.0)})) == "integrate"


def test_the_factor_of_the_most_levels_is_integrated_out():
    rng, n = np.random.default_rng(8), 6_000
    codes = {"plane": rng.integers(0, 1_900, n), "carrier": rng.integers(0, 120, n)}
    rows = mo.Rows(x=rng.normal(size=(n, 1)), y=rng.random(n) < 0.5, codes=codes, columns=["a"])
    terms = [mo.models.GroupTerm("carrier", ("1", "a")), mo.models.GroupTerm("plane")]
    priors = {"group_sd": mo.priors.HalfNormal(2), "carrier": mo.priors.HalfNormal(3)}
    held = multilevel(mo.models.Logistic(priors=priors), terms, rows)
    model = held.model
    assert isinstance(model, mo.models.IntegratedEffects)
    assert (held.how, model.group) == ("integrate", "plane")
    assert model.group_sd == (priors["group_sd"],)
    assert model.family.group_terms == (terms[0],)
    assert dict(model.family.prior_table) == priors
    assert multilevel(mo.models.Logistic(), terms, rows, "explicit").how == "explicit"
    both = {"plane": codes["plane"], "tail": rng.permutation(n) // 2}
    crossed = mo.Rows(x=rng.normal(size=(n, 1)), y=rng.random(n) < 0.5, codes=both, columns=["a"])
    wide = [mo.models.GroupTerm("tail"), mo.models.GroupTerm("plane", ("1", "a"))]
    with pytest.raises(mo.SettingError, match=r"2,500 besides the effects of one .*merge levels"):
        multilevel(mo.models.Logistic(), wide, crossed, "explicit")
    many = [mo.models.GroupTerm("carrier", tuple("1a")), mo.models.GroupTerm("plane", ("1", "a"))]
    codes["carrier"] = rng.integers(0, 900, n)
    crowded = mo.Rows(x=rng.normal(size=(n, 1)), y=rng.random(n) < 0.5, columns=["a"], codes=codes)
    with pytest.raises(mo.SettingError, match="up to 1000 other parameters"):
        multilevel(mo.models.Logistic(), many, crowded, "integrate")


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")  # of so few draws
@pytest.mark.slow
@pytest.mark.parametrize("intercept", [1, 0])
@pytest.mark.parametrize("how", ["explicit", "integrate"])
def test_a_fit_without_a_common_column(frame, how, intercept):
    """Integrated groups raised an IndexError, and new groups of explicit ones could not be met."""
    few = SETTINGS | {"draws": 10, "tune": 10}
    formula = f"well ~ {intercept} + (1 | ward)"
    post = mo.fit(formula, frame, groups=how, progressbar=False, **few)
    new = post.predict(frame[["dose"]].iloc[:2], draws=20)
    at = post["intercept"].reshape(-1, 1) if intercept else 0.0
    sd = post["group_sd"].reshape(-1, 1)
    xi, w = np.polynomial.hermite_e.hermegauss(50)
    by_hand = (1 / (1 + np.exp(-(at + sd * xi))) @ w / w.sum()).mean()
    np.testing.assert_allclose(new.mean, by_hand, rtol=1e-5)


def test_effects_of_groups_may_stand_alone():
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"g": np.repeat(np.arange(8), 6)})
    table["y"] = 3 + rng.normal(size=8)[table["g"]] + rng.normal(size=48)
    run = {"family": "gaussian", "random_seed": 1, "progressbar": False}
    alone, beside = (mo.fit(f, table, **run) for f in ("y ~ 0 + (1 | g)", "y ~ 1 + (1 | g)"))
    sd, scale = (alone.resample()[name].reshape(-1, 1) for name in ("group_sd", "scale"))
    shrunk = (table.groupby("g")["y"].mean().to_numpy() / (1 + scale**2 / sd**2 / 6)).mean(axis=0)
    np.testing.assert_allclose(alone.effects("g")["mean"], shrunk, atol=0.03)
    centred = beside.effects("g")["mean"] + beside.mean("intercept")
    assert abs(centred - shrunk).max() > 0.03  # negative control: these are drawn to their mean

"""Effects: tabulated, used in predictions, averaged over for new groups."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import ndtri

import modicum as mo
from helpers.posteriors import at_nodes, bare, made
from helpers.refusals import refused
from modicum import plots

G = mo.models.GroupTerm
SDS, SLOPE = (0.9, 0.4), 0.7


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    n, levels = 800, 25
    ward, dose = rng.integers(0, levels, n), rng.normal(size=n)
    effects = rng.normal(size=(levels, 2)) * SDS
    eta = -0.3 + (SLOPE + effects[ward, 1]) * dose + effects[ward, 0]
    well = rng.random(n) < 1 / (1 + np.exp(-eta))
    names = np.array([f"w{k:02d}" for k in range(levels)])
    return pd.DataFrame({"well": well, "dose": dose, "ward": names[ward]}), effects


@pytest.fixture(scope="module")
def post(table):
    run = {"draws": 300, "chains": 2, "random_seed": 1, "progressbar": False}
    return mo.fit("well ~ dose + (1 + dose || ward)", table[0], **run)


def test_effects_are_a_table_by_level_and_effect(post, table):
    frame, truth = table
    effects = post.effects("ward")
    assert list(effects.columns) == ["mean", "sd", "5%", "95%", "mcse_mean", "rows"]
    of_intercept = effects.xs("ward", level="effect")
    assert (of_intercept["rows"] == frame["ward"].value_counts().sort_index()).all()
    z = (of_intercept["mean"].to_numpy() - truth[:, 0]) / of_intercept["sd"].to_numpy()
    assert np.mean(z**2) < 2.5  # 25 of about 1; all share the error of the intercept
    shuffled = (of_intercept["mean"].to_numpy()[::-1] - truth[:, 0]) / of_intercept["sd"]
    assert np.mean(shuffled**2) > 2.5  # the check notices effects of other levels
    some = post.effects("ward", levels=["w03"])
    pd.testing.assert_frame_equal(some, effects.loc[["w03"]])


@pytest.mark.parametrize(
    ("groups", "words"),
    [((), "the model has no groups"), (("ward", "town"), "name the group .* ward, town")],
)
def test_without_a_name_there_must_be_one_group(groups, words):
    one = bare(mo.models.Logistic(groups=groups), {"beta": np.zeros((1, 4, 1))})
    refused(mo.SettingError, words, one.effects)


def test_levels_and_groups_that_are_not_there_are_named(post, table):
    refused(mo.DataError, "there is no 'ward' 'w99'", post.effects, "ward", levels=["w99"])
    refused(mo.SettingError, r"no effects of 'wards'.*did you mean 'ward'", post.effects, "wards")
    pd.testing.assert_frame_equal(post.effects(), post.effects("ward"))  # the only group
    with pytest.raises(mo.SettingError, match="must be a list of levels of 'ward', not DataFrame"):
        post.effects("ward", table[0])
    with pytest.raises(mo.SettingError, match="must be a list of levels of 'ward', not a name"):
        post.effects("ward", "w03")


def test_a_loaded_posterior_has_its_effects_and_takes_its_rows(post, table, tmp_path):
    frame = table[0]
    post.save(tmp_path / "post")
    loaded = mo.Posterior.load(tmp_path / "post")
    effects = post.effects("ward")
    pd.testing.assert_frame_equal(loaded.effects("ward"), effects.drop(columns="rows"))
    pd.testing.assert_frame_equal(loaded.effects("ward", rows=frame), effects)
    refused(mo.SettingError, r"load\(path, data=\.\.\.\)", plots.shrinkage, loaded, "ward")
    again = mo.Posterior.load(tmp_path / "post", data=frame)
    assert again.table is frame
    pd.testing.assert_frame_equal(again.effects("ward"), effects)
    pd.testing.assert_frame_equal(again.icc(), post.icc())
    with pytest.raises(mo.DataError, match="not the rows the posterior was sampled with"):
        post.icc(table[0].assign(dose=1000 * table[0]["dose"]))
    np.testing.assert_array_equal(again.ppc(draws=20).table, post.ppc(draws=20).table)
    new = pd.DataFrame({"dose": [0.3], "ward": ["w02"]})
    np.testing.assert_allclose(loaded.predict(new).mean, post.predict(new).mean)
    with pytest.raises(mo.DataError, match="these are not the rows"):
        mo.Posterior.load(tmp_path / "post", data=frame.assign(dose=frame["dose"] + 1))


def test_reports_show_effects_whether_or_not_the_rows_are_there(post, table, tmp_path):
    post.save(tmp_path / "post")
    loaded = mo.Posterior.load(tmp_path / "post")

    def section(source, **settings):
        page = source.report(tmp_path / "report.html", **settings).read_text()
        return page.split("<h2>Effects of ward</h2>")[1].split("</section>")[0]

    whole = section(post)
    assert whole.count("<svg") == 2  # what is expected by ward, and slopes
    assert 'aria-label="chance of well by ward"' in whole
    assert whole.count('class="dot c0"') == 2 * 25
    assert ">rows</th>" in whole
    assert section(loaded, data=table[0]) == whole
    alone = section(loaded)
    assert "ward:dose, added to the log-odds of well" in alone
    assert ">rows</th>" not in alone
    other = section(loaded, data=table[0].assign(dose=0.5))  # rows that are not those of the fit
    assert ">rows</th>" not in other
    assert "chance of well by ward" in other


def test_known_groups_are_predicted_by_their_effects(post):
    new = pd.DataFrame({"dose": [0.0, 0.0], "ward": ["w00", "w01"]})
    mean = post.predict(new, draws=600).mean
    intercept, effect = post.draws["intercept"], post.draws["1|ward"]
    by_hand = [(1 / (1 + np.exp(-intercept - effect[..., k]))).mean() for k in (0, 1)]
    np.testing.assert_allclose(mean, by_hand, rtol=1e-10)
    assert post.predict(new, draws=600, groups="known").mean == pytest.approx(mean)


def test_new_groups_are_averaged_over(post):
    """Compare with many effects drawn from each draw's own scale."""
    new = pd.DataFrame({"dose": [0.0, 1.5]})
    mean = post.predict(new, draws=600).mean
    rng = np.random.default_rng(1)
    intercept, slope = post.draws["intercept"].ravel(), post.draws["beta"][..., 0].ravel()
    sd = post.draws["group_sd"].reshape(-1, 2)
    u = rng.normal(size=(400, *sd.shape)) * sd
    eta = intercept + u[..., 0] + (slope + u[..., 1]) * np.array([0.0, 1.5])[:, None, None]
    np.testing.assert_allclose(mean, (1 / (1 + np.exp(-eta))).mean(axis=(1, 2)), atol=0.004)
    plain = (1 / (1 + np.exp(-intercept - slope * 1.5))).mean()  # for an average group
    assert abs(plain - mean[1]) > 0.01
    with_column = new.assign(ward=["w00", "w01"])
    np.testing.assert_allclose(post.predict(with_column, draws=600, groups="new").mean, mean)


def test_groups_must_be_given_where_they_matter(post, table):
    with pytest.raises(mo.DataError, match="lack the field 'ward'"):
        post.predict(pd.DataFrame({"dose": [0.0]}), groups="known")
    refused(mo.ModicumError, "ward", post.score, table[0].drop(columns="ward"))


def test_intraclass_correlations(post, table):
    """Compare with the formula, draw by draw; logit noise has variance pi^2 / 3."""
    found = post.icc()
    sd = post.draws["group_sd"]
    dose = np.mean(table[0]["dose"] ** 2)  # the slope's variance is that of dose times effect
    between = sd[..., 0] ** 2 + dose * sd[..., 1] ** 2
    share = between / (between + np.pi**2 / 3)
    assert list(found.index) == ["ward"]
    assert found.loc["ward", "mean"] == pytest.approx(share.mean(), rel=1e-6)
    assert found.loc["ward", "5%"] == pytest.approx(np.quantile(share, 0.05), abs=2e-3)
    # other noise, and Poisson counts of a known mean
    draws = {"group_sd": np.full((1, 4, 2), 0.5)}
    terms = [G("a"), G("b")]
    rows = mo.Rows(x=np.ones((4, 1)), y=np.array([0.0, 1.0, 2.0, 5.0]))

    def shares(model, rows=rows):
        return bare(model, draws, 4, rows=rows).icc()["mean"]

    poisson, noise = shares(mo.models.Poisson(groups=terms)), np.log1p(1 / 2)
    np.testing.assert_allclose(poisson[["a", "b"]], 0.25 / (0.5 + noise))
    assert poisson["all groups"] == pytest.approx(0.5 / (0.5 + noise))
    # the variance of slopes is an average over rows, each counted as often as its weight
    fields = {"y": np.ones(3), "weight": np.array([1.0, 0.0, 3.0])}
    rows = mo.Rows(x=np.array([[1.0], [7.0], [2.0]]), columns=["dose"], **fields)
    slope = shares(mo.models.Probit(groups=G("a", ("dose",))), rows)["a"]
    assert slope == pytest.approx(0.25 * 13 / 4 / (0.25 * 13 / 4 + 1))
    for family, noise in ((mo.models.Probit, 1.0), (mo.models.Ordinal, np.pi**2 / 3)):
        known = shares(family(groups=terms), rows=None)
        assert known["all groups"] == pytest.approx(0.5 / (0.5 + noise))
    refused(mo.SettingError, "has no established variance", shares, mo.models.Gamma(groups=terms))
    refused(mo.SettingError, "this model has none", shares, mo.models.Logistic())
    # each class has effects, and nothing about its noise differs between rows
    classes = mo.models.Softmax(classes=3, groups=terms, modelled=("p", "q"), intercept=False)
    refused(mo.SettingError, "Softmax has no established variance", shares, classes)


def best_alone(rows, base, z):
    """Return the maximum-likelihood effect on `z` of a level's rows, by SciPy."""

    def minus_log_likelihood(u):
        eta = base + z * u
        return np.sum(np.logaddexp(0, eta) - rows["well"] * eta)

    return minimize_scalar(minus_log_likelihood, bracket=(-1, 1)).x


def test_shrinkage_begins_at_what_own_rows_say(post, table):
    frame, m = table[0], post.summary()["mean"]
    pooled = post.effects("ward")["mean"].unstack("effect")
    hollow = plots.shrinkage(post, "ward", levels=["w04", "w00"]).lines[1].get_ydata()
    slopes = plots.shrinkage(post, "ward", effect="dose", levels=["w04"]).lines[1].get_ydata()
    for level, drawn in zip(["w04", "w00"], hollow, strict=True):
        rows = frame[frame["ward"] == level]
        base = m["intercept"] + (m["beta[dose]"] + pooled.loc[level, "ward:dose"]) * rows["dose"]
        assert drawn == pytest.approx(best_alone(rows, base, 1.0), abs=1e-3)
        away = abs(drawn) - abs(pooled.loc[level, "ward"])
        assert away > 0 or abs(away) < 0.05  # estimates from many rows hardly move
    rows = frame[frame["ward"] == "w04"]
    base = m["intercept"] + m["beta[dose]"] * rows["dose"] + pooled.loc["w04", "ward"]
    assert slopes[0] == pytest.approx(best_alone(rows, base, rows["dose"]), abs=1e-3)


def test_levels_of_like_outcomes_have_no_estimate_of_their_own(post, table):
    """A level whose outcomes are all 1 is a triangle at the edge, and has a posterior mean."""
    frame = table[0]
    y = 1.0 * (frame["well"] | (frame["ward"] == "w04"))
    x = frame[["dose"]].to_numpy()
    changed = mo.Rows(x=x, y=y, columns=["dose"], codes={"ward": frame["ward"]})
    ax = plots.shrinkage(replace(post, rows=changed), "ward", levels=["w04", "w05"])
    points = {line.get_marker(): len(line.get_xdata()) for line in ax.lines[1:4]}
    assert points == {"o": 1, "^": 1, "v": 0}


def test_pictures_of_effects(post):
    """They show the numbers of the table, in order."""
    table = post.effects("ward").xs("ward:dose", level="effect")
    ax = plots.caterpillar(post, "ward", effect="ward:dose")
    drawn = ax.lines[0].get_xdata()
    np.testing.assert_allclose(drawn, np.sort(table["mean"]))
    assert [t.get_text() for t in ax.get_yticklabels()] == list(table["mean"].sort_values().index)
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        t.get_text() for t in plots.caterpillar(post, "ward", effect="dose").get_yticklabels()
    ]
    ax = plots.shrinkage(post, "ward")
    np.testing.assert_allclose(ax.lines[0].get_xdata(), post.effects("ward")["rows"][::2])
    with pytest.raises(mo.SettingError, match="there is no effect 'ward:x'"):
        plots.caterpillar(post, "ward", effect="ward:x")


def test_integrated_effects_have_the_moments_of_their_nodes():
    """Against the closed form of a normal model; one draw per effect would leave 5% of noise."""
    rng = np.random.default_rng(8)
    g = np.repeat(np.arange(30), rng.integers(2, 12, 30))
    y = rng.normal(size=30)[g] + 0.8 * rng.normal(size=len(g))
    rows = mo.Rows(x=np.zeros((len(g), 1)), y=y, g=g)
    model = mo.models.IntegratedEffects(mo.models.Gaussian(scale=0.8), "g").resolved(rows)
    number = 2_000
    draws = {"beta": np.zeros((1, number, 1)), "group_sd": np.full((1, number, 1), 0.9)}
    draws["intercept"] = 0.1 + 0.05 * ndtri((rng.permutation(number) + 0.5) / number)[None]
    post = made(at_nodes(model, rows, draws), rows, draws)
    size, means = np.bincount(g), np.bincount(g, y) / np.bincount(g)
    variance = 1 / (size / 0.8**2 + 1 / 0.9**2)
    shrunk = variance * size / 0.8**2
    sd = np.sqrt(variance + shrunk**2 * 0.05**2)
    table = post.effects("g")
    np.testing.assert_allclose(table["mean"], shrunk * (means - 0.1), atol=1e-3)
    np.testing.assert_allclose(table["sd"], sd, rtol=1e-3)
    np.testing.assert_allclose(table["95%"] - table["mean"], 1.645 * sd, rtol=0.01)
    np.testing.assert_allclose(table["mcse_mean"], 0.05 * shrunk / np.sqrt(number), rtol=0.5)
    few = post.effects("g", draws=100)
    assert few.attrs["draws"] == 100
    assert np.abs(few["sd"] / sd - 1).max() < 0.01
    backwards = post.effects("g", levels=list(range(30))[::-1])
    np.testing.assert_allclose(backwards["mean"], table["mean"][::-1], rtol=1e-6)


@pytest.mark.parametrize("weight", [None, [0.0, 2.0, 1.0, 3.0, 1.0], [0.5, 0.5, 1.0, 2.0, 1.0]])
def test_rows_of_effects_count_as_often_as_their_weights_say(weight):
    g, y = np.array([1, 0, 1, 2, 2]), np.array([0.3, -0.1, 0.2, 1.0, 0.4])
    fields = {} if weight is None else {"weight": np.array(weight)}
    count = np.bincount(g, weight)
    draws = {"beta": np.zeros((1, 4, 1)), "intercept": np.zeros((1, 4))}
    draws["group_sd"] = np.full((1, 4, 1), 0.9)
    rows = mo.Rows(x=np.zeros((5, 1)), y=y, g=g, **fields)
    model = mo.models.IntegratedEffects(mo.models.Gaussian(scale=0.8), "g").resolved(rows)
    coded = mo.Rows(x=np.zeros((5, 1)), y=y, codes={"g": np.array(list("abc"))[g]}, **fields)
    explicit = mo.models.Gaussian(scale=0.8, groups="g").resolved(coded)
    shown = draws | {"1|g": np.zeros((1, 4, 3))}
    kept = made(explicit, coded, shown, labels=explicit.labels(coded))
    for post in (made(at_nodes(model, rows, draws), rows, draws), kept):
        found = post.effects("g")["rows"]
        assert found.tolist() == count.tolist()
        assert (found.dtype.kind == "i") == np.all(count == count.astype(int))
        if weight is not None:  # the control: lines, which weights are not
            assert found.tolist() != np.bincount(g).tolist()

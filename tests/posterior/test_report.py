"""Reports and notebook displays: complete, safe from injection, with correct lights."""

import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.posteriors import bare, fixed, made, of_formula
from modicum.errors import ModicumWarning, SettingError
from modicum.markup import Markup, tag
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import FitRows
from modicum.posterior.display import lights, overall
from modicum.posterior.ppc import PredictiveCheck
from modicum.posterior.report import code_for
from modicum.rows.reading import read_formula

EVIL = '<script>alert("x")</script>'
RNG = np.random.default_rng(1)
BOUND = {"value": 0.02, "why": "x"}


class Page(HTMLParser):
    """Parse tags and text of a page; every tag must be closed."""

    VOID = ("meta", "br", "line", "circle", "rect", "polyline", "polygon")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text, self.attributes = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes
        if name not in self.VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def posterior(**changes):
    """Return a made-up posterior of a formula with hostile levels and columns."""
    n = 240
    table = pd.DataFrame({"hour": RNG.integers(0, 24, n), EVIL: RNG.normal(size=n)})
    table["ward"] = RNG.choice([EVIL, "b & c", "d'\"e"], n)
    table["dest"] = RNG.choice(["ORD", EVIL], n)
    table["late"] = RNG.random(n) < 0.4
    formula = f"late ~ bs(hour, df=4) + ward + `{EVIL}`"
    rows = read_formula(formula, table, progressbar=False)
    beta = RNG.normal(0, 0.2, size=(4, 200, len(rows.columns)))
    model = mo.models.Logistic().resolved(rows)
    settings = {"formula": formula, "method": "hmc-ecs", "rows": n, "seed": 3, "tune": 100}
    settings |= {"settings": "HMCECS(...)", "seconds": 2.0, "jax": "0", "modicum": "0"}
    ledger = mo.Ledger(rows=n, full_data=10_000_000)
    ledger.add("sampling", 12_345, "gradient")
    values = {
        "draws": {"beta": beta, "intercept": RNG.normal(0, 0.1, size=(4, 200))},
        "stats": {"diverging": np.zeros((4, 200), bool)},
        "ledger": ledger,
        "labels": model.labels(rows),
        "warnings": [ModicumWarning("ess", f"few draws in {EVIL}", "draw more")],
        "tuning": {"priors": model.describe_priors(rows), "bias_bound": BOUND},
        "settings": settings,
        "predictor": ModelPredictor(model),
        "fit_rows": FitRows.of(rows),
        "rows": rows,
        "table": table,
    }
    return mo.Posterior(**values | changes)


@pytest.fixture(scope="module")
def post():
    return posterior()


@pytest.fixture(scope="module")
def page(post, tmp_path_factory):
    path = post.report(tmp_path_factory.mktemp("report") / "report.html")
    return path.read_text()


def test_the_page_is_whole_and_says_everything(page):
    read = Page(page)
    for words in (
        *("A logistic regression of late on hour, ward", "fitted to 240 rows"),
        *("What each variable does", "chance of late", "mean and 90% interval"),
        *("Does it look like the data?", "data sets drawn from it", "Coefficients"),
        *("What it cost", "Priors", "How to run it again", "few draws in", "draw more"),
        *("0.12% of what HMC on all rows", "240 rows", "random_seed=3", "bias_bound"),
    ):
        assert words in read.words
    assert read.tags.count("svg") == read.tags.count("figure") == 4  # three columns and a check
    assert ("class", "light doubtful") in read.attributes
    assert ("aria-label", "chance of late by hour") in read.attributes
    words = r"The largest gap is where predicted chance of late is [\d.]+%: [\d.]+% observed"
    assert re.search(words, read.words)
    assert read.words.index("Usable with care") < read.words.index("What each variable does")
    assert len(page) < 1_000_000


def test_counts_are_those_of_one_unit_of_exposure_and_products_are_shown_together(tmp_path):
    table = pd.DataFrame({"age": RNG.normal(size=90), "km": RNG.uniform(1, 9, 90)})
    table["fuel"] = RNG.choice(["gas", "diesel"], 90)
    table["n"] = RNG.poisson(table["km"])
    post = of_formula("n ~ age * fuel + offset(log(km))", table, mo.models.Poisson())
    read = Page(post.report(tmp_path / "counts.html").read_text())
    labels = [value for name, value in read.attributes if name == "aria-label"]
    assert labels.count("expected n at km = 1 by age") == 2  # alone, and with the fuel
    assert "expected n at km = 1 by fuel" in labels
    assert "rows, on a square-root scale by n" in labels
    assert "age and fuel" in read.words
    assert "A Poisson regression of n on" in read.words
    assert "fuel diesel" in read.words  # a curve's name
    assert not any("km" in label.split(" by ")[-1] for label in labels)


def test_the_order_of_levels_is_no_part_of_an_outcome_s_name():
    table = pd.DataFrame({"age": RNG.normal(size=60), "size": ["low", "high", "middle"] * 20})
    for formula, name in (
        ('C(size, levels=["low", "middle", "high"]) ~ age', "size"),
        ("log(age + 9) ~ size", "log(age + 9)"),
    ):
        family = mo.models.Ordinal() if name == "size" else mo.models.Gaussian()
        assert of_formula(formula, table, family).outcome_name() == name


def test_draws_and_priors_are_called_what_they_are(tmp_path):
    """Weighted draws are no chains, and cutpoints have names."""
    n, rng = 120, np.random.default_rng(3)
    table = pd.DataFrame({"dose": rng.normal(size=n)})
    size = np.digitize(table["dose"] + rng.logistic(size=n), [-1, 0.5])
    table["size"] = pd.Categorical.from_codes(size, ["low", "middle", "high"], ordered=True)
    post = mo.fit("size ~ dose", table, "ordinal", draws=250, random_seed=1, progressbar=False)
    for text in (repr(post), str(post), Page(post.report(tmp_path / "r.html").read_text()).words):
        assert "1,000 independent draws, repeated by weight" in text
        assert "chains of" not in text
    weights = rng.random((4, 250))
    again = mo.Posterior(post.draws, {}, post.ledger, weights=weights, settings=post.settings)
    assert "1,000 independent draws, with weights" in repr(again)
    assert "1,000 independent draws, repeated by weight" in repr(again.resample())
    assert post.tuning["priors"] == {
        "beta": post.tuning["priors"]["beta"],
        "-cutpoint[low|middle]": "normal(0, 10), of the predictor at the mean of the columns",
        "log(cutpoint[middle|high] - cutpoint[low|middle])": "normal(0, 5)",
    }
    given = {"gap_0001": mo.priors.Exponential(1.0)}
    priors = mo.priors.default("size ~ dose", table, "ordinal", priors=given)
    assert priors["cutpoint[middle|high] - cutpoint[low|middle]"] == "exponential(1)"
    settings = post.settings | {"independent": False, "method": "nuts"}
    chains = mo.Posterior(post.draws, {}, post.ledger, settings=settings)
    assert "4 chains of 250 draws" in repr(chains)  # negative control


def test_groups_are_sorted_by_what_is_expected_of_them(tmp_path):
    table = pd.DataFrame({"x": RNG.normal(size=90), "site": list("abc") * 30})
    draws = fixed(60, beta=[1], intercept=0, group_sd=[1], **{"1|site": [0.0, 2.0, 1.0]})
    gaussian, table["y"] = mo.models.Gaussian(scale=1.0), table["x"]
    post = of_formula("y ~ x + (1 | site)", table, gaussian, draws, "explicit")
    post.labels = post.predictor.model.labels(post.rows)
    words = Page(post.report(tmp_path / "groups.html").read_text()).words
    assert "mean and 90% interval; largest for b, smallest for a" in words
    assert "expected y" in words
    assert "added to the" not in words  # which is that of effects beyond the first


def test_parameters_with_formulas_are_shown_by_their_columns(tmp_path):
    table = pd.DataFrame({"x": RNG.normal(size=90), "z": RNG.normal(size=90)})
    post = of_formula("y ~ x; scale ~ z", table.assign(y=table["x"] ** 2), mo.models.Gaussian())
    read = Page(post.report(tmp_path / "scale.html").read_text())
    assert "A Gaussian regression of y and its scale on x and z" in read.words
    labels = [value for name, value in read.attributes if name == "aria-label"]
    assert {"expected y by x", "scale of y by z"} <= set(labels)
    assert "scale of y by x" not in labels  # x is not in its formula
    drawn = post.marginal("z", at=[0.0, 1.0], parameter="scale")
    for value, mean in drawn["mean"].items():
        by_hand = np.exp(post["scale.intercept"] + value * post["scale.beta"][..., 0]).mean()
        assert mean == pytest.approx(by_hand, rel=1e-6)
    with pytest.raises(SettingError, match="those that have one: scale"):
        post.marginal("z", parameter="sigma")


def test_nothing_is_loaded_and_nothing_runs(page):
    read = Page(page)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(read.tags)
    names = {name for name, _ in read.attributes}
    assert {"src", "href", "onclick", "onload", "onerror"}.isdisjoint(names)
    assert "http:" not in page
    assert "https:" not in page
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in read.attributes


def test_names_of_columns_and_levels_are_shown_as_they_are(page):
    assert "<script" not in page
    assert f"levels of ward {EVIL}" in Page(page).words
    # negative control: declared markup is not escaped
    assert "<script" in tag("p", Markup(EVIL))
    assert "<script" not in tag("p", EVIL, title=EVIL)


def test_a_posterior_without_rows_has_a_shorter_page(post, tmp_path):
    without = posterior(rows=None, table=None, predictor=None, warnings=[])
    text = without.report(tmp_path / "short.html", title="a & b").read_text()
    words = Page(text).words
    assert "a & b" in words
    assert "effects of columns need the rows of the fit" in words
    assert "What each variable does" not in words
    with pytest.raises(SettingError, match="prob must be a number between 0 and 1"):
        post.report(tmp_path / "no.html", prob=2)


def test_a_posterior_without_rows_takes_a_table(post, page, tmp_path):
    post.save(tmp_path / "post.npz")
    loaded = mo.Posterior.load(tmp_path / "post.npz")
    text = loaded.report(tmp_path / "full.html", data=post.table).read_text()
    assert text.count("<svg") == page.count("<svg")
    assert "predictive check" in text
    assert "predictive check" not in loaded.report(tmp_path / "short.html").read_text()


def test_effects_that_a_file_does_not_keep_are_named(post, tmp_path):
    rows = mo.Rows(x=np.zeros((12, 1)), y=np.arange(12) % 2, codes={"ward": np.arange(12) // 4})
    model = mo.models.IntegratedEffects(mo.models.Logistic(), "ward").resolved(rows)
    draws = {name: RNG.normal(size=(2, 50, *s)) for name, s in (("beta", (1,)), ("intercept", ()))}
    draws["group_sd"] = np.exp(RNG.normal(size=(2, 50, 1)))
    words = Page(bare(model, draws, 12).report(tmp_path / "a.html").read_text()).words
    assert "Effects of ward These effects were integrated out and are drawn from the rows" in words
    assert "give the rows or their table: post.report(path, data=...)" in words


def test_every_class_has_a_picture(tmp_path):
    rows = mo.Rows(x=RNG.normal(size=(60, 1)), y=np.arange(60) % 3, columns=["dose"])
    draws = {"beta": RNG.normal(size=(2, 50, 2, 1)), "intercept": RNG.normal(size=(2, 50, 2))}
    page = made(mo.models.Softmax().resolved(rows), rows, draws).report(tmp_path / "classes.html")
    read = Page(page.read_text())
    assert all(f"class {k}" in read.words for k in range(3))
    assert read.tags.count("figure") == 2  # one picture of all classes, and the check


def found(level, r_hat=1.001, ess=900, diverging=0, bias=0.01, warnings=()):
    summary = pd.DataFrame(
        {"r_hat": [1.0, r_hat], "ess_bulk": [ess, 2000.0], "ess_tail": [1500.0, 2000.0]},
        index=["a", "b"],
    )
    stats = {"diverging": np.arange(4000).reshape(4, 1000) < diverging}
    tuning = {"bias_bound": {"value": bias, "why": ""}}
    draws = {"a": np.zeros((4, 1000))}
    run = mo.Posterior(draws, stats, mo.Ledger(rows=1), tuning=tuning, warnings=list(warnings))
    return overall(lights(run, summary))[0] == level


def test_lights():
    assert found("good")
    for name, doubtful, bad in (
        ("r_hat", 1.03, 1.2), ("ess", 300.0, 40.0), ("diverging", 3, 400), ("bias", 0.2, 0.9),
    ):  # fmt: skip
        assert found("doubtful", **{name: doubtful})
        assert found("bad", **{name: bad})
    assert found("doubtful", warnings=[ModicumWarning("ess", "few draws")])


def test_a_run_that_says_nothing_of_itself_is_not_called_fine():
    run = mo.Posterior({"a": np.zeros((1, 1))}, {}, mo.Ledger(rows=1))
    assert overall(lights(run, run.summary()))[0] == "bad"


def test_a_model_that_misses_the_data_is_doubtful(page):
    run = mo.Posterior({"a": RNG.normal(size=(4, 100))}, {}, mo.Ledger(rows=1))

    def judged(p):
        check = PredictiveCheck("counts", pd.DataFrame(), "", 9, 100, 0.9, p)
        found = lights(run, run.summary(), check)
        return next(light for light in found if light.name == "predictive check")

    light = judged(1 / 101)
    assert (light.level, light.figure) == ("doubtful", "p = 0.0099")
    assert judged(0.05).level == "good"
    assert "predictive check" in Page(page).words


def test_the_code_to_run_it_again_has_offset_and_weights():
    formula = "n ~ age + offset(log_km)"
    names = ("n", "age", "log_km", "log_years", "copies")
    table = pd.DataFrame({name: np.arange(1.0, 7.0) for name in names})
    fields = {"offset": "log_years", "weights": "copies"}
    rows = read_formula(formula, table, progressbar=False, **fields)
    settings = {"formula": formula, "method": "hmc", "tune": 9, "seed": 1}
    post = posterior(settings=settings, fit_rows=FitRows.of(rows))
    code = code_for(post, mo.models.Poisson())
    assert """family="poisson", offset='log_years', weights='copies', method="hmc",""" in code


@pytest.mark.parametrize(
    ("draws", "words"),
    [
        ({"beta": np.zeros((2, 99, 0)), "intercept": RNG.normal(size=(2, 99))}, "fine: "),
        ({"beta": RNG.normal(size=(2, 30))}, "look: Usable with care: effective draws "),
        ({"beta": np.full((2, 30, 2), np.nan)}, "wrong: "),
        ({"one": np.ones((1, 1))}, "R-hat unknown"),
        ({"flag": RNG.random((2, 40)) < 0.5}, "Draws of flag, from 1 rows"),
    ],
)
def test_odd_draws_can_be_printed(draws, words):
    post = bare(None, draws)
    assert words in str(post)
    assert "table" in Page(post._repr_html_()).tags


@pytest.mark.parametrize("columns", ["70", "110"])
def test_lines_of_a_printed_posterior_fit_the_terminal(post, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    lines = str(post).splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert ("\N{BLACK CIRCLE}" in str(post)) == (columns == "110")
    assert ("beta[bs(hour, df=4)[1]] " in str(post)) == (columns == "110")
    monkeypatch.setenv("COLUMNS", "300")  # the control: sentences are longer than that
    assert max(map(len, str(post).splitlines())) > 100


def test_notebooks_show_boxes_without_injection(post, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for shown in (post, post.rows, post.ledger):
        text = shown._repr_html_()
        read = Page(text)
        assert "script" not in read.tags
        assert "table" in read.tags
    shown = Page(post._repr_html_())
    for words in ("few draws in", "look : Usable with care: ", "A logistic regression of late on"):
        assert words in shown.words
        assert words.replace(" : ", ": ") in str(post)
    assert shown.tags.count("svg") == str(post).count("\N{BLACK CIRCLE}") > 5  # of coefficients
    assert "mean and 90% interval, " in shown.words
    assert "240 rows" in Page(post.rows._repr_html_()).words
    assert "12,345 row evaluations" in Page(post.ledger._repr_html_()).words

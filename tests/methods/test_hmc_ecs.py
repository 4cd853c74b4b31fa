"""HMC-ECS: right answers, reproducible draws, correct counts, guards that warn."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers import toy
from helpers.cases import cases
from helpers.interrupted import planned
from helpers.pilots import small_pilots
from helpers.quadrature import moments
from helpers.refusals import refused
from helpers.targets import (
    all_of,
    class_rows,
    disagreements,
    flat_draws,
    gaussian_rows,
    heavy_rows,
    logistic_rows,
    poisson_rows,
    quick,
)
from modicum.methods.ecs.run_checks import Case, look_back
from modicum.models import Target
from modicum.run import runner

M = mo.models
RUN = {"draws": 2_000, "tune": 400, "chains": 2, "random_seed": 11, "progressbar": False}


# Right answers -----------------------------------------------------------------------------

FAMILIES = {
    "logistic": (M.Logistic(), logistic_rows),
    "poisson": (M.Poisson(), poisson_rows),
    "gaussian": (M.Gaussian(), gaussian_rows),
    "known scale": (M.Gaussian(scale=0.7), gaussian_rows),
    "student": (M.StudentT(scale=0.6), gaussian_rows),
    "softmax": (M.Softmax(classes=3), class_rows),
}


@pytest.fixture(scope="module", params=FAMILIES)
def by_all_rows(request):
    model, make = FAMILIES[request.param]
    rows = make(3_000)
    return model, rows, mo.sample(model, rows, method="nuts", **RUN)


@pytest.mark.slow
@cases(
    "method",
    *(mo.HMCECS(order=1), mo.HMCECS(order=2)),
    *(mo.SignedHMCECS(design="weighted"), mo.SignedHMCECS(design="uniform")),
    ids=["order 1", "order 2", "signed", "signed, uniform rows"],
)
def test_families_against_all_rows(by_all_rows, method):
    model, rows, theirs = by_all_rows
    post = mo.sample(model, rows, method=method, **RUN)
    assert post.warnings == []
    assert post.weights is None or (post.weights > 0).all()
    assert disagreements(flat_draws(post), flat_draws(theirs)) == []


def decay():
    def log_likelihood(theta, batch):
        mean = theta["level"] * jnp.exp(-theta["rate"] * batch["time"])
        return -0.5 * ((batch["seen"] - mean) / 0.2) ** 2

    def log_prior(theta):
        return -0.5 * (theta["level"] / 3) ** 2 - 0.5 * theta["rate"] ** 2

    rng = np.random.default_rng(8)
    at = rng.uniform(0, 3, 2_000)
    seen = 2.0 * np.exp(-0.7 * at) + 0.2 * rng.normal(size=2_000)
    model = mo.Model(log_prior, log_likelihood, {"level": 1.0, "rate": 0.1})
    return model, mo.Rows(time=at, seen=seen)


def test_a_nonlinear_custom_model_by_quadrature():
    model, rows = decay()
    post = mo.sample(model, rows, method="hmc-ecs", **RUN | {"draws": 1_000})
    # two parameters: a grid gives the answer without any sampling
    centre, wide = flat_draws(post).mean((0, 1)), 6 * flat_draws(post).std((0, 1))
    axes = [np.linspace(c - w, c + w, 81) for c, w in zip(centre, wide, strict=True)]
    level, rate = np.meshgrid(*axes, indexing="ij")
    log = -0.5 * (level / 3) ** 2 - 0.5 * rate**2
    for t, s in zip(*all_of(rows).values(), strict=True):
        log -= 0.5 * ((s - level * np.exp(-rate * t)) / 0.2) ** 2
    right, spread = moments(log, level, rate)
    error = post.summary()["mcse_mean"].to_numpy()
    assert np.all(np.abs(centre - right) < 4.5 * error)
    np.testing.assert_allclose(flat_draws(post).std((0, 1)), spread, rtol=0.08)


@pytest.mark.slow
def test_the_papers_schedule_on_the_toy():
    paper = mo.HMCECS(expert=mo.ECSExpert(tuning="paper"))
    post = toy.sample(paper, draws=3000, chains=2, random_seed=4)
    assert toy.faults(post) == []
    assert post.tuning["blocks"] == {"value": 100, "why": "as in the paper"}
    first, second = post.tuning["recalibration"]  # m before and after 100 iterations
    assert post.tuning["subsample"]["value"] == second
    assert f"{first:,.0f}" in post.tuning["subsample"]["why"]  # our own choice, which is reported


@pytest.mark.slow
def test_the_signed_method_by_the_papers_schedule_on_the_toy():
    paper = mo.SignedHMCECS(expert=mo.ECSExpert(tuning="paper"), batch=3)
    post = toy.sample(paper, draws=3000, chains=2, random_seed=4)
    assert toy.faults(post) == []
    assert post.tuning["refreshes"] == {"value": 1, "why": "as in the paper"}
    assert len(post.tuning["burn-in variance"]) == 1_000
    assert post.ledger.by_purpose["burn-in"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_simulation_based_calibration(family):
    """Ranks of the truth among posterior draws are uniform over data sets drawn from the model."""
    from scipy.stats import chi2

    model = FAMILIES[family][0]
    model = type(model)(prior_scale=0.5, intercept_scale=0.5)
    # as a pilot study would choose, fixed so that all runs share one compiled kernel
    method = mo.HMCECS(subsample=100, blocks=20, refreshes=5)
    rng, ranks, kept = np.random.default_rng(1), [], 63
    for seed in range(60):
        x, truth = rng.normal(size=(1_000, 2)), rng.normal(size=3) * 0.5
        eta = x @ truth[:2] + truth[2]
        y = rng.random(1_000) < 1 / (1 + np.exp(-eta))
        if family == "poisson":
            y = rng.poisson(np.exp(eta))
        post = quick(
            model, mo.Rows(x=x, y=y * 1.0), method=method, draws=8 * kept, tune=200, chains=1,
            random_seed=seed,
        )  # fmt: skip
        ranks.append((flat_draws(post)[0, ::8] < truth).sum(0))
    for column in np.array(ranks).T:
        counts = np.bincount(column * 4 // (kept + 1), minlength=4)
        assert ((counts - 15) ** 2 / 15).sum() < chi2.isf(1e-4, 3)


# Honest accounts ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good():
    method = mo.HMCECS(inner="hmc", design="weighted", order=2)
    settings = {"draws": 600, "tune": 300, "chains": 4, "random_seed": 1, "progressbar": False}
    return mo.sample(toy.MODEL, toy.rows(), method=method, **settings)


def test_every_choice_is_explained(good):
    for name in ("subsample", "blocks", "refreshes", "design", "step_size", "bias_bound"):
        assert set(good.tuning[name]) == {"value", "why"}
        assert good.tuning[name]["why"]
    m, G, K = (good.tuning[name]["value"] for name in ("subsample", "blocks", "refreshes"))
    assert m % G == 0
    assert 1 <= K <= G
    assert 0 < good.tuning["bias_bound"]["value"] <= 0.05
    assert "median" in good.tuning["variance"]
    assert good.tuning["design"]["value"] == "weighted"
    step = good.tuning["step_size"]["value"]
    assert step == pytest.approx(good.stats["step_size"].mean())
    assert good.warnings == []


def test_the_ledger_adds_up(good):
    m, G, K = (good.tuning[name]["value"] for name in ("subsample", "blocks", "refreshes"))
    steps, touched = good.stats["n_steps"], good.stats["rows_touched"]
    np.testing.assert_array_equal(touched, K * m // G + m * (steps + 1))
    spent = good.ledger.by_purpose
    assert spent["sampling"] == touched.sum()
    assert spent["design"] == 3 * toy.N  # expected residuals, and whether curves of levels pay
    assert spent["pilot"] == 256 * toy.N
    assert spent["warm-up"] > 0
    assert spent["start"] == m * good.chains
    assert good.ledger.evaluations == sum(spent.values())
    # full-data HMC along the same trajectories: the mode, and n rows per step
    steps_of_all = good.ledger.full_data - spent["mode"]
    assert steps_of_all % toy.N == 0
    assert steps_of_all // toy.N > steps.sum()
    assert good.ledger.share == good.ledger.evaluations / good.ledger.full_data
    assert good.ledger.share < 0.1


@pytest.mark.slow
def test_single_precision_is_accepted_as_often():
    rows = logistic_rows(20_000, dtype="float32")
    rates = {}
    for precision in ("float32", "float64"):
        method = mo.HMCECS(expert=mo.ECSExpert(precision=precision), step_size=0.6)
        post = mo.sample(
            M.Logistic(), rows, method=method,
            draws=800, tune=20, chains=2, random_seed=1, progressbar=False,
        )  # fmt: skip
        rates[precision] = np.array([post.stats[f"acceptance_rate{u}"].mean() for u in ("", "_u")])
        assert post.stats["variance_estimate"].max() < 0.1
    np.testing.assert_allclose(rates["float32"], rates["float64"], atol=0.015)


# Guards ------------------------------------------------------------------------------------


def test_uniform_rows_of_a_heavy_tailed_design_are_warned_of():
    rows = heavy_rows()
    plan, _ = planned(M.Logistic(), rows, mo.HMCECS(design="uniform", subsample=500))
    (note,) = [note for note in plan.notes if note.code == "heavy-tails"]
    assert 'design="weighted"' in note.remedy
    plan, _ = planned(M.Logistic(), rows, mo.HMCECS())
    assert not any(note.code == "heavy-tails" for note in plan.notes)


def history(**changes):
    """Return the history of a good run with `changes`."""
    rng = np.random.default_rng(1)
    shape = (2, 400)
    stats = {
        "variance_estimate": np.full(shape, 0.4),
        "acceptance_rate_u": np.full(shape, 0.9),
        "difference_estimate": rng.normal(size=shape),
    }
    position = changes.pop("position", rng.normal(size=(*shape, 3)))
    return runner.History(position, stats | changes, {}, True)


def looked_back(history, rows=10_000, m=100, refreshes=1, studied=None, **settings):
    """Return the warnings about a run with m rows in 20 blocks."""
    target, _ = Target.of(toy.MODEL, toy.rows())
    case = Case(mo.HMCECS(**settings).studied, target, rows, studied)
    return look_back(case, m, 20, refreshes, history)


def slow_walk(length=400):
    return np.cumsum(np.random.default_rng(2).normal(size=(2, length)), axis=1)


HIGH = {"variance_estimate": np.full((2, 400), 6.0)}
FAR = {"position": np.full((2, 400, 3), [0.0, 1.4, 0.0])}


@cases(
    "code changes settings words",
    ("variance-high", HIGH, {}, "exceeded 3 .*subsample=300"),
    ("variance-high", {"variance_estimate": np.full((2, 400), 600.0)}, {}, "'nuts' on all"),
    ("variance-high", HIGH, {"m": 71_940}, "'nuts'"),
    (
        "refreshes-refused",
        {"acceptance_rate_u": np.full((2, 400), 0.05)},
        {"m": 20},
        r"5% of the subsample refreshes.*=100\)",
    ),
    ("anchor-far", FAR, {}, "1.4 posterior sd from the mode, .*'nuts' on all"),
    ("anchor-far", FAR, {"anchor": [0.0]}, 'anchor="mode"'),
    ("anchor-far", FAR, {"studied": np.zeros((60, 3))}, "from the pilot draws by which rows"),
    ("subsample-slow", {"difference_estimate": slow_walk()}, {}, "raise `refreshes`"),
    ("subsample-slow", {"difference_estimate": slow_walk()}, {"refreshes": 20}, "more draws"),
)
def test_each_guard_looks_back_and_gives_a_remedy_that_can_be_followed(
    code, changes, settings, words
):
    assert looked_back(history()) == []  # of a good run
    (doubt,) = looked_back(history(**changes), **settings)
    assert doubt.code == code
    assert re.search(words, str(doubt))
    assert str(doubt).endswith(".")


def test_what_the_rows_show_to_be_impossible_is_refused():
    crude = (toy.MODEL, toy.rows(), mo.HMCECS(order=0))
    refused(mo.SettingError, "too crude.*order 2", planned, *crude)
    plan, _ = planned(toy.MODEL, toy.rows(), mo.HMCECS(order=0, subsample=100))
    assert any("too few" in note and "order 2" in note for note in map(str, plan.notes))
    rows = mo.Rows(**toy.rows().slice(0, 100), probability=np.ones(100))
    refused(mo.SettingError, "rename your field", planned, toy.MODEL, rows, mo.HMCECS())
    short = (toy.MODEL, toy.rows(), mo.HMCECS(anchor=[0.0, 1.0, 2.0]))
    refused(mo.SettingError, r"3 entries.*4 unconstrained", planned, *short)


def test_an_anchor_from_a_thousandth_of_the_rows_is_not_silent():
    x, rng = np.random.default_rng(1).normal(size=(20_000, 3)), np.random.default_rng(2)
    y = (rng.random(20_000) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))) * 1.0
    far = np.array([2.5, -2.6, 1.6, 0.4])  # plausible for 20 rows
    rows = mo.Rows(x=x, y=y)
    with small_pilots():
        plan, _ = planned(M.Logistic(), rows, mo.HMCECS(anchor=far, subsample=100))
    assert any("too few" in note and "mode" in note for note in map(str, plan.notes))


@cases(
    "settings words",
    ({"subsample": 100, "blocks": 30}, "use 120 rows"),
    ({"design": "stratified"}, "'uniform' or 'weighted'"),
    ({"exact": "delayed", "inner": "nuts"}, "reversible"),
    ({"expert": mo.ECSExpert(tuning="paper"), "anchor": [0.0]}, "its own anchor"),
    ({"expert": mo.ECSExpert(integrator="split"), "inner": "nuts"}, "for inner='hmc'"),
)
def test_wrong_settings_are_refused_with_a_reason(settings, words):
    assert "\n" not in refused(mo.SettingError, words, mo.HMCECS, **settings)

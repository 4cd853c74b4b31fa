"""`mo.Model`: constrained parameters, fields of any kind, what is refused and why."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.refusals import refused
from helpers.targets import quick
from modicum.models import Target

RNG = np.random.default_rng(3)
GROUP = RNG.integers(0, 3, 60)
Y = RNG.normal(size=(60, 2)) + GROUP[:, None]
ROWS = mo.Rows(y=Y, group=GROUP, late=GROUP > 1)


def log_prior(th):
    return -0.5 * jnp.sum(th["mu"] ** 2) - th["sigma"] + jnp.sum(jnp.log(th["w"]))


def log_likelihood(th, batch):
    assert jnp.issubdtype(batch["group"].dtype, jnp.integer)
    assert batch["late"].dtype == bool
    gap = (batch["y"] - th["mu"] - batch["late"][:, None]) / th["sigma"]
    return jnp.sum(-0.5 * gap**2 - jnp.log(th["sigma"]), axis=1) + jnp.log(th["w"][batch["group"]])


def expected(th, batch):
    return th["mu"][0] + th["w"][batch["group"]]


SETTINGS = {
    "constraints": {"sigma": mo.positive, "w": mo.simplex},
    "shapes": {"mu": 2, "w": 3},
    "report": lambda th: {"precision": th["sigma"] ** -2},
}
MODEL = mo.Model(log_prior, log_likelihood, predict=expected, **SETTINGS)


@pytest.fixture(scope="module")
def post():
    start = {"mu": np.zeros(2), "sigma": 2.0, "w": np.array([0.2, 0.3, 0.5])}
    return quick(MODEL, ROWS, starts=[start])


def test_draws_are_within_bounds_and_derived_quantities_beside_them(post):
    assert {name: x.shape[2:] for name, x in post.draws.items()} == {
        "mu": (2,), "precision": (), "sigma": (), "w": (3,),
    }  # fmt: skip
    np.testing.assert_allclose(post["precision"], post["sigma"] ** -2.0)
    np.testing.assert_allclose(post["w"].sum(axis=-1), 1)
    assert post["sigma"].min() > 0
    assert "w[2]" in post.summary().index


def test_prediction_and_storage_know_the_kinds_of_fields(post, tmp_path):
    new = {"group": [2, 0], "late": [True, False]}
    chances = post.predict(new).mean
    exact = (post["mu"][..., :1] + post["w"][..., [2, 0]]).mean(axis=(0, 1))
    np.testing.assert_allclose(chances, exact)
    post.save(tmp_path / "post.zarr")
    again = mo.Posterior.load(tmp_path / "post.zarr", model=MODEL)
    np.testing.assert_allclose(again.predict(new).mean, chances)
    other = mo.Model(log_prior, log_likelihood, init={"mu": np.zeros(2), "sigma": 1.0})
    with pytest.raises(mo.SettingError, match="another model"):
        mo.Posterior.load(tmp_path / "post.zarr", model=other)


def test_kinds_survive_a_store(tmp_path):
    rows = mo.rows.ingest(ROWS, tmp_path / "store", progressbar=False)
    assert rows.kinds == ROWS.kinds == {"group": "integer", "late": "boolean"}
    assert rows.subset(np.arange(3)).kinds == rows.kinds
    MODEL.check(rows)
    assert rows.fields["y"] == (2,)


def test_target_is_the_users_density_times_the_jacobian(x64):
    target, start = Target.of(MODEL, ROWS)
    assert target.model.flat_names() == ("mu[0]", "mu[1]", "log(sigma)", "free w[0]", "free w[1]")
    np.testing.assert_array_equal(start, 0)
    t = np.array([0.1, 0.2, 0.3, 0.4, -0.5])

    @jax.jit
    def both(t, batch, kinds):
        theta = target.report(t)
        ours = target.log_prior(t), target.log_likelihood(t, batch)
        return theta, ours, (log_prior(theta), log_likelihood(theta, kinds))

    batch, kinds = ROWS.slice(0, 60), {"y": Y, "group": GROUP, "late": GROUP > 1}
    theta, (prior, likelihood), (users, right) = both(t, batch, kinds)
    stretched = 0.3 + np.sum(np.log(theta["w"])) + 0.5 * np.log(3)
    assert float(prior) == pytest.approx(float(users) + stretched, rel=1e-12)
    np.testing.assert_allclose(likelihood, right, rtol=1e-12)
    named = {name: np.asarray(x)[None] for name, x in theta.items()}
    np.testing.assert_allclose(target.ravel_reported(named)[0], t, rtol=1e-12)


def test_a_function_may_draw_the_points_to_start_from():
    model = mo.Model(
        lambda th: -th["a"],
        lambda th, b: -b["y"] * th["a"],
        init=lambda key: {"a": jnp.exp(jax.random.normal(key))},
        constraints={"a": mo.positive},
    )
    points = {float(p["a"]) for p in model.points}
    assert len(points) == 4
    assert len(model.other_starts(mo.Rows(y=np.ones(3)))) == 3


FOUR = mo.Rows(y=np.ones(4))


def flat(th):
    return 0


def decay(th, batch):
    return -th["a"] * batch["y"]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"constraints": {"a": "positive"}}, "must be mo.positive"),
        ({"constraints": [1]}, "must map names"),
        ({"constraints": {"b": mo.positive}, "init": {"a": 1.0}}, "which is not a parameter"),
        ({"constraints": {"a": mo.simplex}}, "needs a vector"),
        ({"constraints": {"a": mo.positive}, "init": {"a": -1.0}}, "allows positive numbers"),
        ({"shapes": {"a": 2}, "init": {"a": 1.0}}, "leave `shapes` out"),
        ({"shapes": {"a": 0}}, "whole numbers"),
        ({"report": lambda th: {"a": th["a"]}}, "give it another name"),
        ({"report": lambda th: th["a"]}, "must return a dict"),
        ({"report": lambda th: {"c": th["z"]}}, "`report` fails"),
        ({"init": lambda key: 1 / 0}, "the function `init` fails"),
        ({"init": {}}, "holds no parameters"),
        ({"init": {"a": "zero"}}, "'a'"),
        ({"log_likelihood": 3.0}, "log_likelihood"),
        ({"log_likelihood": lambda th, b: b["y"][:, None] - th["a"]}, "one value per row"),
        ({"log_likelihood": lambda th, b: b["dose"] * th["a"]}, "'dose'"),
        ({"log_likelihood": lambda th, b: b["y"] @ jnp.ones(9), "init": {"a": 0.0}}, "fail on"),
        ({"log_prior": lambda th: jnp.ones(2) * th["a"]}, "one number"),
    ],
)
def test_refusals(settings, word):
    parts = {"log_prior": flat, "log_likelihood": decay}
    refused(mo.SettingError, word, lambda: Target.of(mo.Model(**parts | settings), FOUR))


def test_refusals_without_init():
    rows = mo.Rows(x=np.ones((4, 2)), y=np.ones(4))
    with pytest.raises(mo.SettingError, match="`shapes` says otherwise"):
        Target.of(mo.Model(flat, lambda th, b: b["x"] @ th["beta"]), rows)
    with pytest.raises(mo.SettingError, match="look up no parameter"):
        Target.of(mo.Model(flat, lambda th, b: b["y"]), rows)
    with pytest.raises(mo.SettingError, match="the model asks for 'z'"):
        Target.of(mo.Model(flat, lambda th, b: th["a"] * b["z"]), rows)


@pytest.mark.parametrize(
    "settings",
    [
        {"constraints": {"a": mo.positive, "aa": mo.positive}},
        {"shapes": {"aa": 3}},
        {"init": {"a": 1.0, "aa": 0.0}},
    ],
)
def test_a_parameter_that_nothing_reads_is_refused(settings):
    """A misspelt name made a parameter without bounds, and ruined the draws of the others."""
    model = mo.Model(lambda th: -(th["a"] ** 2), decay, **settings)
    refused(
        mo.SettingError, "log_likelihood reads the parameter 'aa'", mo.LogPosterior, model, FOUR
    )
    both = mo.Model(lambda th: -sum(x**2 for x in th.values()), decay, init={"a": 1.0, "b": 0.0})
    mo.LogPosterior(both, FOUR)  # negative control: read without its name


def test_nested_parameters_are_named_by_path():
    init = {"layer": {"w": np.zeros((2, 3)), "b": 0.0}, "rates": [1.0, 2.0]}
    model = mo.Model(
        lambda th: sum(map(jnp.sum, jax.tree.leaves(th))), lambda th, b: b["y"], init=init
    )
    target, start = Target.of(model, FOUR)
    shapes = {name: leaf.shape for name, leaf in target.report(start).items()}
    assert shapes == {"layer.b": (), "layer.w": (2, 3), "rates.0": (), "rates.1": ()}
    assert float(model.restore(target.report(start))["rates"][1]) == 2.0
    refused(mo.SettingError, "predict", model.expected, init, {})


MIXED = [lambda y: y - jnp.mean(y), lambda y: y / len(y), lambda y: y - jnp.roll(y, 1)]


@pytest.mark.parametrize("mixed", MIXED)
def test_rows_that_are_not_independent_are_refused(mixed):
    rows = mo.Rows(y=np.arange(1.0, 9.0) ** 2)  # at the start, where a is 0, nothing shows
    with pytest.raises(mo.SettingError, match="changes with the other rows of its batch"):
        Target.of(mo.Model(flat, lambda th, b: -((th["a"] * mixed(b["y"])) ** 2)), rows)


def test_independence_follows_the_globals_of_a_formula():
    rows, share = mo.Rows(y=np.arange(1.0, 9.0) ** 2), {"of the mean": 0.0}

    def likelihood(th, b):
        return -((th["a"] * (b["y"] - share["of the mean"] * jnp.mean(b["y"]))) ** 2)

    Target.of(mo.Model(flat, likelihood), rows)
    share["of the mean"] = 1.0
    words = "changes with the other rows of its batch"
    refused(mo.SettingError, words, Target.of, mo.Model(flat, likelihood), rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_is_no_dependence_between_rows(dtype):
    y = np.random.default_rng(1).normal(size=9) + 1e4
    model = mo.Model(flat, lambda th, b: -((b["y"] - jnp.exp(th["a"])) ** 2) / 2)
    Target.of(model, mo.Rows(y=y.astype(dtype)))


def test_python_on_traced_values_is_named_with_and_without_init():
    def branches(th, batch):
        return decay(th, batch) if th["a"] > 0 else batch["y"]

    for init in (None, {"a": 1.0}):
        branching = mo.Model(flat, branches, init=init)
        refused(mo.SettingError, "traced by JAX, so `if`", Target.of, branching, FOUR)


def test_positive_parameters_choose_what_they_are_expanded_in():
    def model(**settings):
        return Target.of(mo.Model(log_prior, log_likelihood, **SETTINGS, **settings), ROWS)[0].model

    assert model().expansions() == {"sigma": None}
    assert model(expand={"sigma": "square"}).expansions() == {"sigma": "square"}
    refused(mo.SettingError, "not a parameter", model(expand={"sgma": "square"}).expansions)
    with pytest.raises(mo.SettingError, match="does not map each entry to a logarithm"):
        model(expand={"w": "square"}).expansions()
    refused(mo.SettingError, "expand must map", model, expand="square")
    wrong = mo.Model(log_prior, log_likelihood, **SETTINGS, expand={"sigma": "cube"})
    refused(mo.SettingError, "cube", quick, wrong, ROWS, method="hmc-ecs", starts=1)

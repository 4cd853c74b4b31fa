"""Models that changed: globals, closures, constants, random numbers."""

import os
import runpy
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from helpers.targets import gaussian_rows, quick, same_draws
from modicum.models import Target

SIGMA = 1.0
ROWS = gaussian_rows(40)
SHORT = {"draws": 30, "tune": 30, "chains": 2}


def log_prior(theta):
    return -0.5 * (theta["a"] / 100) ** 2


def by_global(theta, batch):
    return -0.5 * ((batch["y"] - theta["a"]) / SIGMA) ** 2 - jnp.log(SIGMA)


def identity(model, rows=ROWS):
    return Target.of(model, rows)[0].identity


@pytest.fixture
def sigma(monkeypatch):
    """Set the global that `by_global` reads."""
    return lambda value: monkeypatch.setitem(globals(), "SIGMA", value)


def test_a_refit_of_the_same_model_follows_its_globals(sigma):
    model = mo.Model(
        log_prior, by_global, {"a": 0.0}, predict=lambda th, b: SIGMA + 0 * b["x"][:, 0]
    )
    narrow = quick(model, ROWS, **SHORT)
    assert narrow.predict(ROWS).mean[0] == 1.0
    sigma(10.0)
    wide = quick(model, ROWS, **SHORT)
    assert wide.draws["a"].std() > 5 * narrow.draws["a"].std()
    assert wide.predict(ROWS).mean[0] == 10.0
    sigma(1.0)
    assert same_draws(quick(model, ROWS, **SHORT), narrow)


def test_a_checkpoint_is_of_what_was_computed(sigma, tmp_path):
    model = mo.Model(log_prior, by_global, {"a": 0.0})
    quick(model, ROWS, checkpoint=tmp_path, **SHORT)
    sigma(10.0)
    with pytest.raises(mo.SettingError, match="belongs to another run"):
        quick(model, ROWS, checkpoint=tmp_path, **SHORT)
    sigma(1.0)
    quick(model, ROWS, checkpoint=tmp_path, **SHORT)
    moved = mo.Model(log_prior, by_global, {"a": 0.5})
    refused(mo.SettingError, "init is", quick, moved, ROWS, checkpoint=tmp_path, **SHORT)


def test_another_version_of_jax_cannot_compare(tmp_path):
    model = mo.Model(log_prior, by_global, {"a": 0.0})
    quick(model, ROWS, checkpoint=tmp_path, **SHORT)
    index = tmp_path / "run.json"
    index.write_text(index.read_text().replace(f'"{jax.__version__}"', '"0.0.1"'))
    with pytest.raises(mo.SettingError, match=r"made with JAX 0\.0\.1"):
        quick(model, ROWS, checkpoint=tmp_path, **SHORT)


def test_equal_expressions_share_what_is_compiled():
    def made(scale):
        return mo.Model(
            lambda th: -0.5 * (th["a"] / scale) ** 2, lambda th, b: b["y"] * th["a"], {"a": 0.0}
        )

    one, other = (Target.of(made(2.0), ROWS)[0] for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Target.of(made(3.0), ROWS)[0]


@pytest.mark.parametrize("where", ["closure", "inner_jit", "scan", "attribute"])
def test_captured_arrays_count_by_value(where):
    def with_table(table):
        table = jnp.asarray(table)

        class Holder:
            weights = table

        inner = jax.jit(lambda a: jnp.sum(table) * a)
        kinds = {
            "closure": lambda th, b: b["y"] * jnp.sum(table * th["a"]),
            "inner_jit": lambda th, b: b["y"] * inner(th["a"]),
            "scan": lambda th, b: b["y"] * jax.lax.scan(
                lambda c, i: (c + table[i] * th["a"], None), 0.0, jnp.arange(3))[0],
            "attribute": lambda th, b: b["y"] * jnp.sum(Holder.weights) * th["a"],
        }  # fmt: skip
        return mo.Model(log_prior, kinds[where], {"a": 0.0})

    same, again, other = np.arange(2000.0), np.arange(2000.0), np.arange(2000.0)
    other[1000] += 0.01  # the repr of so long an array omits it
    assert identity(with_table(same)) == identity(with_table(again))
    assert identity(with_table(same)) != identity(with_table(other))


def test_a_rule_of_differentiation_counts():
    def with_rule(factor):
        @jax.custom_jvp
        def f(a):
            return a

        f.defjvp(lambda primals, tangents: (primals[0], factor * tangents[0]))
        return mo.Model(log_prior, lambda th, b: b["y"] * f(th["a"]), {"a": 0.0})

    assert identity(with_rule(1.0)) == identity(with_rule(1.0))
    assert identity(with_rule(1.0)) != identity(with_rule(2.0))


def test_a_compiled_log_likelihood_follows_its_globals_too(sigma):
    model = mo.Model(log_prior, jax.jit(by_global), {"a": 0.0})
    before = identity(model)
    sigma(10.0)
    assert identity(model) != before


def test_a_network_is_what_it_computes():
    x = np.random.default_rng(1).normal(size=(12, 2))
    rows = mo.Rows(x=x, y=np.arange(12) % 2)
    gain = {"value": 1.0}
    net = mo.models.Network(lambda p, x: gain["value"] * x @ p["w"], {"w": np.ones((2, 2))})
    before, target = identity(net, rows), Target.of(net, rows)[0]
    assert target == Target.of(net, rows)[0]
    gain["value"] = 2.0
    assert identity(net, rows) != before
    assert target != Target.of(net, rows)[0]
    gain["value"] = 1.0
    moved = mo.models.Network(net.apply, {"w": np.zeros((2, 2))})  # starts elsewhere
    assert identity(moved, rows) != before


def test_identity_is_the_same_in_another_process(tmp_path):
    script = tmp_path / "model.py"
    script.write_text(
        textwrap.dedent("""
        import jax, jax.numpy as jnp, numpy as np, modicum as mo
        from modicum.models import Target
        TABLE = jnp.arange(50.0)

        @jax.jit
        def shifted(a):
            return jax.nn.relu(a) + TABLE.sum()

        model = mo.Model(lambda th: -jnp.abs(th["a"]),
                         lambda th, b: -((b["y"] - shifted(th["a"])) ** 2), {"a": 0.3})
        identity = Target.of(model, mo.Rows(y=np.arange(9.0)))[0].identity
        print(identity)
        """)
    )
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    told = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": other},
    ).stdout.strip()  # fmt: skip
    here = runpy.run_path(str(script), run_name="__main__")["identity"]
    assert told == str(here)
    assert "computing" in told


@cases(
    "function words",
    (lambda th, b: b["y"] * np.random.default_rng().normal() * th["a"], "each time"),
    (lambda th, b: b["y"] * (1.0 if th["a"] > 0 else 2.0), "jnp.where"),
    (lambda th, b: b["y"] * np.exp(th["a"]), "jax.numpy"),
    (
        lambda th, b: b["y"] * jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, th["a"]),
        "differentiated",
    ),
)
def test_functions_that_cannot_be_traced_are_refused_with_a_reason(function, words):
    with pytest.raises(mo.SettingError, match=words) as caught:
        Target.of(mo.Model(log_prior, function, {"a": 0.1}), ROWS)
    assert str(caught.value).endswith(".")


@cases(
    "model",
    mo.models.Logistic(),
    mo.models.Logistic(prior_scale=1.0, intercept_scale=1.0),
    mo.Model(log_prior, lambda th, b: -((b["y"] - th["a"] * b["x"][:, 0]) ** 2), {"a": 0.0}),
    ids=["priors of the data", "raw priors", "own"],
)
def test_nan_inside_a_store_is_named_by_its_place_there(model, tmp_path):
    """The error blames neither the model nor a row of the initial subset."""
    rng, n = np.random.default_rng(1), 40_000
    fields = {"x": rng.normal(size=(n, 2)), "y": (rng.random(n) < 0.5) * 1.0}
    mo.rows.ingest(fields, tmp_path / "s", shard_rows=15_000, progressbar=False)
    shard = np.lib.format.open_memmap(tmp_path / "s" / "rows-00001.npy", mode="r+")
    shard[9_000, 0] = np.nan
    shard.flush()
    rows = mo.Rows.open(tmp_path / "s")  # its ends are intact
    with pytest.raises(mo.DataError, match=r"'x0' holds NaN in row 24000 in .* changed since"):
        mo.sample(model, rows, draws=20, tune=20, chains=1, random_seed=1, progressbar=False)

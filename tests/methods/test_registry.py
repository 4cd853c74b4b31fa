"""The list of methods gives names, help and errors, also for one added as CONTRIBUTING.md says."""

from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.targets import logistic_rows, quick, same_draws
from modicum.kernels.designs import Drawn
from modicum.kernels.protocols import Kernel
from modicum.methods import DEFAULT, METHODS, list_methods, resolve
from modicum.methods.method import Method, Outcome, Plan
from modicum.models import Target
from modicum.run.iterations import place_rows
from modicum.runtime import in_double_precision, to_device


def test_every_method_is_there_by_name_and_in_words():
    assert all(cls.name == name for name, cls in METHODS.items())
    assert len({cls.summary for cls in METHODS.values()}) == len(METHODS)
    lines = list_methods().splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert all(len(line) < 90 for line in lines)
    assert DEFAULT in METHODS


@pytest.mark.parametrize("name", METHODS)
def test_a_name_makes_the_method_with_its_default_settings(name):
    method = resolve(name)
    assert type(method) is METHODS[name] is getattr(mo, METHODS[name].__name__)
    assert resolve(method) is method
    assert resolve(type(method)) == method


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_is_checked_and_the_sentence_names_it(name):
    made = METHODS[name]()
    for field in fields(made):
        for nonsense in (object(), "nonsense", -0.5):
            if nonsense != -0.5 or field.name not in ("centre", "start", "anchor"):
                with pytest.raises(mo.SettingError) as caught:
                    replace(made, **{field.name: nonsense})
                text = str(caught.value)
                assert field.name in text
                assert text.endswith(".")
                assert "\n" not in text


class Context(NamedTuple):
    point: jax.Array
    factor: jax.Array
    n: jax.Array


@dataclass(frozen=True)
class WalkKernel(Kernel):
    target: Target
    batch: int
    step_size: float

    def row_request(self, key, context):
        row_ids = jax.random.randint(key, (self.batch,), 0, context.n)
        return Drawn(row_ids, jnp.full(self.batch, 1 / context.n))

    def prepare(self, batch, context):
        return batch

    def init(self, key, batch, context):
        return jnp.zeros_like(context.point)

    def step(self, key, z, flags, batch, context):
        def log_posterior(z):
            t = context.point + context.factor @ z
            values = self.target.log_likelihood(t, batch)
            return context.n * jnp.mean(values) + self.target.log_prior(t)

        lp, slope = jax.value_and_grad(log_posterior)(z)
        noise = jnp.sqrt(2 * self.step_size) * jax.random.normal(key, z.shape)
        z = z + self.step_size * slope + noise
        return z, {"position": z, "lp": lp, "rows_touched": jnp.asarray(self.batch)}


@dataclass(frozen=True)
class Walk(Method):
    """Langevin dynamics by a few rows, without correction."""

    batch: int = 50
    step_size: float = 0.02
    memory_limit: int | None = None
    name: ClassVar[str] = "walk"
    summary: ClassVar[str] = "a walk by a few rows"

    @in_double_precision
    def plan(self, task):
        anchor = task.anchor_at_mode()
        arrays = (to_device(anchor.point), to_device(anchor.factor), jnp.asarray(len(task.rows)))
        squares = task.remember(
            "squares", lambda: {"y": np.sum(task.rows.slice(0, 9)["y"] ** 2)}, lambda a: a["y"]
        )
        return Plan(
            WalkKernel(task.target, self.batch, self.step_size),
            Context(*arrays),
            {},
            anchor,
            rows=place_rows(task.rows, self.memory_limit),
            tuning={"squares": float(squares)},
        )

    def finish(self, task, plan, history):
        return Outcome(warnings=[mo.ModicumWarning("walk", "this is a walk", "run")])


@pytest.fixture
def walk(monkeypatch):
    monkeypatch.setitem(METHODS, "walk", Walk)


def test_a_method_of_ones_own_has_every_door(walk, tmp_path):
    model, rows = mo.models.Logistic(), logistic_rows(600, dtype="float32")
    run = {"tune": 20, "draws": 40, "chains": 2}
    post = quick(model, rows, method="walk", **run)
    assert post.settings["method"] == "walk"
    assert list(post.summary().index) == ["beta[x0]", "beta[x1]", "beta[x2]", "intercept"]
    assert post.ledger.by_purpose["sampling"] == 2 * 40 * 50
    assert "walk" in [doubt.code for doubt in post.warnings]

    store = mo.rows.ingest(rows, tmp_path / "store", progressbar=False)
    assert same_draws(post, quick(model, store, method=Walk(memory_limit=0), **run))
    for _ in range(2):  # started, and resumed
        again = quick(model, rows, method="walk", checkpoint=tmp_path / "run", **run)
        assert same_draws(post, again)
        assert again.ledger.counts == post.ledger.counts
        assert again.tuning == post.tuning

    post.save(tmp_path / "post")
    assert same_draws(post, mo.Posterior.load(tmp_path / "post"))

"""Rows with codes mean what the same rows mean with every column formed.

Sums, residuals, moments and bounds agree to rounding; one short run per family of methods gives
the same draws, since nothing but rounding differs.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.coded import Pair, crossed, pair
from modicum.estimators.bounds import BoundedRows, bound_of, collapse
from modicum.estimators.taylor import control_variate, proxy
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.models.priors import moments
from modicum.passes import LocalEngine, Sums, anchor_at
from modicum.rows import ingest
from modicum.runtime import in_double_precision

FAMILIES = {
    "binary": mo.models.Logistic(),
    "count": mo.models.Poisson(),
    "real": mo.models.Gaussian(),
    "class": mo.models.Softmax(classes=3),
}


def sums(rows, model):
    target, start = Target.of(model, rows, Ledger(rows=len(rows)))
    return Sums(target, rows, LocalEngine(progressbar=False), Ledger(rows=len(rows))), start


def points(start):
    rng = np.random.default_rng(2)
    return start + 0.2 * rng.normal(size=(3, len(start)))


PAIRS = {
    **{name: (lambda name=name: pair(outcome=name, weight=name == "count")) for name in FAMILIES},
    "without numbers": lambda: pair(numbers=0),
    "crossed": crossed,
    "many chunks": lambda: pair(3000),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_sums_over_rows_agree(kind):
    both, model = PAIRS[kind](), FAMILIES.get(kind, mo.models.Logistic())
    (coded, start), (dense, _) = (sums(rows, model) for rows in both)
    assert coded.target.size == dense.target.size
    at = points(start)
    for t in at[:1]:
        for ours, theirs in zip(coded.hessian(t, "p"), dense.hessian(t, "p"), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-9)
        for ours, theirs in zip(coded.gradient(t, "p"), dense.gradient(t, "p"), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(coded.values(at, "p"), dense.values(at, "p"), rtol=1e-11)
    np.testing.assert_allclose(coded.gradients(at, "p"), dense.gradients(at, "p"), atol=1e-9)
    moved = both.coded._description.coding.densely(both.coded.slice(0, 5))
    assert not np.allclose(moved, moved[:, ::-1])  # or any order of columns would pass


@pytest.mark.parametrize("make", [lambda: pair(weight=True), lambda: pair(numbers=0), crossed])
def test_moments_and_so_priors_agree(make):
    ours, theirs = (moments(rows) for rows in make())
    np.testing.assert_allclose(ours.x_mean, theirs.x_mean, rtol=1e-12)
    np.testing.assert_allclose(ours.x_sd, theirs.x_sd, rtol=1e-12)
    assert ours.y_mean == pytest.approx(theirs.y_mean, rel=1e-12)
    assert ours.y_sd == pytest.approx(theirs.y_sd, rel=1e-12)


@in_double_precision
def residuals(rows, model):
    total, start = sums(rows, model)
    anchor = anchor_at(total, start)
    whitened = proxy(anchor, total.target, 2)
    batch = {k: jnp.asarray(v)[None] for k, v in rows.take(np.arange(30)).items()}
    batch["probability"] = jnp.full((1, 30), 1 / len(rows))
    variate = control_variate(total.target, 2)
    cached = variate.cache({k: v[0] for k, v in batch.items()}, whitened)
    z = jnp.asarray(np.random.default_rng(3).normal(size=total.target.size))
    return np.asarray(variate.values(cached, z, whitened))


@pytest.mark.parametrize("kind", ["binary", "count", "real", "class", "crossed"])
def test_residuals_agree(kind):
    both, model = PAIRS[kind](), FAMILIES.get(kind, mo.models.Logistic())
    ours, theirs = (residuals(rows, model) for rows in both)
    np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)
    assert np.ptp(theirs) > 1e-3


@pytest.mark.parametrize("kind", ["binary", "class", "crossed"])
def test_collapsed_bounds_agree(kind):
    both, model = PAIRS[kind](), FAMILIES.get(kind, mo.models.Logistic())
    found = []
    for rows in both:
        total, start = sums(rows, model)
        bounded = BoundedRows(total.target, bound_of(model))
        found.append(collapse(total, bounded, anchor_at(total, start)))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-8)


@pytest.fixture(scope="module")
def shared() -> Pair:
    return pair(6000)


SETTINGS = {"draws": 8, "tune": 8, "chains": 1, "random_seed": 4, "progressbar": False}


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
@pytest.mark.parametrize(
    "method", ["hmc-ecs", "hmc-ecs-signed", "flymc", "sgld", "cp-sghmc", "ewsg", "svrg-ld", "hmc"]
)
def test_methods_draw_the_same(shared, method):
    ours, theirs = (mo.sample(mo.models.Logistic(), r, method=method, **SETTINGS) for r in shared)
    np.testing.assert_allclose(ours["beta"], theirs["beta"], rtol=1e-5, atol=1e-6)
    assert np.ptp(np.asarray(theirs["beta"]), axis=(0, 1)).min() > 0  # chains that move
    assert ours.summary().index.tolist() == theirs.summary().index.tolist()


@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_from_a_store_too_and_streamed(shared, tmp_path):
    store = ingest(shared.coded, tmp_path / "s", dtype=None, progressbar=False)
    for method in (mo.HMCECS(memory_limit=0), mo.NUTS(memory_limit=0)):
        ours, theirs = (
            mo.sample(mo.models.Logistic(), rows, method=method, **SETTINGS)
            for rows in (store, shared.dense)
        )
        np.testing.assert_allclose(ours["beta"], theirs["beta"], rtol=1e-5, atol=1e-6)

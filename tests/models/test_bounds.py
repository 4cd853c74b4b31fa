"""Lower bounds: below the likelihood everywhere, tight where requested, summed at once."""

from dataclasses import dataclass
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.refusals import refused
from helpers.targets import all_of, class_rows, gaussian_rows, logistic_rows, sums_of
from modicum.kernels.bounds import (
    BOUNDS,
    BoundedRows,
    LogisticBound,
    SoftmaxBound,
    StudentTBound,
    _a,
    bound_of,
    collapse,
    whitened_sums,
)
from modicum.passes import anchor_at_mode

M = mo.models
COUNT = 20_000
FAMILIES = {
    "logistic": M.Logistic(),
    "student": M.StudentT(df=4.0, scale=1.3),
    "student, scale unknown": M.StudentT(df=3.0),
    "softmax": M.Softmax(classes=5),
}
EACH = pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)


def somewhere(model, seed, spread=3.0):
    """Return widely spread predictors, and outcomes."""
    rng = np.random.default_rng(seed)
    q = 4 if isinstance(model, M.Softmax) else 1
    eta = spread * rng.normal(size=(COUNT, q))
    extras = 0.5 * rng.normal(size=(COUNT, len(model.extras)))
    if isinstance(model, M.StudentT):
        y = 3 * rng.standard_t(2, size=COUNT)
    else:
        y = rng.integers(0, q + 1, COUNT) * 1.0
    return jnp.asarray(np.c_[eta, extras]), jnp.asarray(y)


# Compiled as one function, as in chains; operation by operation it takes much longer.


@partial(jax.jit, static_argnums=0)
def log_likelihood(model, predictors, y):
    return jax.vmap(model.log_density)(predictors, y)


@partial(jax.jit, static_argnums=0)
def log_bound(bound, predictors, y, tight):
    return bound.log_bound(predictors, y, tight)


@partial(jax.jit, static_argnums=0)
def gap_of(bound, predictors, y, tight):
    return bound.gap(predictors, y, tight)


@partial(jax.jit, static_argnums=0)
def tight_at(bound, predictors, y):
    return bound.tight_at(predictors, y)


def holes(bound, places):
    """Count rows whose bound exceeds their likelihood, beyond rounding."""
    predictors, y = somewhere(bound.model, 1)
    right = log_likelihood(bound.model, predictors, y)
    above = np.subtract(log_bound(bound, predictors, y, places(bound)), right)
    return int(np.sum(above > 1e-12 * (1 + np.abs(right))))


def untuned(bound):
    return np.full_like(tight_at(bound, *somewhere(bound.model, 1)), bound.untuned)


def elsewhere(bound):
    return tight_at(bound, *somewhere(bound.model, 2))


@EACH
@pytest.mark.parametrize("places", [untuned, elsewhere])
def test_a_bound_is_below_the_likelihood_everywhere(model, places, x64):
    assert holes(bound_of(model), places) == 0


@EACH
def test_the_gap_is_the_difference(model, x64):
    bound = bound_of(model)
    predictors, y = somewhere(model, 1)
    for tight in (untuned(bound), elsewhere(bound)):
        right = log_likelihood(model, predictors, y) - log_bound(bound, predictors, y, tight)
        gap = gap_of(bound, predictors, y, tight)
        np.testing.assert_allclose(gap, right, rtol=1e-9, atol=1e-11)
        assert np.median(gap) > 1e-3  # they are not all zero


@EACH
def test_a_tuned_bound_is_tight_and_touches(model, x64):
    bound = bound_of(model)
    predictors, y = somewhere(model, 1)
    tight = tight_at(bound, predictors, y)
    np.testing.assert_allclose(gap_of(bound, predictors, y, tight), 0, atol=1e-13)
    # second order: the remaining slope is rounding
    slope = jax.jit(jax.grad(lambda p: bound.gap(p, y, tight).sum()))(predictors)
    np.testing.assert_allclose(slope, 0, atol=1e-12)


@dataclass(frozen=True)
class Flat(LogisticBound):
    """A mistake: a parabola through the right points, a fifth too flat."""

    def gap(self, predictors, y, tight):
        eta = predictors[:, 0]
        return super().gap(predictors, y, tight) + 0.2 * _a(tight) * (eta**2 - tight**2)

    def expand(self, predictors, y, tight):
        at, eta, a = super().expand(predictors, y, tight), predictors[:, 0], 0.2 * _a(tight)
        return at._replace(
            value=at.value - a * (eta**2 - tight**2),
            slope=at.slope - 2 * (a * eta)[:, None],
            curvature=at.curvature - 2 * a[:, None, None],
        )


@dataclass(frozen=True)
class NoReference(SoftmaxBound):
    """A mistake: Boehning's matrix for one class fewer."""

    def log_bound(self, predictors, y, tight):
        away = predictors - tight
        extra = jnp.sum(away, axis=1) ** 2 * (1 / 4 - 1 / 5) / 4
        return super().log_bound(predictors, y, tight) + extra


@dataclass(frozen=True)
class Raw(StudentTBound):
    """A mistake: the tangent at raw residuals, as if the scale were one."""

    def tight_at(self, predictors, y):
        return (y - predictors[:, 0]) ** 2


def test_wrong_bounds_are_caught(x64):
    assert holes(Flat(FAMILIES["logistic"]), untuned) > 100
    assert holes(NoReference(FAMILIES["softmax"]), elsewhere) > 100
    raw = Raw(FAMILIES["student"])
    predictors, y = somewhere(raw.model, 1)
    assert np.abs(gap_of(raw, predictors, y, tight_at(raw, predictors, y))).max() > 1e-3


# The sum over all rows ---------------------------------------------------------------------


def with_everything(rows, seed=1, offset_width=0):
    """Return the same rows with offsets and frequency weights."""
    rng = np.random.default_rng(seed)
    shape = (len(rows), offset_width) if offset_width else len(rows)
    return mo.Rows(
        **all_of(rows), offset=0.3 * rng.normal(size=shape), weight=rng.integers(0, 4, len(rows))
    )


PROBLEMS = {
    "logistic, offset, weight": (M.Logistic(intercept=False), with_everything(logistic_rows(300))),
    "student, scale unknown": (M.StudentT(df=3.0), with_everything(gaussian_rows(300))),
    "softmax, offset": (M.Softmax(classes=3), with_everything(class_rows(300), offset_width=2)),
    "softmax, two classes": (M.Softmax(classes=2), logistic_rows(300)),
}


def collapsed_error(model, rows, tuned, bound=None, spoil=lambda context: context):
    """Return the largest error of the collapsed sum, far from the anchor."""
    sums, start = sums_of(model, rows)
    anchor = anchor_at_mode(sums, start)
    bounded = BoundedRows(sums.target, bound or bound_of(model), tuned)
    before = sums.ledger.evaluations
    context = spoil(whitened_sums(anchor, collapse(sums, bounded, anchor)))
    assert sums.ledger.evaluations - before == len(rows)
    worst = 0.0
    for z in 3 * np.random.default_rng(1).normal(size=(5, len(start))):
        t = anchor.point + anchor.factor @ z
        base, right, prior, gap, total = _sums_at(bounded, z, t, all_of(rows), context)
        worst = max(worst, abs(float(base - right)))
        # log L = log B + gap, including weights
        assert float(right - prior) + float(gap) == pytest.approx(float(total), abs=1e-8)
    return worst


@partial(jax.jit, static_argnums=0)
def _sums_at(bounded, z, t, batch, context):
    """Return the collapsed sum, and sums over rows: bounds and prior, prior, gaps, log L."""
    target, cached = bounded.target, bounded.cache(batch, context.where.point)
    predictors = target.model.predictor_vector(target.unravel(t), cached.fields)
    each = bounded.bound.log_bound(predictors, cached.fields["y"], cached.tight)
    prior = target.log_prior(t)
    right = jnp.sum(cached.fields.get("weight", 1.0) * each) + prior
    gap = jnp.sum(bounded.gap(cached, t))
    return (
        bounded.log_base(z, context), right, prior, gap, jnp.sum(target.log_likelihood(t, batch))
    )  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "tuned"),
    [
        pytest.param(p, tuned, marks=() if tuned or "offset" in p else pytest.mark.slow)
        for p, tuned in product(PROBLEMS, (True, False))
    ],
)
def test_the_sum_of_all_bounds_collapses(problem, tuned, x64):
    assert collapsed_error(*PROBLEMS[problem], tuned) < 1e-8


def test_a_sum_that_forgets_something_is_caught(x64):
    def spoil(context):
        return context._replace(rows=context.rows._replace(slope=0.999 * context.rows.slope))

    assert collapsed_error(M.Logistic(), logistic_rows(300), False, spoil=spoil) > 1e-3


def test_float32_rows_collapse_in_double_precision(x64):
    rows = logistic_rows(300, dtype="float32")
    assert collapsed_error(M.Logistic(), rows, True) < 1e-8


def test_models_without_a_bound_are_refused():
    own = mo.Model(lambda t: 0.0, lambda t, b: b["y"] * t, 0.0)
    for model in (M.Gaussian(), M.Poisson(), own, type("Mine", (M.Logistic,), {})()):
        refused(mo.SettingError, "use method='hmc-ecs'", bound_of, model)
    assert len(BOUNDS) == 3

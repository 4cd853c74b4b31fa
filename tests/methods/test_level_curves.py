"""Control variates of rare levels: exact sums, the same rows everywhere, and fewer of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.interpolate import CubicHermiteSpline
from scipy.signal import find_peaks

import modicum as mo
from helpers.interrupted import task_of
from helpers.slow import slowly
from helpers.targets import sums_of
from modicum.kernels.control_variates import (
    cached_rows,
    control_variate,
    curve_sum,
    proxy,
    rows_along_levels,
)
from modicum.kernels.residuals import NumPyResiduals
from modicum.methods.pilot import level_curves
from modicum.passes import anchor_at_mode

N, LEVELS = 6_000, 12
RNG = np.random.default_rng(5)
CODE = np.minimum(RNG.geometric(0.35, N) - 1, LEVELS - 1)
X = RNG.normal(size=(N, 2)).astype(np.float32)
ETA = 0.5 * X[:, 0] - 1 + 0.4 * RNG.normal(size=LEVELS)[CODE]


def dense_rows(y, **fields):
    x = np.concatenate([X, CODE[:, None] == np.arange(1, LEVELS)], axis=1)
    return mo.Rows(x=x, y=y, **fields)


def events():
    return (np.random.default_rng(6).random(N) < 1 / (1 + np.exp(-ETA))).astype(float)


def counts():
    return np.random.default_rng(7).poisson(np.exp(ETA)).astype(float)


def coded_rows(y):
    names = np.char.add("l", CODE.astype(str))
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "level": names, "y": y})
    return mo.Rows.from_table(table, outcome="y")


PLANS = {
    "logistic": lambda: (mo.models.Logistic(), dense_rows(events())),
    "poisson": lambda: (
        mo.models.Poisson(),
        dense_rows(counts(), offset=0.1 * X[:, 0], weight=1.0 + (CODE % 3)),
    ),
    "coded": lambda: (mo.models.Logistic(), coded_rows(events())),
}


@pytest.fixture(scope="module", params=PLANS)
def study(request):
    return mo.HMCECS().examine(task_of(*PLANS[request.param]())).study.about


def all_rows(study):
    rows = study.task.rows
    return rows.slice(0, len(rows)) | {"probability": np.ones(len(rows))}


@partial(jax.jit, static_argnums=0)
def values_at(control_variate, cached, points, proxy):
    return jax.lax.map(lambda z: control_variate.values(cached, z, proxy), points)


def residuals(study, points, proxy):
    """Residuals of all rows at each of `points`."""
    cached = cached_rows(study.control_variate, all_rows(study), proxy)
    return values_at(study.control_variate, cached, points, proxy)


def points(study, count, scale=1.5):
    return scale * np.random.default_rng(8).standard_normal((count, len(study.centre)))


def test_what_is_subtracted_from_rows_is_added_to_the_proxy(study, x64):
    levels = study.proxy.levels
    assert levels is not None
    assert 1 < len(levels.lines) < LEVELS
    without = study.proxy._replace(levels=None)
    z = points(study, 12)
    right, total = (residuals(study, z, p).sum(axis=1) for p in (without, study.proxy))
    added = jax.jit(jax.vmap(partial(curve_sum, levels=levels)))(z)
    np.testing.assert_allclose(total + added, right, rtol=0, atol=1e-6)
    assert np.abs(total - right).max() > 0.01  # negative control: without the proxy's part


def test_numpy_and_jax_agree(study, x64):
    cv, proxy, batch = study.control_variate, study.proxy, all_rows(study)
    rows, z = NumPyResiduals(cv, batch, proxy), points(study, 12)
    np.testing.assert_allclose(rows.values(z), residuals(study, z, proxy), atol=1e-9)
    some = np.arange(0, N, 97)
    few = {name: values[some] for name, values in batch.items()}
    cached = cached_rows(cv, few, proxy)
    slopes = jax.jit(jax.jacfwd(lambda z: cv.values(cached, z, proxy)))(jnp.asarray(z[0]))
    np.testing.assert_allclose(NumPyResiduals(cv, few, proxy).gradients(z[0]), slopes, atol=1e-9)


# Sums of levels without events, far from the anchor ----------------------------------------


M = mo.models
SMOOTH = {"scale": 10.0, "smoothing": 0.5}
FAMILIES = {  # all that have curves: model, outcomes and further fields given eta and uniforms
    "logistic": (M.Logistic, lambda eta, u: (u < 1 / (1 + np.exp(-eta)), {})),
    "probit": (M.Probit, lambda eta, u: (u < stats.norm.cdf(eta), {})),
    "cloglog": (M.Cloglog, lambda eta, u: (u < -np.expm1(-np.exp(eta)), {})),
    "poisson": (M.Poisson, lambda eta, u: (stats.poisson.ppf(u, np.exp(eta)), {})),
    "binomial": (
        M.Binomial,
        lambda eta, u: (stats.binom.ppf(u, 4, 1 / (1 + np.exp(-eta))), {"trials": 4.0}),
    ),
    "exponential": (M.Exponential, lambda eta, u: (-np.log(u) * np.exp(-eta), {"event": 1.0})),
    "student-t": (
        partial(M.StudentT, scale=0.01),
        lambda eta, u: (0.01 * (eta + stats.t.ppf(u, 4)), {}),
    ),
    "quantile": (
        partial(M.AsymmetricLaplace, 0.9, **SMOOTH),
        lambda eta, u: (10 * (eta + stats.norm.ppf(u)), {}),
    ),
}


def silent_level(family, sd):
    """Return the curve of a level of five rows without events, and its exact sum and slope."""
    kind, outcomes = FAMILIES[family]
    rng, silent = np.random.default_rng(10), np.arange(600) < 5
    z = rng.normal(size=600)
    y, fields = outcomes(0.5 * z - 1, rng.random(600))
    fields = {name: np.full(600, value) for name, value in fields.items()}
    if "event" in fields:
        fields["event"] = 1.0 - silent
    elif family not in ("student-t", "quantile"):
        y = y * ~silent
    rows = mo.Rows(x=np.c_[z, silent], y=1.0 * y, **fields)
    sums, start = sums_of(kind(priors={"common": mo.priors.Normal(0, sd)}), rows)
    anchor = anchor_at_mode(sums, start, ("z", "silent", "intercept"))
    variate, about = control_variate(sums.target, 2), proxy(anchor, sums.target, 2)
    curves = level_curves.level_curves(sums, variate, about, anchor)
    last = {name: getattr(curves, name)[-1:] for name in ("direction", "unit", "half", "table")}
    batch, model = rows.slice(0, 600), sums.target.model
    x = variate.matrix(batch)
    of_row, along = map(np.asarray, rows_along_levels(x, curves))
    own = (of_row == len(curves.lines) - 1) & (along != 0)
    b, y = along[own], np.asarray(model.outcome(batch), float)[own]
    eta = np.asarray(x @ np.asarray(about.where.point))[own]

    def exact(v):
        e = np.multiply.outer(v, b)
        f, slope, bend, *_ = (np.asarray(each) for each in model.derivatives(eta, y))
        with np.errstate(all="ignore"):
            far, steep, *_ = model.derivatives(eta + e, np.broadcast_to(y, (len(v), *y.shape)))
            value = np.asarray(far) - f - slope * e - bend * e**2 / 2
            return value.sum(axis=1), (b * (np.asarray(steep) - slope - bend * e)).sum(axis=1)

    return curves._replace(**last, ends=curves.ends[:, -1:]), exact


def earlier_curve(exact):
    """Return the cubics that were used before: pieces of up to 1.9 posterior sds."""
    places = np.arcsinh(30) * np.linspace(-1, 1, 257)
    value, slope = exact(2 * np.sinh(places))
    cubics = CubicHermiteSpline(places, value, slope * 2 * np.cosh(places))
    return lambda v: cubics(np.arcsinh(v / 2))


def modes(curve, v):
    """Count the modes of the log-posterior along the level's direction."""
    return len(find_peaks(np.maximum(curve - v**2 / 2, -1e9), prominence=1e-3)[0])


@pytest.mark.parametrize("sd", [2.5, 100])
@pytest.mark.parametrize("family", [*sorted({*FAMILIES} - {"quantile"}), *slowly("quantile")])
def test_sums_of_a_level_without_events_are_right_as_far_as_the_prior_reaches(family, sd, x64):
    """Cubics changed sign between nodes; a chain on Poisson counts met modes of 1e70."""
    curve, exact = silent_level(family, sd)
    low, high = np.asarray(curve.ends)[:, 0]
    assert max(-low, high) == pytest.approx(60)
    v = np.unique(np.r_[np.linspace(low, high, 4001), np.linspace(-4, 4, 4001).clip(low, high)])
    right = exact(v)[0]
    assert -1e10 <= right.min() < right.max() < 60**2
    ours = np.asarray(curve_sum(np.multiply.outer(v, curve.direction[0]), curve))
    np.testing.assert_allclose(ours, right, rtol=1e-3, atol=2e-6 if sd == 2.5 else 3e-4)
    assert modes(ours, v) == modes(right, v) == 1


def test_cubics_over_posterior_sds_were_wrong(x64):
    """The negative control of the test above."""
    _, exact = silent_level("poisson", 5.0)
    v = np.linspace(-60, 60, 20_001)
    assert modes(exact(v)[0], v) == 1
    assert modes(earlier_curve(exact)(v), v) > 1
    _, exact = silent_level("logistic", 100.0)
    near = np.linspace(-2, 2, 2001)
    assert np.abs(earlier_curve(exact)(near) - exact(near)[0]).max() > 1e-3


def test_fewer_rows_are_needed():
    model, rows = PLANS["logistic"]()
    with_, without = (
        mo.HMCECS(expert=mo.ECSExpert(levels=levels), certainty=0)
        .examine(task_of(model, rows))
        .study
        for levels in (True, False)
    )
    assert with_.pilot_with(0).variance.mean() < 0.2 * without.pilot_with(0).variance.mean()
    assert with_.about.tuning["levels"]["value"] == len(with_.about.proxy.levels.lines)
    assert without.about.proxy.levels is None
    assert "levels" not in without.about.tuning


@pytest.mark.parametrize("settings", [{"design": "uniform"}, {"order": 1}])
def test_published_methods_stay_as_they_are(settings):
    model, rows = PLANS["logistic"]()
    study = mo.HMCECS(subsample=200, **settings).examine(task_of(model, rows)).study
    assert study.about.proxy.levels is None

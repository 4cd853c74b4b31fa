"""Sums by NumPy equal the compiled ones."""

import warnings

import jax
import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.coded import crossed, pair
from helpers.slow import slowly
from helpers.targets import gaussian_rows, logistic_rows, poisson_rows, sums_of
from modicum.kernels.control_variates import control_variate
from modicum.kernels.control_variates import proxy as proxy_at
from modicum.linalg.columns import ModelMatrix
from modicum.methods.pilot.pilot_residuals import evaluate, slopes
from modicum.methods.weights import expected_residuals
from modicum.models import Target
from modicum.passes import anchor_at, engine
from modicum.passes.curvature import expanded_prior, prior_slope
from modicum.runtime import COMPILED, in_double_precision

M, P = mo.models, mo.priors


def weighted(n):
    return np.random.default_rng(8).integers(0, 4, n).astype(float)


def shifted_rows():
    """Return float32 rows with a column like a year, nearly collinear with the intercept."""
    rng = np.random.default_rng(9)
    x = np.column_stack([2_000 + rng.normal(size=300), rng.normal(size=300)]).astype(np.float32)
    return mo.Rows(x=x, y=(rng.random(300) < 0.4).astype(np.float32))


def trials_rows():
    rng = np.random.default_rng(10)
    trials = rng.integers(1, 9, 150)
    return mo.Rows(x=rng.normal(size=(150, 2)), y=rng.binomial(trials, 0.4), trials=trials)


CASES = {
    "columns": (M.Logistic(), lambda: logistic_rows(300, weight=weighted(300))),
    "without an intercept": (M.Logistic(intercept=False), lambda: logistic_rows(300)),
    "offset": (
        M.Poisson(priors={"common": P.Normal(0.4, 2.0), "x1": P.Flat(), "intercept": P.Flat()}),
        lambda: poisson_rows(300),
    ),
    "scales": (M.Logistic(prior_scale=(1.0, 2.0, 3.0), intercept_scale=4.0), logistic_rows),
    "not concave": (M.StudentT(scale=0.3, df=3.0), lambda: gaussian_rows(300)),
    "two fields": (M.Binomial(), trials_rows),
    "float32": (M.Logistic(), shifted_rows),
    "codes": (M.Poisson(), lambda: pair(outcome="count", weight=True).coded),
    "codes and no numbers": (M.Logistic(), lambda: pair(numbers=0).coded),
    "codes that overlap": (M.Logistic(intercept=False), lambda: crossed().coded),
}


@in_double_precision
def computed(name, t=None):
    """Return all that NumPy or compiled code finds in a case; chunks have 128 rows, or fewer."""
    model, rows = CASES[name]
    sums, start = sums_of(model, rows())
    target, rng = sums.target, np.random.default_rng(7)
    at = start + 0.1 * rng.normal(size=start.shape)
    points = at + 0.1 * rng.normal(size=(5, len(at)))
    if name == "float32":  # a slope over years
        at[0] = points[:, 0] = 1e-4
    at = at + (0 if t is None else t)
    variate, proxy = control_variate(target, 2), proxy_at(anchor_at(sums, at), target, 2)
    batch = sums.rows.take(np.arange(64)) | {"probability": np.full(64, 0.5)}
    z, share = rng.normal(size=(16, len(at))), np.linspace(0.1, 1.0, 64)
    return {
        "hessian": sums.hessian(at, "test"),
        "gradient": sums.gradient(at, "test"),
        "values": [sums.values(points, "test")],
        "prior": [*expanded_prior(target, at), *prior_slope(target, at), target.log_priors(points)],
        "expected": [
            expected_residuals(sums, variate, proxy, z, by_draws=by) for by in (False, True)
        ],
        "residuals": [evaluate(variate, batch, proxy, z).values],
        "slopes": [slopes(variate, batch, proxy, z, share, share, of_groups=False)],
    }


def apart(one, other, loose):
    """Return what differs; of float32 rows, passes sum some products in float32."""
    rtol = dict.fromkeys(one, 2e-3 if loose else 1e-5)
    rtol |= dict.fromkeys(("hessian", "gradient", "values"), 5e-6 if loose else 1e-11)
    return [
        what
        for what, found in one.items()
        for mine, theirs in zip(found, other[what], strict=True)
        if not np.allclose(mine, theirs, rtol=rtol[what], atol=1e-9 * np.abs(theirs).max())
    ]


AGAIN = ("without an intercept", "scales", "codes")  # what these have, others have too


@pytest.mark.parametrize("name", [*sorted({*CASES} - {*AGAIN}), *slowly(*AGAIN)])
def test_numpy_and_compiled_code_agree(name, monkeypatch):
    monkeypatch.setattr(engine, "chunk_rows", lambda rows: 128)
    ours, elsewhere = computed(name), computed(name, t=1e-3)
    monkeypatch.setattr(Target, "on_numpy", False)
    compiled = computed(name)
    assert apart(ours, compiled, loose=name == "float32") == []
    assert {"hessian", "gradient"} <= set(apart(elsewhere, compiled, loose=False))  # the control


@pytest.mark.parametrize("columns", ["far from zero", "nearly collinear", "one huge number"])
def test_leverages_keep_their_digits(columns):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(5_000, 3))
    if columns == "far from zero":
        x[:, 0] += 1e6
    elif columns == "nearly collinear":
        x[:, 1] = x[:, 0] + 1e-8 * x[:, 1]
    else:
        x[17, 0] = 1e60  # beyond the range of float32
    wide = np.column_stack([x, np.ones(len(x))])
    # by the singular values: squaring them would lose half of the digits
    _, scale, axes = np.linalg.svd(wide / 2, full_matrices=False)
    L = axes.T / scale
    with np.errstate(over="ignore", invalid="ignore"):  # as in passes
        lengths = ModelMatrix(x, ones=True).quadratic(L @ L.T, L)
    exact = np.sum((wide.astype(np.longdouble) @ L) ** 2, axis=1).astype(float)
    np.testing.assert_allclose(lengths, exact, rtol=2e-3)
    with np.errstate(over="ignore", invalid="ignore"):
        careless = np.sum((wide.astype(np.float32) @ L.astype(np.float32)) ** 2, axis=1)
    assert not np.allclose(careless, exact, rtol=2e-3)


@pytest.mark.parametrize("name", ["columns", "codes"])
def test_weighted_normal_draws_compile_nothing(name):
    model, rows = CASES[name]
    held = rows()
    before = COMPILED.total
    post = mo.sample(model, held, method="laplace", draws=50, random_seed=1, progressbar=False)
    assert COMPILED.total == before
    assert post.mean("beta").shape == (len(held.columns),)
    jax.jit(lambda x: x + 1)(1.0)
    assert COMPILED.total > before  # negative control: compilation is counted


def test_draws_of_groups_with_slopes_compile_nothing():
    """Of a family whose derivatives are formulas, from the search for scales to named draws."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"x": rng.normal(size=300), "g": np.arange(300) % 12})
    table["y"] = rng.random(300) < 1 / (1 + np.exp(-table["x"]))
    before = COMPILED.total
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mo.ModicumWarning)  # scales near zero, say
        post = mo.fit(
            "y ~ x + (1 + x | g)", table, method="laplace", draws=50, random_seed=1,
            progressbar=False,
        )  # fmt: skip
    assert COMPILED.total == before
    assert post.mean("group_cor").shape == (1,)

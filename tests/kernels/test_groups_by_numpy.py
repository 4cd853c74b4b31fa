"""Sums and residuals of groups in NumPy equal the compiled ones."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.targets import sums_of
from modicum.kernels.control_variates import control_variate
from modicum.kernels.expansion import expansion_coordinates, group_proxy, variance_unit
from modicum.methods.pilot.pilot_residuals import evaluate, slopes
from modicum.models import IntegratedEffects, Target
from modicum.passes import anchor_at, with_nodes
from modicum.runtime import in_double_precision

GROUPS = 30


def made(effects, correlated):
    """Return sums over groups with weights, an offset and another factor, and a point."""
    rng = np.random.default_rng(1)
    g = rng.permutation(np.repeat(np.arange(GROUPS), rng.integers(1, 12, GROUPS)))
    n = len(g)
    y, shop = rng.random(n) < 0.4, rng.integers(0, 3, n)
    x, offset, weight = rng.normal(size=(n, 2)), 0.1 * rng.normal(size=n), rng.integers(1, 3, n)
    rows = mo.Rows(x=x, y=y, g=g, weight=weight, offset=offset, codes={"shop": shop})
    slopes = ("x0", "x1")[: effects - 1]
    model = IntegratedEffects(mo.models.Logistic(), "g", slopes=slopes, correlated=correlated)
    sums, start = sums_of(model, model.units(rows))
    return sums, start + 0.1 * rng.normal(size=len(start))


def path_by_autodiff(unit, S, moved):
    """T and its first two derivatives from S to `moved`, straight in phi."""

    def factor(s):
        if unit is None:
            return jnp.linalg.cholesky(S + s * (moved - S))
        phi = [unit * jnp.log1p(jnp.diag(variance) / unit) for variance in (S, moved)]
        return jnp.diag(jnp.sqrt(unit * jnp.expm1((phi[0] + s * (phi[1] - phi[0])) / unit)))

    slope = jax.jacfwd(factor)
    return factor(0.0), slope(0.0), jax.jacfwd(slope)(0.0)


def proxy_by_autodiff(target, t, gradient, hessian, unit):
    """Gradient and Hessian in phi: A_t = J'A and B_t = J'B J + sum_k A_k phi_k''."""
    inverse = jnp.linalg.inv(jax.jacfwd(lambda t: expansion_coordinates(target, t, unit))(t))
    A = inverse.T @ gradient
    bent = jax.hessian(lambda t: expansion_coordinates(target, t, unit) @ A)(t)
    return A, inverse.T @ (hessian - bent) @ inverse


@in_double_precision
def computed(effects, correlated, straight=False):
    """Return all that NumPy or compiled code finds, also along paths `straight` in the variance."""
    sums, t = made(effects, correlated)
    target, groups = with_nodes(sums, t)
    anchor = anchor_at(replace(sums, target=target, rows=groups), t)
    proxy = group_proxy(anchor, target, 2, variance_unit(target.likelihood, t, groups))
    form, share = control_variate(target, 2), np.full(GROUPS, 1 / GROUPS)
    batch = groups.take(np.arange(GROUPS)) | {"probability": np.full(GROUPS, 0.5)}
    away = anchor.sd * np.random.default_rng(2).normal(size=(4, target.size))
    z = anchor.whiten(t + away)  # axes of the whitened coordinates may depend on rounding
    about = (target.likelihood, *map(jnp.asarray, (t, anchor.A, anchor.B)))
    by_autodiff = jax.jit(proxy_by_autodiff, static_argnums=0)(*about, proxy.unit)
    factors = [form.model.factor(target.unravel(at)) for at in (t, t + away[0])]
    variances = [jnp.asarray(T @ T.T) for T in factors]
    found = {
        "path": form.factor_path(proxy, away[0]),
        "path by autodiff": jax.jit(path_by_autodiff)(proxy.unit, *variances),
        "hessian": sums.hessian(t, "mode"),
        "nodes": [groups.nodes.centre],
        "residuals": [evaluate(form, batch, proxy, z, few=batch).values],
        "slopes": [slopes(form, batch, proxy, z, share, np.ones(GROUPS), of_groups=True)],
        "proxy": [proxy.a, proxy.B],
        "proxy by autodiff": by_autodiff,
    }
    if straight:
        given = proxy._replace(unit=None)
        found["straight path"] = form.factor_path(given, away[0])
        found["straight residuals"] = evaluate(form, batch, given, z, few=batch).values
    return found


RTOL = {"hessian": 1e-12, "nodes": 1e-6, "residuals": 1e-8, "slopes": 1e-4}


@pytest.mark.slow  # quick tests of integrated groups compare residuals of chains with passes
@pytest.mark.parametrize(("effects", "correlated"), [(1, True), (2, False), (2, True), (3, True)])
def test_numpy_and_compiled_code_agree(effects, correlated, monkeypatch):
    ours = computed(effects, correlated, straight=True)
    for what in ("proxy", "path"):
        for mine, theirs in zip(ours[what], ours[f"{what} by autodiff"], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(Target, "on_numpy", False)
    compiled = computed(effects, correlated)
    for what, rtol in RTOL.items():
        for mine, theirs in zip(ours[what], compiled[what], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=1e-10, err_msg=what)
    if effects == 1:  # the negative control: the unit of the variances is left out along the path
        assert np.abs(ours["straight residuals"] - compiled["residuals"][0]).max() > 1e-3
        assert np.abs(ours["straight path"][1] - ours["path"][1]).max() > 1e-3

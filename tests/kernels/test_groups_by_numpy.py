"""Sums and residuals of groups in NumPy, compared with the compiled ones."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import modicum as mo
from modicum.kernels.control_variates import control_variate
from modicum.kernels.expansion import group_proxy, in_expansion_coordinates, variance_unit
from modicum.kernels.residuals_by_numpy import NumPyGroupValues
from modicum.ledger import Ledger
from modicum.methods.ecs import pilot_residuals as residuals
from modicum.methods.ecs import pilot_residuals as slopes
from modicum.methods.whole_groups import _differences, _differences_by_numpy
from modicum.models import IntegratedEffects, Target
from modicum.passes import LocalEngine, Sums, anchor_at, with_nodes
from modicum.passes.group_hessian import group_hessian_sum, group_places

GROUPS = 30


def made(effects=1, correlated=True):
    """Return sums over groups with weights, an offset and another factor, and a point."""
    rng = np.random.default_rng(1)
    g = rng.permutation(np.repeat(np.arange(GROUPS), rng.integers(1, 12, GROUPS)))
    n = len(g)
    y = rng.random(n) < 0.4
    shop = rng.integers(0, 3, n)
    rows = mo.Rows(
        x=rng.normal(size=(n, 2)),
        y=y,
        g=g,
        weight=rng.integers(1, 3, n),
        offset=0.1 * rng.normal(size=n),
        codes={"shop": shop},
    )
    slopes = ("x0", "x1")[: effects - 1]
    model = IntegratedEffects(mo.models.Logistic(), "g", slopes=slopes, correlated=correlated)
    units = model.units(rows)
    ledger = Ledger(rows=len(units))
    target, start = Target.of(model, units, ledger)
    sums = Sums(target, units, LocalEngine(1, progressbar=False), ledger)
    return sums, start + 0.1 * rng.normal(size=len(start))


class Study:
    """Groups with quadrature nodes fixed at a point, and the inputs of their residuals."""

    def __init__(self, sums, t):
        self.target, groups = with_nodes(sums, t)
        self.sums = Sums(self.target, groups, sums.engine, sums.ledger)
        anchor = anchor_at(self.sums, t)
        unit = variance_unit(self.target.likelihood, anchor.point, groups)
        self.anchor = anchor
        self.form = control_variate(self.target, 2)
        self.proxy = group_proxy(anchor, self.target, 2, unit)
        self.batch = groups.take(np.arange(GROUPS)) | {"probability": np.full(GROUPS, 0.5)}
        self.z = np.random.default_rng(2).normal(size=(4, self.target.size))


@pytest.fixture(autouse=True, scope="module")
def double():
    """Use double precision everywhere here."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(
    scope="module",
    params=[
        (1, True),
        *(pytest.param(k, marks=pytest.mark.slow) for k in ((2, False), (2, True), (3, True))),
    ],
    ids=str,
)
def studied(double, request):
    sums, t = made(*request.param)
    return sums, t, Study(sums, t)


def test_sums_match_the_compiled_pass(studied):
    sums, t, study = studied
    assert sums.by_numpy
    compiled = sums._sweep(group_hessian_sum, t, "mode", "hessian")
    for mine, theirs in zip(sums.hessian(t, "mode"), compiled, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-11)
    chunk, present = sums.rows.chunk(0)
    places = group_places(sums.target.likelihood, t, chunk, present)[:GROUPS]
    np.testing.assert_allclose(study.sums.rows.nodes.centre, places, rtol=1e-6)


def test_residuals_and_slopes_match_the_compiled_study(studied):
    study = studied[2]
    by_numpy = NumPyGroupValues(study.form, study.batch, study.proxy)
    values = by_numpy.values(study.z)
    about = (study.form, study.batch, study.proxy, study.z)
    np.testing.assert_allclose(values, residuals._values_of_groups(*about), rtol=1e-8, atol=1e-11)
    np.testing.assert_array_equal(values, by_numpy.values_in_turn(study.z))
    share, factor = np.full(GROUPS, 1 / GROUPS), np.ones(GROUPS)
    largest = slopes._slopes_by_numpy(by_numpy.gradients(study.z), share, factor)
    compiled = slopes._slopes_of_groups(*about, share, factor)
    np.testing.assert_allclose(largest, compiled, rtol=1e-4)


def test_the_proxy_is_in_the_coordinates_of_the_residuals(studied):
    study, anchor = studied[2], studied[2].anchor
    derivatives = jax.numpy.asarray(anchor.A), jax.numpy.asarray(anchor.B)
    about = (study.target.likelihood, jax.numpy.asarray(anchor.point), *derivatives)
    for mine, theirs in zip(
        (study.proxy.a, study.proxy.B),
        jax.jit(in_expansion_coordinates, static_argnums=0)(*about, study.proxy.unit),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-9)


def test_paths_that_are_straight_in_the_variance_fail_the_check(studied):
    """Negative control: omit the unit of the variances along the path only."""
    study = studied[2]
    by_numpy = NumPyGroupValues(study.form, study.batch, study.proxy)
    right = by_numpy.values(study.z)
    straight = study.proxy._replace(unit=None)
    by_numpy._paths = lambda away: (study.form.path_of_variances(straight, t) for t in away)
    assert np.abs(by_numpy.values(study.z) - right).max() > 1e-3


def test_the_check_of_nodes_is_the_compiled_one(studied):
    _, t, study = studied
    likelihood = study.target.likelihood
    finer = replace(likelihood, model=replace(likelihood.model, nodes=14))
    points = t + 0.3 * study.z
    mine = _differences_by_numpy(finer, likelihood, points, study.batch)
    np.testing.assert_allclose(
        mine, _differences(finer, likelihood, points, study.batch), atol=1e-10
    )
    assert np.abs(mine).max() > 1e-9  # there is something to compare

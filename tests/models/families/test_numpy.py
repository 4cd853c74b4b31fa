"""One formula for two kinds of arrays: JAX's compiled results and NumPy's agree."""

import jax
import numpy as np
import pytest

import modicum as mo
from modicum.arrays import differentiable, power
from modicum.models import LinearPredictorModel

M = mo.models
BINARY, COUNTS, REAL = [0.0, 1.0], [0.0, 1.0, 7.0], [-2.0, 0.3, 5.0]
FAMILIES = {
    "Logistic": (M.Logistic(), BINARY),
    "Probit": (M.Probit(), BINARY),
    "Cloglog": (M.Cloglog(), BINARY),
    "Poisson": (M.Poisson(), COUNTS),
    "Binomial": (M.Binomial(link="probit"), [(3.0, 10.0), (0.0, 4.0)]),
    "Exponential": (M.Exponential(), [(0.2, 1.0), (3.0, 0.0)]),
    "Gaussian": (M.Gaussian(scale=0.6), REAL),
    "StudentT": (M.StudentT(scale=0.6, df=3.0), REAL),
    "AsymmetricLaplace": (M.AsymmetricLaplace(quantile=0.8, scale=0.6, smoothing=0.3), REAL),
}
ETA = np.linspace(-9.0, 9.0, 73)


def test_every_family_without_a_compiler_is_compared():
    named = {name: getattr(M, name) for name in M.__all__}
    classes = {k: c for k, c in named.items() if isinstance(c, type)}
    families = {k for k, c in classes.items() if issubclass(c, LinearPredictorModel) and c.on_numpy}
    assert families == set(FAMILIES)


def every(model, eta, y):
    return (*model.derivatives(eta, y), *model.higher_derivatives(eta, y), model.value(eta, y))


compiled = jax.jit(every, static_argnums=0)


def by_both(model, y):
    """Return all derivatives, by NumPy and compiled, (order, row), each in units of its largest.

    Where a derivative crosses 0, terms of the size of the largest cancel.
    """
    rows = np.broadcast_to(np.asarray(y), (len(ETA), *np.shape(y)))
    with np.errstate(over="ignore"):
        ours = every(model, ETA, rows)
    assert all(isinstance(part, np.ndarray) for part in ours)
    largest = np.abs(ours).max(axis=1, keepdims=True)
    largest[largest == 0] = 1
    return np.array(ours) / largest, np.array(compiled(model, ETA, rows)) / largest


@pytest.mark.parametrize("name", FAMILIES)
def test_derivatives_agree(name, x64):
    model, outcomes = FAMILIES[name]
    for y in outcomes:
        ours, theirs = by_both(model, y)
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-11)
        np.testing.assert_array_equal(ours[-1], ours[0])  # f alone is f


def test_another_formula_is_noticed(x64):
    class Broken(M.Logistic):
        def higher_derivatives(self, eta, y):
            fourth, *others = super().higher_derivatives(eta, y)
            return (fourth if isinstance(eta, np.ndarray) else 1.001 * fourth, *others)

    ours, theirs = by_both(Broken(), 1.0)
    assert not np.allclose(ours, theirs, rtol=1e-8, atol=1e-11)


def test_a_slope_of_its_own_is_for_jax_alone(x64):
    twice = differentiable(slope=lambda x: 5.0 * x)(lambda x: 2.0 * x)
    assert isinstance(twice(np.ones(2)), np.ndarray)
    assert float(jax.grad(twice)(3.0)) == 15.0


@pytest.mark.parametrize("exponent", range(7))
def test_powers(exponent, x64):
    x = np.linspace(-2, 2, 9)
    np.testing.assert_allclose(power(x, exponent), x**exponent, rtol=1e-14)

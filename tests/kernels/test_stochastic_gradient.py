"""Stationary moments of every kind of step match closed forms and other simulations."""

from dataclasses import dataclass
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from helpers.sg_simulation import composed, context_of, simulate
from helpers.slow import slowly
from helpers.targets import TIMES, Location, location, sums_of
from modicum.kernels.designs import Stratified, strata_tables
from modicum.kernels.gradients import ESTIMATORS, Minibatch, Taylor
from modicum.kernels.integrators import INTEGRATORS, Friction, Preconditioned
from modicum.kernels.stochastic_gradient import (
    SELECTORS,
    Exponential,
    StepFlags,
    StochasticGradientKernel,
)
from modicum.kernels.whitening import Whitening
from modicum.models import Target
from modicum.passes import anchor_at

# n Var(t), Var(r) and bias in sd by an independent simulation of 4,000 chains; its own errors:
OTHERS = {"variance": 0.012, "momentum": 0.006, "bias": 0.02}
# Underdamped, gamma = 10: (settings, h) -> values
TABLE = {
    ("exponential", 1, 1, 0.01): (0.977, 1.154, 0.234),
    ("exponential", 9, 1, 0.01): (0.850, 1.087, 0.500),
    ("linear", 1, 1, 0.01): (1.047, 1.108, 0.009),
    ("linear", 3, 1, 0.01): (1.014, 1.078, 0.017),
    ("exponential", 1, 1, 0.03): (1.182, 1.723, 0.303),
    ("exponential", 1, 4, 0.03): (1.012, 1.315, 0.039),
    ("linear", 1, 4, 0.03): (1.077, 1.291, 0.005),
    ("linear", 3, 1, 0.03): (1.106, 1.390, 0.099),
}
QUICK = ("exponential", 1, 1, 0.01)


def ewsg(weights="exponential", steps=1, batch=1):
    return mo.EWSG(friction=10.0, batch=batch, index_steps=steps, weights=weights)


def faults(found, variance=None, momentum=None, bias=None, other=OTHERS):
    """List the values that differ beyond the errors of both sides."""
    known = {"variance": variance, "momentum": momentum, "bias": bias}
    wrong = []
    for name, value in known.items():
        if value is not None:
            estimate, error = getattr(found, name)
            if not abs(estimate - value) <= TIMES * np.hypot(error, other.get(name, 0.0)):
                wrong.append(name)
    return wrong


EXACT = {"variance": 0.0, "momentum": 0.0, "bias": 0.0}
closed = partial(faults, other=EXACT)


# EWSG --------------------------------------------------------------------------------------


@cases("weights steps batch h", QUICK, *slowly(*sorted(TABLE.keys() - {QUICK})))
def test_ewsg_has_the_moments_of_an_independent_simulation(weights, steps, batch, h):
    key = weights, steps, batch, h
    # with 1,000 chains its error equals that of the other side
    chains = 1000 if key == QUICK else 4000
    found = simulate(composed(ewsg(weights, steps, batch)), h, chains=chains)
    assert faults(found, *TABLE[key]) == []


@dataclass(frozen=True)
class Flipped(Exponential):
    """A mistake: x with the wrong sign."""

    def guess(self, match):
        return -super().guess(match)


@dataclass(frozen=True)
class OneKey(StochasticGradientKernel):
    """A mistake: one key for all candidate batches, which then are all the same."""

    def row_request(self, key, context):
        drawn = self.design.draw(key, self.batch, context.design)
        return jax.tree.map(lambda part: jnp.stack([part] * self.batches), drawn)


UNIFORM = 1.248  # Var(r) with uniform batches


def test_a_flipped_sign_is_noticed():
    table = TABLE["exponential", 1, 1, 0.01]
    flipped = simulate(composed(ewsg(), selector=Flipped()), 0.01, chains=1000)
    assert {"variance", "momentum"} <= set(faults(flipped, *table))
    assert flipped.momentum[0] > UNIFORM + 0.05


@pytest.mark.slow
def test_a_shared_key_is_noticed():
    table = TABLE["exponential", 1, 1, 0.01]
    shared = simulate(composed(ewsg(), kernel=OneKey), 0.01, chains=1000)
    assert {"variance", "momentum"} <= set(faults(shared, *table))
    assert faults(shared, momentum=UNIFORM) == []  # equal candidates: uniform batches


@cases("weights known", ("exponential", (1.077, 0.243)), ("linear", (1.054, 0.012)))
@pytest.mark.slow
def test_overdamped_ewsg(weights, known):
    method = mo.EWSGLD(batch=1, weights=weights)
    found = simulate(composed(method), 0.001, chains=2000)
    assert faults(found, variance=known[0], bias=known[1]) == []
    uniform = mo.SGLD().parts().integrator.response(0.002)
    plain = 20 * uniform.variance(20.0, location().gradient_noise(1))
    assert plain == pytest.approx(1.178, abs=0.01)
    assert "variance" in faults(found, variance=plain)


# Plain batches -----------------------------------------------------------------------------


def test_sgld_with_uniform_and_with_stratified_rows():
    target, e, b = location(), 0.02, 5
    step = mo.SGLD().parts().integrator.response(e)
    uniform = 20 * step.variance(20.0, target.gradient_noise(b))
    assert uniform == pytest.approx(1.476, abs=1e-3)
    found = simulate(composed(mo.SGLD(batch=b)), e, 300, chains=1500)
    assert closed(found, variance=uniform, bias=0.0) == []

    groups = np.argsort(np.argsort(target.c[:, 0])) // 4  # five groups of similar points
    tables = strata_tables(groups, b)
    within = np.mean([target.c[groups == g].var(axis=0).mean() for g in range(5)])
    stratified = 20 * step.variance(20.0, target.n**2 * within / b)
    assert stratified == pytest.approx(1.266, abs=0.01)
    kernel = composed(mo.SGLD(batch=b), design=Stratified())
    found = simulate(kernel, e, 300, chains=1500, tables=jax.tree.map(jnp.asarray, tables))
    assert closed(found, variance=stratified, bias=0.0) == []
    assert closed(found, variance=uniform) == ["variance"]


NOISE_OF_5 = location().gradient_noise(5)
E = np.sqrt(0.001)


@pytest.mark.slow
@cases(
    "method integrator h known",
    (mo.SGHMC(friction=10.0, batch=1), None, 0.01, None),
    (mo.BAOAB(friction=10.0, batch=1), None, 0.01, None),
    (mo.SGHMC(batch=5), Friction(0.1 / E), E, 1.337),
    (mo.SGHMC(batch=5), Friction(0.1 / E, noise=E * NOISE_OF_5 / 2), E, 1.0),
    ids=["sghmc", "baoab", "friction", "friction that knows the noise"],
)
def test_underdamped_methods_with_uniform_rows(method, integrator, h, known):
    integrator = integrator or method.parts().integrator
    noise = location().gradient_noise(method.batch)
    variance = 20 * integrator.response(h).variance(20.0, noise)
    assert known is None or variance == pytest.approx(known, abs=0.01)
    found = simulate(composed(method, integrator=integrator), h)
    assert closed(found, variance=variance, bias=0.0) == []


@pytest.mark.slow
def test_momentum_must_be_refreshed():
    # almost no friction: without fresh momenta a chain keeps its initial energy
    h, settings = 0.05, {"friction": 1e-3, "period": 7}
    right = composed(mo.SGHMC(batch=20), integrator=Friction(**settings))
    wrong = composed(mo.SGHMC(batch=20), integrator=Friction(friction=1e-3))
    known = 20 * refreshed_variance(Friction(**settings).response(h), 20.0, 16.44, 7, steps=140)
    assert closed(simulate(right, h, steps=140, chains=1000), variance=known) == []
    assert closed(simulate(wrong, h, steps=140, chains=1000), variance=known) == ["variance"]


def refreshed_variance(step, curvature, noise, period, steps):
    """Return the variance over the second half of `steps`, starting at rest at the mean."""
    move = step.free - curvature * np.outer(step.kick, step.at)
    fresh = np.outer(step.noise, step.noise) + noise * np.outer(step.kick, step.kick)
    cov, seen = np.zeros((2, 2)), []
    for k in range(steps):
        if k % period == 0:
            cov = np.diag([cov[0, 0], 1.0])
        cov = move @ cov @ move.T + fresh
        seen.append(cov[0, 0])
    return np.mean(seen[steps // 2 :])


@pytest.mark.slow
def test_psgld_is_biased_as_known():
    found = simulate(composed(mo.PSGLD(batch=5)), 0.01, steps=2000, chains=1000)
    assert abs(found.variance[0] - 1.494) < 0.05


@pytest.mark.slow
def test_the_gamma_term_makes_a_moving_preconditioner_right():
    # one row, so that the gradient is exact, and V without memory: P = 1 / (1 + |t|). Without
    # Gamma the stationary density is proportional to posterior / P.
    target = Location(np.zeros((1, 1)))
    variances = {}
    for gamma in (True, False):
        integrator = Preconditioned(decay=0.0, floor=1.0, gamma=gamma)
        kernel = composed(mo.PSGLD(batch=1), target, integrator=integrator)
        found = simulate(kernel, 0.05, steps=1200, chains=4000, target=target)
        variances[gamma] = found.variance
    t = np.linspace(-8, 8, 4001)
    density = np.exp(-(t**2) / 2) * (1 + np.abs(t))
    biased = float((t**2 * density).sum() / density.sum())
    assert variances[True][0] == pytest.approx(1.0, abs=0.05)
    assert variances[False][0] == pytest.approx(biased, abs=0.05)
    assert biased > 1.3


# The prior ---------------------------------------------------------------------------------


def strong_prior(theta):
    return -10.0 * (theta["theta"] ** 2).sum()


@dataclass(frozen=True)
class PriorAgain(Minibatch):
    """A mistake if `context.estimator` is 1 instead of 0: the prior is added once more.

    Right and wrong gradients are thus of one program.
    """

    def gradient(self, z, batch, memory, context):
        again = -jax.grad(lambda z: self.target.log_prior(z))(z)
        return super().gradient(z, batch, memory, context) + context.estimator * again


def test_the_prior_counts_once():
    target = Location(location().c, strong_prior)
    target.mean = target.c.sum(axis=0) / 40  # 20 rows, and a prior worth 20 more
    estimator = PriorAgain(target=Target.of(target.model, target.rows)[0])
    kernel = composed(mo.SGLD(batch=20), target, estimator=estimator)
    found = {
        name: simulate(kernel, 0.01, 300, 1000, target, arrays=again)
        for name, again in (("right", 0.0), ("twice", 1.0))
    }
    assert closed(found["right"], bias=0.0) == []
    assert closed(found["twice"], bias=0.0) == ["bias"]


# Everything composes -----------------------------------------------------------------------


def context_for(estimator, target):
    context = context_of(target)
    if isinstance(estimator, Taylor):
        anchor = anchor_at(sums_of(target.model, target.rows)[0], target.mean)
        return context._replace(
            where=Whitening.about(anchor.point, anchor.factor),
            start=jnp.zeros(2),
            estimator=estimator.arrays(anchor),
        )
    return context


KEY = jax.random.key(1, impl="unsafe_rbg")


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_every_valid_composition_is_a_kernel_and_the_others_are_refused(integrator, x64):
    target = location()
    for estimator, selector in product(ESTIMATORS, SELECTORS):
        settings = {"integrator": integrator, "estimator": estimator, "selector": selector}
        if integrator == "preconditioned" and (estimator, selector) != ("minibatch", "plain"):
            refused(mo.SettingError, "pSGLD scales", mo.StochasticGradient, **settings)
            continue
        kernel = composed(mo.StochasticGradient(batch=3, **settings), target)
        context = context_for(kernel.estimator, target)

        def run(key, context, data, kernel=kernel):
            state = kernel.init(key, None, context)
            step = partial(_step, kernel, context=context, data=data)
            return jax.lax.scan(step, state, jax.random.split(key, 4))[1]

        # a scan needs a state of one shape and type
        draw = jax.eval_shape(run, KEY, context, jnp.asarray(target.c))
        assert (draw["position"].shape, draw["position"].dtype) == ((4, 2), np.float64)


def _step(kernel, state, key, context, data):
    drawn = kernel.row_request(key, context)
    batch = {"c": data[drawn.row_ids], "probability": drawn.probability}
    flags = StepFlags(jnp.asarray(0.01), jnp.zeros((), bool), jnp.zeros((), bool))
    chances = kernel.chances(jax.random.fold_in(key, 1), context)
    return kernel.step(chances, state, flags, kernel.prepare(batch, context), context)

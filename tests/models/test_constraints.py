"""Constraints: round trips, Jacobians by automatic differentiation, priors of known moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused, unwarned
from helpers.targets import TIMES, mean_and_error
from modicum.models.constraints import Entries, monotonic_steps

INF = float("inf")
CASES = [
    (mo.positive, (3,)),
    (mo.interval(-1, 3), (2,)),
    (mo.interval(2, INF), ()),
    (mo.interval(-INF, 2), (2,)),
    (mo.ordered, (4,)),
    (mo.ordered, (2, 3)),
    (mo.simplex, (5,)),
    (mo.simplex, (2, 3)),
    (mo.cholesky_corr, (4, 4)),
    (mo.cholesky_corr, (2, 3, 3)),
]


def independent(constraint, value):
    """Return as many entries as there are free numbers; these determine the others."""
    if constraint is mo.simplex:
        value = value[..., :-1]
    if constraint is mo.cholesky_corr:
        value = value[(..., *np.tril_indices(value.shape[-1], -1))]
    return jnp.ravel(value)


@pytest.fixture(scope="module")
def measured():
    """Compute all cases in one compiled function rather than operation by operation."""
    rng = np.random.default_rng(1)
    points = [rng.normal(size=constraint.free_shape(shape)) for constraint, shape in CASES]

    @jax.jit
    def measure(points):
        found = []
        for (constraint, _), free in zip(CASES, points, strict=True):

            def entries(flat, constraint=constraint, free=free):
                return independent(constraint, constraint.constrain(flat.reshape(free.shape)))

            value = constraint.constrain(free)
            slopes = jax.jacfwd(entries)(jnp.ravel(free))
            both = [constraint.log_jacobian(free), constraint.log_jacobian(free + 0.1)]
            far = [constraint.constrain(jnp.full_like(free, far)) for far in (-800.0, 40.0)]
            back = [constraint.free(x) for x in (value, *far)]
            found.append((value, slopes, both, far, back))
        return found

    with jax.enable_x64(True):
        return points, jax.tree.map(np.asarray, measure([jnp.asarray(p) for p in points]))


@pytest.mark.parametrize("case", range(len(CASES)), ids=[str(case) for case in CASES])
def test_constrain_and_free_are_inverse(case, measured):
    (constraint, shape), free = CASES[case], measured[0][case]
    value, slopes, (log_jacobian, elsewhere), far, back = measured[1][case]
    assert value.shape == shape
    assert constraint.allows(value)
    np.testing.assert_allclose(back[0], free, rtol=1e-9, atol=1e-9)
    known = np.linalg.slogdet(np.atleast_2d(slopes))[1]
    assert log_jacobian == pytest.approx(known, rel=1e-10)
    assert elsewhere != pytest.approx(known, rel=1e-4)  # negative control
    assert all(np.all(np.isfinite(x)) for x in back)  # also from far away
    if constraint is not mo.ordered:  # whose gap of e^-800 vanishes next to the first number
        assert all(constraint.allows(x) or constraint is mo.cholesky_corr for x in far)


def density(th):
    """Return the density of priors with known moments, in the constrained parameters."""
    gamma = 2 * jnp.log(th["rate"]) - 2 * th["rate"]
    beta = jnp.log(th["p"]) + 4 * jnp.log1p(-th["p"])
    dirichlet = jnp.sum(jnp.array([1.0, 2.0, 3.0]) * jnp.log(th["w"]))
    normals = -0.5 * jnp.sum(th["cut"] ** 2)
    # LKJ(2) of a correlation matrix of three: L_kk^(2 eta - 2 + 3 - k), k = 1, 2, 3
    diagonal = jnp.diagonal(th["L"])
    lkj = 3 * jnp.log(diagonal[1]) + 2 * jnp.log(diagonal[2])
    return gamma + beta + dirichlet + normals + lkj


def nothing(th, batch):
    return 0.0 * batch["y"] * th["p"]


ALL = {
    "rate": mo.positive, "p": mo.interval(0, 1), "w": mo.simplex, "cut": mo.ordered,
    "L": mo.cholesky_corr,
}  # fmt: skip
KNOWN = {  # means, and means of squares
    "rate": (1.5, 3.0),
    "p": (2 / 7, 6 / 56),
    "w": (np.array([2, 3, 4]) / 9, np.array([6, 12, 20]) / 90),
    "cut": (np.array([-0.84628, 0, 0.84628]), None),
    "correlation": (0.0, 1 / 6),  # of beta(2.5, 2.5) on (-1, 1)
}


def faults(model):
    rows = mo.Rows(y=np.zeros(8))
    with unwarned():  # the prior decides, as intended
        post = mo.sample(
            model, rows, method="hmc", draws=1500, tune=500, random_seed=2, progressbar=False,
            starts=1,
        )  # fmt: skip
    assert np.all(np.diff(post["cut"], axis=-1) > 0)
    np.testing.assert_allclose(post["w"].sum(axis=-1), 1)
    found = []
    for name, moments in KNOWN.items():
        for power, known in enumerate(moments, 1):
            at, error = mean_and_error(post[name] ** power)
            if known is not None and not np.all(np.abs(at - known) <= TIMES * error):
                found.append((name, power))
    return found


def correlation(th):
    return {"correlation": (th["L"] @ th["L"].T)[2, 1]}


class JacobianTwice(mo.Model):
    """A mistake; without any Jacobian the density of `cut` would be improper."""

    def log_prior(self, theta):
        return super().log_prior(theta) + self.layout.log_jacobian(theta)


@pytest.mark.slow
def test_prior_moments_notice_another_jacobian():
    shapes = {"w": 3, "cut": 3, "L": (3, 3)}
    settings = {"constraints": ALL, "shapes": shapes, "report": correlation}
    assert faults(mo.Model(density, nothing, **settings)) == []
    broken = {name for name, _ in faults(JacobianTwice(density, nothing, **settings))}
    assert broken == set(KNOWN)  # of each constraint


@cases("ends word", ((1, 1), "low < high"), ((-INF, INF), "leave it out"), (("a", 1), "a number"))
def test_impossible_intervals_are_refused(ends, word):
    refused(mo.SettingError, word, mo.interval, *ends)


def test_ends_of_an_interval_have_names():
    with pytest.raises(mo.errors.UnknownArgumentError, match="'upper': it is called high here"):
        mo.interval(0, upper=1)


@cases("constraint", mo.positive, mo.ordered, mo.simplex, mo.cholesky_corr, mo.interval(0, 1))
@pytest.mark.parametrize("given", [(), (3,)])
def test_a_constraint_is_not_called(constraint, given):
    with pytest.raises(mo.SettingError, match="without parentheses") as refused:
        constraint(*given)
    assert str(refused.value).startswith(repr(constraint))


def test_entries_compile_as_a_whole(x64, caplog):
    """Operation by operation, a monotonic effect made a fit compile a hundred functions."""
    entries = Entries((((0, 2, 5), monotonic_steps), ((3,), mo.positive)))
    free = np.array([0.5, 0.1, -0.3, 0.7, 2.0, 0.2, -1.0])
    with jax.log_compiles():
        values, slopes = entries.with_slopes(free)
        again = np.asarray(entries.free(values))
    compiled = [line for line in caplog.messages if "XLA compilation of" in line]
    assert len(compiled) <= 3, compiled  # one may ask for the compiler's options
    np.testing.assert_allclose(again, free, atol=1e-12)
    away = 1e-6 * np.eye(len(free))
    steps = entries.constrain(free + away) - entries.constrain(free - away)
    np.testing.assert_allclose(slopes.T, np.asarray(steps) / 2e-6, atol=1e-8)

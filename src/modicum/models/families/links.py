"""What families compute with: special functions, links, random draws, distribution functions.

Outcomes are drawn on the host, by NumPy: its generators are exact at any rate and shape, and need
no compilation. Exponentials of predictors are clipped to e^200, so that none overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import factorial, lgamma, log, pi, sqrt
from typing import Annotated, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from scipy.special import bernoulli

from modicum.arguments import one_of
from modicum.arrays import (
    HALF_LOG_2PI,
    as_either,
    differentiable,
    erfc,
    is_numpy,
    log1m_exp,
    log_gamma_of,
    namespace,
    sigmoid,
)

FAR = 10.0  # above this, seven terms of Stirling's series are exact in double precision
SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


@differentiable(slope=sigmoid)
def softplus(x: jax.Array) -> jax.Array:
    """log(1 + e^x); with its derivative, half the cost of `jax.nn.softplus`."""
    xp = namespace(x)
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


def log_softplus(x: jax.Array) -> jax.Array:
    """log log(1 + e^x), which for x far below 0 is x."""
    return jnp.where(x < -30, x, jnp.log(softplus(jnp.maximum(x, -30))))


def _leading(x: jax.Array) -> jax.Array:
    """Stirling's formula for log-gamma, without the series."""
    return (x - 0.5) * namespace(x).log(x) - x + HALF_LOG_2PI


def _series(x: jax.Array) -> jax.Array:
    """1 / 12x - 1 / 360x^3 + ..., for x from `FAR`."""
    inverse = 1 / x
    total = namespace(x).zeros_like(inverse)
    for term in reversed(SERIES):
        total = total * inverse**2 + term
    return total * inverse


@differentiable(slope=lambda x: jnp.sum(1 / (x[..., None] + jnp.arange(FAR, dtype=x.dtype)), -1))
def _log_ten_factors(x: jax.Array) -> jax.Array:
    """log of gamma(x + 10) / gamma(x) = x (x + 1) ... (x + 9): one logarithm, not ten."""
    q = x * (x + 9)  # (x + 1) (x + 8) = q + 8, and so on
    return namespace(x).log(q * (q + 8) * (q + 14) * (q + 18) * (q + 20))


def stirling_rest(x: jax.Array) -> jax.Array:
    """log-gamma minus Stirling's formula (x - 1/2) log x - x + log(2 pi) / 2, for x > 0."""
    xp = namespace(x)
    x = xp.asarray(x)
    far = x + xp.where(x < FAR, FAR, 0.0)
    shift = _leading(far) - _leading(x) - _log_ten_factors(x)
    return _series(far) + xp.where(x < FAR, shift, 0.0)


def log_gamma(x: jax.Array) -> jax.Array:
    """Log-gamma for x > 0."""
    return _leading(x) + stirling_rest(x)


def log_rising(x: jax.Array, y: jax.Array) -> jax.Array:
    """log of gamma(x + y) / gamma(x), for x > 0 and y >= 0, however large x is."""
    leading = (x - 0.5) * jnp.log1p(y / x) + y * jnp.log(x + y) - y
    return leading + stirling_rest(x + y) - stirling_rest(x)


def log_rising_from(log_x: jax.Array, y: jax.Array) -> jax.Array:
    """`log_rising` of e^log_x and a whole number y, also where e^log_x underflows."""
    above = log_x + log_rising(jnp.exp(log_x) + 1, jnp.maximum(y - 1, 0))
    return jnp.where(y > 0, above, 0.0)


def log_factorial(y: jax.Array, eta: jax.Array) -> jax.Array:
    """log y! in the precision of eta: in float32 it could be off by whole units."""
    return log_gamma_of(namespace(eta).asarray(y, eta.dtype) + 1.0)


Numbers: TypeAlias = np.ndarray  # of float64
Series = tuple[jax.Array, ...]  # derivatives of increasing order, or Taylor coefficients


class Link(NamedTuple):
    """Functions of a linear predictor eta whose probability of a one is p."""

    chance: Callable[[jax.Array], jax.Array]  # p
    log_success: Callable[[jax.Array], jax.Array]  # log p
    log_failure: Callable[[jax.Array], jax.Array]  # log(1 - p)
    success: Callable[[jax.Array, int], Series]  # log p and its derivatives up to an order
    failure: Callable[[jax.Array, int], Series]  # log(1 - p) and its derivatives
    log_density: Callable[[jax.Array], jax.Array]  # of the latent variable, whose cdf is p
    noise: float  # variance of the latent variable whose sign is the outcome
    draw: Callable[[np.random.Generator, tuple[int, ...]], Numbers]  # variables whose cdf is p


def _symmetric(
    chance: Callable[[jax.Array], jax.Array],
    log_success: Callable[[jax.Array], jax.Array],
    success: Callable[[jax.Array, int], Series],
    log_density: Callable[[jax.Array], jax.Array],
    noise: float,
    draw: Callable[[np.random.Generator, tuple[int, ...]], Numbers],
) -> Link:
    """Return a link for which 1 - p is p at minus eta."""

    def failure(eta: jax.Array, order: int) -> Series:
        return tuple(-d if k % 2 else d for k, d in enumerate(success(-eta, order)))

    log_failure = lambda eta: log_success(-eta)  # noqa: E731
    return Link(chance, log_success, log_failure, success, failure, log_density, noise, draw)


# Logit: p = 1 / (1 + e^-eta) --------------------------------------------------------------


def _logit_success(eta: jax.Array, order: int) -> Series:
    p, q = sigmoid(eta), sigmoid(-eta)
    return (-softplus(-eta), q, *sigmoid_curves(p, q, order))


def sigmoid_curves(p: jax.Array, q: jax.Array, highest: int) -> Series:
    """Derivatives 2 to 3, or to 6, of log p and of log q, with q = 1 - p."""
    s, skew = p * q, q - p
    if highest == 3:
        return -s, -s * skew
    fourth, fifth = -s * (1 - 6 * s), -s * skew * (1 - 12 * s)
    return -s, -s * skew, fourth, fifth, -s * (1 - 30 * s + 120 * s**2)


# Probit: p = Phi(eta) ---------------------------------------------------------------------

TAIL = 5.0  # below -TAIL the recurrence would cancel
DEPTH = 20  # depth of the continued fraction


def _hazard(x: jax.Array, terms: int) -> Series:
    """Taylor coefficients in x of m = phi(x) / Phi(x), the derivative of log Phi.

    m' = -m (x + m). Below -TAIL the coefficients of m - |x| are tiny differences of large numbers,
    and come from Laplace's continued fraction m - t = 1 / (t + 2 / (t + 3 / (t + ...))), t = -x.
    """
    xp = namespace(x)
    body, tail = _hazard_body(xp.maximum(x, -TAIL), terms), _hazard_tail(x, terms)
    return tuple(xp.where(x < -TAIL, b, a) for a, b in zip(body, tail, strict=True))


def _hazard_body(x: jax.Array, terms: int) -> Series:
    xp = namespace(x)
    c = [xp.exp(-0.5 * x**2) / (sqrt(pi / 2) * erfc(-x / sqrt(2)))]
    for j in range(terms - 1):
        following = x * c[j] + sum((c[i] * c[j - i] for i in range(j + 1)), xp.zeros_like(x))
        following = following + c[j - 1] if j else following
        c.append(-following / (j + 1))
    return tuple(c)


def _hazard_tail(x: jax.Array, terms: int) -> Series:
    xp = namespace(x)
    t = xp.maximum(-x, TAIL)

    def deeper(excess: Series, level: jax.Array) -> tuple[Series, None]:
        """Taylor coefficients in t of level / (t + excess)."""
        below = [t + excess[0], *(e + (j == 0) for j, e in enumerate(excess[1:]))]
        inverse = [1 / below[0]]
        for j in range(1, terms):
            total = sum((below[i] * inverse[j - i] for i in range(1, j + 1)), xp.zeros_like(t))
            inverse.append(-inverse[0] * total)
        return tuple(level * i for i in inverse), None

    levels = xp.arange(DEPTH, 0, -1, dtype=t.dtype)
    excess: Series = (xp.zeros_like(t),) * terms
    if is_numpy(x):
        for level in levels:
            excess, _ = deeper(excess, level)
    else:  # unrolled, the loop would take long to compile
        excess, _ = jax.lax.scan(deeper, excess, levels)
    signed = [e if j % 2 == 0 else -e for j, e in enumerate(excess)]  # d/dx = -d/dt
    signed[0] = signed[0] + t
    return (signed[0], signed[1] - 1, *signed[2:]) if terms > 1 else (signed[0],)


@differentiable(slope=lambda x: _hazard(x, 1)[0])
def log_normal_cdf(x: jax.Array) -> jax.Array:
    """log Phi(x), with derivatives of all orders accurate in both tails."""
    xp = namespace(x)
    body, right = xp.clip(x, -TAIL, 0.0), xp.maximum(x, 0.0)
    far = xp.minimum(x, -TAIL)
    tail = -0.5 * far**2 - HALF_LOG_2PI - xp.log(_hazard_tail(far, 1)[0])
    left = xp.where(x < -TAIL, tail, xp.log(0.5 * erfc(-body / sqrt(2))))
    return xp.where(x > 0, xp.log1p(-0.5 * erfc(right / sqrt(2))), left)


def _probit_success(eta: jax.Array, order: int) -> Series:
    """log Phi, then the hazard m and its derivatives."""
    hazard = _hazard(eta, order)
    return (log_normal_cdf(eta), *(factorial(j) * c for j, c in enumerate(hazard)))


# Complementary log-log: p = 1 - exp(-e^eta), of an event whose log-rate is eta --------------

SMALL = 0.5  # rate below which Bernoulli's series is used
# w = r / (e^r - 1) = sum of B_k r^k / k!, by the power of r
BERNOULLI = {k: float(b) / factorial(k) for k, b in enumerate(bernoulli(16)) if b}
VANISHED = 700.0  # at this rate w is 0 in double precision, and e^r is finite


def _log_slope(eta: jax.Array, terms: int) -> Series:
    """Taylor coefficients in eta of w = r / (e^r - 1), r = e^eta: the derivative of log p.

    w' = w (1 - r - w), which cancels for small r.
    """
    xp = namespace(eta)
    r = xp.minimum(xp.exp(eta), VANISHED)
    small, large = xp.minimum(r, SMALL), xp.maximum(r, SMALL)
    c = [-large * xp.exp(-large) / xp.expm1(-large)]  # so that no derivative overflows
    for j in range(terms - 1):
        total = sum(
            (c[i] * (large / factorial(j - i) + c[j - i]) for i in range(j + 1)),
            xp.zeros_like(r),
        )
        c.append((c[j] - total) / (j + 1))
    near = [
        sum(
            (b * k**j / factorial(j) * small**k for k, b in BERNOULLI.items()),
            xp.zeros_like(r),
        )
        for j in range(terms)
    ]
    return tuple(xp.where(r < SMALL, a, b) for a, b in zip(near, c, strict=True))


@differentiable(slope=lambda eta: _log_slope(eta, 1)[0])
def log_some(eta: jax.Array) -> jax.Array:
    """log(1 - exp(-e^eta)), the log-probability that a Poisson count of log-rate eta is not 0."""
    xp = namespace(eta)
    r = xp.exp(eta)
    return xp.where(eta < -30, eta - r / 2, log1m_exp(xp.maximum(r, 1e-14)))


def _cloglog_success(eta: jax.Array, order: int) -> Series:
    """log p, then w and its derivatives."""
    slopes = _log_slope(eta, order)
    return (log_some(eta), *(factorial(j) * c for j, c in enumerate(slopes)))


def _minus_rate(eta: jax.Array) -> jax.Array:
    return -namespace(eta).exp(eta)


LINKS = {
    "logit": _symmetric(
        sigmoid,
        lambda eta: -softplus(-eta),
        _logit_success,
        lambda z: z - 2 * softplus(z),
        pi**2 / 3,
        lambda rng, shape: rng.logistic(size=shape),
    ),
    "probit": _symmetric(
        lambda eta: 0.5 * erfc(-eta / sqrt(2)),
        log_normal_cdf,
        _probit_success,
        lambda z: -0.5 * z**2 - HALF_LOG_2PI,
        1.0,
        lambda rng, shape: rng.standard_normal(shape),
    ),
    "cloglog": Link(
        lambda eta: -namespace(eta).expm1(_minus_rate(eta)),
        log_some,
        _minus_rate,  # and so are all its derivatives
        _cloglog_success,
        lambda eta, order: (_minus_rate(eta),) * (order + 1),
        lambda z: z + _minus_rate(z),
        pi**2 / 6,
        lambda rng, shape: np.log(rng.standard_exponential(shape)),
    ),
}
LinkName: TypeAlias = Annotated[str, one_of(LINKS)]


LARGEST_LOG = 200.0  # its exponential, and the cube of that, are finite
MANY = 1e12  # larger counts are normal to the precision of float64


def chances(link: Link, eta: Numbers) -> Numbers:
    """Probability of a success at each linear predictor."""
    with np.errstate(over="ignore"):
        return np.asarray(link.chance(as_either(eta)))


def bounded_exp(log: Numbers) -> Numbers:
    """Return e^log, clipped to be neither 0 nor infinite."""
    return np.asarray(np.exp(np.clip(log, -LARGEST_LOG, LARGEST_LOG)))


def draw_counts(rng: np.random.Generator, rate: Numbers) -> Numbers:
    """Draw Poisson counts as floats, also at rates too large for integers."""
    small = rng.poisson(np.minimum(rate, MANY)).astype(float)
    if not np.any(rate > MANY):
        return small
    many = np.rint(rate + np.sqrt(rate) * rng.standard_normal(rate.shape))
    return np.where(rate > MANY, many, small)


def draw_log_gammas(rng: np.random.Generator, shape: Numbers) -> Numbers:
    """Draw logarithms of gamma variables, which are finite even where the variables underflow.

    gamma(a) = gamma(a + 1) u^(1 / a), with u uniform (Marsaglia and Tsang 2000).
    """
    more = np.log(rng.standard_gamma(np.add(shape, 1.0)))
    return np.asarray(more - rng.standard_exponential(np.shape(shape)) / shape)


# Distribution functions -------------------------------------------------------------------
#
# Their logarithms, accurate in both tails and differentiable to any order. JAX has no second
# derivatives of the incomplete gamma and beta functions in their parameters, and their logarithms
# underflow far out. Both are integrals of log-concave densities, in the logarithm or the log-odds
# of their argument, and so is the inverse Gaussian's distribution function. One rule integrates
# from a point away from the mode, where the integrand falls; the other tail is the rest.

Tails = tuple[jax.Array, jax.Array]  # log P(Y <= y) and log P(Y > y)
Density: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]  # logarithm of, at (eta, y)
DROP = 40.0  # fall of the log-density beyond which e^-40 of the integral is left out
LADDER = 2.0 ** np.arange(-40, 15)  # lengths to integrate over
NODES = 48


def _rule() -> tuple[np.ndarray, np.ndarray]:
    """Return nodes in (0, 1) that are dense towards 0, and the logarithms of their weights."""
    x, w = np.polynomial.legendre.leggauss(NODES)
    x = (x + 1) / 2
    return x**2, np.log(w * x)


def log_tails(
    log_density: Callable[[jax.Array], jax.Array], mode: jax.Array | float, at: jax.Array
) -> Tails:
    """Integrate a log-concave density up to a number, and from there on.

    Parameters
    ----------
    log_density
        An elementwise function of a vector; its parameters are numbers.
    mode
        Where it is largest.
    at
        The number.
    """
    right = at >= mode
    lengths = jnp.where(right, 1.0, -1.0) * LADDER.astype(at.dtype)
    falls = log_density(at) - log_density(at + lengths) > DROP
    # Nodes at distances that do not depend on parameters: only the integrand is differentiated.
    length = jax.lax.stop_gradient(lengths[jnp.where(falls.any(), jnp.argmax(falls), -1)])
    nodes, log_weights = (each.astype(at.dtype) for each in _rule())
    outer = jax.nn.logsumexp(log_density(at + length * nodes) + log_weights)
    outer = outer + jnp.log(jnp.abs(length))
    inner = log1m_exp(jnp.maximum(-outer, 1e-15))
    return jnp.where(right, inner, outer), jnp.where(right, outer, inner)


def log_gamma_tails(shape: jax.Array, log_ratio: jax.Array) -> Tails:
    """Tails of a gamma variable with this shape at e^log_ratio times its mean."""
    constant = 0.5 * jnp.log(shape) - HALF_LOG_2PI - stirling_rest(shape)
    return log_tails(lambda s: shape * (s - jnp.expm1(s)) + constant, 0.0, log_ratio)


def log_beta_tails(a: jax.Array, b: jax.Array, log_odds: jax.Array) -> Tails:
    """Tails of a beta variable, given the log-odds of the point."""
    most = jnp.log(a) - jnp.log(b)
    rest = stirling_rest(a + b) - stirling_rest(a) - stirling_rest(b)
    constant = 0.5 * (jnp.log(a) + jnp.log(b) - jnp.log(a + b)) - HALF_LOG_2PI + rest
    peak = a * softplus(-most) + b * softplus(most)
    return log_tails(lambda t: peak - a * softplus(-t) - b * softplus(t) + constant, most, log_odds)


def log_wald_tails(shape: jax.Array, log_ratio: jax.Array) -> Tails:
    """Tails of an inverse Gaussian at e^log_ratio times its mean; the shape is over that mean."""
    constant = 0.5 * jnp.log(shape) - HALF_LOG_2PI
    most = -jnp.arcsinh(0.5 / shape)
    return log_tails(lambda s: constant - s / 2 - 2 * shape * jnp.sinh(s / 2) ** 2, most, log_ratio)


def _log_sum(log_density: Density, eta: jax.Array, y: jax.Array, last: jax.Array) -> jax.Array:
    one = jnp.zeros_like(y).at[0].set(1.0)

    def add(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y, total = carry
        return y + one, jnp.logaddexp(total, log_density(eta, y))

    start = y, jnp.full((), -jnp.inf, eta.dtype)
    return jax.lax.while_loop(lambda carry: carry[0][0] <= last, add, start)[1]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def log_sum(log_density: Density, eta: jax.Array, y: jax.Array, last: jax.Array) -> jax.Array:
    """Log of a sum of probabilities: of counts from y[0] to the last, with the same y[1:]."""
    return _log_sum(log_density, eta, y, last)


@log_sum.defjvp
def _log_sum_jvp(
    log_density: Density, at: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    """Differentiate forwards, as a loop of unknown length has no other derivative."""
    slope = jax.jacfwd(partial(_log_sum, log_density))(*at)
    return log_sum(log_density, *at), slope @ tangents[0]


def log_skew_normal_tails(w: jax.Array, slant: jax.Array) -> Tails:
    """Tails of the density 2 phi(w) Phi(slant w), whose distribution function is by Owen's T.

    For w < 0 < slant it is the integral of exp(-(w cosh t)^2 / 2) / (pi cosh t) from arsinh(slant).
    """
    side = jnp.where(slant < 0, -1.0, 1.0)
    w, size = side * w, jnp.abs(w)

    def sech(t: jax.Array) -> jax.Array:
        log_cosh = jnp.logaddexp(t, -t) - log(2)
        return -0.5 * size**2 * jnp.exp(jnp.minimum(2 * log_cosh, 80.0)) - log_cosh - log(pi)

    least = log_tails(sech, 0.0, jnp.arcsinh(side * slant))[1]
    half = log_normal_cdf(-size)
    far = half + jnp.log(2 - jnp.exp(jnp.minimum(least - half, 0.0)))
    small = jnp.where(w < 0, least, far)
    rest = log1m_exp(jnp.maximum(-small, 1e-15))
    below = (w < 0) == (side > 0)
    return jnp.where(below, small, rest), jnp.where(below, rest, small)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def log_t_cdf(z: jax.Array, df: float) -> jax.Array:
    """log P(T <= z) of a Student-t variable: df / (df + T^2) is a beta variable."""
    size = jnp.abs(z)
    far, near = jnp.maximum(size, 1.0), jnp.minimum(size, 1.0)
    half = jnp.asarray(0.5, far.dtype)
    tail = log_beta_tails(df * half, half, log(df) - 2 * jnp.log(far))[0] - log(2.0)
    nodes, log_weights = (each.astype(far.dtype) for each in _rule())
    within = near * jnp.sum(jnp.exp(_log_t_density(near * nodes, df) + log_weights))
    below = jnp.where(size > 1, tail, jnp.log(0.5 - within))
    return jnp.where(z < 0, below, jnp.log1p(-jnp.exp(below)))


def log_t_constant(df: jax.Array | float) -> jax.Array | float:
    """Logarithm of the constant of Student's density, of known or estimated `df`."""
    if not isinstance(df, jax.Array):
        return lgamma((df + 1) / 2) - lgamma(df / 2) - 0.5 * log(df * pi)
    return gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * jnp.log(df * pi)


def _log_t_density(z: jax.Array, df: float) -> jax.Array:
    return log_t_constant(df) - (df + 1) * jnp.log(jnp.hypot(1.0, z / df**0.5))


@log_t_cdf.defjvp
def _log_t_cdf_jvp(
    df: float, at: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    value = log_t_cdf(at[0], df)
    return value, tangents[0] * jnp.exp(_log_t_density(at[0], df) - value)

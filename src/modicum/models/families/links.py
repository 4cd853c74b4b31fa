"""Link functions of a probability p: logit, probit and complementary log-log.

A link provides log p and log(1 - p) as functions of the linear predictor, with six derivatives,
each to full *relative* precision in both tails. The first derivative solves a differential
equation, which gives a recurrence of Taylor coefficients; where that recurrence cancels, a series
or a continued fraction replaces it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import factorial, pi, sqrt
from typing import ClassVar

import jax

from modicum.arrays import HALF_LOG_2PI, differentiable, erfc, is_numpy, namespace, sigmoid
from modicum.models.families.special import log1m_exp, softplus

Series = tuple[jax.Array, ...]  # derivatives of increasing order, or Taylor coefficients


class Link(ABC):
    """Map from a linear predictor to a probability p."""

    name: ClassVar[str]

    @abstractmethod
    def chance(self, eta: jax.Array) -> jax.Array:
        """p, the probability of a one."""

    @abstractmethod
    def log_success(self, eta: jax.Array) -> jax.Array:
        """log p."""

    @abstractmethod
    def log_failure(self, eta: jax.Array) -> jax.Array:
        """log(1 - p)."""

    @abstractmethod
    def success(self, eta: jax.Array, order: int) -> Series:
        """log p and its derivatives up to `order`."""

    @abstractmethod
    def failure(self, eta: jax.Array, order: int) -> Series:
        """log(1 - p) and its derivatives up to `order`."""


class Logit(Link):
    """p = 1 / (1 + e^-eta)."""

    name: ClassVar[str] = "logit"

    def chance(self, eta: jax.Array) -> jax.Array:
        """The sigmoid."""
        return sigmoid(eta)

    def log_success(self, eta: jax.Array) -> jax.Array:
        """-log(1 + e^-eta)."""
        return -softplus(-eta)

    def log_failure(self, eta: jax.Array) -> jax.Array:
        """-log(1 + e^eta)."""
        return -softplus(eta)

    def success(self, eta: jax.Array, order: int) -> Series:
        """log p, whose first derivative is 1 - p, and its derivatives."""
        return (-softplus(-eta), sigmoid(-eta), *self._curves(eta))[: order + 1]

    def failure(self, eta: jax.Array, order: int) -> Series:
        """log(1 - p), with first derivative -p; the higher ones are those of log p."""
        return (-softplus(eta), -sigmoid(eta), *self._curves(eta))[: order + 1]

    def _curves(self, eta: jax.Array) -> Series:
        """Derivatives 2 to 6: polynomials in s = p (1 - p)."""
        p, q = sigmoid(eta), sigmoid(-eta)
        s, skew = p * q, q - p
        return (
            -s,
            -s * skew,
            -s * (1 - 6 * s),
            -s * skew * (1 - 12 * s),
            -s * (1 - 30 * s + 120 * s**2),
        )


# Probit -----------------------------------------------------------------------------------

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


class Probit(Link):
    """p = Phi(eta), the normal distribution function."""

    name: ClassVar[str] = "probit"

    def chance(self, eta: jax.Array) -> jax.Array:
        """Phi(eta)."""
        return 0.5 * erfc(-eta / sqrt(2))

    def log_success(self, eta: jax.Array) -> jax.Array:
        """log Phi(eta)."""
        return log_normal_cdf(eta)

    def log_failure(self, eta: jax.Array) -> jax.Array:
        """log Phi(-eta)."""
        return log_normal_cdf(-eta)

    def success(self, eta: jax.Array, order: int) -> Series:
        """log Phi, then the hazard m and its derivatives."""
        hazard = _hazard(eta, order)
        return (log_normal_cdf(eta), *(factorial(j) * c for j, c in enumerate(hazard)))

    def failure(self, eta: jax.Array, order: int) -> Series:
        """log(1 - p) and its derivatives, by symmetry."""
        mirrored = self.success(-eta, order)
        return tuple(-d if k % 2 else d for k, d in enumerate(mirrored))


# Complementary log-log --------------------------------------------------------------------

SMALL = 0.5  # rate below which Bernoulli's series is used
# w = r / (e^r - 1) = sum of B_k r^k / k!, by the power of r
BERNOULLI = {
    0: 1.0,
    1: -1 / 2,
    2: 1 / 12,
    4: -1 / 720,
    6: 1 / 30240,
    8: -1 / 1209600,
    10: 1 / 47900160,
    12: -691 / 1307674368000,
    14: 1 / 74724249600,
    16: -3617 / 10670622842880000,
}
VANISHED = 800.0  # above this rate, w is 0 in double precision


def _log_slope(eta: jax.Array, terms: int) -> Series:
    """Taylor coefficients in eta of w = r / (e^r - 1), r = e^eta: the derivative of log p.

    w' = w (1 - r - w), which cancels for small r.
    """
    xp = namespace(eta)
    r = xp.minimum(xp.exp(eta), VANISHED)
    small, large = xp.minimum(r, SMALL), xp.maximum(r, SMALL)
    c = [large / xp.expm1(large)]
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


class Cloglog(Link):
    """p = 1 - exp(-e^eta), the probability of an event whose log-rate is eta."""

    name: ClassVar[str] = "cloglog"

    def chance(self, eta: jax.Array) -> jax.Array:
        """1 - exp(-e^eta)."""
        xp = namespace(eta)
        return -xp.expm1(-xp.exp(eta))

    def log_success(self, eta: jax.Array) -> jax.Array:
        """log(1 - exp(-e^eta))."""
        return log_some(eta)

    def log_failure(self, eta: jax.Array) -> jax.Array:
        """-e^eta."""
        return -namespace(eta).exp(eta)

    def success(self, eta: jax.Array, order: int) -> Series:
        """log p, then w and its derivatives."""
        slopes = _log_slope(eta, order)
        return (log_some(eta), *(factorial(j) * c for j, c in enumerate(slopes)))

    def failure(self, eta: jax.Array, order: int) -> Series:
        """log(1 - p) and all its derivatives are minus the rate."""
        return (-namespace(eta).exp(eta),) * (order + 1)


LINKS: dict[str, Link] = {link.name: link for link in (Logit(), Probit(), Cloglog())}

"""A quantile of a real outcome: regression with asymmetric Laplace noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf, lgamma, log, pi
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import polygamma, psi

from modicum.errors import SettingError
from modicum.models.families.links import LINKS
from modicum.models.families.random_outcomes import draw_log_gammas
from modicum.models.families.real import ScaleFamily
from modicum.models.families.special import softplus

Derivatives = tuple[jax.Array, ...]
BLUNT = 0.5  # width, in scales, over which the curvature of the kink is spread


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _check(u: jax.Array, tau: float) -> jax.Array:
    """The check function u (tau - 1[u < 0]), with a surrogate second derivative.

    The true second derivative is 0 almost everywhere, and says nothing about the curvature of a sum
    over rows. It is replaced by that of a rounded kink, for whitening and control variates: the
    difference estimator is unbiased for any quadratic.
    """
    return u * (tau - (u < 0))


@_check.defjvp
def _check_jvp(
    tau: float, at: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return _check(at[0], tau), tangents[0] * _slope(at[0], tau)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _slope(u: jax.Array, tau: float) -> jax.Array:
    return tau - (u < 0)


@_slope.defjvp
def _slope_jvp(
    tau: float, at: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return _slope(at[0], tau), tangents[0] * _blunt_curve(at[0])


def _blunt_curve(u: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(u / BLUNT) * jax.nn.sigmoid(-u / BLUNT) / BLUNT


@dataclass(frozen=True, repr=False)
class AsymmetricLaplace(ScaleFamily):
    """Quantile regression: eta is the `quantile` of the outcome (Yu and Moyeed 2001).

    The log-likelihood is minus the check function of the residual over the scale, and has a kink
    where a residual is 0. A Taylor expansion fails there: HMC-ECS uses another quadratic and needs
    more rows as the table grows, or NUTS runs on all of them. With `smoothing` the kink is rounded
    off, and a few rows per step are enough: the density is then the extended log-F of Fasiolo,
    Wood, Zaffran, Nedellec and Goude (2021), whose eta is the quantile up to an error that falls
    with the square of `smoothing`. The likelihood is a working one: intervals are calibrated only
    if the outcomes really have this distribution. Expected outcomes are quantiles, not means.

    Parameters
    ----------
    quantile
        The quantile, between 0 and 1; 0.5 is the median.
    smoothing
        Width over which the kink is rounded off, in units of the scale; 0 keeps the kink.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.models.AsymmetricLaplace(quantile=0.9).has_mode
    False
    """

    quantile: float = 0.5
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.quantile, Real) or not 0 < self.quantile < 1:
            raise SettingError("quantile must lie between 0 and 1; 0.5 is the median.")
        if not isinstance(self.smoothing, Real) or not 0 <= self.smoothing < inf:
            raise SettingError("smoothing must be 0 or a positive number, such as 0.2.")

    @property
    def has_mode(self) -> bool:  # type: ignore[override]
        """Whether Newton's method can find the mode, which may lie on a kink."""
        return self.smoothing > 0

    def log_density(self, eta: jax.Array, y: jax.Array) -> jax.Array:
        """log(tau (1 - tau) / s) - check(u), u = (y - eta) / s, or its smoothed version."""
        s = self.spread(eta)
        u = (y - eta[0]) / s
        if not self.smoothing:
            check = _check(u, self.quantile)
        else:
            check = self.quantile * u + self.smoothing * softplus(-u / self.smoothing)
        return self.log_constant() - jnp.log(s) - check

    def log_constant(self) -> float:
        """Logarithm of the density's normalising constant at a scale of one."""
        tau, width = self.quantile, self.smoothing
        if not width:
            return log(tau * (1 - tau))
        both = lgamma(tau * width) + lgamma((1 - tau) * width) - lgamma(width)
        return -log(width) - both

    def derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """f to f''' in eta at a known scale."""
        return self._derivatives_up_to(3, eta, y)

    def higher_derivatives(self, eta: jax.Array, y: jax.Array) -> Derivatives:
        """Derivatives 4, 5 and 6."""
        return self._derivatives_up_to(6, eta, y)[4:]

    def _derivatives_up_to(self, order: int, eta: jax.Array, y: jax.Array) -> Derivatives:
        s, tau, width = self.known_scale(), self.quantile, self.smoothing
        u = (y - eta) / s
        constant = self.log_constant() - log(s)
        if not width:
            above = (jnp.zeros_like(eta),) * (order - 2)
            f = constant - _check(u, tau)
            return (f, _slope(u, tau) / s, -_blunt_curve(u) / s**2, *above)
        curves = LINKS["logit"].failure(-u / width, order)  # of -log(1 + e^(-u / width))
        f, f1, *others = (width * c / (s * width) ** k for k, c in enumerate(curves))
        return (constant - tau * u + f, tau / s + f1, *others)

    def moments(self, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and variance of the outcome, whose quantile is eta."""
        s, tau, width = self.spread(eta), self.quantile, self.smoothing
        if not width:
            centre, square = 1 / tau - 1 / (1 - tau), 1 / tau**2 + 1 / (1 - tau) ** 2
        else:  # moments of a log-gamma variable: digamma and trigamma of its shape
            above, below = (1 - tau) * width, tau * width
            centre = width * float(psi(above) - psi(below))
            square = width**2 * float(polygamma(1, above) + polygamma(1, below))
        return eta[0] + centre * s, jnp.asarray(square * s**2)

    def variance(self, eta: jax.Array) -> jax.Array:
        """Variance of the outcome, from `moments`."""
        return self.moments(eta)[1]

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw a difference of exponential variables, or of logarithms of gamma variables."""
        tau, width = self.quantile, self.smoothing
        if not width:
            above, below = rng.standard_exponential((2, *shape))
            return np.asarray(above / tau - below / (1 - tau))
        above, below = (
            draw_log_gammas(rng, np.full(shape, width * share)) for share in (1 - tau, tau)
        )
        return width * (above - below)

    def series_radius(self) -> float:
        """Distance to the poles of the smoothed check function; 0 with a kink."""
        return pi * self.known_scale() * self.smoothing

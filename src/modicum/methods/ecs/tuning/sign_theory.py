"""Theory of the block-Poisson estimate: its variance, its sign and its cost.

Factors are f ~ N(mu, s^2) with mu = (d - a) / lambda and s = sigma_m / lambda, where sigma_m is the
standard deviation of one mini-batch's dhat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, ndtr, polygamma

from modicum.estimators.block_poisson import poisson_chance

SHARP = 1e6  # (mean / sd)^2 / 2 of a factor above which the mixture has too many terms


@dataclass(frozen=True)
class NormalFactors:
    """A Poisson(products) number of normal factors.

    Parameters
    ----------
    difference
        d = l - sum q, which every mini-batch estimates.
    deviation
        sigma_m: the standard deviation of such an estimate.
    products
        Lambda.
    lower
        The soft lower bound a.

    Examples
    --------
    >>> factors = NormalFactors(difference=0.0, deviation=10.0, products=20, lower=-20.0)
    >>> round(factors.positive, 4), round(factors.log_variance, 3)
    (0.7013, 11.72)
    """

    difference: float
    deviation: float
    products: float
    lower: float

    @property
    def mean(self) -> float:
        """The mean mu of a factor."""
        return (self.difference - self.lower) / self.products

    @property
    def sd(self) -> float:
        """The standard deviation s of a factor."""
        return self.deviation / self.products

    def log_moments(self) -> tuple[float, float]:
        """Return mean and variance of log |f|.

        (f/s)^2 is noncentral chi-squared with one degree of freedom: a Poisson mixture of
        chi-squared variables with 1 + 2J degrees, whose logarithms have digamma means and trigamma
        variances.
        """
        if self.sd == 0:
            return math.log(abs(self.mean)), 0.0
        rate = self.mean**2 / (2 * self.sd**2)
        if rate > SHARP:  # log |f| is normal about log |mu|, by the delta method
            return math.log(abs(self.mean)) - 1 / (4 * rate), 1 / (2 * rate)
        width = 12 * math.sqrt(rate) + 30
        J = np.arange(max(0, math.floor(rate - width)), math.ceil(rate + width))
        weight = poisson_chance(J, rate)
        psi = digamma(0.5 + J)
        first = weight @ psi
        between = weight @ (psi - first) ** 2
        mean = math.log(self.sd) + (math.log(2) + first) / 2
        return float(mean), float((weight @ polygamma(1, 0.5 + J) + between) / 4)

    @property
    def log_mean(self) -> float:
        """E log |Lhat| - sum q."""
        return self.lower + self.products * (1 + self.log_moments()[0])

    @property
    def log_variance(self) -> float:
        """Var log |Lhat| = lambda E (log |f|)^2, as of any compound Poisson sum."""
        mean, variance = self.log_moments()
        return self.products * (variance + mean**2)

    @property
    def positive(self) -> float:
        """tau = Pr(Lhat >= 0) when the subsample is drawn afresh: (1 + e^(-2 lambda p)) / 2."""
        if self.sd == 0:
            return 1.0 if self.mean >= 0 else float((1 + math.exp(-2 * self.products)) / 2)
        negative = float(ndtr(-self.mean / self.sd))
        return (1 + math.exp(-2 * self.products * negative)) / 2

    @property
    def chain_sign(self) -> float:
        """Mean sign along the chain, E Lhat / E |Lhat| = exp(-2 lambda E f^-)."""
        if self.sd == 0:
            return math.exp(2 * self.products * min(self.mean, 0.0))
        ratio = self.mean / self.sd
        below = self.sd * math.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi) - self.mean * ndtr(
            -ratio
        )
        return float(np.exp(-2 * self.products * max(below, 0.0)))

    def cost(self, share: float) -> float:
        """Return the computational time lambda IF / (2 tau - 1)^2 with a share refreshed.

        IF = (2 - alpha) / alpha with the acceptance rate alpha of a pseudo-marginal step.
        """
        step = math.sqrt(2 * self.log_variance * share)
        accept = max(2 * float(ndtr(-step / 2)), 1e-12)
        sign = max(2 * self.positive - 1, 1e-12)
        return self.products * (2 - accept) / accept / sign**2

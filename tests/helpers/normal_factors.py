"""Theory of the block-Poisson estimate: its variance and its sign if factors are normal.

They are f ~ N(mu, s^2) with mu = (d - a) / lambda and s = sigma_m / lambda, where sigma_m is the
standard deviation of one mini-batch's dhat.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, ndtr, polygamma
from scipy.stats import poisson


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
        rate = self.mean**2 / (2 * self.sd**2)
        width = 12 * math.sqrt(rate) + 30
        J = np.arange(max(0, math.floor(rate - width)), math.ceil(rate + width))
        weight = poisson.pmf(J, rate)
        psi = digamma(0.5 + J)
        first = weight @ psi
        between = weight @ (psi - first) ** 2
        mean = math.log(self.sd) + (math.log(2) + first) / 2
        return float(mean), float((weight @ polygamma(1, 0.5 + J) + between) / 4)

    @property
    def log_variance(self) -> float:
        """Var log |Lhat| = lambda E (log |f|)^2, as of any compound Poisson sum."""
        mean, variance = self.log_moments()
        return self.products * (variance + mean**2)

    @property
    def positive(self) -> float:
        """tau = Pr(Lhat >= 0) when the subsample is drawn afresh: (1 + e^(-2 lambda p)) / 2."""
        negative = float(ndtr(-self.mean / self.sd))
        return (1 + math.exp(-2 * self.products * negative)) / 2

    @property
    def chain_sign(self) -> float:
        """Mean sign along the chain, E Lhat / E |Lhat| = exp(-2 lambda E f^-)."""
        ratio = self.mean / self.sd
        below = self.sd * math.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi) - self.mean * ndtr(
            -ratio
        )
        return float(np.exp(-2 * self.products * max(below, 0.0)))

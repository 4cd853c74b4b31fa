"""Theory of the block-Poisson estimate: its variance and its sign if factors are normal.

They are f ~ N(mu, s^2) with mu = (d - a) / lambda and s = sigma_m / lambda, where d = l - sum q is
what every mini-batch estimates, sigma_m the standard deviation of such an estimate, lambda the
expected number of factors, and a the soft lower bound.
"""

from typing import NamedTuple

import numpy as np
from scipy.integrate import quad
from scipy.stats import norm


class NormalFactors(NamedTuple):
    log_mean: float  # E log |f|
    log_variance: float  # Var log |Lhat| = lambda E (log |f|)^2, as of any compound Poisson sum
    positive: float  # Pr(Lhat >= 0) when the subsample is drawn afresh
    chain_sign: float  # along the chain: E Lhat / E |Lhat| = exp(-2 lambda E f^-)


def normal_factors(difference, deviation, products, lower):
    """Return what follows from d, sigma_m, lambda and a, by quadrature."""
    f = norm((difference - lower) / products, deviation / products)

    def mean(function):
        ends = f.ppf([1e-15, 1 - 1e-15])
        return quad(lambda x: function(x) * f.pdf(x), *ends, points=[0.0], limit=200)[0]

    first, second = (mean(lambda x, k=k: np.log(abs(x)) ** k) for k in (1, 2))
    return NormalFactors(
        first,
        products * second,
        (1 + np.exp(-2 * products * f.cdf(0))) / 2,
        np.exp(2 * products * mean(lambda x: min(x, 0))),
    )

"""How noisy a likelihood estimate should be: the variance at which sampling costs least."""

from __future__ import annotations

import numpy as np

from modicum.errors import SettingError, is_number

NODES = 200  # of Gauss-Hermite quadrature over the estimate's error


def optimal_variance(correlation: float = 0.0) -> float:
    """Variance of a log-likelihood estimate that minimises the cost of a pseudo-marginal chain.

    This is the rule of Pitt et al. (2012), and of Quiroz et al. for estimates whose errors at the
    current and the proposed point are correlated; the HMC-ECS paper sets m by it (sections 4 and
    6.3). It assumes that the estimate's error Z is normal and that proposals of the parameters are
    perfect, so that the inefficiency is E[(2 - a(Z)) / a(Z)] with a(Z) the probability of leaving
    Z, and that the number of rows is inversely proportional to the variance. It ignores bias: the
    perturbed method also needs an error that varies little over the posterior, and so a variance
    near 1.

    Parameters
    ----------
    correlation
        Correlation of the two errors; 1 - K / G if K of G blocks are refreshed.

    Examples
    --------
    >>> [round(optimal_variance(rho), 2) for rho in (0.0, 0.5)]
    [0.85, 2.81]
    >>> round(optimal_variance(0.99))
    232
    """
    from scipy.optimize import minimize_scalar

    if not is_number(correlation) or not 0 <= correlation < 1:
        raise SettingError("correlation must be a number from 0 to below 1, such as 0.99.")
    limit = np.log(2.16**2 / (1 - correlation**2))  # the optimum as the correlation tends to 1
    cost = minimize_scalar(
        lambda log: np.log(_inefficiency(np.exp(log), correlation)) - log,
        bounds=(limit - 3, limit + 1),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(cost.x))


def _inefficiency(variance: float, rho: float) -> float:
    """E[(2 - a(Z)) / a(Z)] for Z ~ N(s^2 / 2, s^2), its distribution at stationarity.

    A proposal's error is N(-s^2 (1 - rho) / 2 + rho Z, s^2 (1 - rho^2)) given Z.
    """
    from scipy.special import log_ndtr

    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    z = variance / 2 + np.sqrt(variance) * nodes
    mean = -variance * (1 - rho) / 2 - (1 - rho) * z  # of the log acceptance ratio
    tau = np.sqrt(variance * (1 - rho**2))  # its standard deviation
    log_leave = np.logaddexp(log_ndtr(mean / tau), mean + tau**2 / 2 + log_ndtr(-mean / tau - tau))
    return float(weights @ (2 * np.exp(-log_leave) - 1) / weights.sum())

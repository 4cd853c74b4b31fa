"""A signed chain whose expectations are known by quadrature.

psi is an autoregression with standard normal margin, and given psi the sign is positive with
probability .8 + .1 tanh(psi), afresh each time. The signed target is therefore the density
phi(t) (1 + tanh(t) / 3), while ignoring the signs gives phi(t).
"""

import numpy as np
from scipy.signal import lfilter
from scipy.stats import norm

GRID = np.linspace(-9, 9, 20_001)
DENSITY = norm.pdf(GRID) * (1 + np.tanh(GRID) / 3) * (GRID[1] - GRID[0])
MEAN = float(DENSITY @ GRID)
SD = float(np.sqrt(DENSITY @ GRID**2 - MEAN**2))
MEAN_SIGN = 0.6


def quantile(p):
    return float(GRID[np.searchsorted(np.cumsum(DENSITY), p)])


def signed_chain(shape, seed, phi=0.8):
    """Draws and signs; the second axis is time."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=shape)
    noise[:, 1:] *= np.sqrt(1 - phi**2)
    psi = lfilter([1.0], [1.0, -phi], noise, axis=1)
    sign = np.where(rng.uniform(size=shape) < 0.8 + 0.1 * np.tanh(psi), 1.0, -1.0)
    return psi, sign

"""Targets with known answers, and comparisons that every sampler must pass."""

from functools import cache

import numpy as np

import modicum as mo
from helpers.refusals import unwarned
from modicum.diagnostics import mcse
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.passes import LocalEngine, Sums

TIMES = 4.5  # Monte Carlo standard errors allowed; exceeded with chance 7e-6 each


def design(n, d, seed=1):
    """Correlated columns of unequal scale: the identity would hide a wrong transpose."""
    rng = np.random.default_rng(seed)
    mix = np.eye(d) + 0.4 * np.tri(d, k=-1)
    return rng.normal(size=(n, d)) @ mix * np.linspace(0.5, 1.5, d), rng


def logistic_rows(n=400, d=3, seed=1, **kwargs):
    x, rng = design(n, d, seed)
    eta = 0.3 + x @ np.linspace(-0.8, 0.8, d)
    return mo.Rows(x=x, y=(rng.random(n) < 1 / (1 + np.exp(-eta))) * 1.0, **kwargs)


def poisson_rows(n=400, d=3, seed=2, **kwargs):
    x, rng = design(n, d, seed)
    offset = np.log(rng.uniform(0.5, 2.0, n))
    y = rng.poisson(np.exp(0.2 + x @ np.linspace(-0.4, 0.4, d) + offset))
    return mo.Rows(x=x, y=y * 1.0, offset=offset, **kwargs)


def gaussian_rows(n=200, d=3, seed=3, scale=0.7, size=1.0, **kwargs):
    x, rng = design(n, d, seed)
    signal = size * (1.0 + x @ np.linspace(-1, 2, d))
    return mo.Rows(x=x, y=signal + scale * rng.normal(size=n), **kwargs)


def class_rows(n=300, d=2, classes=3, seed=4, **kwargs):
    x, rng = design(n, d, seed)
    eta = np.c_[x @ rng.normal(size=(d, classes - 1)), np.zeros(n)]
    return mo.Rows(x=x, y=np.argmax(eta + rng.gumbel(size=eta.shape), axis=1) * 1.0, **kwargs)


def softplus(eta):
    """log(1 + exp(eta)) where eta is not large: twice as quick as `np.logaddexp`."""
    return np.log(1 + np.exp(eta))


def all_of(rows):
    return rows.slice(0, len(rows))


def sums_of(model, rows, threads=2):
    """Return the sums over `rows` and the flat starting point."""
    target, start = Target.of(model, rows)
    engine = LocalEngine(threads=threads, progressbar=False)
    return Sums(target, rows, engine, Ledger(rows=len(rows))), start


class Conjugate:
    """Gaussian regression with known noise: its posterior is normal, in closed form.

    Coefficients are (beta, intercept), in the order of the flat vector.
    """

    def __init__(self, n=200, d=3, scale=0.7):
        # coefficients of the size that the prior expects, which still moves them
        self.rows = gaussian_rows(n, d, scale=scale, size=0.4)
        self.model = mo.models.Gaussian(scale=scale, prior_scale=0.3, intercept_scale=0.5)
        batch = all_of(self.rows)
        self.x, self.y, self.scale = np.c_[batch["x"], np.ones(n)], batch["y"], scale
        self.prior_sd = np.r_[np.full(d, 0.3), 0.5]
        self.mean, self.cov = self.of(self.x, self.y, self.prior_sd)
        self.precision = np.linalg.inv(self.cov)

    def of(self, x, y, prior_sd):
        """Return mean and covariance of the posterior of other rows, or with another prior."""
        cov = np.linalg.inv(x.T @ x / self.scale**2 + np.diag(prior_sd**-2.0))
        return cov @ (x.T @ y) / self.scale**2, cov


def flat_draws(posterior):
    """Concatenate all parameters, (chain, draw, d)."""
    parts = [a.reshape(*a.shape[:2], -1) for a in posterior.draws.values()]
    return np.concatenate(parts, axis=2).astype(float)


def mean_and_error(values):
    """Mean over (chain, draw) and its Monte Carlo standard error (NaN for a frozen chain)."""
    return values.mean(axis=(0, 1)), np.asarray(mcse(values))


def _apart(difference, error, times):
    return not np.all(np.abs(difference) <= times * error)  # NaN counts as apart


def means_apart(values, known, slack=0.0, times=TIMES):
    """Whether means of `values` (chain, draw, ...) differ from known ones beyond their errors."""
    at, error = mean_and_error(values)
    return _apart(at - known, error + slack / times, times)


def normal_faults(draws, mean, cov, times=TIMES):
    """List moments of `draws` that differ from N(mean, cov) beyond their errors.

    Second moments are compared about the true mean, so a wrong mean or covariance shows.
    """
    found = []
    at, error = mean_and_error(draws)
    if _apart(at - mean, error, times):
        found.append("mean")
    i, j = np.tril_indices(len(mean))
    products = (draws - mean)[..., i] * (draws - mean)[..., j]
    at, error = mean_and_error(products)
    if _apart(at - cov[i, j], error, times):
        found.append("covariance")
    return found


def disagreements(ours, theirs, times=TIMES):
    """Name the moments in which two samples differ beyond their Monte Carlo errors."""
    found = []
    centre = theirs.mean(axis=(0, 1))
    for name, power in (("mean", 1), ("variance", 2)):
        a, a_error = mean_and_error((ours - centre) ** power)
        b, b_error = mean_and_error((theirs - centre) ** power)
        if _apart(a - b, np.hypot(a_error, b_error), times):
            found.append(name)
    return found


def exact_draws(log_density, start, count=2_000, seed=1):
    """Return independent draws (2, count / 2, d) of a nearly normal posterior, without a chain.

    Importance resampling from a t distribution about the mode; `log_density` takes points (k, d).
    """
    from scipy.optimize import minimize

    rng, d, df = np.random.default_rng(seed), len(start), 8
    mode = minimize(lambda t: -log_density(t[None])[0], np.asarray(start, float)).x
    pairs = [[(a + b, a - b, b - a, -a - b) for a in np.eye(d)] for b in np.eye(d)]
    corners = log_density((mode + 1e-3 * np.array(pairs)).reshape(-1, d)).reshape(d, d, 4)
    precision = -corners @ [1, -1, -1, 1] / 4e-6
    z = rng.normal(size=(3 * count, d)) / np.sqrt(rng.chisquare(df, size=(3 * count, 1)) / df)
    points = mode + np.linalg.solve(np.linalg.cholesky(precision).T, z.T).T
    log = np.concatenate([log_density(part) for part in np.array_split(points, 20)])
    weight = np.exp(log - log.max()) * (1 + (z**2).sum(axis=1) / df) ** ((df + d) / 2)
    weight /= weight.sum()
    assert 1 / (weight**2).sum() > 1.5 * count  # the effective sample size exceeds the draws kept
    picked = np.searchsorted(np.cumsum(weight), (np.arange(count) + rng.random()) / count)
    return points[rng.permutation(picked)].reshape(2, -1, d)


def numpyro_draws(model, seed, warmup=300, draws=1_500, target=0.8, **arguments):
    """Return draws (draw, ...) by name of one chain of NumPyro's NUTS, in its order of sites."""
    import jax
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(model, target_accept_prob=target)
    run = MCMC(kernel, num_warmup=warmup, num_samples=draws, progress_bar=False)
    run.run(jax.random.key(seed), **arguments)
    return {name: np.asarray(value, float) for name, value in run.get_samples().items()}


def probabilities(tables, n):
    """Return the probability of each of n rows by tables of weights, class by class."""
    found = np.zeros(n)
    for start, size, probability in zip(tables.start, tables.size, tables.probability, strict=True):
        found[tables.order[start : start + size]] = probability
    return found


def heavy_rows(n=4_000):
    """Return rows of which a few have enormous leverage; uniform subsamples miss them."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, 2))
    x[: n // 400] *= 40
    eta = np.clip(0.5 * x @ [1.0, -1.0], -8, 8)
    return mo.Rows(x=x, y=(rng.random(n) < 1 / (1 + np.exp(-eta))) * 1.0)


def quick(model, rows, **kwargs):
    """A short run: enough to compare draws, too short to be free of warnings."""
    settings = {"method": "hmc", "draws": 40, "tune": 100, "chains": 2, "random_seed": 5}
    settings |= {"progressbar": False}
    with unwarned():
        return mo.sample(model, rows, **(settings | kwargs))


def same_draws(a, b):
    return a.draws.keys() == b.draws.keys() and all(
        np.array_equal(a.draws[name], b.draws[name]) for name in a.draws
    )


class Location:
    """V(t) = sum_i |t - c_i|^2 / 2 (EWSG paper, section 5.1): the posterior is N(mean, I / n)."""

    def __init__(self, c, log_prior=None):
        self.c = np.asarray(c, float)
        self.n, self.mean = len(self.c), self.c.mean(axis=0)
        self.rows = mo.Rows(c=self.c)
        init = {"theta": np.zeros(self.c.shape[1])}
        self.model = mo.Model(log_prior or _flat, _about_c, init=init)

    def gradient_noise(self, batch):
        """Return the variance of a uniform batch's gradient, averaged over coordinates."""
        return self.n**2 * self.c.var(axis=0).mean() / batch

    def kl(self, points):
        """Return the KL divergence from the posterior of a normal fitted to `points` (point, d)."""
        d = points.shape[1]
        cov = self.n * np.cov(points, rowvar=False)
        shift = self.n * np.sum((points.mean(axis=0) - self.mean) ** 2)
        return 0.5 * (np.trace(cov) - d - np.linalg.slogdet(cov)[1] + shift)


def _flat(theta):
    return 0.0


def _about_c(theta, batch):
    return -0.5 * ((theta["theta"] - batch["c"]) ** 2).sum(axis=-1)


@cache
def location(seed=3):
    """Return the twenty points of the paper's figures; one model, compiled once."""
    return Location(np.random.default_rng(seed).normal(size=(26, 2))[6:])

"""Peers find the known posterior of two rates, whose logarithms are those of gamma variables."""

import numpy as np
import pytest
from scipy.special import digamma, polygamma

import modicum as mo
from modicum_lab.bench.contenders import CONTENDERS
from modicum_lab.bench.problems import Problem, ProblemData
from modicum_lab.bench.runs import Budget
from modicum_lab.datasets import Dataset

QUICK = ("laplace", "statsmodels", "glum")
CHAINS = (
    *("blackjax-mclmc", "blackjax-pathfinder", "nutpie", "bambi", "pymc-advi", "pdmp-zigzag"),
)
N, WIDE = 600, 20.0  # rows, and sds of priors that say next to nothing


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    rng = np.random.default_rng(3)
    x, years = rng.integers(0, 2, N) * 1.0, rng.uniform(0.5, 2, N)
    y = rng.poisson(years * np.exp(0.3 + 0.4 * x)).astype(float)
    rows = mo.Rows(x=x[:, None], y=y, offset=np.log(years))
    model = mo.models.Poisson(prior_scale=WIDE, intercept_scale=WIDE)
    folder = tmp_path_factory.mktemp("counts")
    made = Problem("counts", "two rates", lambda: Dataset("c", rows, model, "made up", "here"))
    made.write(folder)
    return ProblemData(folder)


def truth(problem, exposure):
    """Mean and sd of the second rate's logarithm minus the first's, and of the first's."""
    second = np.asarray(problem.x)[:, 0] == 1
    counts = np.array([problem.y[~second].sum(), problem.y[second].sum()])
    total = np.array([exposure[~second].sum(), exposure[second].sum()])
    mean, variance = digamma(counts) - np.log(total), polygamma(1, counts)
    return np.array([mean[1] - mean[0], mean[0]]), np.sqrt([variance.sum(), variance[0]])


def away(run, problem, exposure):
    """Return the largest error of means and sds, in sds, over what chance and theory allow.

    A maximum or a normal approximation is off by some 1 / (2 sqrt(counts)) sd, 0.03 here, ADVI by
    the noise of its last steps, and draws by their Monte Carlo error.
    """
    mean, sd = truth(problem, exposure)
    room = 0.15 + (0.0 if run.known_moments else 4 / np.sqrt(run.effective))
    of_means = np.abs(run.mean - mean) / sd
    return max(of_means.max(), np.abs(np.array(run.sd) / sd - 1).max()) / room


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(c, marks=pytest.mark.slow) for c in CHAINS)]
)
def test_a_peer_finds_the_known_posterior(name, problem):
    peer = CONTENDERS[name]
    if peer.absent:
        pytest.skip(peer.missing())
    run = peer.run(problem, Budget(seconds=5.0, draws=1_000, chains=2))
    years = np.exp(problem.offset)
    assert away(run, problem, years) < 1
    assert away(run, problem, np.ones(N)) > 2  # negative control: rates of rows, not of years
    assert min(run.before, run.sampling, run.rows_before) > 0

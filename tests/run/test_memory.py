"""Memory does not grow with the number of fits of different shapes."""

import subprocess
import sys
from itertools import pairwise

import pytest

MANY_FITS = """
import warnings
import numpy as np, modicum as mo
warnings.simplefilter("ignore")
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20
rng = np.random.default_rng(0)
for k in range(60):
    n = 300 + 13 * k
    rows = mo.Rows(x=rng.normal(size=(n, 2)), y=rng.random(n) < 0.5)
    mo.sample(mo.models.Logistic(), rows, method="hmc", draws=20, tune=20, chains=1,
              random_seed=1, progressbar=False)
    print(resident(), flush=True)
"""


@pytest.mark.slow
def test_memory_is_bounded_when_every_fit_has_another_n():
    result = subprocess.run([sys.executable, "-c", MANY_FITS], capture_output=True, text=True)
    sizes = [float(line) for line in result.stdout.split()]
    assert len(sizes) == 60, result.stderr
    # 12 MB per fit, until compiled code is released after some fifty fits
    assert max(sizes) - sizes[0] < 900
    assert min(after - before for before, after in pairwise(sizes)) < -100

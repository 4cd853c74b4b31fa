"""Memory does not grow with the number of fits of different shapes."""

import subprocess
import sys
from itertools import pairwise

import jax
import pytest

from modicum import runtime

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


def test_compiled_code_is_let_go_after_so_many_functions(monkeypatch):
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(True))
    monkeypatch.setattr(runtime.COMPILED, "since_cleared", runtime.MANY - 1)
    assert not runtime.make_room()
    monkeypatch.setattr(runtime.COMPILED, "since_cleared", runtime.MANY)
    assert runtime.make_room()
    assert cleared == [True]
    assert runtime.COMPILED.since_cleared == 0


def test_functions_of_new_shapes_are_counted():
    import numpy as np

    double = runtime.jit()(lambda x: 2 * x)
    double(np.zeros(3))
    before = runtime.COMPILED.since_cleared
    double(np.zeros(3))
    assert runtime.COMPILED.since_cleared == before
    double(np.zeros(5))
    assert runtime.COMPILED.since_cleared > before

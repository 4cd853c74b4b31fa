"""Several devices on one host share passes and chains, and nothing else changes."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import modicum as mo
from helpers.targets import logistic_rows, quick

pytestmark = pytest.mark.slow

N = 150_000  # three chunks
RUN = {"method": "hmc-ecs", "parallel": "threads", "chains": 4}
SCRIPT = """
import sys
import jax, numpy as np
import modicum as mo
from helpers.targets import logistic_rows, quick
from modicum.passes import LocalEngine
from modicum.run import chains

assert len(jax.local_devices()) == 4
seen = set()

def where(argument, batch, present):
    made = jax.numpy.sum(jax.numpy.where(present, batch["y"], 0.0)) + argument
    seen.update(made.devices())
    return (made,)

rows = logistic_rows({n})
LocalEngine(progressbar=False).map_reduce(where, 0.0, rows)
passes = len(seen)
with jax.default_device(jax.local_devices()[2]):  # the user's choice is kept to
    seen.clear()
    LocalEngine(2, progressbar=False).map_reduce(where, 0.0, rows)
    assert seen == {jax.local_devices()[2]}  # in threads too

advance, spread = chains.Chains._advance_group, set()
def watched(self, g, span, batches, state):
    made = advance(self, g, span, batches, state)
    spread.update(*(leaf.devices() for leaf in jax.tree.leaves(made[0])))
    return made
chains.Chains._advance_group = watched
post = quick(mo.models.Logistic(), rows, **{run})
np.savez(sys.argv[1], passes=passes, chains=len(spread), **post.draws)
"""


def test_passes_and_chains_are_spread_and_draws_are_the_same(tmp_path):
    script = textwrap.dedent(SCRIPT).replace("{n}", str(N)).replace("{run}", repr(RUN))
    flags = "--xla_force_host_platform_device_count=4"
    tests = os.path.dirname(os.path.dirname(__file__))
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "made.npz")],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    made = np.load(tmp_path / "made.npz")
    assert made["passes"] == 3  # as many as there are chunks
    assert made["chains"] == 4
    alone = quick(mo.models.Logistic(), logistic_rows(N), **RUN)
    for name, draws in alone.draws.items():
        # sums over rows are added in another order, which moves the anchor by its rounding error
        np.testing.assert_allclose(made[name], draws, rtol=1e-7, atol=1e-10)

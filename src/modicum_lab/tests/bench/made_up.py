"""Made-up results of a run."""

import numpy as np

from modicum_lab.bench.accuracy import KeptReference
from modicum_lab.bench.measurements import Measurements
from modicum_lab.bench.runs import RunResult
from modicum_lab.bench.suite import Results

D = 3
REFERENCE = KeptReference(
    mean=[0.0, 1.0, -2.0],
    sd=[1.0, 0.1, 0.5],
    mean_error=[0.001] * D,
    sd_error=[0.001] * D,
    source="made up",
)
MACHINE = {
    "date": "2026-01-01 00:00 UTC",
    "processor": "a processor",
    "cores": 2,
    "memory_gb": 8.0,
    "system": "Linux 6",
    "device": "cpu: cpu",
    "python": "3.11.1",
    "versions": {"modicum": "0.1", "jax": "0.6"},
}


def run_result(rate=100.0, before=1.0, iteration=1e-3, memory=1e9, shift=0.0, wide=1.0, ess=1000.0):
    """Make a run with `rate` effective draws per second, `shift` posterior sd off."""
    sd = np.array(REFERENCE.sd)
    sampling = ess / rate
    return RunResult(
        mean=(np.array(REFERENCE.mean) + shift * sd).tolist(),
        sd=(wide * sd).tolist(),
        ess=[ess] * D,
        ess_square=[ess] * D,
        before=before,
        sampling=sampling,
        rows_before=1_000,
        rows_sampling=5_000,
        draws=round(sampling / iteration),
        memory=int(memory),
    )


def results(measured):
    """Make the results of a suite with these measurements."""
    names = dict.fromkeys(m.problem for m in measured)
    about = {"rows": 1_000_000, "size": D, "description": "made up"}
    return Results(
        machine=MACHINE,
        budget={"seconds": 1.0, "draws": 100, "chains": 2, "cores": 2, "seed": 1},
        problems={name: about | {"name": name, "title": f"the problem {name}"} for name in names},
        references=dict.fromkeys(names, REFERENCE),
        measured=measured,
        notes=["statsmodels GLM: not installed: statsmodels (pip install 'modicum[peers]')."],
    )


def measurements(problem, contender, *runs, **settings):
    """Make the runs of a contender on a problem; by default one run with `settings`."""
    return Measurements(problem, contender, runs=list(runs) or [run_result(**settings)])

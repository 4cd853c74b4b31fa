"""Time of `import modicum` beyond that of `import jax`, in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

from modicum_lab.bench.tables import Table, verdict

LIMIT = 1.0  # seconds
TIMED = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def run(quick: bool = False) -> list[Table]:
    """Import both packages alternately; compare the medians."""
    seconds: dict[str, list[float]] = {"jax": [], "modicum": []}
    for _ in range(3 if quick else 7):
        for name, times in seconds.items():  # in turns
            command = [sys.executable, "-c", TIMED.format(name)]
            times.append(float(subprocess.run(command, capture_output=True, check=True).stdout))
    jax, modicum = (median(times) for times in seconds.values())
    table = Table("Import time", ["import", "seconds", "over jax", "limit", "kept"])
    table.rows.append(["jax", jax, 0.0, "", ""])
    table.rows.append(["modicum", modicum, modicum - jax, LIMIT, verdict(modicum - jax, LIMIT)])
    return [table]

"""Describe the machine of a measurement: processor, memory, system, versions."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("modicum", "jax", "jaxlib", "numpy", "scipy", "blackjax", "numpyro", "statsmodels", "glum"),
    *("pymc", "nutpie", "bambi", "gpboost", "pdmp-jax"),
)
R_PACKAGES = ("lme4", "glmmTMB", "mgcv")
ASK_R = f"""
cat("R", paste(R.version[c("major", "minor")], collapse = "."), "\\n")
for (name in c{R_PACKAGES}) if (nzchar(system.file(package = name)))
  cat(name, as.character(packageVersion(name)), "\\n")
"""


def describe_machine() -> dict[str, Any]:
    """Return a description of this machine in plain types, ready for JSON."""
    import jax

    device = jax.devices()[0]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": cores(),
        "memory_gb": round(total_bytes() / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "device": f"{device.platform}: {device.device_kind}",
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "versions": {name: v for name in PACKAGES if (v := _version(name))} | _versions_of_r(),
    }


def in_words(machine: dict[str, Any]) -> str:
    """Return the description as one sentence.

    Examples
    --------
    >>> about = {"processor": "A", "cores": 2, "memory_gb": 8.0, "system": "Linux 6",
    ...          "device": "cpu: cpu", "python": "3.11.1", "versions": {"jax": "1"}, "date": "d"}
    >>> in_words(about)
    'Measured d on A, 2 cores, 8.0 GB of memory, Linux 6 (cpu: cpu); Python 3.11.1, jax 1.'
    """
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items())
    return (
        f"Measured {machine['date']} on {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB of memory, {machine['system']} ({machine['device']}); "
        f"Python {machine['python']}, {versions}."
    )


def cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_bytes() -> int:
    """Return the memory of the machine in bytes."""
    return _sysconf("SC_PHYS_PAGES")


def free_bytes() -> int:
    """Return the free memory of the accelerator if there is one, else of the machine."""
    import jax

    statistics = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in statistics:
        return int(statistics["bytes_limit"] - statistics.get("bytes_in_use", 0))
    path = Path("/proc/meminfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return total_bytes() // 2 or 4 * 2**30


def _sysconf(name: str) -> int:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    try:  # ARM names its processors by number; lscpu knows them
        text = subprocess.run(["lscpu"], capture_output=True, text=True, timeout=10).stdout
        names = [
            line.split(":", 1)[1].strip() for line in text.splitlines() if "Model name" in line
        ]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _versions_of_r() -> dict[str, str]:
    """Return the versions of R and of its packages that are peers, if it is installed."""
    rscript = shutil.which("Rscript")
    if rscript is None:
        return {}
    said = subprocess.run([rscript, "-e", ASK_R], capture_output=True, text=True).stdout
    return dict(line.split() for line in said.splitlines())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

"""Which modules hold the experiments of a paper; they are imported when someone asks."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from modicum_lab.papers.experiment import EXPERIMENTS, Experiment, find

__all__ = ["PAPERS", "experiments_of"]

PAPERS = {
    "hmc-ecs": "Hamiltonian Monte Carlo with energy conserving subsampling",
    "ewsg": "Exponentially weighted stochastic gradient MCMC",
}
"""Papers and their titles. The experiments of "hmc-ecs" are in the folder `hmc_ecs`."""


def experiments_of(paper: str, name: str | None = None) -> list[Experiment]:
    """Import the modules of a paper; return its experiments, or the one of this name.

    Examples
    --------
    >>> [e.title for e in experiments_of("hmc-ecs", "figure-7")]
    ['Optimal step size and acceptance as the dimension grows']
    """
    if paper in EXPERIMENTS:
        for module in _modules(paper):
            import_module(module)
    return find(paper, name)


def _modules(paper: str) -> list[str]:
    """Return the modules of the paper's folder."""
    package = import_module(f"modicum_lab.papers.{paper.replace('-', '_')}")
    return [f"{package.__name__}.{found.name}" for found in iter_modules(package.__path__)]

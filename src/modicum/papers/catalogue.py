"""Which modules hold the experiments of a paper; they are imported when someone asks."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from modicum.papers.experiment import EXPERIMENTS, Experiment, find

__all__ = ["PAPERS", "experiments_of"]

PAPERS = {
    "hmc-ecs": "Hamiltonian Monte Carlo with energy conserving subsampling",
    "ewsg": "Exponentially weighted stochastic gradient MCMC",
}
"""Papers and their titles. The experiments of "hmc-ecs" are in the modules `hmc_ecs_*`."""


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
    """Return the modules of this folder that begin with the paper's name."""
    import modicum.papers

    start = paper.replace("-", "_")
    names = (found.name for found in iter_modules(modicum.papers.__path__))
    return [f"modicum.papers.{name}" for name in sorted(names) if name.startswith(start)]

"""The experiments of the two papers, one function each, for `modicum reproduce`."""

from modicum_lab.papers.experiments import (
    EXPERIMENTS,
    Experiment,
    Figure,
    Result,
    Scale,
    Table,
    experiment,
)

__all__ = ["EXPERIMENTS", "Experiment", "Figure", "Result", "Scale", "Table", "experiment"]

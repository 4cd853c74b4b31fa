"""The experiments of the two papers, each by one function: `modicum reproduce`."""

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

"""The result of a run: summaries of (weighted) draws, prediction, checks, storage, ArviZ."""

from modicum.posterior.alignment import FitRows
from modicum.posterior.checking.evidence import Evidence
from modicum.posterior.checking.predictive_check import PredictiveCheck
from modicum.posterior.comparison import compare
from modicum.posterior.posterior import Posterior
from modicum.posterior.prediction import Prediction
from modicum.posterior.score import Score
from modicum.posterior.stein import SteinDiscrepancy
from modicum.posterior.warnings import Warnings, convergence_warnings

__all__ = [
    "Evidence",
    "FitRows",
    "Posterior",
    "Prediction",
    "PredictiveCheck",
    "Score",
    "SteinDiscrepancy",
    "Warnings",
    "compare",
    "convergence_warnings",
]

"""The result of a run: draws with their weights, the model that was fitted, and its rows.

Each question to it is a file (prediction, checks, comparison, storage), and `Posterior` is the
class with these questions as methods.
"""

from modicum.posterior.comparison import average_predictions, compare
from modicum.posterior.doubts import convergence_warnings
from modicum.posterior.evidence import Evidence
from modicum.posterior.exactness import SteinDiscrepancy
from modicum.posterior.fit_rows import FitRows
from modicum.posterior.fitted import Warnings
from modicum.posterior.posterior import Posterior
from modicum.posterior.ppc import PredictiveCheck
from modicum.posterior.predict import Prediction, Score
from modicum.posterior.refit import CrossValidation

__all__ = [
    "CrossValidation",
    "Evidence",
    "FitRows",
    "Posterior",
    "Prediction",
    "PredictiveCheck",
    "Score",
    "SteinDiscrepancy",
    "Warnings",
    "average_predictions",
    "compare",
    "convergence_warnings",
]

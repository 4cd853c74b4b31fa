"""The result of a run: summaries (signs and weights included), prediction, storage, ArviZ."""

from __future__ import annotations

from modicum.posterior.guards import convergence_warnings
from modicum.posterior.posterior import Posterior
from modicum.posterior.prediction import Prediction
from modicum.posterior.score import Score

__all__ = ["Posterior", "Prediction", "Score", "convergence_warnings"]

"""The result of a run: summaries (signs and weights included), prediction, storage, ArviZ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from modicum.posterior.guards import convergence_warnings
from modicum.posterior.posterior import Posterior
from modicum.posterior.prediction import Prediction

__all__ = ["Posterior", "Prediction", "convergence_warnings", "rebuild_predictor"]

rebuild_predictor: Callable[[dict[str, Any]], Any] | None = None
"""How a loaded posterior gets its predictor back: set by whoever knows the models."""

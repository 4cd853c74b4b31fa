"""A problem as a contender is handed it: read from the folder `Problem.write` made."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from modicum import models
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.models.base import BaseModel
from modicum.passes import NEAR, LocalEngine, Sums, anchor_at_mode
from modicum.rows import Rows
from modicum.runtime import in_double_precision

__all__ = ["Given", "Mode"]


@dataclass(frozen=True)
class Mode:
    """The posterior mode, the factor L of the inverse Hessian there, and what it cost to find."""

    point: np.ndarray
    factor: np.ndarray
    seconds: float
    rows: int

    @property
    def covariance(self) -> np.ndarray:
        """Inverse of minus the Hessian."""
        return np.asarray(self.factor @ self.factor.T)


class Given:
    """Plain arrays, the same as `mo.Rows` and as a row store, and the model."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.told: dict[str, Any] = json.loads((self.folder / "problem.json").read_text())
        self.size: int = self.told["size"]
        self.poisson: bool = self.told["family"] == "Poisson"

    def __len__(self) -> int:
        return int(self.told["rows"])

    @cached_property
    def x(self) -> np.ndarray:
        """Predictors, without a column of ones."""
        return np.asarray(np.load(self.folder / "x.npy"))

    @cached_property
    def y(self) -> np.ndarray:
        """Outcomes."""
        return np.asarray(np.load(self.folder / "y.npy"))

    @cached_property
    def offset(self) -> np.ndarray | None:
        """Known part of the linear predictor, where there is one."""
        path = self.folder / "offset.npy"
        return np.asarray(np.load(path)) if path.exists() else None

    @cached_property
    def rows(self) -> Rows:
        """The arrays as rows."""
        return Rows(x=self.x, y=self.y, offset=self.offset)

    def store(self) -> Rows:
        """The rows on disk."""
        return Rows.open(self.folder / "store")

    @cached_property
    def model(self) -> BaseModel:
        """Modicum's model."""
        scales = self.told["prior_scale"], self.told["intercept_scale"]
        scale = tuple(scales[0]) if isinstance(scales[0], list) else scales[0]
        family: Any = getattr(models, self.told["family"])
        made: BaseModel = family(prior_scale=scale, intercept_scale=scales[1])
        return made

    @cached_property
    def prior(self) -> np.ndarray:
        """Prior standard deviations, the intercept's last."""
        coefficients = np.broadcast_to(self.told["prior_scale"], self.size - 1)
        return np.append(coefficients, self.told["intercept_scale"]).astype(np.float64)

    def load(self) -> None:
        """Read the arrays now, so that no contender's clock runs meanwhile."""
        if (self.folder / "x.npy").exists():
            _ = self.rows

    @in_double_precision
    def find_mode(self, within: float = NEAR) -> Mode:
        """Find the mode as Modicum does: peers that need one brought are charged for this."""
        started = time.perf_counter()
        target, start = Target.of(self.model, self.rows)
        ledger = Ledger(rows=len(self))
        sums = Sums(target, self.rows, LocalEngine(progressbar=False), ledger)
        anchor = anchor_at_mode(sums, start, within=within)
        return Mode(anchor.point, anchor.factor, time.perf_counter() - started, ledger.evaluations)

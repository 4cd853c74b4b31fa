"""Prediction from named draws: what a posterior calls, and keeps when it is saved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from modicum.errors import SettingError
from modicum.models import families
from modicum.models.base import BaseModel, Batch
from modicum.precision import in_double_precision

__all__ = ["ModelPredictor", "rebuild"]


@dataclass(frozen=True)
class ModelPredictor:
    """Expected outcomes of rows under draws, by the model that made the draws."""

    model: BaseModel

    @in_double_precision
    def __call__(self, draws: dict[str, np.ndarray], batch: Batch) -> np.ndarray:
        """Return one value a draw and row; draws have a leading axis."""
        fields = {k: np.asarray(v) for k, v in batch.items() if k not in ("y", "weight")}
        try:
            return np.asarray(_expected(self.model, draws, fields))
        except KeyError as missing:
            held = ", ".join(sorted(batch))
            raise SettingError(
                f"prediction needs the field {missing}, but the rows hold {held}."
            ) from missing

    def to_dict(self) -> dict[str, Any] | None:
        """Describe a family by name and settings; a model of one's own is not saved."""
        if type(self.model).__name__ not in families.__all__:
            return None
        settings = asdict(self.model)  # type: ignore[call-overload]
        return {"family": type(self.model).__name__, "settings": settings}


@partial(jax.jit, static_argnums=0)
def _expected(model: BaseModel, draws: Any, fields: Any) -> jax.Array:
    return jax.vmap(lambda named: model.expected(model.restore(named), fields))(draws)


def rebuild(description: dict[str, Any]) -> ModelPredictor | None:
    """Undo `ModelPredictor.to_dict`; None for what is no family of Modicum's."""
    if description.get("family") not in families.__all__:
        return None
    family = getattr(families, description["family"])
    return ModelPredictor(family(**description["settings"]))

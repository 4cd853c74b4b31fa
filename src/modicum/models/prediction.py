"""Prediction from named draws: what a posterior calls, and keeps when it is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import jax
import numpy as np

from modicum.errors import SettingError
from modicum.models import families, networks
from modicum.models.base import BaseModel, Batch
from modicum.models.tracing import digest_of
from modicum.runtime import in_double_precision, jit

__all__ = ["ModelPredictor", "rebuild"]

BUDGET = 2**25  # numbers that draws evaluated together may hold at their widest
SAVED = {name: getattr(room, name) for room in (families, networks) for name in room.__all__}


@dataclass(frozen=True)
class ModelPredictor:
    """What rows and draws say of each other, by the model that made the draws.

    Draws have a leading axis. As many draws, or as few rows, are evaluated together as memory
    allows: a convolutional network holds a hundred thousand numbers a row on the way.
    """

    model: BaseModel

    def __call__(self, draws: dict[str, np.ndarray], batch: Batch) -> np.ndarray:
        """Expected outcomes: one value (or line of values) a draw and row."""
        known = {k: v for k, v in batch.items() if k not in ("y", "weight")}
        return self._evaluate(_expected, draws, known)

    def outcome(
        self, draws: dict[str, np.ndarray], batch: Batch
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """Expected outcomes (None where the model has none) and log-densities of those seen."""
        known = {k: v for k, v in batch.items() if k != "weight"}
        try:
            return self._evaluate(_expected_and_log_density, draws, known)
        except SettingError:
            # a model of one's own need not say what it predicts
            return None, self._evaluate(_log_density, draws, known)

    @in_double_precision
    def _evaluate(self, what: Callable[..., Any], draws: Any, batch: Batch) -> Any:
        fields = {k: np.asarray(v) for k, v in batch.items()}
        try:
            widest, digest = _traced(what, self.model, draws, fields)
            pieces = ceil(widest / BUDGET)
            if pieces == 1 or _length(fields) == 1:
                together = min(_length(draws), max(1, BUDGET // widest))
                evaluated = _over_draws(
                    _AsTraced(self.model, digest), what, together, draws, fields
                )
                return jax.tree.map(np.asarray, evaluated)
        except KeyError as missing:
            held = ", ".join(sorted(batch))
            raise SettingError(
                f"prediction needs the field {missing}, but the rows hold {held}."
            ) from missing
        step = ceil(_length(fields) / pieces)
        parts = [
            self._evaluate(what, draws, {k: v[i : i + step] for k, v in fields.items()})
            for i in range(0, _length(fields), step)
        ]
        return jax.tree.map(lambda *part: np.concatenate(part, axis=1), *parts)

    def to_dict(self) -> dict[str, Any] | None:
        """Describe a model of Modicum's by name and settings; one's own is not saved."""
        if type(self.model) not in SAVED.values():
            return None
        settings = asdict(self.model)  # type: ignore[call-overload]
        return {"family": type(self.model).__name__, "settings": settings}


def rebuild(description: dict[str, Any]) -> ModelPredictor | None:
    """Undo `ModelPredictor.to_dict`; None for what is no model of Modicum's."""
    made = SAVED.get(description.get("family", ""))
    return None if made is None else ModelPredictor(made(**description["settings"]))


def _expected(model: BaseModel, named: Any, fields: Any) -> Any:
    return model.expected(model.restore(named), fields)


def _log_density(model: BaseModel, named: Any, fields: Any) -> Any:
    return model.log_likelihood(model.restore(named), fields)


def _expected_and_log_density(model: BaseModel, named: Any, fields: Any) -> Any:
    return _expected(model, named, fields), _log_density(model, named, fields)


@dataclass(frozen=True)
class _AsTraced:
    """A model as of now: a user's function may read a global that has changed since."""

    model: BaseModel
    digest: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AsTraced) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


@jit(static=(0, 1, 2))
def _over_draws(
    traced: _AsTraced, what: Callable[..., Any], together: int, draws: Any, fields: Any
) -> Any:
    return jax.lax.map(lambda draw: what(traced.model, draw, fields), draws, batch_size=together)


def _traced(what: Callable[..., Any], model: BaseModel, draws: Any, fields: Any) -> tuple[int, str]:
    """Size of the largest array that evaluating one draw makes on the way, and what it computes."""
    first = {name: x[0] for name, x in draws.items()}
    expression = jax.make_jaxpr(lambda draw, fields: what(model, draw, fields))(first, fields)
    return max(1, *_sizes(expression.jaxpr)), digest_of(expression)[0]


def _length(arrays: Any) -> int:
    return len(next(iter(arrays.values())))


def _sizes(jaxpr: Any) -> Iterator[int]:
    """Sizes of all arrays a traced function makes, also inside functions it calls."""
    for step in jaxpr.eqns:
        yield from (int(out.aval.size) for out in step.outvars if hasattr(out.aval, "size"))
        for given in step.params.values():
            for value in given if isinstance(given, tuple) else (given,):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from _sizes(inner)

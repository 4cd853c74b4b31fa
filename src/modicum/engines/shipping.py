"""How what a pass computes travels to a worker: functions of Modicum's by name, others by value.

A compiled function holds locks and cannot be pickled, and need not be: every worker has Modicum. It
goes as its module and the name it has there. Functions of a user's own model go by value, as Ray
sends the functions of a script.
"""

from __future__ import annotations

import io
import pickle
import sys
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from modicum.engines.ray_library import ray_library

__all__ = ["Answer", "Parcel", "Reference", "packed", "unpacked"]

Reference: TypeAlias = object  # ray.ObjectRef: to an answer, or to what lies in the cluster
Answer: TypeAlias = Any  # what a worker returns, which depends on what it is asked


class Parcel(NamedTuple):
    """Something that a worker unpacks once, and remembers by its number."""

    number: int
    content: str | list[Reference]  # the folder of a store; else what `packed` made, in a list


def packed(value: object) -> bytes:
    """An object as bytes, with device arrays as NumPy arrays."""
    pickler: Any = ray_library("ray.cloudpickle").Pickler  # Ray has no types

    class Pickler(pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:  # as pickle has it
            if isinstance(thing, jax.Array) and not isinstance(thing, jax.core.Tracer):
                return np.asarray, (np.asarray(thing),)
            name = _own_name(thing)
            if name is not None:
                return _named, (str(thing.__module__), name)
            return super().reducer_override(thing)

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


def unpacked(data: bytes) -> Answer:
    """Undo `packed`; the bytes come from the driver of this very run."""
    return pickle.loads(data)


def _own_name(shipped: object) -> str | None:
    """The name of a function in its module, if that is one of Modicum's."""
    if not isinstance(shipped, FunctionType) or not shipped.__module__.startswith("modicum."):
        return None
    if shipped is _named:  # which goes the usual way, or it would need itself
        return None
    in_module = vars(sys.modules[shipped.__module__])
    return next((name for name, value in in_module.items() if value is shipped), None)


def _named(module: str, name: str) -> object:
    return getattr(import_module(module), name)

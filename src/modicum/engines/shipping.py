"""Pickle the work of a pass for the workers: Modicum's functions by name, others by value.

A compiled function holds locks and cannot be pickled. It need not be, since every worker has
Modicum: it is sent as its module and name. Functions of a user's model are sent by value, as Ray
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

Reference: TypeAlias = object  # a ray.ObjectRef to an answer, or to an object in the cluster
Answer: TypeAlias = Any  # what a worker returns, which depends on the request


class Parcel(NamedTuple):
    """Something that a worker unpacks once and remembers by its number."""

    number: int
    content: str | list[Reference]  # the folder of a store, or a list with one packed object


def packed(value: object) -> bytes:
    """Pickle an object, with device arrays as NumPy arrays."""
    pickler: Any = ray_library("ray.cloudpickle").Pickler  # Ray has no types

    class Pickler(pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:  # pickle's hook
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
    """Undo `packed`; the bytes come from this run's own driver, so unpickling is safe."""
    return pickle.loads(data)


def _own_name(shipped: object) -> str | None:
    """Return the name of a function in its module, if the module is one of Modicum's."""
    if not isinstance(shipped, FunctionType) or not shipped.__module__.startswith("modicum."):
        return None
    if shipped is _named:  # pickled as usual, since unpickling by name needs it
        return None
    in_module = vars(sys.modules[shipped.__module__])
    return next((name for name, value in in_module.items() if value is shipped), None)


def _named(module: str, name: str) -> object:
    return getattr(import_module(module), name)

"""Import Ray, an optional dependency, only when it is used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from modicum.errors import SettingError


def ray_library(module: str = "ray") -> ModuleType:
    """Return the module, or say how to install Ray."""
    try:
        return import_module(module)
    except ImportError:
        raise SettingError(
            "mo.engines.Ray needs the package ray: pip install 'modicum[ray]'."
        ) from None

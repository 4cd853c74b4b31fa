"""The named methods: what `method=` accepts."""

from __future__ import annotations

from modicum.errors import SettingError, suggestion
from modicum.methods.base import Method
from modicum.methods.flymc import FlyMC
from modicum.methods.full_data import HMC, NUTS
from modicum.methods.hmc_ecs import HMCECS
from modicum.methods.hmc_ecs_signed import SignedHMCECS

__all__ = ["HMC", "HMCECS", "METHODS", "NUTS", "FlyMC", "Method", "SignedHMCECS", "resolve"]

METHODS: dict[str, type[Method]] = {
    cls.name: cls for cls in (HMCECS, SignedHMCECS, HMC, NUTS, FlyMC)
}


def resolve(method: str | Method | type[Method]) -> Method:
    """Return the method object for a name, or the object itself."""
    if isinstance(method, Method):
        return method
    if isinstance(method, type) and issubclass(method, Method):
        return method()
    if isinstance(method, str) and method.lower() in METHODS:
        return METHODS[method.lower()]()
    raise SettingError(
        f"there is no method {method!r}{suggestion(str(method), METHODS)}; "
        f"the methods are {', '.join(sorted(METHODS))}."
    )

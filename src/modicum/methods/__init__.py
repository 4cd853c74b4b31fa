"""The named methods: what `method=` accepts."""

from __future__ import annotations

from modicum.errors import SettingError, suggestion
from modicum.methods.base import Method
from modicum.methods.ecs.perturbed import HMCECS
from modicum.methods.ecs.signed import SignedHMCECS
from modicum.methods.flymc.method import FlyMC
from modicum.methods.full_data import HMC, NUTS
from modicum.methods.sgmcmc.base import StochasticGradient
from modicum.methods.sgmcmc.named import NAMED

__all__ = [
    "HMC",
    "HMCECS",
    "METHODS",
    "NUTS",
    "FlyMC",
    "Method",
    "SignedHMCECS",
    "StochasticGradient",
    "resolve",
]

_ALL: tuple[type[Method], ...] = (
    HMCECS,
    SignedHMCECS,
    HMC,
    NUTS,
    FlyMC,
    StochasticGradient,
    *NAMED,
)
METHODS: dict[str, type[Method]] = {cls.name: cls for cls in _ALL}


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

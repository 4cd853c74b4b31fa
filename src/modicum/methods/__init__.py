"""The methods that `method=` accepts, and the default among them.

A method plans a run: it finds the mode, studies some rows, and composes a kernel for chains; or it
draws without chains.
"""

from __future__ import annotations

from modicum.arguments import names_checked
from modicum.errors import SettingError, suggestion
from modicum.methods.auto import Auto
from modicum.methods.ecs import HMCECS, ECSExpert, SignedHMCECS
from modicum.methods.flymc import FlyMC
from modicum.methods.full_data import HMC, NUTS
from modicum.methods.laplace import Laplace
from modicum.methods.method import Method
from modicum.methods.sgmcmc import NAMED, StochasticGradient

__all__ = [
    "DEFAULT",
    "HMC",
    "HMCECS",
    "METHODS",
    "NUTS",
    "Auto",
    "ECSExpert",
    "FlyMC",
    "Laplace",
    "Method",
    "SignedHMCECS",
    "StochasticGradient",
    "list_methods",
    "resolve",
]

# Every method; those of stochastic gradients are listed in `sgmcmc/named.py`.
_CLASSES: tuple[type[Method], ...] = (
    Auto,
    HMCECS,
    SignedHMCECS,
    HMC,
    NUTS,
    Laplace,
    FlyMC,
    *NAMED,
    StochasticGradient,
)
for _class in _CLASSES:
    # dataclasses write their own `__init__`, which does not explain an unknown setting
    _class.__init__ = names_checked(_class.__init__)  # type: ignore[method-assign]
METHODS: dict[str, type[Method]] = {cls.name: cls for cls in _CLASSES}
DEFAULT = Auto.name


def list_methods() -> str:
    """List every method with its summary, one per line, for help texts.

    Examples
    --------
    >>> print(list_methods().splitlines()[0])
    auto                 the cheapest valid one: laplace, hmc-ecs or nuts; the default
    """
    width = max(len(name) for name in METHODS) + 2
    return "\n".join(f"{name:<{width}}{cls.summary}" for name, cls in METHODS.items())


def resolve(method: str | Method | type[Method] | None) -> Method:
    """Return the method object for a name, or the object itself; the default for None."""
    if method is None:
        return METHODS[DEFAULT]()
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

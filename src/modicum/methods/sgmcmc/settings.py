"""Settings of stochastic-gradient methods that make no sense are refused in a sentence."""

from __future__ import annotations

from typing import Any, NamedTuple

from modicum.designs import DESIGNS
from modicum.errors import SettingError, is_number, suggestion, whole_number
from modicum.estimators.gradients import BaseGradientEstimator
from modicum.kernels.integrators import Integrator
from modicum.kernels.selectors import Selector
from modicum.methods.base import check_memory_limit

__all__ = ["Parts", "check", "check_parts", "picked"]


class Parts(NamedTuple):
    """What a stochastic-gradient method is composed of."""

    integrator: Integrator
    estimator: BaseGradientEstimator
    selector: Selector


def picked(given: Any, known: dict[str, Any], base: type, what: str) -> Any:
    """The part that `given` names, or `given` itself where it is one."""
    if isinstance(given, base):
        return given
    if isinstance(given, str) and given in known:
        return known[given]()
    if isinstance(given, type) and issubclass(given, base):
        return given()
    names = ", ".join(repr(name) for name in known)
    raise SettingError(
        f"there is no {what} {given!r}{suggestion(str(given), known)}; give {names}, or an object."
    )


def check_parts(parts: Parts) -> None:
    """Refuse compositions that sample something else than they say."""
    integrator, estimator, selector = parts
    selector.batches(integrator)  # refuses what it cannot serve
    if getattr(integrator, "in_parameters", False) and selector.batches(integrator) > 1:
        integrator.noise_match(None, None)  # type: ignore[arg-type]  # says why not
    if integrator.needs_raw_gradients and estimator.small_gradients:
        raise SettingError(
            "pSGLD scales steps by the size of minibatch gradients, which control variates and "
            'snapshots make vanish near the mode; use estimator="minibatch", or another integrator.'
        )


def check(method: Any) -> None:
    """Refuse settings of a stochastic-gradient method that cannot work."""
    whole_number("batch", method.batch)
    h = method.step_size
    if h is not None and not callable(h) and not (is_number(h) and h > 0):
        raise SettingError(
            f"step_size must be a positive number, a function of the iteration's number, or None "
            f"to have it chosen, not {h!r}."
        )
    if method.design not in DESIGNS:
        raise SettingError(f"design must be one of {', '.join(DESIGNS)}, not {method.design!r}.")
    whole_number("clusters", method.clusters)
    check_memory_limit(method.memory_limit)
    if method.whiten not in (None, True, False):
        raise SettingError(f"whiten must be True, False or None, not {method.whiten!r}.")
    if isinstance(method.start, str) and method.start not in ("mode", "zero", "model"):
        raise SettingError(
            f"start must be 'mode', 'zero', 'model' or a point, not {method.start!r}."
        )
    if method.spread is not None and not (is_number(method.spread) and method.spread >= 0):
        raise SettingError(f"spread must be a number from 0, not {method.spread!r}.")
    if method.precision not in ("float64", "float32"):
        raise SettingError("precision must be 'float64' or 'float32'.")
    if not is_number(method.bias) or not 0 < method.bias < 1:
        raise SettingError("bias must lie between 0 and 1.")

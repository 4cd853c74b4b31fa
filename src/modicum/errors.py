"""What Modicum says when something is wrong: one sentence, and what to do about it."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "ConvergenceError",
    "CrudeControlVariateError",
    "DataError",
    "ModicumError",
    "ModicumWarning",
    "SettingError",
    "is_number",
    "suggestion",
    "warn",
]


class ModicumError(Exception):
    """Base of every error Modicum raises on purpose."""


class DataError(ModicumError, ValueError):
    """The rows cannot be used as they are (NaN, text, wrong lengths, a damaged store)."""


class SettingError(ModicumError, ValueError):
    """An argument is not one Modicum can work with (a misspelt method, a negative size)."""


class ConvergenceError(ModicumError, RuntimeError):
    """A point that had to be a mode is not one."""


class CrudeControlVariateError(SettingError):
    """No affordable subsample would do: the rows' Taylor proxies are too far off."""


class ModicumWarning(UserWarning):
    """An answer was computed, and there is a reason to doubt it."""


def warn(message: str, stacklevel: int = 3) -> str:
    """Issue `message` as a `ModicumWarning` and return it, so that a result can keep it too."""
    warnings.warn(message, ModicumWarning, stacklevel=stacklevel)
    return message


def is_number(value: object) -> bool:
    """Whether `value` is a finite real number, and not a text or a truth value."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and math.isfinite(float(value))  # type: ignore[arg-type]


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" if `given` looks like a misspelling of something known."""
    close = get_close_matches(given.lower(), list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""

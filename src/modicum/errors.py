"""Errors and warnings: each is one sentence that says what is wrong and what to do about it."""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, Self

P = ParamSpec("P")

__all__ = [
    "AbsentFileError",
    "ConvergenceError",
    "CrudeControlVariateError",
    "DataError",
    "ModicumError",
    "ModicumWarning",
    "NoNoiseError",
    "ResourceError",
    "SettingError",
    "UnknownArgumentError",
    "UnknownNameError",
    "argument",
    "as_options",
    "fault_text",
    "first_line",
    "is_number",
    "is_whole",
    "suggestion",
    "too_few",
    "warn",
    "whole_number",
]


class ModicumError(Exception):
    """Base class of every error that Modicum raises on purpose."""


class DataError(ModicumError, ValueError):
    """The rows cannot be used as they are (NaN, text, wrong lengths, a damaged store)."""


class AbsentFileError(DataError, FileNotFoundError):
    """A file does not exist; also a `FileNotFoundError`."""


class SettingError(ModicumError, ValueError):
    """An argument is invalid (a misspelt method, a negative size)."""


class UnknownArgumentError(SettingError, TypeError):
    """A function has no argument of this name; also a `TypeError`."""


class UnknownNameError(SettingError, KeyError):
    """Nothing has this name; also a `KeyError`."""

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0])


class ConvergenceError(ModicumError, RuntimeError):
    """The search for a mode ended at a point that is not one."""


class NoModeError(ConvergenceError):
    """No mode was found, but the posterior is finite: NUTS may sample it without a mode."""


class NoNoiseError(ConvergenceError):
    """The columns determine the outcome exactly, so that its noise scale has no posterior."""


class CrudeControlVariateError(SettingError):
    """The rows' Taylor proxies are too inaccurate for any affordable subsample.

    Parameters
    ----------
    sentence
        What is wrong, and why.
    remedy
        What to do about it.
    """

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence, remedy)
        self.sentence, self.remedy = sentence, remedy

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}."


class ResourceError(ModicumError, RuntimeError):
    """The machine ran out of memory, address space or disk space."""


class ModicumWarning(UserWarning):
    """An answer was computed, and there is a reason to doubt it.

    It prints as one sentence. Programs should branch on `code`, never on the words.

    Parameters
    ----------
    code
        The kind of doubt, such as "heavy-tails"; docs/warnings.md lists all of them.
    sentence
        What is wrong, and why.
    remedy
        What to do about it; empty if nothing can be done.
    numbers
        The figures behind the warning, by name.

    Examples
    --------
    >>> doubt = ModicumWarning("r-hat", "the chains disagree", "draw more", r_hat=1.3)
    >>> print(doubt, doubt.code, doubt.numbers)
    the chains disagree; draw more. r-hat {'r_hat': 1.3}
    """

    def __init__(self, code: str, sentence: str, remedy: str = "", **numbers: float) -> None:
        super().__init__(code, sentence, remedy)
        self.code, self.sentence, self.remedy = code, sentence, remedy
        self.numbers = {name: float(value) for name, value in numbers.items()}

    def __str__(self) -> str:
        return f"{self.sentence}; {self.remedy}." if self.remedy else f"{self.sentence}."

    def __repr__(self) -> str:
        return f"<{self.code}: {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModicumWarning) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.code, self.sentence, self.remedy))

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values that can be written as JSON."""
        texts = {"code": self.code, "sentence": self.sentence, "remedy": self.remedy}
        return {**texts, "numbers": self.numbers}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:  # as json.loads returns it
        """Undo `to_dict`; raise a TypeError if its parts are not texts."""
        texts = [saved[part] for part in ("code", "sentence", "remedy")]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("its warnings are not sentences")
        return cls(*texts, **saved["numbers"])


def listed(
    check: Callable[P, Iterator[ModicumWarning]],
) -> Callable[P, list[ModicumWarning]]:
    """Decorate a check that yields warnings: it returns them in a list."""

    @wraps(check)
    def in_list(*args: P.args, **kwargs: P.kwargs) -> list[ModicumWarning]:
        return list(check(*args, **kwargs))

    return in_list


def warn(warning: ModicumWarning) -> ModicumWarning:
    """Issue `warning` at the line that called Modicum, and return it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)
    return warning


def warn_of(code: str, sentence: str, remedy: str = "", **numbers: float) -> ModicumWarning:
    """Issue a `ModicumWarning` with these parts, and return it."""
    return warn(ModicumWarning(code, sentence, remedy, **numbers))


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "modicum"


def is_number(value: object) -> bool:
    """Whether `value` is a finite real number; a bool is not."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and math.isfinite(float(value))  # type: ignore[arg-type]


def is_whole(value: object) -> bool:
    """Whether `value` is a whole number; a bool is not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def whole_number(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int; raise unless it is a whole number of at least `least`."""
    if not is_whole(value) or int(value) < least:  # type: ignore[call-overload]
        raise SettingError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)  # type: ignore[call-overload]


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def too_few(number: int, noun: str) -> str:
    """Return "1 draw is too few" or "30 draws are too few"."""
    return f"{count(number, noun)} {'are' if number != 1 else 'is'} too few"


def first_few(names: Sequence[object], most: int) -> str:
    """List the first names, and count the others.

    Examples
    --------
    >>> first_few("abcd", 2)
    'a, b and 2 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def fault_text(fault: Exception) -> str:
    """Describe an exception raised by other code, in one line.

    Examples
    --------
    >>> fault_text(ValueError("no such axis"))
    'ValueError: no such axis'
    """
    return f"{type(fault).__name__}: {first_line(str(fault))}"


def first_line(fault: BaseException | str) -> str:
    """Return the first line of another library's message, to quote within a sentence of ours.

    Examples
    --------
    >>> first_line(OSError("No such file."))
    'No such file'
    """
    lines = str(fault).strip().splitlines()
    if lines:
        return lines[0].rstrip(".:")
    return "no message" if isinstance(fault, str) else type(fault).__name__


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" if `name` looks like a misspelling of a candidate."""
    close = get_close_matches(name.lower(), list(candidates), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


_options = ContextVar("_options", default=False)  # do messages name command-line options?


@contextmanager
def as_options() -> Iterator[None]:
    """Within the block, messages name arguments as command-line options, in this thread only."""
    before = _options.set(True)
    try:
        yield
    finally:
        _options.reset(before)


def argument(name: str, value: object) -> str:
    """Return an argument as the reader of a message would type it.

    Examples
    --------
    >>> argument("categorical", ["ward"])
    "categorical=['ward']"
    >>> with as_options():
    ...     argument("categorical", ["ward"])
    '--categorical ward'
    """
    if not _options.get():
        return f"{name}={value!r}"
    if value is True:
        return f"--{name}"
    parts = value if isinstance(value, list | tuple) else [value]
    return f"--{name} {','.join(map(str, parts))}"

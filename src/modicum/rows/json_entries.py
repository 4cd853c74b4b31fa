"""Type checks for the entries of a JSON object.

Each check returns its argument, or raises a TypeError or ValueError that says what was found
instead.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Json: TypeAlias = Any  # what json.loads returns


def text(value: object) -> str:
    """Return `value`, which must be text."""
    if not isinstance(value, str):
        raise TypeError(f"{short(value)} is not text")
    return value


def integer(value: object, least: int) -> int:
    """Return `value`, which must be an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{short(value)} is not a whole number from {least}")
    return value


def sequence(value: object) -> list[object]:
    """Return `value` as a list; it must be a list or tuple."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{short(value)} is not a list")
    return list(value)


def mapping(value: object) -> dict[str, object]:
    """Return `value`, which must be a JSON object."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{short(value)} is not an object")
    return value


def text_or_none(value: object) -> str | None:
    """Return `value`, which must be text or None."""
    return None if value is None else text(value)


def short(value: object) -> str:
    """Return a short text for a value of unknown size and depth, without traversing it."""
    simple = value is None or isinstance(value, str | int | float)
    text = repr(value) if simple else f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."

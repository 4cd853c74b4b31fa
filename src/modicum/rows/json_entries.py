"""Dataclasses as plain JSON values and back, checked against their annotations.

A check returns its argument, or raises a TypeError or ValueError that says what was found instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

Json: TypeAlias = Any  # what json.loads returns


def plain(value: Any) -> Json:  # any dataclass, or JSON
    """Return dataclasses, tuples and mappings as plain JSON values."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def restored(kind: Any, value: object) -> Any:  # a type, and a value of it
    """Undo `plain` for a value of type `kind`; raise KeyError, TypeError or ValueError otherwise.

    Whole numbers are at least 0. Entries that are absent, as in older files, have their defaults.
    """
    outer, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        entries, kinds = mapping(value), _annotations(kind)
        return kind(
            **{
                f.name: restored(kinds[f.name], entries[f.name])
                for f in fields(kind)
                if f.name in entries or f.default is f.default_factory is MISSING
            }
        )
    if outer is Mapping:
        return {name: restored(inner[1], entry) for name, entry in mapping(value).items()}
    if outer is tuple and inner[-1] is ...:
        if {str, int}.intersection(get_args(inner[0])).issuperset(map(type, sequence(value))):
            return tuple(sequence(value))  # levels, of which there may be millions
        return tuple(restored(inner[0], entry) for entry in sequence(value))
    if outer is tuple:
        return tuple(restored(k, v) for k, v in zip(inner, sequence(value), strict=True))
    if outer is UnionType and value is not None and len(inner) == 2 and NoneType in inner:
        return restored(inner[0], value)
    if outer is UnionType:
        if type(value) not in inner or value != value:
            raise TypeError(f"{short(value)} is neither text nor a number")
        return value
    if kind is bool and not isinstance(value, bool):
        raise TypeError(f"{short(value)} is neither true nor false")
    return text(value) if kind is str else integer(value, 0) if kind is int else value


_annotations = cache(get_type_hints)


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


def short(value: object) -> str:
    """Return a short text for a value of unknown size and depth, without traversing it."""
    simple = value is None or isinstance(value, str | int | float)
    text = repr(value) if simple else f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."

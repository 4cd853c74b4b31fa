"""Names for the scalars of a parameter: ``beta[age]`` rather than ``beta[0]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np

from modicum.errors import SettingError

Axis: TypeAlias = Sequence[str] | None
LabelsLike: TypeAlias = Mapping[str, Sequence[str | Axis]]
"""Labels as a user may write them: for each parameter one sequence per axis, or, for a vector, the
labels themselves."""
Labels: TypeAlias = dict[str, tuple[tuple[str, ...] | None, ...]]


def tidy_labels(labels: LabelsLike | None, draws: Mapping[str, np.ndarray]) -> Labels:
    """Check labels against the draws and write them as one tuple (or ``None``) per axis.

    A flat sequence of strings labels the only axis of a vector.
    """
    tidy: Labels = {}
    for name, value in (labels or {}).items():
        if name not in draws:
            raise SettingError(f"There are labels for {name!r}, which is not among the draws.")
        shape = draws[name].shape[2:]
        flat = len(value) > 0 and all(isinstance(label, str) for label in value)
        axes: Sequence[Sequence[object] | None] = (value,) if flat else value
        tidy[name] = tuple(None if a is None else tuple(str(label) for label in a) for a in axes)
        sizes = tuple(None if a is None else len(a) for a in tidy[name])
        if len(sizes) != len(shape) or any(
            a is not None and a != b for a, b in zip(sizes, shape, strict=False)
        ):
            raise SettingError(
                f"The labels of {name!r} have lengths {sizes}, but its draws have shape {shape}."
            )
    return tidy


def axis_labels(name: str, shape: tuple[int, ...], labels: LabelsLike) -> list[list[str | int]]:
    """Return the coordinates of each axis: its labels, or 0, 1, 2 ... without labels."""
    axes = labels.get(name, (None,) * len(shape))
    return [
        list(range(n)) if axis is None else list(axis) for n, axis in zip(shape, axes, strict=True)
    ]


def scalar_names(name: str, shape: tuple[int, ...], labels: LabelsLike) -> list[str]:
    """Name every scalar, in the order of ``ravel``.

    Examples
    --------
    >>> scalar_names("beta", (2,), {"beta": (("age", "income"),)})
    ['beta[age]', 'beta[income]']
    >>> scalar_names("intercept", (), {})
    ['intercept']
    """
    if not shape:
        return [name]
    places = product(*axis_labels(name, shape, labels))
    return [f"{name}[{', '.join(map(str, place))}]" for place in places]

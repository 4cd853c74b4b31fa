"""The axes that plots draw on, and their colours; matplotlib is imported at its first use."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from modicum.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OBSERVED, PREDICTED, INK = "#1f2937", "#0b5fa5", "#555555"


def pyplot() -> ModuleType:
    """Import `matplotlib.pyplot`, or say how to install it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise SettingError(
            "plots need matplotlib, which is not installed: pip install 'modicum[plots]'."
        ) from None
    return plt


def new_axes(ax: Axes | None = None, size: tuple[float, float] = (6.0, 4.0)) -> Axes:
    """Return `ax`, or the axes of a new figure."""
    if ax is not None:
        return ax
    axes: Axes = pyplot().subplots(figsize=size, layout="constrained")[1]
    return axes

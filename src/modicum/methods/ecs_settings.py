"""Settings of HMC-ECS that make no sense are refused in a sentence."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from modicum.errors import SettingError, is_number

__all__ = ["DESIGNS", "check"]

DESIGNS = {
    "weighted": "rows are drawn in proportion to their expected residual over the posterior",
    "uniform": "every row alike, as in the papers",
}


def check(method: Any) -> None:
    """Refuse settings of an `HMCECS` that cannot work."""
    for name in ("subsample", "blocks", "refreshes"):
        value = getattr(method, name)
        least = 2 if name == "subsample" else 1
        if value is not None and (not isinstance(value, int | np.integer) or value < least):
            raise SettingError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    if method.design not in DESIGNS:
        raise SettingError(f"design must be 'weighted' or 'uniform', not {method.design!r}.")
    if method.order not in (0, 1, 2):
        raise SettingError(f"order must be 0, 1 or 2, not {method.order!r}.")
    if method.ddof not in (0, 1):
        raise SettingError("ddof must be 1, or 0 for the paper's divisor.")
    if isinstance(method.inner, str) and method.inner not in ("hmc", "nuts"):
        raise SettingError(f"inner must be 'hmc', 'nuts' or a Move, not {method.inner!r}.")
    if method.precision not in ("float64", "float32"):
        raise SettingError("precision must be 'float64' or 'float32'.")
    if method.tuning not in ("auto", "paper"):
        raise SettingError(f"tuning must be 'auto' or 'paper', not {method.tuning!r}.")
    if method.tuning == "paper" and method.anchor != "mode":
        raise SettingError("tuning='paper' finds its own anchor; leave `anchor` out.")
    if method.exact not in (None, "delayed"):
        raise SettingError(f"exact must be None or 'delayed', not {method.exact!r}.")
    if method.exact and method.inner != "hmc":
        raise SettingError("exact='delayed' needs a reversible inner kernel: inner='hmc'.")
    if isinstance(method.anchor, str) and method.anchor != "mode":
        raise SettingError(f"anchor must be 'mode' or a point, not {method.anchor!r}.")
    for name in ("trajectory", "bias", "step_size"):
        value = getattr(method, name)
        if value is not None and not (is_number(value) and value > 0):
            raise SettingError(f"{name} must be a positive number.")
    for name in ("target_accept", "floor"):
        value = getattr(method, name)
        if not is_number(value) or not 0 < value < 1:
            raise SettingError(f"{name} must lie between 0 and 1.")
    if not is_number(method.jitter) or not 0 <= method.jitter < 1:
        raise SettingError("jitter must lie between 0 and 1.")
    m, G = method.subsample, method.blocks
    if m is not None and G is not None and m % G:
        raise SettingError(
            f"a subsample of {m} rows does not divide into {G} blocks; "
            f"take {G * ceil(m / G)} rows or another number of blocks."
        )

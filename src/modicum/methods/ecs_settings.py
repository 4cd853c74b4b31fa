"""Settings of HMC-ECS that make no sense are refused in a sentence."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from modicum.errors import SettingError, is_number

__all__ = ["DESIGNS", "check_common", "check_perturbed", "check_signed"]

DESIGNS = {
    "weighted": "rows are drawn in proportion to their expected residual over the posterior",
    "uniform": "every row alike, as in the papers",
}


def check_common(method: Any) -> None:
    """Refuse settings of any energy-conserving method that cannot work."""
    _check_counts(method, {"blocks": 1, "refreshes": 1})
    if method.design not in DESIGNS:
        raise SettingError(f"design must be 'weighted' or 'uniform', not {method.design!r}.")
    if method.order not in (0, 1, 2):
        raise SettingError(f"order must be 0, 1 or 2, not {method.order!r}.")
    if isinstance(method.inner, str) and method.inner not in ("hmc", "nuts"):
        raise SettingError(f"inner must be 'hmc', 'nuts' or a Move, not {method.inner!r}.")
    if method.precision not in ("float64", "float32"):
        raise SettingError("precision must be 'float64' or 'float32'.")
    if isinstance(method.anchor, str) and method.anchor != "mode":
        raise SettingError(f"anchor must be 'mode' or a point, not {method.anchor!r}.")
    _check_positive(method, ("trajectory", "step_size"))
    for name in ("target_accept", "floor"):
        value = getattr(method, name)
        if not is_number(value) or not 0 < value < 1:
            raise SettingError(f"{name} must lie between 0 and 1.")
    if not is_number(method.jitter) or not 0 <= method.jitter < 1:
        raise SettingError("jitter must lie between 0 and 1.")


def check_perturbed(method: Any) -> None:
    """Refuse settings of an `HMCECS` that cannot work."""
    _check_counts(method, {"subsample": 2})
    _check_positive(method, ("bias",))
    if method.ddof not in (0, 1):
        raise SettingError("ddof must be 1, or 0 for the paper's divisor.")
    if method.tuning not in ("auto", "paper"):
        raise SettingError(f"tuning must be 'auto' or 'paper', not {method.tuning!r}.")
    if method.tuning == "paper" and method.anchor != "mode":
        raise SettingError("tuning='paper' finds its own anchor; leave `anchor` out.")
    if method.exact not in (None, "delayed"):
        raise SettingError(f"exact must be None or 'delayed', not {method.exact!r}.")
    if method.exact and method.inner != "hmc":
        raise SettingError("exact='delayed' needs a reversible inner kernel: inner='hmc'.")
    _check_blocks(method.subsample, method.blocks, "a subsample of {} rows", "rows")


def check_signed(method: Any) -> None:
    """Refuse settings of a `SignedHMCECS` that cannot work."""
    _check_counts(method, {"products": 1, "batch": 1})
    if method.centre is not None and not is_number(method.centre):
        raise SettingError(
            f"centre must be a number, or None to have it chosen, not {method.centre!r}."
        )
    _check_blocks(method.products, method.blocks, "{} products", "products")


def _check_counts(method: Any, least: dict[str, int]) -> None:
    for name, smallest in least.items():
        value = getattr(method, name)
        if value is None:
            continue
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < smallest:
            raise SettingError(
                f"{name} must be a whole number of at least {smallest}, not {value!r}."
            )


def _check_positive(method: Any, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(method, name)
        if value is not None and not (is_number(value) and value > 0):
            raise SettingError(f"{name} must be a positive number.")


def _check_blocks(number: int | None, blocks: int | None, called: str, unit: str) -> None:
    if number is not None and blocks is not None and number % blocks:
        raise SettingError(
            f"{called.format(number)} cannot be divided into {blocks} blocks; "
            f"take {blocks * ceil(number / blocks)} {unit} or another number of blocks."
        )

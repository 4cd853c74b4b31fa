"""The number of chains in a run, and their division into superchains.

A few long chains suit a CPU. An accelerator takes as long for a thousand chains as for one, so many
short chains are better there. To check whether they have forgotten their starts, the chains of a
group, a superchain, all start at the same point (`modicum.diagnostics.nested_r_hat`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import jax
import numpy as np

from modicum.errors import SettingError, whole_number
from modicum.runtime import free_memory, free_on_host

ChainCount: TypeAlias = int | Literal["auto"]
FEW = 4  # chains on a CPU
MANY = 1024  # chains on an accelerator
SUPERCHAINS = 16
LARGEST_SUBSAMPLE = 4096  # rows per chain for which memory on the device is reserved
STATS = 12  # statistics recorded with every draw
SHARE = 4  # 1 / SHARE of the free memory may be used


class Layout(NamedTuple):
    """Numbers of chains and superchains; None: each chain has its own starting point."""

    chains: int
    superchains: int | None = None

    def start_keys(self, keys: np.ndarray) -> np.ndarray:
        """Return the keys with which chains start: one per superchain, that of its first chain."""
        if self.superchains is None:
            return keys
        size = self.chains // self.superchains
        return np.repeat(keys[::size], size, axis=0)


def check_layout(chains: object, superchains: object) -> None:
    """Refuse invalid numbers of chains or superchains."""
    if isinstance(chains, str):
        if chains != "auto":
            raise SettingError(f'chains must be a whole number or "auto", not {chains!r}.')
    else:
        whole_number("chains", chains)
    if superchains is None:
        return
    groups = whole_number("superchains", superchains, 2)
    if isinstance(chains, str) or int(chains) % groups:  # type: ignore[call-overload]
        number = 'chains="auto"' if isinstance(chains, str) else f"{chains} chains"
        raise SettingError(
            f"{number} cannot be divided into {groups} superchains of equal size; set chains to a "
            f"multiple of {groups}."
        )


def auto_layout(draws: int, size: int) -> Layout:
    """Choose the layout for the device, for chains of `draws` draws of `size` parameters.

    On an accelerator this is 1,024 chains, or as many as fit with subsamples of thousands of rows
    in a quarter of its free memory, and with their draws in a quarter of the host's.
    """
    if not on_accelerator():
        return Layout(FEW)
    draw_bytes = 8 * draws * (size + STATS)
    subsample_bytes = 8 * LARGEST_SUBSAMPLE * (size + STATS)
    most = min(
        MANY, free_on_host() // SHARE // draw_bytes, free_memory() // SHARE // subsample_bytes
    )
    if most < 2 * SUPERCHAINS:
        return Layout(FEW)
    return Layout(most - most % SUPERCHAINS, SUPERCHAINS)


def on_accelerator() -> bool:
    """Whether JAX computes on something other than a CPU."""
    return jax.default_backend() != "cpu"

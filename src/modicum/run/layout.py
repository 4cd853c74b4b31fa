"""How many chains a run has, and which of them begin together.

A few long chains suit a CPU. An accelerator takes as long for a thousand as for one: there many
short chains are the better run, and whether they have forgotten where they began is seen by having
groups of them, superchains, begin at one point (`modicum.diagnostics.nested_r_hat`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import jax
import numpy as np

from modicum.errors import SettingError, whole_number
from modicum.passes.full_likelihood import free_memory, free_on_host

__all__ = ["ChainCount", "Layout", "auto_layout", "check_layout"]

ChainCount: TypeAlias = int | Literal["auto"]
FEW = 4  # on a CPU
MANY = 1024  # on an accelerator
SUPERCHAINS = 16
LARGEST_SUBSAMPLE = 4096  # rows of a chain for which room on the device is kept
STATS = 12  # numbers recorded beside every draw
SHARE = 4  # of the memory that is free, one part of so many


class Layout(NamedTuple):
    """Chains, and groups of them that share a start; None: every chain has its own."""

    chains: int
    superchains: int | None = None

    def start_keys(self, keys: np.ndarray) -> np.ndarray:
        """The keys with which chains begin: that of the first, for all of a superchain."""
        if self.superchains is None:
            return keys
        size = self.chains // self.superchains
        return np.repeat(keys[::size], size, axis=0)


def check_layout(chains: object, superchains: object) -> None:
    """Refuse what cannot be a number of chains, or of superchains."""
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
            f"{number} cannot be divided into {groups} superchains of equal size; give a multiple "
            "of them as chains."
        )


def auto_layout(draws: int, size: int) -> Layout:
    """What suits the device, for so many draws of `size` parameters in each chain.

    On an accelerator 1,024 chains, or as many as a quarter of its free memory has room for, with
    subsamples of thousands of rows, and a quarter of the host's for their draws.
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

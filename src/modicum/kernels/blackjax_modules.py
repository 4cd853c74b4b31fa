"""Lazy import of BlackJAX, at its first use.

Importing any part imports all of it, which takes a quarter of a second, and some methods need none.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any


class _Module:
    """A module that is imported when an attribute is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:  # BlackJAX has no types
        # Import the whole package first, or wait for it: importing a part while another thread
        # imports the package can deadlock on the import locks, and then one of the two fails.
        import_module(self._name.partition(".")[0])
        return getattr(import_module(self._name), name)


mala = _Module("blackjax.mcmc.mala")
nuts = _Module("blackjax.mcmc.nuts")
random_walk = _Module("blackjax.mcmc.random_walk")
mass_matrix = _Module("blackjax.adaptation.mass_matrix")
windows = _Module("blackjax.adaptation.window_adaptation")


def import_ahead() -> None:
    """Import BlackJAX in a thread, while the caller makes passes over the rows."""
    threading.Thread(target=import_module, args=("blackjax",)).start()

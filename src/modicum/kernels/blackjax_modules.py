"""BlackJAX, imported when something of it is first used.

Any part of it comes with all of it, a quarter of a second, and weighted normal draws need none.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

__all__ = ["import_ahead", "mala", "mass_matrix", "nuts", "random_walk", "windows"]


class _Module:
    """A module by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:  # BlackJAX has no types
        # All of it first, or waited for: who begins at a part of a package whose import has come to
        # that part in another thread holds the lock that the other needs, and one of them fails.
        import_module(self._name.partition(".")[0])
        return getattr(import_module(self._name), name)


mala = _Module("blackjax.mcmc.mala")
nuts = _Module("blackjax.mcmc.nuts")
random_walk = _Module("blackjax.mcmc.random_walk")
mass_matrix = _Module("blackjax.adaptation.mass_matrix")
windows = _Module("blackjax.adaptation.window_adaptation")


def import_ahead() -> None:
    """Import it in a thread, while the caller makes passes over the rows."""
    threading.Thread(target=import_module, args=("blackjax",)).start()

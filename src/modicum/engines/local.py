"""Passes by threads of this machine."""

from __future__ import annotations

from dataclasses import dataclass

from modicum.engines.base import EngineChoice
from modicum.errors import whole_number
from modicum.passes import LocalEngine
from modicum.progress import Progressbar


@dataclass(frozen=True)
class Local(EngineChoice):
    """Passes by threads of this machine: the default.

    Parameters
    ----------
    threads
        Number of threads; None: one per core. Sums do not depend on it.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.engines.Local(threads=2)
    Local(threads=2)
    """

    threads: int | None = None

    def __post_init__(self) -> None:
        if self.threads is not None:
            whole_number("threads", self.threads)

    def connect(self, progressbar: Progressbar) -> LocalEngine:
        """Return the engine of a run."""
        return LocalEngine(self.threads, progressbar)

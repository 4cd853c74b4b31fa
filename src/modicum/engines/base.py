"""The `engine=` argument: settings from which each run makes its engine."""

from __future__ import annotations

from abc import ABC, abstractmethod

from modicum.errors import SettingError
from modicum.passes import Engine, LocalEngine
from modicum.progress import Progressbar


class EngineChoice(ABC):
    """Settings of an engine; the same object may serve several runs."""

    @abstractmethod
    def connect(self, progressbar: Progressbar) -> Engine:
        """Return the engine that makes the passes of a run."""


def engine_for(engine: object, progressbar: Progressbar) -> Engine:
    """Return the engine that `engine=` asks for; None means threads of this machine."""
    if engine is None:
        return LocalEngine(progressbar=progressbar)
    if isinstance(engine, type) and issubclass(engine, EngineChoice):
        engine = engine()
    if not isinstance(engine, EngineChoice):
        raise SettingError(
            "engine must be mo.engines.Local() or mo.engines.Ray(address=...), not "
            f"{type(engine).__name__}."
        )
    return engine.connect(progressbar)

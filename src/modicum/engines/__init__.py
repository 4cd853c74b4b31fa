"""Engines that make passes over the rows: threads of this machine, or workers of a Ray cluster."""

from modicum.engines.base import EngineChoice, engine_for
from modicum.engines.cluster import Ray
from modicum.engines.local import Local

__all__ = ["EngineChoice", "Local", "Ray", "engine_for"]

"""The engines that make passes: threads of this machine, or workers of a Ray cluster."""

from modicum.passes.cluster import Ray
from modicum.passes.engine import EngineChoice, Local, engine_for

__all__ = ["EngineChoice", "Local", "Ray", "engine_for"]

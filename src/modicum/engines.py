"""The engines that make passes: threads of this machine, or workers of a Ray cluster."""

from modicum.passes.engine import EngineChoice, Local, engine_for
from modicum.passes.ray_engine import Ray

__all__ = ["EngineChoice", "Local", "Ray", "engine_for"]

"""Energy-conserving subsampling: HMC-ECS, perturbed and signed."""

from modicum.methods.ecs.perturbed import HMCECS
from modicum.methods.ecs.signed import SignedHMCECS

__all__ = ["HMCECS", "SignedHMCECS"]

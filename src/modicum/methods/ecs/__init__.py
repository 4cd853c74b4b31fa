"""Energy-conserving subsampling: HMC-ECS, perturbed and signed."""

from modicum.methods.ecs.composition import ECSExpert
from modicum.methods.ecs.hmc_ecs import HMCECS, SignedHMCECS

__all__ = ["HMCECS", "ECSExpert", "SignedHMCECS"]

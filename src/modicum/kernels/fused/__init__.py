"""HMC-ECS with each chain as a single GPU program (Pallas)."""

from modicum.kernels.fused.kernel import FusedKernel
from modicum.kernels.fused.sizes import pieces

__all__ = ["FusedKernel", "pieces"]

"""HMC-ECS with each chain as a single GPU program (Pallas)."""

from modicum.kernels.fused.kernel import FusedKernel, PredictorRows
from modicum.kernels.fused.sizes import RowResidual, pieces

__all__ = ["FusedKernel", "PredictorRows", "RowResidual", "pieces"]

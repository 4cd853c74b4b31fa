"""A whole chain of HMC-ECS in one program of an accelerator."""

from modicum.kernels.fused.kernel import FusedKernel, PredictorRows
from modicum.kernels.fused.sizes import RowResidual, pieces

__all__ = ["FusedKernel", "PredictorRows", "RowResidual", "pieces"]

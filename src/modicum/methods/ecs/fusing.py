"""Whether the iterations of an HMC-ECS chain can run as one GPU program, and why not."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from modicum.errors import SettingError
from modicum.kernels.control_variates import LinearTaylor
from modicum.kernels.energy_conserving import (
    EnergyConservingContext,
    EnergyConservingKernel,
    certain_rows,
)
from modicum.kernels.likelihood_estimates import Perturbed
from modicum.kernels.moves import HMCMove
from modicum.kernels.protocols import Settled
from modicum.kernels.remainder import TERMS, About

Fused: TypeAlias = bool | Literal["auto"]
WIDEST = 512  # most columns for which a program can hold a few rows


def fused_kernel(
    fused: Fused, kernel: EnergyConservingKernel, context: EnergyConservingContext
) -> tuple[Settled | None, str]:
    """Return the kernel that fuses many iterations per launch, or None; and the reason.

    With `fused=True`, an obstacle is an error.
    """
    if fused is False:
        return None, "fused iterations were switched off"
    why = fusing_obstacle(kernel, context)
    if why is None:
        from modicum.kernels.fused.kernel import FusedKernel

        form, estimator = kernel.control_variate, kernel.estimator
        assert isinstance(form, LinearTaylor)
        assert isinstance(estimator, Perturbed)
        settled = FusedKernel(kernel, form, estimator.ddof, certain_rows(context))
        return settled, "a chain runs as one GPU program"
    if fused is True:
        raise SettingError(f"iterations cannot be fused, since {why}; leave `fused` out.")
    return None, why


def fusing_obstacle(kernel: EnergyConservingKernel, context: EnergyConservingContext) -> str | None:
    """Say why iterations cannot be fused; None if they can."""
    proxy, form = context.proxy, kernel.control_variate
    if jax.default_backend() != "gpu":
        return "there is no GPU"
    if not isinstance(kernel.estimator, Perturbed):
        return "the estimator is not the perturbed estimator"
    if type(kernel.move) is not HMCMove:
        return "parameters are not moved by HMC"
    if not isinstance(form, LinearTaylor):
        return "rows do not enter through a single linear predictor"
    if form.prior is not None or proxy.warp is not None or proxy.bend is not None:
        return "a prior is not normal"
    if proxy.levels is not None:
        return "rare levels have control variates of their own"
    if proxy.curves is not None:
        return "the posterior is skewed along some axes"
    if proxy.B is not None:
        return "control variates are not of second order about the mode"
    if proxy.point.shape[0] > WIDEST:
        return f"there are more than {WIDEST} parameters"
    return None if _can_lower(form) else "the family uses a function that GPU programs lack"


@lru_cache(maxsize=8)
def _can_lower(form: LinearTaylor) -> bool:
    """Whether the family's residuals can be lowered to a GPU program, by trying it."""
    try:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton
    except ImportError:
        return False

    def program(e: jax.Array, value: jax.Array, slope: jax.Array) -> None:
        at = e[...]
        value[...], slope[...] = form.residual(at, About(at, at, (at,) * TERMS))

    shape = jax.ShapeDtypeStruct((16,), jnp.float32)
    params = triton.CompilerParams(num_warps=1, num_stages=1)
    call = pl.pallas_call(program, out_shape=(shape, shape), compiler_params=params)
    try:
        jax.jit(call).trace(shape).lower(lowering_platforms=("cuda",))
    except Exception:  # the exception depends on JAX's version
        return False
    return True

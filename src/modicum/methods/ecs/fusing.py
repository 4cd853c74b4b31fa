"""Whether the chains of a run can be programs of the accelerator, one each, and why not."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp

from modicum.errors import SettingError
from modicum.estimators import Perturbed
from modicum.estimators.remainder import TERMS
from modicum.estimators.taylor import LinearTaylor
from modicum.kernels.base import Settled
from modicum.kernels.energy_conserving import (
    EnergyConservingContext,
    EnergyConservingKernel,
    certain_rows,
)
from modicum.kernels.moves import HMCMove

__all__ = ["Fused", "check_fused", "fused_kernel", "fusing_obstacle"]

Fused: TypeAlias = bool | Literal["auto"]
WIDEST = 512  # columns a program can hold a few rows of


def check_fused(fused: object) -> None:
    """Refuse a setting that is neither a truth value nor "auto"."""
    if not isinstance(fused, bool) and fused != "auto":
        raise SettingError(f'fused must be True, False or "auto", not {fused!r}.')


def fused_kernel(
    fused: Fused, kernel: EnergyConservingKernel, context: EnergyConservingContext
) -> tuple[Settled | None, str]:
    """The kernel that does many iterations per launch, or None; and the reason, in a few words.

    With `fused=True` a reason against it is an error.
    """
    if fused is False:
        return None, "fused iterations were not asked for"
    why = fusing_obstacle(kernel, context)
    if why is None:
        from modicum.kernels.fused import FusedKernel

        form, estimator = kernel.control_variate, kernel.estimator
        assert isinstance(form, LinearTaylor)
        assert isinstance(estimator, Perturbed)
        settled = FusedKernel(kernel, form, estimator.ddof, certain_rows(context))
        return settled, "a chain is one program of the GPU"
    if fused is True:
        raise SettingError(f"iterations cannot be fused, since {why}; leave `fused` out.")
    return None, why


def fusing_obstacle(kernel: EnergyConservingKernel, context: EnergyConservingContext) -> str | None:
    """Why iterations run one by one; None: there is no reason."""
    proxy, form = context.proxy, kernel.control_variate
    if jax.default_backend() != "gpu":
        return "there is no GPU"
    if not isinstance(kernel.estimator, Perturbed):
        return "the estimator is not the perturbed one"
    if type(kernel.move) is not HMCMove:
        return "parameters are not moved by HMC"
    if not isinstance(form, LinearTaylor):
        return "rows do not enter through one linear predictor alone"
    if form.prior is not None or proxy.warp is not None or proxy.bend is not None:
        return "a prior is not normal"
    if proxy.curves is not None:
        return "the posterior is skewed along some axes"
    if proxy.B is not None:
        return "control variates are not of second order about the mode"
    if proxy.point.shape[0] > WIDEST:
        return f"there are more than {WIDEST} parameters"
    return None if _is_known(form) else "the family has a function that programs of a GPU lack"


@lru_cache(maxsize=8)
def _is_known(form: LinearTaylor) -> bool:
    """Whether residuals of the family can be part of a program: by making one, of no use."""
    try:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton
    except ImportError:
        return False

    def program(e: jax.Array, value: jax.Array, slope: jax.Array) -> None:
        at = e[...]
        value[...], slope[...] = form.residual(at, at, at, (at,) * TERMS)

    shape = jax.ShapeDtypeStruct((16,), jnp.float32)
    params = triton.CompilerParams(num_warps=1, num_stages=1)
    call = pl.pallas_call(program, out_shape=(shape, shape), compiler_params=params)
    try:
        jax.jit(call).trace(shape).lower(lowering_platforms=("cuda",))
    except Exception:  # what is raised depends on the version
        return False
    return True

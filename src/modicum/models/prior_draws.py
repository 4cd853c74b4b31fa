"""Independent draws of the parameters from their priors, for prior predictive checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from modicum.errors import SettingError
from modicum.models.base import BaseModel, Params
from modicum.models.correlations import partial_exponents
from modicum.models.groups.integrated import IntegratedEffects
from modicum.models.linear import LinearPredictorModel
from modicum.models.priors import OWN, HalfNormal, Prior
from modicum.models.priors.distributions import (
    Exponential,
    Gamma,
    HalfCauchy,
    Laplace,
    LogNormal,
    Normal,
    StudentT,
)
from modicum.models.priors.grouped import covariance_factor
from modicum.models.priors.resolved import LOG_SD, PARTIAL, ModelPriors, is_logged
from modicum.models.tracing import evaluated
from modicum.random import typed
from modicum.runtime import in_double_precision

# The last argument is the prior of that type.
Draw = Callable[[np.random.Generator, tuple[int, ...], Any], np.ndarray]

DRAWS: dict[type[Prior], Draw] = {
    Normal: lambda rng, shape, p: p.mean + p.sd * rng.standard_normal(shape),
    StudentT: lambda rng, shape, p: p.mean + p.scale * rng.standard_t(p.df, shape),
    Laplace: lambda rng, shape, p: rng.laplace(p.mean, p.scale, shape),
    LogNormal: lambda rng, shape, p: rng.lognormal(p.mean, p.sd, shape),
    HalfNormal: lambda rng, shape, p: np.abs(p.sd * rng.standard_normal(shape)),
    HalfCauchy: lambda rng, shape, p: np.abs(p.scale * rng.standard_cauchy(shape)),
    Exponential: lambda rng, shape, p: rng.exponential(1 / p.rate, shape),
    Gamma: lambda rng, shape, p: rng.gamma(p.shape, 1 / p.rate, shape),
}


@in_double_precision
def log_priors(
    model: BaseModel, draws: Mapping[str, np.ndarray], *, effects: bool = True
) -> np.ndarray:
    """Log-density of the prior at reported draws, (chain, draw), in the unconstrained parameters.

    Without `effects`, the density of group effects given their sds is left out: like the
    likelihood, it belongs to the model rather than to prior beliefs.
    """
    flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in draws.items()}
    chains, number = next(iter(draws.values())).shape[:2]
    family = model.family if isinstance(model, IntegratedEffects) else model
    priors = family.resolved_priors if isinstance(family, LinearPredictorModel) else None

    def log_prior(named: Params) -> jax.Array:
        theta = model.restore(named)
        total = model.log_prior(theta)
        return total if effects or priors is None else total - priors.log_effects(theta)

    (values,) = evaluated(jax.vmap(log_prior), flat)
    return np.broadcast_to(np.asarray(values), chains * number).reshape(chains, number)


@in_double_precision
def prior_draws(
    model: BaseModel, shapes: Mapping[str, tuple[int, ...]], number: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return prior draws ``name -> (number, *shape)`` of reported parameters with these shapes."""
    q = shapes["intercept"] if "intercept" in shapes else shapes.get("beta", (0,))[:-1]
    if isinstance(model, IntegratedEffects) and model.scales is not None:
        theta = _draw_family(_priors_of(model.family, shapes), q, number, rng)
        sds = [_draw(HalfNormal(scale), rng, (number,)) for scale in model.scales]
        theta["group_log_sd"] = np.log(np.stack(sds, axis=1))
        if model.covariance.pairs:
            lkj = (model.effects, model.concentration)
            theta["group_partial"] = _draw_partials(*lkj, rng, number)
    elif isinstance(model, LinearPredictorModel):
        theta = _draw_family(_priors_of(model, shapes), q, number, rng)
    else:
        words = rng.integers(0, 2**32, size=(number, 2), dtype=np.uint32)
        theta = jax.jit(jax.vmap(lambda w: model.simulate_prior(typed(w))))(words)
    named = jax.vmap(model.report)(theta)
    return {name: np.asarray(named[name]) for name in shapes if name in named}


def _priors_of(model: LinearPredictorModel, shapes: Mapping[str, tuple[int, ...]]) -> ModelPriors:
    """Return the priors with all scales fixed: as a run resolved them, or from given scales."""
    if model.resolved_priors is not None:
        return model.resolved_priors
    if not model.has_raw_priors:
        raise SettingError("the scales of this posterior's priors are not known: sample again.")
    columns = shapes["beta"][-1] if "beta" in shapes else 0
    scales = np.broadcast_to(np.asarray(model.prior_scale, float), columns)
    wide = model.intercept_scale
    return ModelPriors(
        tuple(Normal(0.0, float(scale)) for scale in scales),
        Normal(0.0, wide) if model.intercept and wide is not None else None,
        extras=tuple((name, Normal(0.0, model.extra_scale(name) or 1.0)) for name in model.extras),
    )


def _draw_family(
    priors: ModelPriors, q: tuple[int, ...], number: int, rng: np.random.Generator
) -> dict[str, Params]:
    columns = [_draw(prior, rng, (number, *q)) for prior in priors.coefficients]
    beta = np.stack(columns, axis=-1) if columns else np.zeros((number, *q, 0))
    theta: dict[str, Params] = {}
    if priors.intercept is not None:
        at_centre = _draw(priors.intercept, rng, (number, *q))
        theta["intercept"] = at_centre - (beta @ np.array(priors.centre) if priors.centre else 0.0)
    for name, prior in priors.extras:
        value = _draw(prior, rng, (number,))
        positive = is_logged(name) and prior.support == "positive"
        theta[name] = np.log(value) if positive else value
    effects, own = _draw_effects(priors, number, rng)
    theta["beta"] = np.concatenate([beta, *effects], axis=-1)
    return theta | ({OWN: own} if own else {})


def _draw_effects(
    priors: ModelPriors, number: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Draw group effects, and the standard deviations and correlations they depend on."""
    effects, log_sds, partials = [], [], []
    for group in priors.groups:
        count = len(group.sds)
        log_sd = np.log(np.stack([_draw(p, rng, (number,)) for p in group.sds], axis=1))
        own = log_sd
        if group.partials:
            partials.append(_draw_partials(count, group.correlation.eta, rng, number))
            own = np.concatenate([log_sd, partials[-1]], axis=1)
        factor = np.asarray(jax.vmap(lambda parameters: covariance_factor(parameters, count))(own))  # noqa: B023
        normal = rng.standard_normal((number, count, group.levels))
        effects.append((factor @ normal).reshape(number, -1))
        log_sds.append(log_sd)
    own_parts = {LOG_SD: np.concatenate(log_sds, axis=1)} if log_sds else {}
    if partials:
        own_parts[PARTIAL] = np.concatenate(partials, axis=1)
    return effects, own_parts


def _draw(prior: Prior, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    draw = DRAWS.get(type(prior))
    if draw is None:
        raise SettingError(
            f"the prior {prior} cannot be drawn from; give a proper prior of independent "
            "coefficients, such as mo.priors.Normal."
        )
    return draw(rng, shape, prior)


def _draw_partials(count: int, eta: float, rng: np.random.Generator, number: int) -> np.ndarray:
    alpha = np.asarray(partial_exponents(count, eta))
    r = 2 * rng.beta(alpha, alpha, size=(number, len(alpha))) - 1
    return np.asarray(np.arctanh(r))

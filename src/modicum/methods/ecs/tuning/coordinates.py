"""Choose the coordinates in which to expand scales and dispersions, by the resulting residuals.

Such parameters are sampled on the log scale. If the posterior is wide there, the log-likelihood of
a row may be far from quadratic on the log scale, and nearly quadratic in the parameter itself, its
square or its reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError, suggestion
from modicum.estimators import AutodiffTaylor
from modicum.estimators.coordinates import POWERS, bend
from modicum.kernels.base import Bend, ControlVariate, Proxy
from modicum.methods.base import Tuning
from modicum.models import Target
from modicum.models.arrow import ArrowFactor
from modicum.models.base import Batch
from modicum.passes import Anchor
from modicum.runtime import FASTEST_COMPILE, Array, Pytree, jit

WIDE = 0.1  # posterior sd of a logarithm below which coordinates do not matter
GAIN = 0.5  # largest variance, relative to the current one, of a coordinate worth changing to


class Expansion(NamedTuple):
    """The chosen coordinates.

    Attributes
    ----------
    bend
        The change of coordinates for the proxy; None: expand in the sampled coordinates.
    tuning
        An explanation of the choice.
    evaluations
        Row evaluations that the choice took.
    """

    bend: Bend | None
    tuning: Tuning
    evaluations: int


def choose_coordinates(
    target: Target,
    control_variate: ControlVariate[Pytree],
    anchor: Anchor,
    proxy: Proxy,
    draws: np.ndarray,
    some_rows: Callable[[], Batch],
) -> Expansion:
    """Choose the coordinate of expansion of each parameter that is sampled on the log scale.

    Parameters are handled one after another, by the sum over rows of the root mean square residual,
    whose square is the variance of an estimate from one weighted row.

    Parameters
    ----------
    target
        The target, whose model names the parameters and the coordinates that the user fixed.
    control_variate, anchor, proxy
        The expansion on the log scale.
    draws
        Posterior draws in whitened coordinates, (draws, d).
    some_rows
        Function that reads sampled rows with their `probability`, if there is a choice.
    """
    settings = target.model.expansions()
    if not settings or not isinstance(control_variate, AutodiffTaylor) or control_variate.order < 2:
        return Expansion(None, {}, 0)
    if isinstance(anchor.factor, ArrowFactor):  # that many rows leave no posterior wide
        return Expansion(None, {}, 0)
    entries = [(name, place) for name in settings for place in target.places[name]]
    sd = np.sqrt(np.sum(anchor.factor**2, axis=1))
    power = np.array([POWERS[_coordinate(settings[name])] for name, _ in entries])
    open_ = [
        i for i, (name, place) in enumerate(entries) if settings[name] is None and sd[place] > WIDE
    ]
    where = np.array([place for _, place in entries])
    variance, evaluations = (np.nan, np.nan), 0
    if open_:
        batch = some_rows()
        power, variance = _descend(
            control_variate, batch, anchor, proxy, draws, where, power, open_
        )
        rows = len(batch["probability"])
        evaluations = rows * len(draws) * len(POWERS) * len(open_)
    if not np.any(power):
        return Expansion(None, {}, evaluations)
    bent = np.flatnonzero(power)
    tuning = _explain([entries[i][0] for i in bent], power[bent], variance)
    return Expansion(bend(anchor, where[bent], power[bent]), tuning, evaluations)


def _descend(
    control_variate: AutodiffTaylor,
    batch: Batch,
    anchor: Anchor,
    proxy: Proxy,
    draws: np.ndarray,
    where: np.ndarray,
    power: np.ndarray,
    open_: list[int],
) -> tuple[np.ndarray, tuple[float, float]]:
    """Choose powers entry by entry; return them, and the variance before and after."""
    first = last = np.nan
    choices = np.array(list(POWERS.values()))
    for i in open_:
        tried = np.tile(power, (len(choices), 1))
        tried[:, i] = choices
        form = bend(anchor, where, power)
        variances = np.asarray(_variances(control_variate, batch, proxy, form, tried, draws))
        now = float(variances[choices == power[i]][0])
        first = now if np.isnan(first) else first
        variances = np.where(np.isfinite(variances), variances, np.inf)
        best = int(np.argmin(variances))
        if variances[best] <= GAIN * now or not np.isfinite(now):
            power = tried[best]
            now = float(variances[best])
        last = now
    return power, (first, last)


@jit(static=0, options=FASTEST_COMPILE)
def _variances(
    cv: AutodiffTaylor, batch: Batch, proxy: Proxy, form: Bend, powers: Array, draws: Array
) -> jax.Array:
    """Square the sum over rows of the root mean square residual, for each row of `powers`."""

    def variance(power: jax.Array) -> jax.Array:
        bent = proxy._replace(bend=form._replace(power=power))
        cached = cv.cache(batch, bent)
        values = jax.lax.map(lambda z: cv.values(cached, z, bent), draws)
        return jnp.mean(jnp.sqrt(jnp.mean(values**2, axis=0))) ** 2

    return jax.lax.map(variance, powers)


def _coordinate(name: str | None) -> str:
    if name is None:
        return "log"
    if name not in POWERS:
        raise SettingError(
            f"there is no coordinate {name!r}{suggestion(name, POWERS)}; the coordinates of a "
            f"positive parameter are {', '.join(POWERS)}."
        )
    return name


def _explain(names: list[str], power: np.ndarray, variance: tuple[float, float]) -> Tuning:
    called = {value: name for name, value in POWERS.items()}
    value = ", ".join(f"{n}: {called[p]}" for n, p in dict(zip(names, power, strict=True)).items())
    why = "set by hand"
    if not np.isnan(variance[0]):
        ratio = variance[0] / variance[1] if variance[1] > 0 else np.inf
        why = f"residuals have {ratio:,.3g} times less variance than in the logarithm"
    return {"coordinates": {"value": value, "why": why}}

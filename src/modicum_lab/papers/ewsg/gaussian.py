"""The Gaussian target of the EWSG paper's section 5.1, and its methods with their settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from modicum import EWSG, PSGLD, SGHMC, SGLD, SVRGLD
from modicum.diagnostics import kl_to_gaussian
from modicum.methods import Method
from modicum.models import Model
from modicum.posterior import Posterior
from modicum.rows import Rows
from modicum_lab.papers.ewsg.common import realisations
from modicum_lab.papers.experiments import Result

D = 2
FRICTION = 10.0  # gamma of SGHMC and EWSG
STEP = 5e-2  # h of SGHMC and EWSG
PASSES = 30
RAW: dict[str, Any] = {"batch": 1, "whiten": False}
AFAR: dict[str, Any] = {
    "start": "zero",
    "spread": 1.0,
}  # where chains start by default

SETTINGS = {
    "target": "V(theta) = sum of |theta - c_i|^2 / 2, c_i from N(0, I), in two dimensions",
    "batch": 1,
    "friction": FRICTION,
    "start": "N(0, I), a draw for each realisation (the paper does not say)",
}


@cache
def _model() -> Model:
    """One model for all experiments, so that they share compiled code."""
    return Model(
        log_prior=lambda t: jnp.zeros(()),
        log_likelihood=lambda t, batch: -0.5 * jnp.sum((t["theta"] - batch["c"]) ** 2, axis=-1),
        init={"theta": np.zeros(D)},
    )


@dataclass(frozen=True, eq=False)
class Gaussian:
    """V(theta) = sum of |theta - c_i|^2 / 2: the target is N(mean of c, I / n).

    Examples
    --------
    >>> target = Gaussian.drawn(n=20, seed=1)
    >>> target.centres.shape, round(target.sd, 3)
    ((20, 2), 0.224)
    """

    centres: np.ndarray

    @classmethod
    def drawn(cls, n: int, seed: int, number: int = 0) -> Gaussian:
        """Draw n centres from N(0, I), as set `number` of this seed."""
        return cls(np.random.default_rng([seed, n, number]).normal(size=(n, D)))

    @property
    def mean(self) -> np.ndarray:
        """Mean of the target."""
        return np.asarray(self.centres.mean(axis=0))

    @property
    def sd(self) -> float:
        """Standard deviation of each coordinate."""
        return float(len(self.centres) ** -0.5)

    def run(self, result: Result, name: str, method: Method, **settings: Any) -> Posterior:
        """Run independent realisations; `settings` has `passes` or `draws`, and `chains`."""
        rows = Rows(c=self.centres)
        return realisations(result, name, _model(), rows, method, **settings)

    def kl(self, draws: np.ndarray) -> float:
        """Return the KL divergence from the target of a normal fitted to draws (n, d)."""
        return float(kl_to_gaussian(draws, self.mean, self.sd**2 * np.eye(D)))

    def kl_curve(self, post: Posterior) -> tuple[np.ndarray, np.ndarray]:
        """Return data passes, and the divergence of the realisations at each."""
        curve = post.learning_curve(lambda now: self.kl(now["theta"]))
        return curve.index.to_numpy(), curve["value"].to_numpy()

    def underdamped(self, name: str, step_size: float) -> Method:
        """Return SGHMC or EWSG, started at draws of the target."""
        kind = {"sghmc": SGHMC, "ewsg": EWSG}[name]
        near = {"start": self.mean, "spread": self.sd}
        return kind(step_size=step_size, friction=FRICTION, **near, **RAW)


def log_weights(gradients: np.ndarray, momentum: np.ndarray) -> np.ndarray:
    """Return the logs of EWSG's weights (eq. 4), up to a constant, of gradients n grad V_i (n, d).

    Theorem 2 with r' = r: x = sqrt(h) gamma r / sigma and n a_i = sqrt(h) g_i / sigma, where
    sigma = sqrt(2 gamma).
    """
    shifted = np.sqrt(STEP / (2 * FRICTION)) * (FRICTION * momentum + gradients)  # x + n a_i
    return np.asarray(0.5 * np.sum(shifted**2, axis=1))


def methods(**settings: Any) -> dict[str, Method]:
    """Return the five methods of Figure 1a with the paper's step sizes.

    The paper's h is taken as that of t <- t - h g + N(0, 2h), which Modicum calls a step of 2h.
    """
    shared = RAW | AFAR | settings
    return {
        "sgld": SGLD(step_size=2 * 5e-3, **shared),
        "psgld": PSGLD(step_size=2 * 5e-3, **shared),
        "svrg-ld": SVRGLD(step_size=2 * 5e-4, **shared),
        "sghmc": SGHMC(step_size=STEP, friction=FRICTION, **shared),
        "ewsg": EWSG(step_size=STEP, friction=FRICTION, **shared),
    }

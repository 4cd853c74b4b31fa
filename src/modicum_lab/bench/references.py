"""What the right answer is: posteriors by methods that read every row.

The real tables have long runs of full-data HMC (`modicum_lab.papers.references`). For tables made
on the spot, independent draws of the normal approximation at the mode, N(t*, V), are weighted by
posterior over approximation, both exact, by one sweep over all rows. As the approximation's own
moments are known, only the difference is estimated,

    E[t] = t* + E_N[(w - 1)(t - t*)],      E[w] = 1,

whose Monte Carlo error falls with n: a few hundred draws do. It is no Markov chain, and it shares
no code with HMC-ECS but the passes. Draws come in pairs, t* + Lz and t* - Lz.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from modicum.ledger import Ledger
from modicum.models import Target
from modicum.models.base import BaseModel
from modicum.rows import Rows
from modicum.runtime import in_double_precision
from modicum_lab.papers.references import reference

__all__ = ["KeptReference", "by_importance", "of_table"]

CELLS = 5e8  # rows times draws: half a minute or so of one core
UNEVEN = 1.0  # standard deviation of the log-weights beyond which the reference is doubtful


@dataclass(frozen=True)
class KeptReference:
    """Mean and sd of every scalar, their Monte Carlo errors, and where they come from.

    Attributes
    ----------
    mean, sd
        Coefficients first, then the intercept.
    mean_error, sd_error
        Monte Carlo errors in units of the posterior sd: of a mean, and of an sd as a share.
    source
        A sentence for the report.
    """

    mean: list[float]
    sd: list[float]
    mean_error: list[float]
    sd_error: list[float]
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Plain types only."""
        return asdict(self)

    @property
    def largest_error(self) -> float:
        """Of a mean, in posterior standard deviations."""
        return float(max(self.mean_error))


def of_table(name: str) -> KeptReference:
    """Return the kept reference of a real table."""
    kept = reference(name)
    share = np.full(len(kept.sd), 1 / np.sqrt(2 * kept.draws))
    source = f"{kept.draws:,} draws of HMC on all rows in float64"
    error = kept.mcse / kept.sd
    return _plain(kept.mean, kept.sd, error, share, source)


@in_double_precision
def by_importance(model: BaseModel, rows: Rows, draws: int | None = None) -> KeptReference:
    """Weight draws of the normal approximation by all rows; see above."""
    from modicum.passes import LocalEngine, Sums
    from modicum.passes.anchor import anchor_at_mode

    target, start = Target.of(model, rows)
    sums = Sums(target, rows, LocalEngine(progressbar=False), Ledger(rows=len(rows)))
    anchor = anchor_at_mode(sums, start)
    pairs = (draws or int(np.clip(CELLS / len(rows), 128, 8_192))) // 2
    half = np.random.default_rng(20).standard_normal((pairs, target.size))
    z = np.concatenate([half, -half])
    points = anchor.point + z @ anchor.factor.T
    exact = sums.values(points, "reference") + target.log_priors(points)
    log_weight = exact + 0.5 * np.sum(z**2, axis=1)
    return _estimated(anchor.point, anchor.factor, z, log_weight - log_weight.mean())


def _estimated(
    point: np.ndarray, factor: np.ndarray, z: np.ndarray, log_weight: np.ndarray
) -> KeptReference:
    """Moments of t = point + factor z under the weights, with their errors."""
    weight = np.exp(log_weight)
    weight /= weight.mean()
    away = (z @ factor.T) / np.sqrt(np.sum(factor**2, axis=1))  # in the approximation's own sd
    shift, shift_error = _difference(weight, away)
    second, second_error = _difference(weight, away**2)
    variance = 1 + second - shift**2
    spread = float(log_weight.std())
    doubt = "" if spread < UNEVEN else "; these weights are uneven, and the reference is in doubt"
    source = (
        f"{len(z):,} draws of the normal approximation at the mode, weighted by all rows (sd of "
        f"the log-weights {spread:.2g}{doubt})"
    )
    laplace_sd = np.sqrt(np.sum(factor**2, axis=1))
    sd = laplace_sd * np.sqrt(variance)
    share_error = second_error / (2 * variance)
    return _plain(point + laplace_sd * shift, sd, shift_error, share_error, source)


def _plain(
    mean: np.ndarray, sd: np.ndarray, mean_error: np.ndarray, sd_error: np.ndarray, source: str
) -> KeptReference:
    return KeptReference(mean.tolist(), sd.tolist(), mean_error.tolist(), sd_error.tolist(), source)


def _difference(weight: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of (w - 1) v and its error; the two draws of a pair are one observation."""
    products = (weight - 1)[:, None] * values
    estimate = products.mean(0)
    influence = products - (weight - 1)[:, None] * estimate - estimate  # weights sum to n
    pairs = influence.reshape(2, -1, values.shape[1]).mean(0)
    return estimate, pairs.std(0, ddof=1) / np.sqrt(len(pairs))

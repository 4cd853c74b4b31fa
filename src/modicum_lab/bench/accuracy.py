"""Reference posteriors, and whether a contender agrees with them.

The real tables have long runs of full-data HMC (`modicum_lab.papers.references`). For simulated
tables, independent draws of the normal approximation at the mode, N(t*, V), are weighted by
posterior over approximation, both exact, in one pass over all rows. As the approximation's
moments are known, only the difference is estimated,

    E[t] = t* + E_N[(w - 1)(t - t*)],      E[w] = 1,

whose Monte Carlo error falls with n: a few hundred draws are enough. This is not a Markov chain,
and shares only the passes over rows with HMC-ECS. Draws come in pairs, t* + Lz and t* - Lz.

A contender's error counts only beyond Monte Carlo error: the largest of the errors of k scalars is
compared with the quantile of the largest of k normal errors that only one correct contender in a
thousand exceeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from modicum import LogPosterior, Mode, Rows
from modicum.models import BaseModel
from modicum_lab.bench.runs import RunResult, flat_scalars
from modicum_lab.papers.references import reference

CELLS = 5e8  # rows times draws: about half a minute of one core
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
        """Return plain types, ready for JSON."""
        return asdict(self)

    @property
    def largest_error(self) -> float:
        """Largest Monte Carlo error of a mean, in posterior standard deviations."""
        return float(max(self.mean_error))


def of_table(name: str) -> KeptReference:
    """Return the kept reference of a real table."""
    kept = reference(name)
    share = np.full(len(kept.sd), 1 / np.sqrt(2 * kept.draws))
    source = f"{kept.draws:,} draws of HMC on all rows in float64"
    error = kept.mcse / kept.sd
    return _plain(kept.mean, kept.sd, error, share, source)


def by_importance(model: BaseModel, rows: Rows, draws: int | None = None) -> KeptReference:
    """Weight draws of the normal approximation by all rows; see the module's docstring."""
    posterior = LogPosterior(model, rows)
    mode = posterior.mode()
    pairs = (draws or int(np.clip(CELLS / len(rows), 128, 8_192))) // 2
    half = np.random.default_rng(20).standard_normal((pairs, len(posterior)))
    z = np.concatenate([half, -half])
    exact = posterior.values(mode.point + z @ mode.factor.T)
    log_weight = exact + 0.5 * np.sum(z**2, axis=1)
    point, factor = parameters_at(posterior, mode)
    return _estimated(point, factor, z, log_weight - log_weight.mean())


def parameters_at(posterior: LogPosterior, mode: Mode) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode and its factor L in reported parameters, coefficients first, intercept last.

    These depend linearly on the model's coordinates, so that the images of the mode and of the mode
    plus each column of L determine both.
    """
    ends = np.vstack([mode.point, mode.point + mode.factor.T])
    flat = flat_scalars(posterior.named(ends))
    return flat[0], (flat[1:] - flat[0]).T


def _estimated(
    point: np.ndarray, factor: np.ndarray, z: np.ndarray, log_weight: np.ndarray
) -> KeptReference:
    """Estimate the moments of t = point + factor z under the weights, with their errors."""
    weight = np.exp(log_weight)
    weight /= weight.mean()
    away = (z @ factor.T) / np.sqrt(np.sum(factor**2, axis=1))  # in sd of the approximation
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
    """Return the mean of (w - 1) v and its error; the two draws of a pair are one observation."""
    products = (weight - 1)[:, None] * values
    estimate = products.mean(0)
    influence = products - (weight - 1)[:, None] * estimate - estimate  # weights sum to n
    pairs = influence.reshape(2, -1, values.shape[1]).mean(0)
    return estimate, pairs.std(0, ddof=1) / np.sqrt(len(pairs))


Mark = Literal["right", "too few draws", "slightly off", "wrong"]
MARKS: tuple[Mark, ...] = get_args(Mark)  # from the best to the worst
MEAN, SD = 0.1, 0.07  # posterior sd, and share of it: beyond them an answer is wrong
FEW = 300  # effective draws below which an error of a quarter posterior sd would go unnoticed
CHANCE = 1e-3
UNSURE = 3.0  # factor on the error bounds of few draws, whose effective number is uncertain


@dataclass(frozen=True)
class Judgement:
    """Largest error of a mean (in posterior sd) and of an sd (as a share), and the mark."""

    mean: float
    sd: float
    mark: Mark


def judge(run: RunResult, reference: KeptReference) -> Judgement:
    """Compare one run with the reference.

    "wrong": some mean is off by more than 0.1 posterior sd or some sd by more than 7 %, and Monte
    Carlo error does not explain it; "slightly off": less than that, and not explained either.
    """
    unit = np.array(reference.sd)
    mean = np.abs(np.array(run.mean) - reference.mean) / unit
    sd = np.abs(np.array(run.sd) / unit - 1)
    exact = run.known_moments
    # a mean of N draws has error sd / sqrt(N), an sd about sd / sqrt(2 N)
    own = (0.0, 0.0) if exact else (1 / np.array(run.ess), 0.5 / np.array(run.ess_square))
    few = not exact and min(run.effective, min(run.ess_square)) < FEW
    bound = _quantile(2 * len(unit)) * (UNSURE if few else 1)
    mean_noise = bound * np.sqrt(own[0] + np.square(reference.mean_error))
    sd_noise = bound * np.sqrt(own[1] + np.square(reference.sd_error))
    beyond = bool(np.any(mean > mean_noise) or np.any(sd > sd_noise))
    far = bool(np.any(mean > np.maximum(mean_noise, MEAN)) or np.any(sd > np.maximum(sd_noise, SD)))
    mark: Mark = (
        "wrong" if far else "too few draws" if few else "slightly off" if beyond else "right"
    )
    return Judgement(float(mean.max()), float(np.nanmax(sd)), mark)  # nan: an sd not given


def judge_all(runs: Sequence[RunResult], reference: KeptReference) -> Judgement:
    """Return the median errors and the most common mark; the worse one if two are as common."""
    judgements = [judge(run, reference) for run in runs]
    counts = Counter(judgement.mark for judgement in judgements)
    mark = max(counts, key=lambda name: (counts[name], MARKS.index(name)))
    return Judgement(
        float(np.median([judgement.mean for judgement in judgements])),
        float(np.median([judgement.sd for judgement in judgements])),
        mark,
    )


def _quantile(number: int) -> float:
    """Return the bound that the largest of `number` normal errors exceeds once in a thousand."""
    from scipy.special import ndtri

    return float(-ndtri(CHANCE / (2 * number)))

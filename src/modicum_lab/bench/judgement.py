"""Is the answer right? Errors against the reference, and a mark that a fast wrong answer gets.

An error counts only beyond what Monte Carlo explains. With k scalars looked at, the largest of k
normal errors is compared with the quantile that only one right contender in a thousand exceeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modicum_lab.bench.references import KeptReference
from modicum_lab.bench.run_result import Found

__all__ = ["MARKS", "Judgement", "judge", "judge_all"]

MARKS = ("right", "too few draws", "slightly off", "wrong")
MEAN, SD = 0.1, 0.07  # posterior sd, and share of it: beyond them an answer is wrong
FEW = 300  # effective draws below which an error of a quarter posterior sd would go unseen
CHANCE = 1e-3
UNSURE = 3.0  # of few draws the effective number is itself a guess: their errors count from here


@dataclass(frozen=True)
class Judgement:
    """Largest error of a mean (in posterior sd) and of an sd (as a share), and the mark."""

    mean: float
    sd: float
    mark: str


def judge(found: Found, reference: KeptReference) -> Judgement:
    """Compare one run with the reference.

    "wrong": some mean is off by more than 0.1 posterior sd or some sd by more than 7 %, and Monte
    Carlo error does not explain it; "slightly off": less than that, and not explained either.
    """
    unit = np.array(reference.sd)
    mean = np.abs(np.array(found.mean) - reference.mean) / unit
    sd = np.abs(np.array(found.sd) / unit - 1)
    exact = any("no Monte Carlo error" in note for note in found.notes)
    # a mean of N draws has error sd / sqrt(N), an sd about sd / sqrt(2 N)
    own = (0.0, 0.0) if exact else (1 / np.array(found.ess), 0.5 / np.array(found.ess_square))
    few = not exact and min(found.effective, min(found.ess_square)) < FEW
    bound = _quantile(2 * len(unit)) * (UNSURE if few else 1)
    mean_noise = bound * np.sqrt(own[0] + np.square(reference.mean_error))
    sd_noise = bound * np.sqrt(own[1] + np.square(reference.sd_error))
    beyond = bool(np.any(mean > mean_noise) or np.any(sd > sd_noise))
    far = bool(np.any(mean > np.maximum(mean_noise, MEAN)) or np.any(sd > np.maximum(sd_noise, SD)))
    mark = "wrong" if far else "too few draws" if few else "slightly off" if beyond else "right"
    return Judgement(float(mean.max()), float(sd.max()), mark)


def judge_all(runs: Sequence[Found], reference: KeptReference) -> Judgement:
    """Medians of the errors, and the commonest mark; the worse one of two as common."""
    each = [judge(run, reference) for run in runs]
    counts = Counter(one.mark for one in each)
    mark = max(counts, key=lambda name: (counts[name], MARKS.index(name)))
    return Judgement(
        float(np.median([one.mean for one in each])),
        float(np.median([one.sd for one in each])),
        mark,
    )


def _quantile(number: int) -> float:
    """Bound that the largest of `number` standard normal errors exceeds once in a thousand."""
    from scipy.special import ndtri

    return float(-ndtri(CHANCE / (2 * number)))

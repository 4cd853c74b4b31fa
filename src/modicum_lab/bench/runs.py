"""One run of a contender: its budget, and its moments, draws, seconds, rows and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

EFFECTIVE = 1_000  # effective draws that a cold start is timed to


class Infeasible(Exception):  # noqa: N818 - not an error: a sentence for the report
    """A contender cannot sensibly run here; the message says what it would take."""


@dataclass(frozen=True)
class Budget:
    """How much a contender may spend.

    Attributes
    ----------
    seconds
        Sampling time after warm-up, for contenders that sample until time is up.
    draws
        The most draws per chain.
    chains
        Chains of Modicum, one per core by default.
    cores
        Number of available cores.
    seed
        Random seed, a different one for each repeat.
    """

    seconds: float = 20.0
    draws: int = 4_000
    chains: int = 2
    cores: int = 2
    seed: int = 1


@dataclass
class RunResult:
    """One run of a contender on a problem.

    Attributes
    ----------
    mean, sd
        Mean and sd of every scalar, coefficients first.
    ess, ess_square
        Effective draws for the mean, and for the square of the distance from it, of every scalar.
    before, sampling
        Seconds from the start to the first kept draw (mode, compilation, warm-up), and from
        there to the end.
    rows_before, rows_sampling
        Row evaluations in these two phases.
    draws
        Number of kept draws, in all chains.
    credit
        Number of copies of a single chain that the cores could have run at best: a peer that runs
        one chain is credited with perfect copies of it.
    memory
        Peak bytes that no file backs, including data held in memory.
    known_moments
        Whether mean and sd are known exactly, without Monte Carlo error, not averages of draws.
    notes
        What a reader must know.
    """

    mean: list[float]
    sd: list[float]
    ess: list[float]
    ess_square: list[float]
    before: float
    sampling: float
    rows_before: int
    rows_sampling: int
    draws: int
    chains: int = 1
    credit: float = 1.0
    memory: int = 0
    known_moments: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def effective(self) -> float:
        """The fewest effective draws of any scalar."""
        return float(np.min(self.ess)) if len(self.ess) else float("nan")

    @property
    def rate(self) -> float:
        """Effective draws per second of sampling, with the credit."""
        return self.credit * self.effective / self.sampling

    @property
    def cold(self) -> float:
        """Seconds from a cold start to 1,000 effective draws."""
        return self.before + EFFECTIVE / self.rate

    @property
    def rows(self) -> float:
        """Row evaluations to 1,000 effective draws."""
        return self.rows_before + EFFECTIVE / self.effective * self.rows_sampling

    @property
    def iteration(self) -> float:
        """Seconds per draw of each chain."""
        return self.sampling * self.chains / self.draws

    def to_dict(self) -> dict[str, Any]:
        """Plain types only, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> RunResult:
        """Undo `to_dict`."""
        return cls(**saved)


def flat_scalars(named: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return all scalars of a regression, (..., d): coefficients first, the intercept last.

    Examples
    --------
    >>> flat_scalars({"intercept": np.zeros(3), "beta": np.ones((3, 2))})[0]
    array([1., 1., 0.])
    """
    return np.concatenate([named["beta"], named["intercept"][..., None]], axis=-1)


def from_draws(draws: np.ndarray, **costs: Any) -> RunResult:
    """Measure unweighted draws (chain, draw, d); `costs` are the other fields of the result."""
    from modicum.diagnostics import ess

    mean, sd = draws.mean((0, 1)), draws.std((0, 1), ddof=1)
    return RunResult(
        mean=mean.tolist(),
        sd=sd.tolist(),
        ess=_numbers(ess(draws)),
        ess_square=_numbers(ess((draws - mean) ** 2)),
        draws=draws.shape[0] * draws.shape[1],
        chains=draws.shape[0],
        **costs,
    )


def from_moments(
    mean: ArrayLike, sd: ArrayLike, before: float, rows: int, notes: Sequence[str] = ()
) -> RunResult:
    """Return what a normal distribution is worth whose moments are known, if not its errors.

    An sd that was not given is nan.
    """
    mean, sd = np.asarray(mean, np.float64), np.asarray(sd, np.float64)
    return RunResult(
        mean=mean.tolist(),
        sd=sd.tolist(),
        ess=[float(EFFECTIVE)] * len(mean),
        ess_square=[float(EFFECTIVE)] * len(mean),
        before=before,
        sampling=1e-3,  # of a thousand draws of a normal
        rows_before=rows,
        rows_sampling=0,
        draws=EFFECTIVE,
        known_moments=True,
        notes=["no Monte Carlo error of draws: its moments are known", *notes],
    )


def _numbers(values: ArrayLike) -> list[float]:
    """Return effective draws, with 1 where they are undefined because a chain stands still."""
    return np.nan_to_num(np.asarray(values, np.float64), nan=1.0).tolist()

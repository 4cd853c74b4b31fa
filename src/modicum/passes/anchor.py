"""The anchor: all that is known at the expansion point t*."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular

from modicum.errors import ModicumWarning
from modicum.models.priors import prior_warnings
from modicum.passes.mode import (
    DENSE_LIMIT,
    TOLERANCE,
    Curvature,
    ModeRecord,
    curvature,
    find_mode,
)
from modicum.passes.mode import quasi_newton_on_subset as near_mode
from modicum.passes.sums import Sums

__all__ = ["Anchor", "anchor_at", "anchor_at_mode"]

# Separation is looked for, at the cost of a pass, where the mode gives a reason to:
LIKELY = -0.5  # log-likelihood per row above which outcomes are told well
VAGUE = 0.1  # posterior sd, in prior sds, that data leave along a direction that is separated
COLLINEAR = 1e-6  # below this share no prior is to blame: the data say nothing at all
DULL = 0.1  # a direction with less information from the data than this share of the prior's


@dataclass(frozen=True)
class Anchor:
    """Sums over all rows at t*, and the factor that whitens the posterior there.

    Attributes
    ----------
    point
        The expansion point t*.
    C, A, B
        Log-likelihood at t*, its gradient and Hessian (HMC-ECS paper, below eq. 4.4).
    factor
        L with t = t* + L z: in z the posterior is about standard normal. L L' is the inverse of
        minus the Hessian of the log-posterior.
    record
        How the mode was found; None for an anchor elsewhere.
    notes
        What the user should know: directions the data do not inform, a Hessian that had to be
        mended.
    """

    point: np.ndarray
    C: float
    A: np.ndarray
    B: np.ndarray
    factor: np.ndarray
    record: ModeRecord | None = None
    notes: list[ModicumWarning] = field(default_factory=list)

    @property
    def sd(self) -> np.ndarray:
        """Posterior standard deviations by the Laplace approximation."""
        if self.factor.ndim == 1:
            return self.factor
        return np.asarray(np.sqrt(np.sum(self.factor**2, axis=1)))

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything as arrays, for a checkpoint."""
        record = json.dumps(None if self.record is None else asdict(self.record))
        sums = {"point": self.point, "C": np.asarray(self.C), "A": self.A, "B": self.B}
        told = {
            "record": np.array(record),
            "notes": np.array(json.dumps([n.to_dict() for n in self.notes])),
        }
        return sums | {"factor": self.factor} | told

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Anchor:
        """Undo `to_arrays`."""
        record = json.loads(str(arrays["record"]))
        return cls(
            C=float(arrays["C"]),
            **{name: arrays[name] for name in ("point", "A", "B", "factor")},
            record=None if record is None else ModeRecord(**record),
            notes=[ModicumWarning.from_dict(n) for n in json.loads(str(arrays["notes"]))],
        )

    def whiten(self, t: np.ndarray) -> np.ndarray:
        """Coordinates z of `t`, of shape (..., d)."""
        return np.asarray(np.linalg.solve(self.factor, (t - self.point).T).T)


def anchor_at(sums: Sums, t: np.ndarray, purpose: str = "anchor") -> Anchor:
    """Build the anchor at any point, by one pass."""
    return _from_curvature(curvature(sums, np.asarray(t, np.float64), purpose), None, ())


def anchor_at_mode(
    sums: Sums,
    start: np.ndarray,
    names: tuple[str, ...] = (),
    seed: int = 0,
    within: float = TOLERANCE,
) -> Anchor:
    """Find the posterior mode, `within` so many standard deviations, and build the anchor there.

    Models of more than 2,000 parameters form no Hessian: their anchor is the point L-BFGS reaches
    on a subset, with a factor that only sets the scale. Networks of fewer have one, of the
    absolute curvature there: their modes are many, and may lie on a kink.
    """
    if sums.target.size > DENSE_LIMIT:
        return _scale_only(sums, start, seed)
    if not sums.target.model.has_mode:
        return _absolute(sums, start, seed)
    at, record = find_mode(sums, start, seed, within=within)
    anchor = _from_curvature(at, record, names)
    return replace(anchor, notes=_notes_of_mode(sums, anchor, names))


def _notes_of_mode(sums: Sums, anchor: Anchor, names: tuple[str, ...]) -> list[ModicumWarning]:
    """What is known at the mode: who is to blame where data and prior disagree, or data are silent.

    Separation explains a prior that decides, and a prior that disagrees; a prior that disagrees
    explains data that seem to say nothing. Only the cause is told.
    """
    distances = sums.target.prior_distances(anchor.point)
    if distances is None:
        return anchor.notes
    away, slope = distances
    spread = np.sqrt(np.sum((slope @ anchor.factor) ** 2, axis=1))  # in prior sds
    called = names or tuple(f"parameter {i}" for i in range(len(away)))
    causes = prior_warnings(called, away, spread)
    per_row = anchor.C / len(sums.rows)
    if causes or per_row > LIKELY or np.any(spread > VAGUE):
        theta = sums.target.unravel(anchor.point)  # type: ignore[arg-type]
        separated, passes = sums.target.model.separation(sums.rows, theta)
        sums.ledger.add("separation", passes * len(sums.rows), "density", passes=passes)
        causes = causes if separated is None else [separated]
    if not causes:
        return anchor.notes
    silent = [n for n in anchor.notes if n.code == "prior-decides"]
    kept = [n for n in silent if abs(n.numbers["information"]) < COLLINEAR]
    return causes + [n for n in anchor.notes if n not in silent] + kept


def _from_curvature(at: Curvature, record: ModeRecord | None, names: tuple[str, ...]) -> Anchor:
    notes: list[ModicumWarning] = []
    factor, mended = whitening_factor(at.precision)
    if mended:
        notes.append(
            ModicumWarning(
                "not-concave",
                "the log-posterior is not concave at the anchor (its Hessian is not negative "
                "definite), and the mass matrix was built from the absolute curvature instead",
            )
        )
    dull = _dull_direction(at, names)
    if dull:
        notes.append(dull)
    return Anchor(at.point, at.C, at.A, at.B, factor, record, notes)


def whitening_factor(precision: np.ndarray, least: float = 0.0) -> tuple[np.ndarray, bool]:
    """L with L L' the inverse of `precision`; True where it had to be made positive definite.

    What is made so has no curvature below `least`.
    """
    try:
        lower = cholesky(precision, lower=True)
        return solve_triangular(lower, np.eye(len(lower)), lower=True).T, False
    except np.linalg.LinAlgError:
        values, vectors = eigh(precision)
        clipped = np.maximum(np.abs(values), max(least, 1e-8 * np.abs(values).max()))
        return vectors / np.sqrt(clipped), True


def _dull_direction(at: Curvature, names: tuple[str, ...]) -> ModicumWarning | None:
    """Say so if along some direction the prior decides and the data do not."""
    try:
        ratios, vectors = eigh(-at.B, -at.prior_hessian)
    except np.linalg.LinAlgError:
        return None  # an improper or non-concave prior: nothing to compare with
    if ratios[0] > DULL:
        return None
    share = np.abs(vectors[:, 0])
    order = np.argsort(-share)
    top = [i for i in order[:3] if share[i] > 0.3 * share[order[0]]]
    called = ", ".join(names[i] if i < len(names) else f"parameter {i}" for i in top)
    return ModicumWarning(
        "prior-decides",
        f"the data say next to nothing about {called} (or a combination of them), so the posterior "
        "there is the prior: collinear columns, a level without both outcomes, or perfect "
        "separation",
        "drop a column, merge levels, or choose that prior with care",
        information=float(ratios[0]),
    )


def _absolute(sums: Sums, start: np.ndarray, seed: int) -> Anchor:
    at = curvature(sums, near_mode(sums, start, seed), "anchor")
    # nowhere wider than the prior: at a saddle the two curvatures may cancel
    factor, _ = whitening_factor(at.precision, least=float(np.min(-np.diag(at.prior_hessian))))
    return Anchor(at.point, at.C, at.A, at.B, factor, None, [])


def _scale_only(sums: Sums, start: np.ndarray, seed: int) -> Anchor:
    point = near_mode(sums, start, seed)
    value, gradient = sums.gradient(point, "anchor")
    empty = np.zeros((0, 0))
    factor = np.full(len(point), 1.0)
    return Anchor(point, value, gradient, empty, factor, None, [])

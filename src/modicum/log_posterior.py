"""The log posterior over all rows as a function: values, derivatives, and its mode.

Use it for a Laplace approximation, for your own sampler, or to check an answer on all rows. Each
call is one pass over the rows, on disk or in memory, in float64, and is counted in a ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from modicum.errors import ModicumWarning, SettingError, is_number, whole_number
from modicum.ledger import Ledger
from modicum.models import BaseModel, Target
from modicum.models.model import DENSE_LIMIT
from modicum.models.target import check_model_and_rows
from modicum.passes import EngineChoice, Sums, anchor_at_mode, engine_for
from modicum.passes.curvature import curvature, posterior_slope
from modicum.passes.mode import TOLERANCE
from modicum.rows import Rows
from modicum.runtime import in_double_precision

PURPOSE = "log posterior"  # heading of the evaluations in the ledger


@dataclass(frozen=True, eq=False)
class Mode:
    """The posterior mode, and the normal approximation there.

    Attributes
    ----------
    point
        The mode as a flat vector of unconstrained parameters, (d,).
    named
        The mode's parameters by name, as in draws.
    factor
        L, (d, d), with L L' the inverse of minus the Hessian: ``point + L @ z`` with standard
        normal z is a draw of the Laplace approximation.
    log_posterior
        The unnormalised log posterior at the mode.
    distance
        Distance of the point from the exact mode, in posterior standard deviations: the norm of the
        gradient in whitened coordinates.
    passes
        Passes over all rows that the search took.
    warnings
        Warnings about the mode, such as directions the data do not inform, or separation.
    """

    point: np.ndarray
    named: Mapping[str, np.ndarray]
    factor: np.ndarray
    log_posterior: float
    distance: float
    passes: int
    warnings: tuple[ModicumWarning, ...] = ()

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of the Laplace approximation, (d, d)."""
        return np.asarray(self.factor @ self.factor.T)


class LogPosterior:
    """The unnormalised log posterior of `model` given all `rows`, as a function of a flat vector.

    Parameters
    ----------
    model
        A family (`mo.models.Logistic()` ...) or your own model (`mo.Model`).
    rows
        The data, in memory or on disk.
    progressbar
        Whether long passes show their progress.
    engine
        What runs the passes, as in `mo.sample`.

    Attributes
    ----------
    start
        The flat vector of the model's starting point; its length is d.
    ledger
        Row evaluations so far.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> x = np.linspace(-1, 1, 100)[:, None]
    >>> model = mo.models.Gaussian(prior_scale=10.0, scale=1.0, intercept=False)
    >>> posterior = mo.LogPosterior(model, mo.Rows(x=x, y=2 * x[:, 0]))
    >>> mode = posterior.mode()
    >>> mode.named["beta"].round(3), np.sqrt(mode.covariance).round(3)
    (array([1.999]), array([[0.171]]))
    >>> value, gradient = posterior.gradient(mode.point)
    >>> bool(value > posterior.value(mode.point + 0.1)), bool(np.abs(gradient).max() < 1e-4)
    (True, True)
    """

    start: np.ndarray
    ledger: Ledger

    def __init__(
        self,
        model: BaseModel,
        rows: Rows,
        *,
        progressbar: bool = False,
        engine: EngineChoice | None = None,
    ) -> None:
        check_model_and_rows(model, rows)
        self.ledger = Ledger(rows=len(rows))
        self._target, self.start = Target.of(model, rows, self.ledger)
        self._sums = Sums(self._target, rows, engine_for(engine, progressbar), self.ledger)

    def __len__(self) -> int:
        """The number of unconstrained parameters, d."""
        return self._target.size

    def value(self, point: ArrayLike) -> float:
        """Log posterior at `point`, (d,)."""
        return float(self.values(self._checked(point, 1)[None])[0])

    @in_double_precision
    def values(self, points: ArrayLike) -> np.ndarray:
        """Log posterior at each of `points`, (points, d), by one pass over the rows."""
        flat = self._checked(points, 2)
        return self._sums.values(flat, PURPOSE) + self._target.log_priors(flat)

    @in_double_precision
    def gradient(self, point: ArrayLike) -> tuple[float, np.ndarray]:
        """Log posterior and its gradient, (d,), at `point`."""
        return posterior_slope(self._sums, self._checked(point, 1), PURPOSE)

    @in_double_precision
    def hessian(self, point: ArrayLike) -> tuple[float, np.ndarray, np.ndarray]:
        """Log posterior, its gradient and its Hessian, (d, d), at `point`."""
        at = curvature(self._sums, self._checked(point, 1), PURPOSE)
        return at.log_posterior, at.gradient, -at.dense_precision

    @in_double_precision
    def mode(self, *, within: float = TOLERANCE, random_seed: int = 0) -> Mode:
        """Find the mode: Newton's method on all rows, started at the mode of a random subset.

        Parameters
        ----------
        within
            Stop at this distance from the mode, in posterior standard deviations.
        random_seed
            Seed of the random subset.

        Raises
        ------
        ConvergenceError
            If no mode was reached.
        SettingError
            For a model without a mode that Newton's method can find, for priors that are neither
            normal nor flat, and for more than 2,000 parameters.
        """
        if not is_number(within) or within <= 0:
            raise SettingError(f"within must be a positive number, not {within!r}.")
        if not self._target.model.has_mode:
            raise SettingError(
                "Newton's method finds no mode that represents the posterior of "
                f"{type(self._target.model).__name__} (a neural network has many modes, a "
                "likelihood with kinks is not smooth); sample it instead (mo.sample)."
            )
        if self._target.exact_prior is not None:
            raise SettingError(
                "modes are found only with normal and flat priors, where the posterior is nearly "
                "normal; with other priors, sample it instead (mo.sample)."
            )
        if len(self) > DENSE_LIMIT:
            raise SettingError(
                f"Newton's method finds the mode of up to {DENSE_LIMIT:,} parameters, but this "
                f"model has {len(self):,}; give -LogPosterior.gradient to an optimiser of your "
                "choice."
            )
        seed = whole_number("random_seed", random_seed, 0)
        anchor = anchor_at_mode(self._sums, self.start, seed=seed, within=within)
        record = anchor.record
        assert record is not None  # models without a mode were refused
        log_prior = float(self._target.log_priors(anchor.point[None])[0])
        named = {name: x[0] for name, x in self.named(anchor.point[None]).items()}
        return Mode(
            point=anchor.point,
            named=MappingProxyType(named),
            factor=anchor.dense_factor,
            log_posterior=anchor.C + log_prior,
            distance=record.gradient_norm,
            passes=record.passes,
            warnings=tuple(anchor.notes),
        )

    @in_double_precision
    def named(self, points: ArrayLike) -> dict[str, np.ndarray]:
        """Convert flat vectors (points, d) to parameters by name, (points, *shape), as in draws."""
        return self._target.reports(self._checked(points, 2))

    def _checked(self, points: ArrayLike, axes: int) -> np.ndarray:
        try:
            flat = np.asarray(points, np.float64)
        except (TypeError, ValueError):
            raise SettingError(
                f"a point must be a flat vector of {len(self)} numbers, not "
                f"{type(points).__name__}."
            ) from None
        if flat.ndim != axes or flat.shape[-1] != len(self):
            shape = f"({len(self)},)" if axes == 1 else f"(points, {len(self)})"
            raise SettingError(
                f"this posterior has {len(self)} parameters, so an array of shape {shape} is "
                f"needed here, not one of shape {flat.shape}."
            )
        return flat

"""Draws with their signs or weights, the model that was fitted, and what is known of its rows.

Scalars of a parameter have names: ``beta[age]`` rather than ``beta[0]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import product
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from modicum.diagnostics.weighted import (
    unequal,
    weighted_covariance,
    weighted_mean,
    weighted_quantile,
    weighted_variance,
)
from modicum.errors import (
    ModicumWarning,
    SettingError,
    UnknownNameError,
    count,
    suggestion,
    whole_number,
)
from modicum.files import Json
from modicum.ledger import Ledger
from modicum.models import Target
from modicum.models.model import BaseModel
from modicum.models.over_draws import ModelPredictor, rebuild
from modicum.passes import LocalEngine, Sums, units_of
from modicum.posterior.fit_rows import (
    AlignedRows,
    FitRows,
    Groups,
    RowsLike,
    aligned,
    require_rows_of_fit,
    rows_of_fit,
)
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.formula import FormulaEncoding, NewLevels
from modicum.rows.reading import TableFiles, is_tabular, table_numbers

Axis: TypeAlias = Sequence[str] | None
LabelsLike: TypeAlias = Mapping[str, Sequence[str | Axis]]
"""Labels as a user may write them: for each parameter one sequence per axis, or, for a vector, the
labels themselves."""
Labels: TypeAlias = dict[str, tuple[tuple[str, ...] | None, ...]]


def tidy_labels(labels: LabelsLike | None, draws: Mapping[str, np.ndarray]) -> Labels:
    """Check labels against the draws and write them as one tuple (or ``None``) per axis.

    A flat sequence of strings labels the only axis of a vector.
    """
    tidy: Labels = {}
    for name, value in (labels or {}).items():
        if name not in draws:
            raise SettingError(f"There are labels for {name!r}, which is not among the draws.")
        shape = draws[name].shape[2:]
        flat = len(value) > 0 and all(isinstance(label, str) for label in value)
        axes: Sequence[Sequence[object] | None] = (value,) if flat else value
        tidy[name] = tuple(None if a is None else tuple(str(label) for label in a) for a in axes)
        sizes = tuple(None if a is None else len(a) for a in tidy[name])
        if len(sizes) != len(shape) or any(
            a is not None and a != b for a, b in zip(sizes, shape, strict=False)
        ):
            raise SettingError(
                f"The labels of {name!r} have lengths {sizes}, but its draws have shape {shape}."
            )
    return tidy


def axis_labels(name: str, shape: tuple[int, ...], labels: LabelsLike) -> list[list[str | int]]:
    """Return the coordinates of each axis: its labels, or 0, 1, 2 ... without labels."""
    axes = labels.get(name, (None,) * len(shape))
    return [
        list(range(n)) if axis is None else list(axis) for n, axis in zip(shape, axes, strict=True)
    ]


def scalar_names(name: str, shape: tuple[int, ...], labels: LabelsLike) -> list[str]:
    """Name every scalar, in the order of ``ravel``.

    Examples
    --------
    >>> scalar_names("beta", (2,), {"beta": (("age", "income"),)})
    ['beta[age]', 'beta[income]']
    >>> scalar_names("intercept", (), {})
    ['intercept']
    """
    if not shape:
        return [name]
    places = product(*axis_labels(name, shape, labels))
    return [f"{name}[{', '.join(map(str, place))}]" for place in places]


class Warnings(list[ModicumWarning]):
    """Warnings as a list that prints as sentences, one per line.

    Examples
    --------
    >>> doubts = Warnings([ModicumWarning("r-hat", "the chains disagree", "draw more")])
    >>> doubts
    the chains disagree; draw more.
    >>> doubts == [ModicumWarning("r-hat", "the chains disagree", "draw more")]
    True
    >>> Warnings()
    no warnings
    """

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "no warnings"


def not_held(purpose: str, needed: str = "the rows of the fit") -> SettingError:
    """Return the error for what needs rows, or a table, that a posterior does not hold."""
    return SettingError(
        f"{purpose} needs {needed}, which this posterior, made by hand, from a digest, or loaded "
        "from a file, does not hold; give the rows, or their table, here or by "
        "Posterior.load(path, data=...)."
    )


class Rerun(NamedTuple):
    """How to sample again as this posterior was sampled."""

    on_rows: Callable[[BaseModel, Rows, int], FittedDraws]  # from a model, rows and a seed
    call: Callable[..., Any] | None = None  # with changed arguments of the user's call


@dataclass(repr=False, eq=False)
class FittedDraws:
    """Draws of a model's parameters, with the model and the rows if they are known.

    Functions of a fit take one; `Posterior`, which has these functions as its methods, documents
    the parameters.
    """

    draws: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    ledger: Ledger
    labels: Mapping[str, Any] = field(default_factory=dict)  # __post_init__ makes it `Labels`
    weights: np.ndarray | None = None
    warnings: Warnings = field(default_factory=Warnings)
    tuning: dict[str, Json] = field(default_factory=dict)
    settings: dict[str, Json] = field(default_factory=dict)
    predictor: ModelPredictor | None = None
    predictor_spec: dict[str, Json] | None = None
    fit_rows: FitRows | None = None
    rows: Rows | None = None
    table: object = None
    rerun: Rerun | None = None

    def __post_init__(self) -> None:
        self.draws = {name: _plain(x) for name, x in self.draws.items()}
        self.stats = {name: _plain(x) for name, x in self.stats.items()}
        if not self.draws:
            raise SettingError("A posterior needs the draws of at least one parameter.")
        lead = next(iter(self.draws.values())).shape[:2]
        for name, x in {**self.draws, **self.stats}.items():
            if x.shape[:2] != lead or len(lead) != 2:
                raise SettingError(
                    f"{name!r} has shape {x.shape}, but draws and stats start with "
                    f"(chain, draw) = {lead}."
                )
            if x.dtype.kind not in "biuf":
                raise SettingError(f"{name!r} must hold real numbers, not {x.dtype.name}.")
        if self.weights is not None:
            self.weights = np.asarray(self.weights, dtype=float)
            if self.weights.shape != lead:
                raise SettingError(
                    f"The weights have shape {self.weights.shape}, the draws are {lead}."
                )
        self.labels = tidy_labels(self.labels, self.draws)
        self.warnings = Warnings(self.warnings)
        if self.predictor is not None:
            self.predictor_spec = self.predictor.to_dict()

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the draws of a parameter, or of a line of the summary such as "beta[age]"."""
        if name in self.draws:
            return self.draws[name]
        for parameter, x in self.draws.items():
            if str(name).startswith(f"{parameter}["):
                lines = scalar_names(parameter, x.shape[2:], self.labels)
                if name not in lines:
                    raise UnknownNameError(
                        f"there is no {name!r}{suggestion(name, lines)}; of {parameter!r} there "
                        f"are {', '.join(lines[:5])}{' ...' if len(lines) > 5 else ''}."
                    )
                return x.reshape(*x.shape[:2], -1)[..., lines.index(name)]
        raise UnknownNameError(
            f"there is no parameter {name!r}{suggestion(str(name), self.draws)}; there are "
            f"{', '.join(self.draws)}."
        )

    @property
    def chains(self) -> int:
        """Number of chains."""
        return len(next(iter(self.draws.values())))

    @property
    def num_draws(self) -> int:
        """Number of draws per chain."""
        return int(next(iter(self.draws.values())).shape[1])

    @property
    def drawn(self) -> str:
        """The draws in words: how many chains made how many, or how many there are without any."""
        if not self.settings.get("independent"):
            return f"{count(self.chains, 'chain')} of {count(self.num_draws, 'draw')}"
        by = "repeated by weight" if self.weights is None else "with weights"
        return f"{self.chains * self.num_draws:,} independent draws, {by}"

    @property
    def unequal_weights(self) -> np.ndarray | None:
        """The weights; None if there are none, or if they are equal, so that draws count alike."""
        return unequal(self.weights)

    @property
    def weighted(self) -> bool:
        """Whether the weights differ, so that draws do not count alike."""
        return self.unequal_weights is not None

    def mean(self, name: str) -> np.ndarray:
        """Return the posterior mean; with signs or weights, the ratio estimate."""
        return weighted_mean(self[name], self.weights)

    def sd(self, name: str) -> np.ndarray:
        """Return the posterior standard deviation."""
        return np.sqrt(weighted_variance(np.asarray(self[name], dtype=float), self.weights))

    def quantile(self, name: str, q: ArrayLike) -> np.ndarray:
        """Return posterior quantiles, of shape (*q.shape, *shape)."""
        x, levels = self[name], np.asarray(q, float)
        if not ((levels >= 0) & (levels <= 1)).all():
            raise SettingError(f"quantile levels must be between 0 and 1, not {q!r}.")
        return weighted_quantile(x, self.weights, levels)

    def covariance(self, name: str) -> np.ndarray:
        """Return the posterior covariance matrix of one parameter's scalars, flattened."""
        return weighted_covariance(np.asarray(self[name], float), self.weights)

    def lines(self, names: Iterable[str]) -> list[str]:
        """Return the names of all scalars of these parameters, or lines of the summary."""
        shapes = {name: self[name].shape[2:] for name in names}
        return [line for name, s in shapes.items() for line in scalar_names(name, s, self.labels)]

    def predictor_if_any(self) -> ModelPredictor | None:
        """Return the predictor; that of a loaded posterior is rebuilt from its description."""
        if self.predictor is None and self.predictor_spec is not None:
            self.predictor = rebuild(self.predictor_spec)
        return self.predictor

    def model_predictor(self) -> ModelPredictor:
        """Return the predictor of the model; refuse a posterior without a model."""
        predictor = self.predictor_if_any()
        if predictor is None:
            raise SettingError(
                "this posterior has no model: it was made without its model, or loaded from a "
                "file, which does not keep a custom one; use Posterior.load(path, model=...), or "
                "compute from posterior.draws."
            )
        return predictor

    def fitted_model(self) -> BaseModel:
        """Return the model; refuse a posterior without one."""
        return self.model_predictor().model

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the outcome's classes; empty if the classes are numbers."""
        recorded = self.settings.get("outcome_levels")
        levels = recorded or (() if self.rows is None else self.rows.outcome_levels)
        return tuple(map(str, levels))

    @property
    def encoding(self) -> FormulaEncoding | None:
        """How a formula made the rows of the fit from a table; None if there was no formula."""
        return None if self.fit_rows is None else self.fit_rows.encoding

    def outcome_name(self) -> str:
        """Return the outcome as the formula names it, and of two classes the one that is meant."""
        if self.encoding is None or self.encoding.outcome is None:
            return "outcome"
        written, classes = self.encoding.outcome.expression, self.class_names()
        name = re.sub(r"^C\((\w+),.*\)$", r"\1", written)  # without the order of its levels
        is_named = len(classes) == 2 and classes[1] != "True"
        return f"{name} = {classes[1]}" if is_named else name

    def explained_parameters(self) -> tuple[str, ...]:
        """Return the parameters besides the mean that have formulas of their own."""
        if self.encoding is None or len(self.class_names()) > 2:  # whose formulas are of classes
            return ()
        return tuple(name for name, _ in self.encoding.others)

    def held_rows(self) -> Rows | None:
        """Return the rows of the fit, None if they are not held; refuse rows written to since."""
        if self.rows is not None:
            self.rows.require_unchanged()
        return self.rows

    def rows_or_own(
        self,
        data: RowsLike | None,
        outcome: bool,
        newlevels: NewLevels,
        groups: Groups | None = None,
        weights: bool | None = None,
    ) -> AlignedRows:
        """Return `data`, encoded as the rows of the fit were; the rows of the fit if it is None."""
        if data is not None:
            return aligned(data, self.fit_rows, outcome, newlevels, groups, weights)
        rows = self.held_rows()
        if rows is None:
            raise not_held("this", "rows")
        return AlignedRows.of(rows)

    def rows_of_fit(self, data: RowsLike | None, purpose: str) -> Rows:
        """Return the rows of the fit: `data`, which must be those rows, or the rows held."""
        rows = self.rows if data is None else rows_of_fit(data, self.fit_rows, purpose)
        if rows is None:
            raise not_held(purpose)
        if rows is self.rows:
            rows.require_unchanged()
        else:
            ledger = self.ledger
            number = ledger.rows if ledger.unit == "row" else None
            _, number = ledger.collapsed or (None, number)
            require_rows_of_fit(rows, self.fit_rows, number, purpose)
        return rows

    def rows_if_any(self, data: RowsLike | None, purpose: str) -> Rows | None:
        """Return the rows of the fit as `rows_of_fit` does; None if none are given or held."""
        return self.held_rows() if data is None else self.rows_of_fit(data, purpose)

    def take_rows(self, data: RowsLike) -> None:
        """Hold rows, which must be those of the fit, and their table."""
        self.rows = self.rows_of_fit(data, "a posterior that holds its rows")
        self.table = TableFiles.of(data) if is_tabular(data) else None

    def table_numbers(self, data: RowsLike | None, rows: Rows) -> np.ndarray | None:
        """Return the index of each row of the fit in its table (`data` or the one it holds).

        None if the rows are all of the table's, in its order, or if no table is known.
        """
        table = data if is_tabular(data) else self.table
        return table_numbers(rows, table) if is_tabular(table) else None


F = TypeVar("F", bound=FittedDraws)
EVALUATIONS = 10**8  # of rows at draws, in seconds, unless a row costs more:
MULTIPLICATIONS = 10**10  # a row is assumed to take one for each parameter
FEWEST = 200  # draws used however many rows there are


def named_axes(source: FittedDraws) -> tuple[dict[str, list[str]], dict[str, list[str | int]]]:
    """Return the dimensions of each parameter, by ArviZ's default names, and their labels."""
    dims: dict[str, list[str]] = {}
    coords: dict[str, list[str | int]] = {}
    for name, x in source.draws.items():
        shape = x.shape[2:]
        dims[name] = [f"{name}_dim_{i}" for i in range(len(shape))]
        coords.update(zip(dims[name], axis_labels(name, shape, source.labels), strict=True))
    return dims, coords


def affordable(source: FittedDraws, rows: int, draws: int | None, fewest: int = FEWEST) -> int:
    """Return how many draws to evaluate `rows` rows at: `draws`, or by default all if affordable.

    Examples
    --------
    >>> post = FittedDraws({"beta": np.zeros((4, 1000, 3))}, {}, Ledger(rows=1))
    >>> affordable(post, 1_000, None), affordable(post, 100_000, None), affordable(post, 10, 50)
    (4000, 1000, 50)
    """
    total = source.chains * source.num_draws
    if draws is not None:
        return min(total, whole_number("draws", draws))
    size = sum(x[0, 0].size for x in source.draws.values())
    most = min(EVALUATIONS, MULTIPLICATIONS // size) // max(1, rows)
    return min(total, max(fewest, most))


def weights_of(source: FittedDraws) -> np.ndarray:
    """Return the weight of each draw, (chain, draw); ones if there are no weights."""
    shape = (source.chains, source.num_draws)
    return np.ones(shape) if source.weights is None else source.weights


def thinned(
    source: FittedDraws, number: int | None, purpose: str = ""
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return at most `number` draws, evenly spaced over all chains, and their weights (1, draws).

    None is all of them.

    The choice is deterministic: a posterior always gives the same predictions. For a `purpose` that
    averages them, draws that are not finite are refused, and draws whose signs cancel.
    """
    total = source.chains * source.num_draws
    at = evenly_spaced(total, total if number is None else number)
    weights = weights_of(source).reshape(-1)[at]
    if purpose:
        require_finite(source.draws, purpose)
        require_positive_sum(weights, purpose)
    return {k: v.reshape(total, *v.shape[2:])[at] for k, v in source.draws.items()}, weights[None]


def evenly_spaced(total: int, number: int) -> np.ndarray:
    """Return at most `number` of `total` indices: the midpoints of equally long intervals."""
    count = min(number, total)
    return np.asarray(((2 * np.arange(count) + 1) * total) // (2 * count))


def require_finite(values: Mapping[str, np.ndarray], purpose: str) -> None:
    """Refuse draws (chain, draw, *shape) with a NaN or an infinity, naming the first."""
    for name, x in values.items():
        finite = np.isfinite(x)
        if not finite.all():
            chain, draw = (int(i) for i in np.argwhere(~finite)[0][:2])
            raise SettingError(
                f"{purpose} needs finite draws, but {name} is not finite from draw {draw} of "
                f"chain {chain} on; sample again with rescaled columns or a proper prior."
            )


def _plain(x: ArrayLike) -> np.ndarray:
    array = np.asarray(x)
    # bfloat16 and similar types, which NumPy's quantiles and .npy files do not support
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def require_positive(weights: np.ndarray | None, purpose: str) -> None:
    """Refuse draws with negative signs, which cannot be repeated a negative number of times."""
    if weights is not None and not (weights >= 0).all():
        raise SettingError(
            f"{purpose} uses draws one by one, but {np.sum(~(weights >= 0)):,} of these draws have "
            "negative signs, so that only averages are meaningful: use post.summary, predict, "
            "marginal, contrast, loo or ppc, which account for the signs; or, for equally weighted "
            'draws, sample with another method, such as method="hmc-ecs".'
        )


def require_positive_sum(weights: np.ndarray, purpose: str) -> None:
    """Refuse draws whose signs cancel, so that their averages are meaningless."""
    if not weights.sum() > 0:
        raise SettingError(
            f"{purpose} averages over draws, and here the signs cancel, so that their "
            "averages say nothing about the posterior; sample with a larger subsample, so that "
            'fewer signs are negative, or with another method, such as method="hmc-ecs".'
        )


def equal_places(source: FittedDraws, number: int, seed: int, purpose: str) -> np.ndarray:
    """Choose `number` of all draws, counted across chains, and return their indices, ascending.

    Draws that count alike are chosen evenly spaced, others in proportion to their weights, up to
    rounding (systematic resampling).
    """
    require_positive(source.weights, purpose)
    if source.weights is None or np.ptp(source.weights) == 0:
        return evenly_spaced(source.chains * source.num_draws, number)
    edges = np.cumsum(source.weights)
    start = generator(seed, Stream.RESAMPLING).random()
    at = np.searchsorted(edges, (np.arange(number) + start) / number * edges[-1])
    return np.asarray(np.minimum(at, len(edges) - 1))


def equal_draws(source: FittedDraws, number: int, seed: int, purpose: str) -> dict[str, np.ndarray]:
    """Return equally weighted draws: evenly spaced, or resampled if their weights differ."""
    require_finite(source.draws, purpose)
    at = equal_places(source, number, seed, purpose)
    return {name: x.reshape(-1, *x.shape[2:])[at] for name, x in source.draws.items()}


def resample(post: F, random_seed: int = 0) -> F:
    """Resample weighted draws into as many equally weighted ones.

    Each draw is repeated in proportion to its weight, up to rounding (systematic resampling),
    so that software that ignores weights, such as ArviZ, gives correct results. Equally
    weighted draws are returned unchanged; draws with negative signs are refused.

    Parameters
    ----------
    random_seed
        Seed of the starting point of the resampling.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> draws = {"beta": np.array([[0.0, 1.0, 2.0, 3.0]])}
    >>> weights = np.array([[2.0, 0.0, 0.0, 2.0]])
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=1), weights=weights)
    >>> post.resample()["beta"]
    array([[0., 0., 3., 3.]])
    """
    require_positive(post.weights, "resampling")
    if post.weights is None or post.unequal_weights is None:
        return post
    shape = post.weights.shape
    at = equal_places(post, post.weights.size, random_seed, "resampling")

    def resampled(x: np.ndarray) -> np.ndarray:
        return np.asarray(x.reshape(-1, *x.shape[2:])[at].reshape(*shape, *x.shape[2:]))

    draws = {name: resampled(x) for name, x in post.draws.items()}
    stats = {name: resampled(x) for name, x in post.stats.items()}
    return replace(post, draws=draws, stats=stats, weights=None)


def flat_points(
    post: FittedDraws, rows: Rows, draws: dict[str, np.ndarray]
) -> tuple[Target, np.ndarray]:
    """Return the target over `rows`, and draws ``name -> (S, *shape)`` as flat vectors (S, d)."""
    target, _ = Target.of(post.fitted_model(), rows)
    # Modicum's own models do not change; another JAX may trace a custom model differently.
    comparable = post.predictor_spec is None and post.settings.get("jax") == version("jax")
    if comparable and post.settings.get("model") not in (None, target.identity):
        raise SettingError(
            "the model no longer computes what it did when the posterior was sampled: a global "
            "variable or an array that its functions read has changed, or Posterior.load was given "
            "another model; use the original model."
        )
    points = target.ravel_reported(draws)
    if points.shape[1] != target.size:
        raise SettingError(
            f"the draws have {points.shape[1]} parameters, but the model has {target.size} for "
            "these rows; give the rows the posterior was sampled with."
        )
    return target, points


def sums_at(
    post: FittedDraws,
    rows: Rows,
    draws: dict[str, np.ndarray],
    progressbar: bool,
    ledger: Ledger | None = None,
) -> tuple[Sums, np.ndarray]:
    """Return sums over the rows of the fit, or its groups, and draws as flat vectors (S, d)."""
    target, points = flat_points(post, rows, draws)
    engine, ledger = LocalEngine(progressbar=progressbar), ledger or Ledger(rows=len(rows))
    return Sums(target, units_of(target, rows, engine, ledger), engine, ledger), points

"""The problems: each gives rows, a model and a reference posterior, written to a folder.

Contenders run in separate processes and read the folder: plain arrays (`x.npy`, `y.npy`,
`offset.npy`), a row store (`store`), `problem.json` and `reference.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from modicum import LogPosterior, Rows, models
from modicum.errors import DataError, SettingError, suggestion
from modicum.models import BaseModel, LinearPredictorModel
from modicum.rows import ingest
from modicum_lab.bench import stand_ins
from modicum_lab.bench.accuracy import KeptReference, by_importance, of_table, parameters_at
from modicum_lab.bench.tables_with_formulas import TABLES, TableProblem
from modicum_lab.datasets import (
    Dataset,
    bankruptcy_shaped,
    claims,
    covertype,
    flights,
    higgs_shaped,
)

NEAR = 0.01  # distance from the mode, in posterior sd, that is good enough for start and scale


@dataclass(frozen=True)
class Problem:
    """A table and a model for it.

    Attributes
    ----------
    name
        Name for `--problem`.
    title
        A short description.
    build
        Function that makes the data set; a `DataError` if its data are not available.
    table
        Name of the stored reference posterior; None if it is computed when needed.
    on_disk
        Whether to make a row store only: too large for memory, and without a reference.
    rows
        Number of rows, if it is on disk.
    kind
        What is compared: coefficients of "columns".
    """

    name: str
    title: str
    build: Callable[[], Dataset] | None
    table: str | None = None
    on_disk: bool = False
    rows: int = 0
    kind: str = "columns"

    def write(self, folder: Path) -> KeptReference | None:
        """Write rows, model and reference to `folder`; return the reference."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.on_disk:
            stand_ins.plain_store(self.rows, folder)
            self._describe(folder, self.rows, 29, "a made-up table of normal columns on disk")
            return None
        assert self.build is not None
        data = self.build()
        _write_arrays(data, folder)
        model = data.model
        assert isinstance(model, LinearPredictorModel)
        n, d = len(data.rows), len(data.columns) + 1
        self._describe(folder, n, d, data.description, type(model).__name__, model)
        reference = of_table(self.table) if self.table else by_importance(model, data.rows)
        (folder / "reference.json").write_text(json.dumps(reference.to_dict()))
        return reference

    def _describe(
        self,
        folder: Path,
        n: int,
        d: int,
        text: str,
        family: str = "Logistic",
        model: LinearPredictorModel | None = None,
    ) -> None:
        description = {
            "name": self.name,
            "title": self.title,
            "rows": n,
            "size": d,
            "description": text,
            "family": family,
            "prior_scale": 2.5 if model is None else model.prior_scale,
            "intercept_scale": 10.0 if model is None else model.intercept_scale,
        }
        (folder / "problem.json").write_text(json.dumps(description))


def _write_arrays(data: Dataset, folder: Path) -> None:
    arrays = data.rows.slice(0, len(data.rows))
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    ingest(dict(arrays), folder / "store", progressbar=False)


def _higgs(n: int) -> Dataset:
    try:
        return higgs_shaped(n, download=False, progressbar=False)
    except DataError:
        return stand_ins.plain(n)


def _splines(n: int) -> Dataset:
    try:
        return bankruptcy_shaped(n, download=False, progressbar=False)
    except DataError:
        return stand_ins.spline_shaped(n)


def _here(loader: Callable[..., Dataset]) -> Callable[[], Dataset]:
    return partial(loader, download=False, progressbar=False)


def _plain(columns: int) -> Problem:
    name, title = f"plain-d{columns + 1}", f"made up, 300 thousand rows, d = {columns + 1}"
    return Problem(name, title, partial(stand_ins.plain, 300_000, columns))


EVERY: tuple[Problem | TableProblem, ...] = (
    Problem("higgs-20k", "HIGGS-shaped, 20 thousand rows, d = 29", partial(_higgs, 20_000)),
    Problem("higgs-100k", "HIGGS-shaped, 100 thousand rows, d = 29", partial(_higgs, 100_000)),
    Problem("higgs-1m", "HIGGS-shaped, 1 million rows, d = 29", partial(_higgs, 1_000_000)),
    Problem("higgs-10m", "HIGGS-shaped, 10 million rows, d = 29", partial(_higgs, 10_000_000)),
    Problem("covertype", "Covertype, logistic", _here(covertype), "covertype"),
    Problem("flights", "New York flights, logistic", _here(flights), "flights"),
    Problem("claims", "motor claims, Poisson with exposure", _here(claims), "claims"),
    Problem("splines", "splines of 8 columns, 1 million rows", partial(_splines, 1_000_000)),
    *TABLES,
    *(_plain(columns) for columns in (9, 29, 99, 299)),
    Problem("plain-10m", "made up, 10 million rows", partial(stand_ins.plain, 10_000_000)),
    Problem("plain-100m", "made up, 100 million rows", None, None, True, 100_000_000),
)
PROBLEMS = {problem.name: problem for problem in EVERY}
"""Name to problem, in the order they are run."""


def find_problem(name: str) -> Problem | TableProblem:
    """Return the problem of this name."""
    if name not in PROBLEMS:
        raise SettingError(
            f"there is no problem {name!r}{suggestion(name, PROBLEMS)}; "
            f"there are {', '.join(PROBLEMS)}."
        )
    return PROBLEMS[name]


@dataclass(frozen=True)
class ModeRun:
    """The posterior mode, the factor L of the inverse Hessian there, and the cost of finding it.

    Coefficients first, the intercept last.
    """

    point: np.ndarray
    factor: np.ndarray
    seconds: float
    rows: int

    @property
    def covariance(self) -> np.ndarray:
        """Inverse of the negative Hessian."""
        return np.asarray(self.factor @ self.factor.T)


class ProblemData:
    """A problem as a contender reads it from its folder: arrays, rows, a row store, the model."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.description: dict[str, Any] = json.loads((self.folder / "problem.json").read_text())
        self.size: int = self.description["size"]
        self.poisson: bool = self.description["family"] == "Poisson"
        self.formula: str = self.description.get("formula", "")
        self.kind: str = self.description.get("kind", "columns")

    def __len__(self) -> int:
        return int(self.description["rows"])

    @cached_property
    def x(self) -> np.ndarray:
        """Predictors, without a column of ones."""
        return np.asarray(np.load(self.folder / "x.npy"))

    @cached_property
    def y(self) -> np.ndarray:
        """Outcomes."""
        return np.asarray(np.load(self.folder / "y.npy"))

    @cached_property
    def offset(self) -> np.ndarray | None:
        """Known part of the linear predictor, if there is one."""
        path = self.folder / "offset.npy"
        return np.asarray(np.load(path)) if path.exists() else None

    @cached_property
    def rows(self) -> Rows:
        """The arrays as rows."""
        return Rows(x=self.x, y=self.y, offset=self.offset)

    @cached_property
    def table(self) -> pd.DataFrame:
        """The table of a formula."""
        return pd.read_parquet(self.folder / "table.parquet")

    @property
    def grid(self) -> pd.DataFrame:
        """Rows along each smooth, whose chances are compared."""
        return pd.read_csv(self.folder / "grid.csv")

    def store(self) -> Rows:
        """The rows on disk."""
        return Rows.open(self.folder / "store")

    @cached_property
    def model(self) -> BaseModel:
        """Modicum's model."""
        scales = self.description["prior_scale"], self.description["intercept_scale"]
        scale = tuple(scales[0]) if isinstance(scales[0], list) else scales[0]
        family: Any = getattr(models, self.description["family"])
        built: BaseModel = family(prior_scale=scale, intercept_scale=scales[1])
        return built

    @cached_property
    def prior(self) -> np.ndarray:
        """Prior standard deviations, the intercept's last."""
        coefficients = np.broadcast_to(self.description["prior_scale"], self.size - 1)
        return np.append(coefficients, self.description["intercept_scale"]).astype(np.float64)

    def load(self) -> None:
        """Read the arrays now, so that loading is not timed."""
        if (self.folder / "x.npy").exists():
            _ = self.rows
        if self.formula:
            _ = self.table

    def find_mode(self, within: float = NEAR) -> ModeRun:
        """Find the mode by Modicum's search; its cost is charged to peers that need a mode."""
        started = time.perf_counter()
        posterior = LogPosterior(self.model, self.rows)
        point, factor = parameters_at(posterior, posterior.mode(within=within))
        seconds = time.perf_counter() - started
        return ModeRun(point, factor, seconds, posterior.ledger.evaluations)

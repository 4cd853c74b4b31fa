"""Passes and modes of rows with factors as codes, compared with dense columns, tabmat and glum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

import modicum as mo
from modicum import LogPosterior, Rows
from modicum.models import Logistic, Poisson
from modicum_lab.bench.tables import Table, interleaved, verdict

PRIOR, LEVELS = 2.5, (10, 30, 100, 300, 1000)
PEERS = {"tabmat": "of tabmat's sandwich", "columns": "with all columns formed"}
LIMITS = {"tabmat": 1.5, "columns": 0.25}  # for the flights
AGREE = 0.02  # posterior standard deviations between the modes of two libraries


@dataclass(frozen=True)
class Case:
    """A table with codes, and with dense columns if they fit into memory."""

    name: str
    coded: Rows
    dense: Rows | None
    family: str  # as glum calls it

    @property
    def model(self) -> Logistic | Poisson:
        """Return the model, with a prior equal to glum's ridge penalty."""
        family = Logistic if self.family == "binomial" else Poisson
        return family(prior_scale=PRIOR, intercept_scale=1000.0)


def made_up(n: int) -> Rows:
    """Return rows with a number and five factors of 10 to 1,000 levels of uneven frequency."""
    rng = np.random.default_rng(1)
    codes, eta = {}, np.full(n, -1.0)
    for k in LEVELS:
        level = (k * rng.random(n) ** 2).astype(np.int16)
        codes[f"f{k}"] = level
        eta += rng.normal(scale=0.4, size=k)[level]
    x = rng.standard_normal((n, 1), dtype=np.float32)
    y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(np.float32)
    return Rows(x=x, y=y, codes=codes)


def cases(quick: bool) -> list[Case]:
    """Return two real tables, if their files are available, and a simulated one."""
    problems = []
    for name, family in (("flights", "binomial"), ("claims", "poisson")):
        loader: Callable[..., Any] = getattr(mo.datasets, name)
        try:
            coded = loader(download=False, coded=True).rows
            dense = loader(download=False).rows
        except mo.DataError:
            continue
        if quick:
            row_ids = np.linspace(0, len(coded) - 1, 20_000).astype(int)  # of all months
            coded, dense = coded.subset(row_ids), dense.subset(row_ids)
        problems.append(Case(name, coded, dense, family))
    rows = made_up(20_000 if quick else 10_000_000)
    problems.append(Case("made up", rows, None, "binomial"))
    return problems


def split_matrix(rows: Rows) -> Any:
    """Return the columns as a tabmat matrix, with a column of ones first."""
    import pandas as pd
    import tabmat

    whole = rows.slice(0, len(rows))
    numbers = np.column_stack([np.ones(len(rows)), np.asarray(whole["x"], np.float64)])
    factors = [
        tabmat.CategoricalMatrix(
            pd.Categorical.from_codes(whole[name].astype(np.int64), pd.Index(map(str, levels))),
            drop_first=True,
        )
        for name, levels in rows.levels.items()
    ]
    return tabmat.SplitMatrix([tabmat.DenseMatrix(numbers), *factors])


def in_glum(case: Case) -> Callable[[], Any]:
    """Return a function that fits by glum, with a ridge penalty equal to the prior."""
    from glum import GeneralizedLinearRegressor

    whole = case.coded.slice(0, len(case.coded))
    n, matrix = len(case.coded), split_matrix(case.coded)
    free = np.ones(matrix.shape[1])
    free[0] = 0.0  # the intercept
    model = GeneralizedLinearRegressor(
        family=case.family,
        alpha=1 / (n * PRIOR**2),
        l1_ratio=0,
        P2=free,
        fit_intercept=False,
        gradient_tol=1e-7,
    )
    offset = whole.get("offset")
    y = np.asarray(whole["y"], np.float64)
    return lambda: model.fit(matrix, y, offset=offset)


def of_columns(case: Case, coefficients: np.ndarray) -> np.ndarray:
    """Reorder coefficients of glum (ones, numbers, factors) like the rows' columns."""
    coding = case.coded.coding
    assert coding is not None
    point = np.empty(coding.size + 1)
    point[-1] = coefficients[0]
    numbers = 1 + len(coding.dense)
    point[list(coding.dense)] = coefficients[1:numbers]
    for term in coding.terms:
        point[term.columns] = coefficients[numbers : numbers + term.width]
        numbers += term.width
    return point


def run(quick: bool = False) -> list[Table]:
    """Time a Hessian pass and a search for the mode, alternating with their peers."""
    columns = ["table", "what", "bytes per row", "seconds", "of peer's", "limit", "kept"]
    passes = Table("A pass: gradient and Hessian, factors as codes", columns)
    modes = Table("The posterior mode, factors as codes", columns)
    for case in cases(quick):
        _passes(case, passes, repeats=3 if quick else 7)
        _modes(case, modes, repeats=1 if quick else 3)
    return [passes, modes]


def _passes(case: Case, table: Table, repeats: int) -> None:
    coded = LogPosterior(case.model, case.coded)
    point = np.zeros(len(coded))
    functions: dict[str, Callable[[], Any]] = {"codes": lambda: coded.hessian(point)}
    if case.dense is not None:
        dense = LogPosterior(case.model, case.dense)
        functions["columns"] = lambda: dense.hessian(point)
        ours, theirs = coded.hessian(point)[2], dense.hessian(point)[2]
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(theirs).max())
    if find_spec("tabmat"):
        matrix = split_matrix(case.coded)
        weight = np.full(len(case.coded), 0.25)
        functions["tabmat"] = lambda: matrix.sandwich(weight)
    seconds = interleaved(functions, repeats)
    title = f"{case.name}, {len(case.coded):,} x {len(case.coded.columns)}"
    limits = LIMITS if case.name == "flights" else {}
    for peer in ("tabmat", "columns"):
        if peer in seconds:
            ratio, limit = seconds["codes"] / seconds[peer], limits.get(peer)
            of = f"codes, of {seconds[peer]:.3g} s {PEERS[peer]}"
            row = [title, of, case.coded.row_bytes, seconds["codes"], ratio, limit or ""]
            table.rows.append([*row, verdict(ratio, limit) if limit else ""])


def _modes(case: Case, table: Table, repeats: int) -> None:
    ours = LogPosterior(case.model, case.coded)
    functions: dict[str, Callable[[], Any]] = {"codes": ours.mode}
    if find_spec("glum"):
        functions["glum"] = in_glum(case)
        mode = ours.mode()
        gap = of_columns(case, functions["glum"]().coef_) - mode.point
        away = np.linalg.norm(np.linalg.solve(mode.factor, gap)) / np.sqrt(len(gap))
        assert away < AGREE, f"glum's mode of {case.name} is {away:.2g} posterior sds away"
    seconds = interleaved(functions, repeats)
    ratio = seconds["codes"] / seconds["glum"] if "glum" in seconds else np.nan
    peer = f", of {seconds['glum']:.3g} s of glum's fit" if "glum" in seconds else ""
    title = f"{case.name}, {len(case.coded):,} x {len(case.coded.columns)}"
    row = [title, f"codes{peer}", case.coded.row_bytes, seconds["codes"], ratio, "", ""]
    table.rows.append(row)

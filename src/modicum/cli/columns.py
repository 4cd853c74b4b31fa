"""Which column plays which part: the options several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

Outcome = Annotated[str | None, typer.Option(help="Column of the outcome.")]
Predictors = Annotated[
    list[str] | None,
    typer.Option(help="Columns of x, as a,b,c or repeated; default: all that have no other part."),
]
Categorical = Annotated[
    list[str] | None,
    typer.Option(
        help="Columns to code as levels, as a,b,c or repeated; NAME=LEVEL chooses the reference."
    ),
]
Offset = Annotated[str | None, typer.Option(help="Column added to the linear predictor.")]
Weight = Annotated[str | None, typer.Option(help="Column of frequency weights.")]
DType = Annotated[str | None, typer.Option(help="float32 or float64.")]
Encoding = Annotated[str, typer.Option(help="Of CSV files, such as latin-1.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")]
Prob = Annotated[float, typer.Option(help="Posterior probability of the interval.")]


@dataclass(frozen=True)
class ColumnChoice:
    """Which column of a table plays which part, as the command line was told."""

    outcome: str | None
    predictors: list[str] | None
    offset: str | None
    weight: str | None
    categorical: dict[str, str | None]
    dtype: str | None

    @classmethod
    def of(
        cls,
        outcome: str | None,
        predictors: Sequence[str] | None,
        offset: str | None,
        weight: str | None,
        categorical: Sequence[str] | None,
        dtype: str | None,
    ) -> ColumnChoice:
        """Take the options apart: commas, and reference levels."""
        pairs = [item.partition("=") for item in split(categorical)]
        coded = {name: reference if eq else None for name, eq, reference in pairs}
        chosen = split(predictors) if predictors else None
        return cls(outcome, chosen, offset, weight, coded, dtype)

    def unused(self) -> bool:
        """Whether nothing but perhaps the outcome was named."""
        return not (self.predictors or self.offset or self.weight or self.categorical)


def split(items: Sequence[str] | None) -> list[str]:
    """Take lists apart: repeated options, and commas in one."""
    return [part.strip() for item in items or () for part in item.split(",") if part.strip()]

"""The options of the commands: their help texts, and the columns that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from modicum.methods import DEFAULT, METHODS
from modicum.models import FAMILIES
from modicum.models.families.links import LINKS

DATA = "Parquet, CSV or Feather: a file, folder or glob"

# Options that several commands share --------------------------------------------------------

Outcome = Annotated[str | None, typer.Option(help="Column of the outcome.")]
Predictors = Annotated[
    list[str] | None,
    typer.Option(help="Columns of x, as a,b,c or repeated; default: all not otherwise used."),
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
Encoding = Annotated[str, typer.Option(help="Text encoding of CSV files, such as latin-1.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")]
Prob = Annotated[float, typer.Option(help="Posterior probability of the interval.")]
Run = Annotated[Path, typer.Argument(help="A folder that `fit` wrote, or a saved posterior.")]

# Options of `modicum fit` -------------------------------------------------------------------

FitData = Annotated[str, typer.Argument(help=f"{DATA}; or a row store.")]
Formula = Annotated[
    str | None,
    typer.Argument(
        help="Such as 'late ~ carrier + bs(hour, df=6)'; without a formula, use --outcome and "
        "--predictors."
    ),
]
ResultFolder = Annotated[Path, typer.Option(help="Folder for the results.")]
Family = Annotated[str, typer.Option(help=f"One of {', '.join(FAMILIES)}.")]
PriorScale = Annotated[
    float | None,
    typer.Option(
        help="Prior standard deviation of the coefficients, in raw units; default: 2.5 in the "
        "units of the data."
    ),
]
NoIntercept = Annotated[bool, typer.Option("--no-intercept", help="Add no intercept.")]
NoiseScale = Annotated[
    float | None,
    typer.Option(
        help="Known noise scale (gaussian, student-t, asymmetric-laplace); default: estimate it."
    ),
]
DegreesOfFreedom = Annotated[
    float | None, typer.Option(help="Degrees of freedom (student-t); default 4.")
]
Quantile = Annotated[
    float | None,
    typer.Option(help="The quantile to regress (asymmetric-laplace); default 0.5."),
]
Link = Annotated[
    str | None, typer.Option(help=f"One of {', '.join(LINKS)} (binomial); default logit.")
]
Classes = Annotated[
    int | None,
    typer.Option(help="Number of classes (softmax, ordinal); default: those that occur."),
]
FamilySettings = Annotated[
    list[str] | None,
    typer.Option(help="A further setting of the family, such as smoothing=0.2; may be repeated."),
]
Groups = Annotated[
    str | None,
    typer.Option(
        help="How a formula's group effects are treated: explicit, or integrate (out); default: "
        "whichever costs less."
    ),
]
MethodName = Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}; default: {DEFAULT}.")]
MethodSettings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of the method, such as design=uniform; may be repeated."),
]
Missing = Annotated[
    str, typer.Option(help="Rows with missing values, with a formula: refuse or drop.")
]
Draws = Annotated[int, typer.Option(help="Draws to keep per chain.")]
Tune = Annotated[
    int | None,
    typer.Option(help="Warm-up iterations per chain; default 1000, if the method has one."),
]
Chains = Annotated[str, typer.Option(help="Independent chains: a number, or auto.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same draws.")]
CheckpointFolder = Annotated[
    Path | None, typer.Option(help="Folder for checkpoints; default: OUT/checkpoint.")
]
Report = Annotated[
    bool, typer.Option("--report", help="Write OUT/report.html: the fit on one page.")
]
EngineName = Annotated[
    str, typer.Option(help="Where passes over the rows run: local, or ray (a cluster).")
]
Address = Annotated[
    str | None,
    typer.Option(help="Address of the Ray cluster: auto, HOST:PORT; default: start Ray here."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the results of an earlier fit in OUT.")
]

# Parsing of options -------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnChoice:
    """The columns that the options name, by role."""

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
        """Parse the options: comma-separated lists, and reference levels."""
        pairs = [item.partition("=") for item in split(categorical)]
        references = {name: reference if eq else None for name, eq, reference in pairs}
        columns = split(predictors) if predictors else None
        return cls(outcome, columns, offset, weight, references, dtype)

    def unused(self) -> bool:
        """Whether no column but perhaps the outcome is named."""
        return not (self.predictors or self.offset or self.weight or self.categorical)


def split(items: Sequence[str] | None) -> list[str]:
    """Flatten repeated options and comma-separated lists."""
    return [part.strip() for item in items or () for part in item.split(",") if part.strip()]

"""What a fit is made of: a model by name, rows from files, draws, files to keep."""

from __future__ import annotations

import glob
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from modicum.cli.columns import ColumnChoice
from modicum.cli.messages import errors, live

if TYPE_CHECKING:
    import pandas as pd

    from modicum.models import BaseModel
    from modicum.posterior import Posterior
    from modicum.rows import Rows

FAMILIES = {
    "logistic": "Logistic",
    "gaussian": "Gaussian",
    "poisson": "Poisson",
    "student-t": "StudentT",
    "softmax": "Softmax",
}


def build_model(
    family: str, prior_scale: float | None, intercept: bool, scale: float | None, df: float | None
) -> BaseModel:
    """Return the family by its name, with settings that apply to it."""
    from modicum import models
    from modicum.errors import SettingError, suggestion

    name = family.lower().replace("_", "-")
    if name not in FAMILIES:
        raise SettingError(
            f"there is no family {family!r}{suggestion(family, FAMILIES)}; "
            f"the families are {', '.join(FAMILIES)}."
        )
    extra = {k: v for k, v in {"scale": scale, "df": df}.items() if v is not None}
    takes = {"gaussian": {"scale"}, "student-t": {"scale", "df"}}.get(name, set())
    for option in extra:
        if option not in takes:
            raise SettingError(f"--{option} does not apply to the family {name}: leave it out.")
    made: BaseModel = getattr(models, FAMILIES[name])(
        prior_scale=prior_scale, intercept=intercept, **extra
    )
    return made


def read_rows(data: str, choice: ColumnChoice, out: Path, say: Console) -> Rows:
    """Open a row store, or ingest files into OUT/rows; an ingest is not repeated needlessly."""
    from modicum.errors import SettingError
    from modicum.rows import Rows

    if (Path(data) / "rows.json").is_file():
        rows = Rows.open(data)
        if not choice.unused() or choice.outcome not in (None, rows.outcome):
            raise SettingError(
                f"{data} is a row store, whose columns were chosen when it was made (outcome "
                f"{rows.outcome!r}): leave out the options that name columns."
            )
        return rows
    if choice.outcome is None:
        raise SettingError("name the column of the outcome: --outcome NAME.")
    store, note = out / "rows", out / "rows-source.json"
    origin = json.loads(json.dumps({"files": _files(data), **asdict(choice)}))
    if store.is_dir() and note.is_file() and json.loads(note.read_text()) == origin:
        return Rows.open(store)
    note.unlink(missing_ok=True)
    rows = ingest_table(data, store, choice, say, overwrite=True)
    note.write_text(json.dumps(origin, indent=1))
    return rows


def _files(data: str) -> list[list[Any]]:
    """Name, size and time of every file `data` means: they tell whether it has changed."""
    path = Path(data)
    if path.is_dir():
        found = [file for file in path.rglob("*") if file.is_file()]
    else:
        found = [path] if path.is_file() else [Path(p) for p in glob.glob(data, recursive=True)]
    return [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in sorted(found)]


def ingest_table(
    source: str, store: Path, choice: ColumnChoice, say: Console, overwrite: bool
) -> Rows:
    """Read files into a row store."""
    from modicum.rows import ingest as ingest_rows

    return ingest_rows(
        source,
        store,
        outcome=choice.outcome,
        predictors=choice.predictors,
        offset=choice.offset,
        weight=choice.weight,
        categorical=choice.categorical,
        dtype=choice.dtype,
        progressbar=live(say),
        overwrite=overwrite,
    )


def sample_rows(
    model: BaseModel,
    rows: Rows,
    method: str | None,
    settings: dict[str, Any],
    checkpoint: Path,
    say: Console,
) -> Posterior:
    """Sample, going on from the checkpoint if there is one."""
    from modicum.errors import ModicumWarning
    from modicum.sample import sample

    if method is not None:  # else the default of `sample`, whatever that is
        settings = settings | {"method": method}
    if (checkpoint / "run.json").is_file():
        say.print(f"Going on from the checkpoint in {escape(str(checkpoint))}.", highlight=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)  # the posterior keeps them: told below
        try:
            return sample(model, rows, checkpoint=checkpoint, progressbar=live(say), **settings)
        except KeyboardInterrupt:  # before the first draw; afterwards the draws so far come back
            errors().print("[yellow]Stopped:[/] the same command goes on where it was.")
            raise typer.Exit(130) from None


def write_results(post: Posterior, out: Path, prob: float) -> pd.DataFrame:
    """Write OUT/posterior and OUT/summary.csv; return the summary."""
    table = post.summary(prob=prob)
    post.save(out / "posterior")
    table.to_csv(out / "summary.csv", index_label="parameter")
    return table

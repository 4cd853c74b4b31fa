"""What a fit is made of: a model by name, rows from files, draws, files to keep."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import warnings
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from modicum.cli.columns import ColumnChoice
from modicum.errors import ModicumWarning, SettingError, suggestion
from modicum.models import FAMILIES, BaseModel

if TYPE_CHECKING:
    import pandas as pd

    from modicum.posterior import Posterior
    from modicum.rows import Rows

RESULTS = ("posterior", "summary.csv")
BEING_MADE = "being made"


def build_model(
    family: str, prior_scale: float | None, intercept: bool, scale: float | None, df: float | None
) -> BaseModel:
    """Return the family by its name, with settings that apply to it."""
    name = family.lower().replace("_", "-")
    if name not in FAMILIES:
        raise SettingError(
            f"there is no family {family!r}{suggestion(family, FAMILIES)}; "
            f"the families are {', '.join(FAMILIES)}."
        )
    options: dict[str, Any] = {"scale": scale, "df": df}  # fields of some families
    extra = {option: value for option, value in options.items() if value is not None}
    takes = {field.name for field in fields(FAMILIES[name])}
    for option in extra:
        if option not in takes:
            raise SettingError(f"--{option} does not apply to the family {name}: leave it out.")
    return FAMILIES[name](prior_scale=prior_scale, intercept=intercept, **extra)


def checked_prob(prob: float) -> None:
    """Refuse a probability that is none, before hours are spent on draws."""
    if not 0 < prob < 1:
        raise SettingError(f"--prob must lie between 0 and 1, not be {prob:g}.")


def prepare_folder(out: Path, overwrite: bool) -> None:
    """Make the folder of results; refuse to replace what a finished fit left there."""
    if out.exists() and not out.is_dir():
        raise SettingError(f"'{out}' exists and is not a folder: name another one with --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"the folder '{out}' cannot be made ({error.strerror}): name another one with --out."
        ) from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise SettingError(f"'{out}' cannot be written: name another folder with --out.")
    for name in RESULTS:
        if (out / name).is_dir():
            raise SettingError(f"'{out / name}' is a folder, and the results would go there.")
        if (out / name).exists() and not overwrite:
            raise SettingError(
                f"'{out / name}' holds the results of an earlier fit: add --overwrite to replace "
                "them, or name another folder with --out."
            )


def read_rows(
    data: str, choice: ColumnChoice, out: Path, say: Console, overwrite: bool = False
) -> Rows:
    """Open a row store, or ingest files into OUT/rows; an ingest is not repeated needlessly.

    A store in OUT/rows that `fit` has not made itself is replaced only with `overwrite`.
    """
    from modicum.rows import Rows

    if not data.strip() or "\0" in data:
        raise SettingError(f"name the data: {data!r} is no path.")
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
    known = _note(note)
    if store.is_dir() and known.get("origin") == origin and known.get("store") == _digest(store):
        return Rows.open(store)
    made_here = known.get("store") == BEING_MADE or (
        bool(known) and known.get("store") == _digest(store)
    )
    if store.exists() and not made_here and not overwrite:
        raise SettingError(
            f"'{store}' is there already and was not made from {data} by this command: add "
            "--overwrite to replace it, or name another folder with --out."
        )
    # A command that is killed now can replace what it has left, without being allowed to again.
    note.write_text(json.dumps({"origin": origin, "store": BEING_MADE}))
    try:
        rows = ingest_table(data, store, choice, say, overwrite=True)
    except Exception:
        note.write_text(json.dumps(known)) if known else note.unlink()
        raise
    note.write_text(json.dumps({"origin": origin, "store": _digest(store)}, indent=1))
    return rows


def _note(path: Path) -> dict[str, Any]:
    """What was noted of the store that `fit` made; empty where that is nothing."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _digest(store: Path) -> str | None:
    """Of the store's description, which names the checksums of its files."""
    try:
        return hashlib.sha256((store / "rows.json").read_bytes()).hexdigest()
    except OSError:
        return None


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
        progressbar=not say.quiet,
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
    from modicum.sample import sample

    if method is not None:  # else the default of `sample`, whatever that is
        settings = settings | {"method": method}
    if (checkpoint / "run.json").is_file():
        say.print(f"Going on from the checkpoint in {escape(str(checkpoint))}.", highlight=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)  # the posterior keeps them: told below
        post = sample(model, rows, checkpoint=checkpoint, progressbar=not say.quiet, **settings)
    if not post.settings["complete"]:  # stopped by hand, in a process that hears Ctrl-C itself
        raise KeyboardInterrupt
    return post


def write_results(post: Posterior, out: Path, prob: float) -> pd.DataFrame:
    """Write OUT/posterior and OUT/summary.csv; return the summary."""
    table = post.summary(prob=prob)
    post.save(out / "posterior")
    table.to_csv(out / "summary.csv", index_label="parameter")
    return table

"""What a fit is made of: a model by name, rows from files, draws, files to keep."""

from __future__ import annotations

import ast
import glob
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from modicum.cli.columns import ColumnChoice
from modicum.engines import EngineChoice, Local, Ray
from modicum.errors import ModicumWarning, SettingError, suggestion
from modicum.fit import family_named
from modicum.methods import HMCECS, NUTS, Auto, Laplace, Method, resolve
from modicum.models import BaseModel, LinearPredictorModel
from modicum.models.multilevel import HoldEffects

if TYPE_CHECKING:
    import pandas as pd

    from modicum.posterior import Posterior
    from modicum.rows import Rows
    from modicum.rows.reading import TableRows

RESULTS = ("posterior", "summary.csv")
REPORT = "report.html"
BEING_MADE = "being made"
NO_OPTIONS = ("priors", "resolved_priors", "groups", "coding")  # of families: no numbers or texts


def build_model(
    family: str, options: Mapping[str, Any], settings: Sequence[str] = ()
) -> LinearPredictorModel:
    """Return the family by its name, with settings that apply to it.

    Parameters
    ----------
    family
        Its name.
    options
        Settings that have an option of their own; None: not given.
    settings
        Others, each NAME=VALUE.
    """
    chosen = family_named(family)
    takes = [field.name for field in fields(chosen) if field.name not in NO_OPTIONS]
    extra = {option: value for option, value in options.items() if value is not None}
    for option in extra:
        if option not in takes:
            raise SettingError(
                f"--{option.replace('_', '-')} does not apply to the family {family}: leave it out."
            )
    given = named_values("--family-set", settings, takes, f"the family {family}")
    twice = sorted(extra.keys() & given.keys() - {"intercept"})
    if twice:
        raise SettingError(
            f"{twice[0]} is given by --{twice[0].replace('_', '-')} and by --family-set: leave one "
            "of them out."
        )
    return chosen(**extra | given)


def build_method(name: str, settings: Sequence[str]) -> Method:
    """Return a method with its settings, each NAME=VALUE.

    Settings say which method is meant where the choice was left open: the first that has them all,
    HMC-ECS before the others.
    """
    chosen = type(resolve(name))
    if not settings:
        return chosen()
    names = {setting.partition("=")[0].strip().replace("-", "_") for setting in settings}
    if chosen is Auto:
        able = (cls for cls in (Auto, HMCECS, Laplace, NUTS) if names <= set(_takes(cls)))
        chosen = next(able, HMCECS)
    return chosen(**named_values("--set", settings, _takes(chosen), chosen.name))


def _takes(method: type[Method]) -> list[str]:
    return [f.name for f in fields(method) if f.init]  # type: ignore[arg-type]


def named_values(
    option: str, settings: Sequence[str], takes: Sequence[str], of: str
) -> dict[str, Any]:
    """Take settings apart, each NAME=VALUE with a name that `of` takes."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in takes:
            raise SettingError(
                f"{option} {setting} is no setting of {of}{suggestion(key, takes)}; give "
                f"NAME=VALUE, with a name among {', '.join(takes)}."
            )
        values[key] = _value(text.strip())
    return values


def build_engine(name: str, address: str | None) -> EngineChoice:
    """Return what makes the passes, by its name."""
    if name.lower() == "ray":
        return Ray(address=address)
    if name.lower() != "local":
        raise SettingError(f"--engine must be local or ray, not {name}.")
    if address is not None:
        raise SettingError("--address is that of a Ray cluster: add --engine ray.")
    return Local()


def _value(text: str) -> object:
    """A number, a truth value, None or a list of them as Python writes it; any other is a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def checked_prob(prob: float) -> None:
    """Refuse a probability that is none, before hours are spent on draws."""
    if not 0 < prob < 1:
        raise SettingError(f"--prob must lie between 0 and 1, not be {prob:g}.")


def chain_count(text: str) -> int | str:
    """A number of chains, or "auto"; what is neither is refused where chains are run."""
    return int(text) if text.lstrip("-").isdigit() else text


def checked_groups(groups: str | None, formula: str | None) -> HoldEffects | None:
    """Return how effects of groups are held; refuse what is no way to hold them."""
    if groups is None:
        return None
    if formula is None:
        raise SettingError(
            "--groups is for group terms of a formula, such as 'late ~ hour + (1 | carrier)': give "
            "one, or leave it out."
        )
    if groups not in ("explicit", "integrate"):
        raise SettingError(f"--groups must be explicit or integrate, not {groups}.")
    return "explicit" if groups == "explicit" else "integrate"


def prepare_folder(out: Path, overwrite: bool, report: bool = False) -> None:
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
    for name in (*RESULTS, REPORT) if report else RESULTS:
        if (out / name).is_dir():
            raise SettingError(f"'{out / name}' is a folder, and the results would go there.")
        if (out / name).exists() and not overwrite:
            raise SettingError(
                f"'{out / name}' holds the results of an earlier fit: add --overwrite to replace "
                "them, or name another folder with --out."
            )


def require_path(data: str) -> None:
    """Refuse what cannot be the name of a file."""
    if not data.strip() or "\0" in data:
        raise SettingError(f"name the data: {data!r} is no path.")


def read_rows(
    data: str,
    choice: ColumnChoice,
    out: Path,
    say: Console,
    overwrite: bool = False,
    encoding: str = "utf-8",
) -> Rows:
    """Open a row store, or ingest files into OUT/rows; an ingest is not repeated needlessly.

    A store in OUT/rows that `fit` has not made itself is replaced only with `overwrite`.
    """
    from modicum.rows import Rows
    from modicum.rows.ingestion import is_store

    require_path(data)
    if is_store(data):
        rows = Rows.open(data)
        if not choice.unused() or choice.outcome not in (None, rows.outcome):
            raise SettingError(
                f"{data} is a row store, whose columns were chosen when it was made (outcome "
                f"{rows.outcome!r}): leave out the options that name columns."
            )
        return rows
    if choice.outcome is None:
        raise SettingError(
            "name the column of the outcome with --outcome NAME, or give a formula after the data."
        )
    origin = {"files": _files(data), **asdict(choice), "encoding": encoding}

    def make(store: Path) -> tuple[Rows, int]:
        return ingest_table(data, store, choice, say, overwrite=True, encoding=encoding), 0

    return kept_rows(origin, make, data, out, overwrite)[0]


def read_formula_rows(
    data: str,
    formula: str,
    choice: ColumnChoice,
    missing: str,
    out: Path,
    say: Console,
    overwrite: bool,
    encoding: str,
) -> TableRows:
    """Read files by a formula into OUT/rows, unless they are there already."""
    from modicum.rows.reading import TableRows, read_formula

    if choice.outcome or choice.predictors or choice.categorical:
        raise SettingError(
            "the formula names the outcome and the predictors: leave out --outcome, --predictors "
            "and --categorical (write C(name) for numbers that are levels)."
        )
    if missing not in ("refuse", "drop"):
        raise SettingError(f"--missing must be refuse or drop, not {missing}.")
    origin = {"files": _files(data), **asdict(choice), "encoding": encoding}
    origin |= {"formula": formula, "missing": missing}

    def make(store: Path) -> tuple[Rows, int]:
        return read_formula(
            formula,
            data,
            offset=choice.offset,
            weight=choice.weight,
            missing="drop" if missing == "drop" else "refuse",
            store=store,
            overwrite=True,
            dtype=choice.dtype,
            text_encoding=encoding,
            progressbar=not say.quiet,
        )

    return TableRows(*kept_rows(origin, make, data, out, overwrite))


def kept_rows(
    origin: dict[str, Any],
    make: Callable[[Path], tuple[Rows, int]],
    data: str,
    out: Path,
    overwrite: bool,
) -> tuple[Rows, int]:
    """Return the rows in OUT/rows, made again only where they are of another origin.

    With them comes how many rows of the table were left out.
    """
    from modicum.rows import Rows

    store, note = out / "rows", out / "rows-source.json"
    origin = json.loads(json.dumps(origin))
    known = _note(note)
    if store.is_dir() and known.get("origin") == origin and known.get("store") == _digest(store):
        return Rows.open(store), int(known.get("dropped", 0))
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
        rows, dropped = make(store)
    except Exception:
        note.write_text(json.dumps(known)) if known else note.unlink()
        raise
    entry = {"origin": origin, "store": _digest(store), "dropped": dropped}
    note.write_text(json.dumps(entry, indent=1))
    return rows, dropped


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
    source: str,
    store: Path,
    choice: ColumnChoice,
    say: Console,
    overwrite: bool,
    encoding: str = "utf-8",
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
        encoding=encoding,
    )


def sample_rows(
    model: BaseModel,
    rows: Rows,
    method: Method,
    settings: dict[str, Any],
    checkpoint: Path,
    say: Console,
) -> Posterior:
    """Sample, going on from the checkpoint if there is one."""
    from modicum.sample import sample

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

"""The steps of `modicum fit`: choose model and method, read rows, sample, write results."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from rich.console import Console

from modicum.cli.output import word
from modicum.engines import EngineChoice, Local, Ray
from modicum.errors import ModicumWarning, SettingError, suggestion
from modicum.files import Json, Lock, place_name, refuse_uri, whole_file
from modicum.libraries import pandas as pd
from modicum.methods import HMCECS, NUTS, Auto, ECSExpert, Laplace, Method, resolve
from modicum.models import BaseModel, LinearPredictorModel
from modicum.models.families import family_named
from modicum.models.multilevel import HoldEffects
from modicum.posterior import Posterior
from modicum.results import Origin
from modicum.rows import Rows, ingest
from modicum.rows.lake import Listing
from modicum.rows.reading import Missing, is_store, read_formula
from modicum.run.chains import ChainCount
from modicum.sample import RunSettings, draw

RESULTS = ("posterior", "summary.csv")
REPORT = "report.html"
LOCK, WRITING = "fit.lock", "writing results"
BEING_MADE = "being made"
Values: TypeAlias = dict[str, Any]  # keyword arguments, which their class checks
# family fields without an option
NOT_OPTIONS = ("priors", "resolved_priors", "groups", "smooths", "coding")


def chosen_columns(
    outcome: str | None,
    predictors: Sequence[str] | None,
    offset: str | None,
    weight: str | None,
    categorical: Sequence[str] | None,
    dtype: str | None,
) -> Values:
    """Return the columns that options name, as arguments of `ingest`: lists, reference levels."""
    pairs = [item.partition("=") for item in split(categorical)]
    return {
        "outcome": outcome,
        "predictors": split(predictors) if predictors else None,
        "offset": offset,
        "weight": weight,
        "categorical": {name: reference if eq else None for name, eq, reference in pairs},
        "dtype": dtype,
    }


def split(items: Sequence[str] | None) -> list[str]:
    """Flatten repeated options and comma-separated lists."""
    return [part.strip() for item in items or () for part in item.split(",") if part.strip()]


def build_model(family: str, options: Values, settings: Sequence[str] = ()) -> LinearPredictorModel:
    """Return the named family with its settings.

    Parameters
    ----------
    family
        Name of the family.
    options
        Settings that have their own command-line option; None if the option is absent.
    settings
        Further settings, each NAME=VALUE.
    """
    model = family_named(family)
    takes = [field.name for field in fields(model) if field.name not in NOT_OPTIONS]
    by_option = {option: value for option, value in options.items() if value is not None}
    if "link" in by_option and "link" not in takes:  # the link of another family
        return build_model(f"{family}-{by_option['link']}", options | {"link": None}, settings)
    for option in by_option:
        if option not in takes:
            raise SettingError(
                f"--{option.replace('_', '-')} does not apply to the family {family}: leave it out."
            )
    by_name = named_values("--family-set", settings, takes, f"the family {family}")
    twice = sorted(by_option.keys() & by_name.keys() - {"intercept"})
    if twice:
        raise SettingError(
            f"{twice[0]} is given by --{twice[0].replace('_', '-')} and by --family-set: leave one "
            "of them out."
        )
    return model(**by_option | by_name)


def build_method(name: str, settings: Sequence[str]) -> Method:
    """Return a method with its settings, each NAME=VALUE.

    With "auto", the method is the first one that has all of the settings.
    """
    method = type(resolve(name))
    if not settings:
        return method()
    names = {setting.partition("=")[0].strip().replace("-", "_") for setting in settings}
    if method is Auto:
        candidates = (cls for cls in (Auto, HMCECS, Laplace, NUTS) if names <= set(_settings(cls)))
        method = next(candidates, HMCECS)
    values = named_values("--set", settings, _settings(method), method.name)
    own = {f.name for f in fields(method)}  # type: ignore[arg-type]
    expert = {name: values.pop(name) for name in values.keys() - own}
    return method(**values, **({"expert": ECSExpert(**expert)} if expert else {}))


def _settings(method: type[Method] | type[ECSExpert]) -> list[str]:
    """Return the names of a method's settings, with those of an expert among them."""
    names = [f.name for f in fields(method) if f.init]  # type: ignore[arg-type]
    if "expert" not in names:
        return names
    return [name for name in names if name != "expert"] + _settings(ECSExpert)


def named_values(option: str, settings: Sequence[str], takes: Sequence[str], of: str) -> Values:
    """Parse settings, each NAME=VALUE with a name in `takes`; messages call their owner `of`."""
    values: Values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in takes:
            raise SettingError(
                f"{option} {setting} is not a setting of {of}{suggestion(key, takes)}; give "
                f"NAME=VALUE, where NAME is one of {', '.join(takes)}."
            )
        values[key] = _value(text.strip())
    return values


def build_engine(name: str, address: str | None) -> EngineChoice:
    """Return the named engine."""
    if word("--engine", name.lower(), Literal["local", "ray"]) == "ray":
        return Ray(address=address)
    if address is not None:
        raise SettingError("--address is the address of a Ray cluster: add --engine ray.")
    return Local()


def _value(text: str) -> object:
    """Parse a Python number, boolean, None or list; anything else is text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def check_prob(prob: float) -> None:
    """Refuse an impossible probability before hours of sampling."""
    if not 0 < prob < 1:
        raise SettingError(f"--prob must be between 0 and 1, not {prob:g}.")


def chain_count(text: str) -> ChainCount:
    """Parse a number of chains, or "auto"; `sample` refuses anything else."""
    return int(text) if text.lstrip("-").isdigit() else cast("ChainCount", text)


def parse_groups(groups: str | None, formula: str | None) -> HoldEffects | None:
    """Return how group effects are treated; refuse any other word."""
    if groups is not None and formula is None:
        raise SettingError(
            "--groups needs a formula with group terms, such as 'late ~ hour + (1 | carrier)': "
            "give one, or leave --groups out."
        )
    return word("--groups", groups, HoldEffects)


@contextmanager
def result_folder(out: Path, overwrite: bool, report: bool) -> Iterator[Callable[[], None]]:
    """Make the result folder, hold it, and yield a function to call before results are written.

    The results of a finished fit are replaced only with `overwrite`; those of one that was killed
    while it wrote them, or before it was done with its checkpoint, are not of a finished one.
    """
    refuse_uri(out)
    if out.exists() and not out.is_dir():
        raise SettingError(f"'{out}' exists and is not a folder: name another one with --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"the folder '{out}' cannot be created ({error.strerror}): name another one with --out."
        ) from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise SettingError(f"'{out}' cannot be written: name another folder with --out.")
    lock = Lock(out / LOCK, f"the folder '{out}'")
    try:
        _refuse_results(out, overwrite or lock.left == WRITING, report)
        yield lambda: lock.leave(WRITING)
    except BaseException:
        lock.release() if lock.left == WRITING else lock.remove()
        raise
    lock.remove()


def _refuse_results(out: Path, overwrite: bool, report: bool) -> None:
    """Refuse a folder with results that may not be replaced."""
    for name in (*RESULTS, REPORT) if report else RESULTS:
        if (out / name).is_dir():
            raise SettingError(
                f"'{out / name}' is a folder, but it is the name of a result file: remove it, or "
                "name another folder with --out."
            )
        if (out / name).exists() and not overwrite:
            raise SettingError(
                f"'{out / name}' holds the results of an earlier fit: add --overwrite to replace "
                "them, or name another folder with --out."
            )


def require_path(data: str) -> None:
    """Refuse text that cannot be a file name."""
    if not data.strip() or "\0" in data:
        raise SettingError(f"{data!r} is not a path: name the data.")
    if "~" in data.strip()[1:] and not Path(data).exists():
        raise SettingError(
            f"{place_name(data)!r} is a formula, but the data come first: modicum fit DATA 'y ~ x' "
            "--out OUT."
        )


def read_rows(
    data: str,
    columns: Values,
    out: Path,
    say: Console,
    overwrite: bool = False,
    encoding: str = "utf-8",
    formula: str | None = None,
    missing: str = "refuse",
    by_class: str | None = None,
    matrices: Sequence[str] = (),
) -> Rows:
    """Open a row store, or read files into OUT/rows unless they are there already."""
    if formula is None and is_store(data):
        rows = Rows.open(data)
        by_role = ("predictors", "offset", "weight", "categorical")
        is_chosen = any(columns[role] for role in by_role)
        if is_chosen or columns["outcome"] not in (None, rows.outcome):
            raise SettingError(
                f"{place_name(data)} is a row store, whose columns were chosen when it was made "
                f"(outcome {rows.outcome!r}): leave out the options that name columns."
            )
        return rows
    if formula is None and columns["outcome"] is None:
        raise SettingError(
            "name the column of the outcome with --outcome NAME, or give a formula after the data."
        )
    of_formulas = ("outcome", "predictors", "categorical")
    if formula is not None and any(columns[name] for name in of_formulas):
        raise SettingError(
            "the formula names the outcome and the predictors: leave out --outcome, --predictors "
            "and --categorical (write C(name) for numbers that are levels)."
        )
    how, tables = word("--missing", missing, Missing), _tables(matrices, formula)
    origin = {"files": Listing.of([data]).identity, **columns, "encoding": encoding}
    if formula is not None:
        origin |= {"formula": formula, "missing": missing, "by_class": by_class}
        origin["matrices"] = {name: Listing.of([path]).identity for name, path in tables.items()}

    def make(store: Path) -> Rows:
        always: Values = {"overwrite": True, "encoding": encoding, "progressbar": not say.quiet}
        if formula is None:
            return ingest(data, store, **columns, **always)
        return read_formula(
            formula,
            data,
            offset=columns["offset"],
            weights=columns["weight"],
            missing=how,
            store=store,
            dtype=columns["dtype"],
            by_class=by_class,
            matrices=tables,
            **always,
        )

    return stored_rows(origin, make, data, out, overwrite)


def _tables(matrices: Sequence[str], formula: str | None) -> dict[str, str]:
    """Parse names and files of tables of neighbours, each NAME=FILE."""
    pairs = [text.partition("=") for text in matrices]
    for name, _, path in pairs:
        if not (name.strip() and path.strip() and formula is not None):
            raise SettingError(
                f"--matrix {name} must be NAME=FILE, and a formula must name it as in car(region, "
                "NAME)."
            )
    return {name.strip(): path.strip() for name, _, path in pairs}


def stored_rows(
    origin: dict[str, object],
    make: Callable[[Path], Rows],
    data: str,
    out: Path,
    overwrite: bool,
) -> Rows:
    """Return the rows in OUT/rows, made again only if their origin has changed.

    Their origin is files, columns and formula. A store there that `fit` did not make is replaced
    only with `overwrite`.
    """
    store, note = out / "rows", out / "rows-source.json"
    origin = json.loads(json.dumps(origin))
    entry = _note(note)
    unchanged = bool(entry) and entry.get("store") == _digest(store)
    if store.is_dir() and unchanged and entry.get("origin") == origin:
        return Rows.open(store)
    made_here = unchanged or entry.get("store") == BEING_MADE
    if store.exists() and not made_here and not overwrite:
        raise SettingError(
            f"'{store}' already exists and was not made from {place_name(data)} by this command: "
            "add --overwrite to replace it, or name another folder with --out."
        )
    # If this command is killed now, the next one may replace the store without --overwrite.
    _write_note(note, {"origin": origin, "store": BEING_MADE})
    try:
        made = make(store)
    except Exception:
        _write_note(note, entry) if entry else note.unlink()
        raise
    _write_note(note, {"origin": origin, "store": _digest(store)})
    return made


def _write_note(path: Path, entry: dict[str, Json]) -> None:
    with whole_file(path) as part:
        part.write_text(json.dumps(entry, indent=1))


def _note(path: Path) -> dict[str, Json]:
    """Read the note about the store that `fit` made; empty if there is none."""
    try:
        entry = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _digest(store: Path) -> str | None:
    """Return the digest of the store's description, which holds the checksums of its files."""
    try:
        return hashlib.sha256((store / "rows.json").read_bytes()).hexdigest()
    except OSError:
        return None


def sample_rows(
    model: BaseModel,
    rows: Rows,
    settings: RunSettings,
    say: Console,
    origin: Origin,
) -> Posterior:
    """Sample, continuing from the checkpoint if there is one."""
    folder = Path(settings.checkpoint or "")
    if (folder / "run.json").is_file():
        say.print(f"Continuing from the checkpoint in {folder}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)  # printed at the end
        post = draw(model, rows, settings, origin)
    if not post.settings["complete"]:  # stopped by Ctrl-C, which `draw` has handled
        raise KeyboardInterrupt
    return post


def write_results(post: Posterior, out: Path, prob: float) -> pd.DataFrame:
    """Write OUT/posterior and OUT/summary.csv; return the summary."""
    table = post.summary(prob=prob)
    post.save(out / "posterior")
    with whole_file(out / "summary.csv") as part:
        table.to_csv(part, index_label="parameter")
    return table

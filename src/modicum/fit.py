"""`mo.fit`: fit the regression that a formula describes to a table."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from modicum.arguments import names_checked
from modicum.digest import Digest
from modicum.errors import ModicumWarning, SettingError, argument, suggestion
from modicum.libraries import pandas as pd
from modicum.libraries import pyarrow as pa
from modicum.methods import Method
from modicum.methods.method import Tuning
from modicum.models import FAMILIES, BaseModel, GroupTerm, LinearPredictorModel
from modicum.models.families import as_family, terms_by_class
from modicum.models.model import Params
from modicum.models.multilevel import HoldEffects, multilevel
from modicum.models.observed import CENSORED
from modicum.models.priors.distributions import Monotonic, Prior
from modicum.models.priors.resolved import columns_of
from modicum.models.terms import INTERCEPT, SmoothTerm
from modicum.passes import EngineChoice
from modicum.posterior import Posterior
from modicum.progress import Progressbar
from modicum.results import Origin
from modicum.rows import Rows
from modicum.rows.formula import FormulaEncoding
from modicum.rows.formula.expressions import Expression
from modicum.rows.formula.parsing import ARGUMENTS_OF, COUNT, OF_CLASSES
from modicum.rows.reading import Missing, TableFiles, read_formula
from modicum.run.chains import ChainCount, Parallel
from modicum.sample import RunSettings, draw, repeatable

if TYPE_CHECKING:
    import polars as pl
# What brms has after the outcome's | and Modicum's families do not read.
FIELDS_ELSEWHERE = {
    "rate": "add offset(log({0})) to the terms",
    "subset": "leave the other rows out of the table",
    "mi": "write se({0}, sigma=True) if {0} is the known error of each outcome",
    **dict.fromkeys(("thres", "cat"), "classes are counted, or give mo.models.Ordinal(classes=5)"),
}
# Arguments that say how a table is read.
OF_TABLES = ("weights", "offset", "matrices", "missing", "store", "dtype", "encoding")

MOST_EFFECTS = 20  # per level of a group; their correlations number half the square of it

Table: TypeAlias = (
    "pd.DataFrame | pl.DataFrame | pa.Table | pa.dataset.Dataset | str | os.PathLike[str] | Rows"
    " | Digest"
)


@names_checked
def fit(
    formula: str | Sequence[str],
    data: Table,
    family: str | type[LinearPredictorModel] | LinearPredictorModel = "logistic",
    *,
    priors: Mapping[str, Prior] | None = None,
    weights: str | None = None,
    offset: str | None = None,
    matrices: Mapping[str, object] | None = None,
    groups: HoldEffects | None = None,
    missing: Missing = "refuse",
    store: str | os.PathLike[str] | None = None,
    dtype: object = None,
    encoding: str = "utf-8",
    collapse: bool = True,
    method: str | Method | None = "auto",
    draws: int | None = None,
    tune: int | None = None,
    chains: ChainCount = 4,
    superchains: int | None = None,
    passes: float | None = None,
    thin: int = 1,
    random_seed: int | None = None,
    progressbar: Progressbar = True,
    checkpoint: str | os.PathLike[str] | None = None,
    parallel: Parallel | None = None,
    starts: int | Sequence[Params] | None = None,
    engine: EngineChoice | None = None,
) -> Posterior:
    """Fit a regression to a table.

    The table is read in batches: first to learn the levels of categorical columns, the knots of
    splines and the centres, then to encode it. Categorical columns (text, categories, booleans,
    and arguments of ``C(...)``) stay integer codes.

    Parameters
    ----------
    formula
        As in R: ``"late ~ carrier + bs(hour, df=6) + dist:origin + offset(log_n)"``. The outcome
        may be computed (``late > 15``). Terms may call elementwise functions (``log``,
        ``np.sqrt`` ...) and ``bs``, ``cr``, ``cc``, ``poly``, ``center``, ``scale`` and
        ``C(column, contr.sum, levels=[...])``. ``0 +`` drops the intercept, ``.`` stands for
        all other columns. ``s(hour, k=10)`` is a smooth curve whose wiggliness is estimated,
        ``s(hour, by=origin)`` one for each level, ``s(hour, bs="cc")`` a cycle, and
        ``te(hour, dist)`` a surface. ``rw(week)`` is a random walk over ordered levels, and
        ``car(region, W)`` has regions resemble their neighbours; ``mo(size)`` is a monotonic
        effect, and ``cs(dose)`` one that differs between ordered classes.
        ``(1 | ward)``, ``(1 + dose | ward)``, ``(dose || ward)`` and ``(1 | school/class)`` are
        effects that vary between groups, each with its own standard deviation; before the bar
        stand terms like any other, also factors and interactions.
        Further fields of the outcome follow it after a bar: ``"wins | trials(games) ~ team"``
        fills the field `trials`, and ``"days | event(died) ~ dose"``, ``cens(c, y2)``,
        ``trunc(lb=0)`` and ``se(s)`` say what is known of an outcome. Further formulas explain
        other parameters of the family, on the logarithm or logit: ``("delay ~ hour",
        "scale ~ carrier")``, or both in one text, separated by a semicolon.
    data
        A pandas or polars data frame, an Arrow table or dataset, a path or glob of Parquet, CSV
        or Feather files, a row store or `mo.Rows` with named columns; or a digest
        (`mo.digest(post, table)`) of the same formula, to change priors without the data.
    family
        A name ("logistic", "gaussian", "poisson" ...), a family (`mo.models.Poisson`), or one
        with settings (`mo.models.StudentT(df=3)`). "logistic" takes an outcome of two levels, the
        second of which counts as 1; "softmax" takes one of several levels.
    priors
        Priors by key: "intercept", "common", or the name of a term or column; for group terms
        "group_sd", "group_cor" or the name of the group, for smooths "smooth_sd". Single
        coefficients and standard deviations also go by their names in the summary.
    weights
        A column of frequency weights: a row with weight 3 counts as three rows.
    offset
        A column that is added to the predictor; also `offset(column)` in the formula.
    matrices
        Tables of neighbours, by the names that ``car(region, W)`` has for them: ``{"W": pairs}``
        with pairs of neighbours in two columns, and perhaps their weights in a third; or a square
        data frame with the levels as index and columns.
    groups
        How to treat group effects: "explicit", as parameters, or "integrate", which integrates
        them out and allows any number of groups of one factor. None: whichever costs less.
    missing
        What to do with a row with a missing value in a column that the formula uses: "refuse"
        raises an error; "drop" leaves the row out and reports how many were dropped.
    store
        A folder, or a URI on object storage, for the encoded rows of data that do not fit in
        memory. With group terms they are sorted on disk by the factor with the most levels.
    dtype
        float32 or float64; None: float32 if no floating-point column is wider, else float64.
    encoding
        Text encoding of CSV files.
    collapse
        Whether equal rows are evaluated as one row with a weight, if at least a third are repeated.
        The posterior is the same; `post.ledger` gives the number of distinct rows. Methods that
        draw rows uniformly keep them apart.
    method, draws, tune, chains, superchains, passes, thin, random_seed, progressbar
        As in `mo.sample`.
    checkpoint, parallel, starts, engine
        As in `mo.sample`.

    Returns
    -------
    Posterior
        It remembers the encoding, so that `predict`, `score` and `correct` accept tables.

    Examples
    --------
    >>> import numpy as np, pandas as pd, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> trips = pd.DataFrame({"dose": rng.normal(size=500), "ward": rng.choice(list("abc"), 500)})
    >>> trips["well"] = rng.random(500) < 1 / (1 + np.exp(-trips["dose"]))
    >>> post = mo.fit("well ~ dose + ward", trips, draws=500, tune=300, random_seed=1,
    ...               progressbar=False)
    >>> list(post.summary().index)
    ['beta[dose]', 'beta[ward[b]]', 'beta[ward[c]]', 'intercept']
    >>> len(post.predict(pd.DataFrame({"ward": ["c"], "dose": [0.5]})))
    1
    """
    asked = dict(locals())
    settings = RunSettings.of(asked)
    by_class, formula = terms_by_class(family), one_text(formula)
    if isinstance(data, Digest):
        defaults = signature(fit).parameters
        no_effect = [name for name in OF_TABLES if asked[name] != defaults[name].default]
        has_groups = _check_digest(formula, data, no_effect, groups)
        rows = data.pool.rows
        held = model_for(rows, family, priors, "explicit" if has_groups else groups)
        post = draw(held.model, data, settings, origin_of(rows, held, None))
        return repeatable(post, fit, asked)
    how: dict[str, Any] = {name: asked[name] for name in OF_TABLES}
    how |= {"progressbar": progressbar, "by_class": by_class}
    rows = read_formula(formula, data, **how)
    no_chain = settings.sampler().may_draw_normals
    held = model_for(rows, family, priors, groups, no_chain)
    origin = origin_of(rows, held, TableFiles.of(data, encoding))
    return repeatable(draw(held.model, rows, settings, origin), fit, asked)


def one_text(formula: object) -> str:
    """Return formulas of several parameters as one text."""
    if isinstance(formula, list | tuple) and all(isinstance(part, str) for part in formula):
        return "; ".join(formula)
    return formula  # type: ignore[return-value]  # the parser refuses what is not text


def _check_digest(formula: str, data: Digest, settled: Sequence[str], groups: object) -> bool:
    """Refuse a digest of another formula, and arguments that it has settled.

    Returns
    -------
    bool
        Whether the formula has group terms.
    """
    encoding = data.schema.encoding
    if encoding is None:
        raise SettingError(
            "the digest was not made from a formula; sample it with mo.sample(model, digest)."
        )
    if "".join(str(formula).split()) != "".join(encoding.formula.split()):
        raise SettingError(
            f"the digest was made for the formula {encoding.formula!r}, and another formula needs "
            "the data: give that formula, or the table."
        )
    if settled:
        names = " and ".join(settled)
        raise SettingError(
            f"the rows of a digest were read when it was made, so that {names} would have no "
            f"effect: leave {names} out, or pass the table instead of the digest."
        )
    if encoding.groups and groups not in (None, "explicit"):
        raise SettingError(
            f"a digest keeps explicit group effects, so that groups={groups!r} would have no "
            "effect: leave it out, or pass the table instead of the digest."
        )
    return bool(encoding.groups)


class FormulaModel(NamedTuple):
    """The model of a formula, and how its group effects are treated."""

    model: BaseModel
    tuning: Tuning


def model_for(
    rows: Rows,
    family: str | type[LinearPredictorModel] | LinearPredictorModel,
    priors: Mapping[str, Prior] | None = None,
    groups: HoldEffects | None = None,
    no_chain: bool = False,
) -> FormulaModel:
    """Return the model of a formula, for rows that were read with it.

    Parameters
    ----------
    rows
        Rows from `modicum.rows.reading.read_formula`.
    family, priors, groups
        As in `fit`.
    no_chain
        Whether the method may draw a model that is normal given its scales without a chain.
    """
    encoding = rows.schema.encoding
    assert encoding is not None, "rows were not read with a formula"
    if encoding.outcome is None:
        raise SettingError(f"the formula {encoding.formula!r} has no outcome before ~: name one.")
    if not encoding.layout.columns and not encoding.groups and not encoding.intercept:
        raise SettingError(
            f"the formula {encoding.formula!r} has neither a term nor an intercept, so that there "
            "is nothing to fit: add a term, or leave '0 +' out."
        )
    model = _model(family, encoding)
    if OF_CLASSES in dict(encoding.others):
        raise SettingError(
            f"{OF_CLASSES}(...) has an effect for each of several ordered classes, and "
            f"{type(model).__name__} has none such (those of a cumulative model could cross, and "
            "softmax has them anyway): use family='stopping-ratio' or 'adjacent-category', or "
            f"leave {OF_CLASSES} out and keep what is inside its brackets."
        )
    # parameters with formulas of their own; ``scale ~ 1`` is what they have anyway
    explained = {name for name, *_ in encoding.layout.coding.predictors}
    explained |= {group.parameter for group in encoding.groups}
    for parameter, intercept in encoding.others:
        if not intercept and parameter not in explained:
            raise SettingError(
                f"the formula of {parameter!r} has neither a term nor an intercept, so that there "
                "is nothing to fit: add a term, or leave '0 +' out."
            )
    changes: dict[str, Any] = {  # to fields of the family
        "intercept": encoding.intercept,
        "modelled": tuple(name for name, _ in encoding.others if name in explained),
        "without_intercept": tuple(name for name, intercept in encoding.others if not intercept),
        "observed": model.partial_among(encoding.fields),
        "smooths": tuple(SmoothTerm(*smooth) for smooth in encoding.smooths),
    }
    if priors is not None:
        changes["priors"] = priors
    if encoding.outcome.counted and "counts" in {f.name for f in fields(model)}:
        changes["counts"] = tuple(name for name in encoding.fields if name.startswith(COUNT))
    if model.terms_by_class is not None and changes["modelled"]:
        changes["classes"] = len(encoding.outcome.levels)
        changes["priors"] = _of_each_class(priors or {}, model, changes["modelled"], rows)
    if encoding.steps:
        changes["priors"] = _of_steps(
            dict(changes.get("priors", model.prior_table)), encoding.steps
        )
    model = replace(model, **changes)
    model.check_parameters(name for name, _ in encoding.others)
    _check_outcome(model, encoding)
    if not encoding.groups:
        if groups is not None:
            raise SettingError(
                "groups says how to treat group effects, and the formula has none: leave it out."
            )
        return FormulaModel(model, {})
    choice = multilevel(model, _group_terms(encoding), rows, groups, no_chain)
    return FormulaModel(choice.model, {"groups": {"value": choice.how, "why": choice.why}})


def _model(family: object, encoding: FormulaEncoding) -> LinearPredictorModel:
    chosen = as_family(family)
    if chosen is None:
        raise SettingError(
            "family must be a name such as 'logistic', a family such as mo.models.Poisson, or one "
            f"with settings, not {family!r}; fit any other model with mo.sample(model, rows)."
        )
    if encoding.intercept and not chosen.intercept:
        raise SettingError(
            f"the family has intercept=False and the formula {encoding.formula!r} has an "
            "intercept: write '0 +' in the formula, and leave intercept out."
        )
    return chosen


def _of_each_class(
    priors: Mapping[str, Prior], model: LinearPredictorModel, names: Sequence[str], rows: Rows
) -> dict[str, Prior]:
    """Return priors by keys of all classes, each of which replaces that of a key without a class.

    Where only the terms in ``cs(...)`` are those of classes, the keys of other terms stay.
    """
    shared: dict[str, Prior] = {}
    own: dict[str, Prior] = {}
    all_terms = not model.terms_by_class
    for key, prior in priors.items():
        kind, bracket, rest = key.partition("[")
        inside = kind in ("group_sd", "smooth_sd", "group_cor")  # names are in the brackets
        named = (rest if inside else key).startswith(tuple(f"{name}." for name in names))
        before = kind + bracket if inside else ""
        copies = [f"{name}.{key.removeprefix(before)}" for name in names]
        of_classes = all_terms or key in ("intercept", "common") or columns_of(copies[0], rows)
        if named or (inside and not bracket) or not of_classes:
            own[key] = prior
            continue
        shared |= {f"{before}{copy}": prior for copy in copies}
        if key == "common" and not all_terms:
            own[key] = prior
    return shared | own


def _of_steps(priors: Mapping[str, Prior], steps: Mapping[str, int]) -> dict[str, Prior]:
    """Return priors in which those of monotonic terms are about all of their steps."""
    table = dict(priors)
    for key, number in steps.items():
        given = table.get(key)
        if given is not None and not given.is_normal:
            raise SettingError(
                f"the prior of {key!r} must be normal without bounds, as that of a mean step, not "
                f"{given}."
            )
        numbers = () if given is None else given.numbers
        table[key] = Monotonic(number, *numbers)
    return table


def _group_terms(encoding: FormulaEncoding) -> tuple[GroupTerm, ...]:
    """Return the group terms of a formula; raise if a model cannot represent them."""
    coding, terms = encoding.layout.coding, []
    # Factors whose levels have coefficients, and the parameters in whose predictors they have them.
    common = {(term.field, coding.parameters[term.first]) for term in coding.terms if term.width}
    for group, slopes in zip(encoding.groups, encoding.layout.slopes, strict=True):
        field = group.field
        if (field, group.parameter) in common:
            raise SettingError(
                f"{field!r} is both a common term and a group in {encoding.formula!r}: its levels "
                "have either pooled effects or unpooled coefficients; leave one out."
            )
        effects = (INTERCEPT,) * group.intercept + slopes
        if len(effects) > MOST_EFFECTS:
            raise SettingError(
                f"each level of {field!r} would have {len(effects):,} effects of {group}, and the "
                f"limit is {MOST_EFFECTS}: let fewer columns, or a factor with fewer levels, vary "
                "by group."
            )
        terms.append(GroupTerm(field, effects, group.correlated, group.parameter))
    return tuple(terms)


def _check_outcome(model: LinearPredictorModel, encoding: FormulaEncoding) -> None:
    """Raise if the family cannot model the outcome's levels, or needs a field that is missing."""
    outcome = encoding.outcome
    assert outcome is not None
    name, levels = type(model).__name__, outcome.levels
    classes = type(model).decide is not BaseModel.decide
    binary = classes and "classes" not in {f.name for f in fields(model)}
    listed = ", ".join(map(repr, levels[:5])) + (", ..." if len(levels) > 5 else "")
    reads_counts = "counts" in {f.name for f in fields(model)}
    if reads_counts and not outcome.counted:
        raise SettingError(
            f"{name} needs the counts of three classes or more: write cbind(a, b, c) ~ ...; for "
            "two use family='binomial', and for one class per row family='softmax'."
        )
    if outcome.counted and not reads_counts:
        raise SettingError(
            f"the outcome has counts of {len(levels)} classes ({listed}), which {name} does not "
            "read: use family='multinomial'."
        )
    if levels and set(levels) != {False, True} and not classes:
        raise SettingError(
            f"the outcome {outcome.expression!r} has levels ({listed}), and {name} needs numbers: "
            "choose a family for classes, or compute numbers from it."
        )
    if len(levels) > 2 and binary:
        raise SettingError(
            f"the outcome {outcome.expression!r} has {len(levels)} levels ({listed}), and {name} "
            f"needs two: write {outcome.expression} == {levels[-1]!r}, or use family='softmax'."
        )
    if model.has_order and outcome.alphabetical:
        raise SettingError(
            f"the levels of the outcome {outcome.expression!r} are in alphabetical order "
            f"({listed}), and {name} needs their actual order: make it an ordered category, or "
            f"write C({outcome.expression}, levels=[{listed}]) ~ ... with the lowest first."
        )
    known = (*model.outcome_fields, *model.partial_fields())
    for extra, (text, *_) in encoding.fields.items():
        if extra in ("offset", "weight", *model.row_fields):
            continue
        readers = [
            repr(key)
            for key, family in FAMILIES.items()
            if extra in (*family.outcome_fields, *family.partial_fields())
        ]
        remedy = f"use family={' or '.join(readers[:4])}, or " if readers else ""
        remedy = FIELDS_ELSEWHERE.get(extra, f"{remedy}leave it out").format(text)
        of = (call for call, names in ARGUMENTS_OF.items() if extra.removeprefix("added_") in names)
        call = next((f"{call}(...)" for call in of), f"the field {extra!r}")
        why = f": {model.no_tails}" if extra in CENSORED and not model.partial_fields() else ""
        raise SettingError(
            f"{name} does not read {call} after |{suggestion(extra, known)}{why}, so that it would "
            f"have no effect: {remedy}."
        )
    for extra in model.outcome_fields:
        if extra != "y" and extra not in encoding.fields:
            raise SettingError(
                f"{name} needs the field {extra!r} in addition to the outcome: write "
                f"{_with_field(model, outcome.expression, extra)}."
            )


def _with_field(model: LinearPredictorModel, outcome: str, field: str) -> str:
    """Return what to write for a field that is missing; a share of successes names its trials."""
    expression = Expression(outcome)
    tree = expression.tree
    if field == "trials" and isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
        successes, trials = expression.source(tree.left), expression.source(tree.right)
        return f"'{successes} | trials({trials}) ~ ...'"
    meaning = model.field_meaning.get(field)
    return f"'{outcome} | {field}(COLUMN) ~ ...'" + (f", where {meaning}" if meaning else "")


def origin_of(rows: Rows, formula_model: FormulaModel, table: object) -> Origin:
    """Return what a posterior records of a fit: formula, outcome levels, dropped rows, table."""
    encoding = rows.schema.encoding
    assert encoding is not None
    outcome = encoding.outcome
    dropped = 0 if table is None else encoding.dropped  # a digest reads no table
    settings: dict[str, object] = {"formula": encoding.formula}
    if outcome is not None and outcome.levels:
        settings["outcome_levels"] = {str(level): i for i, level in enumerate(outcome.levels)}
    doubts = []
    if dropped:
        settings["dropped_rows"] = dropped
        total = dropped + len(rows)
        doubts = [
            ModicumWarning(
                "rows-dropped",
                f"{dropped:,} of {total:,} rows were dropped because a value was missing, and the "
                "rows that were fitted may differ from them",
                f"fill in the values, or refuse such rows with {argument('missing', 'refuse')}",
                dropped=dropped,
                rows=total,
            )
        ]
    return Origin(settings, formula_model.tuning, doubts, table)

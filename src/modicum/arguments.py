"""Arguments at the door: the names that users give, and the values of settings.

Users who come from PyMC, NumPyro, Stan, brms, bambi, statsmodels or scikit-learn type the argument
names they know. Python answers such a call with a bare `TypeError`; the tables here say what the
argument is called in Modicum, or what to use instead. The values of settings, which are fields of
frozen dataclasses, are checked once, from their annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache, partial, wraps
from numbers import Number
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from modicum.errors import SettingError, UnknownArgumentError, is_number, is_whole, suggestion

P = ParamSpec("P")
R = TypeVar("R")

# Our names of arguments, and what other packages call them.
OTHER_NAMES = {
    "draws": "n_draws num_draws num_samples n_samples samples nsamples iter_sampling ndraws",
    "tune": "warmup num_warmup n_warmup iter_warmup n_tune burn burnin burn_in n_burnin tune_steps",
    "chains": "n_chains num_chains nchains nb_chains",
    "random_seed": "seed random_state rng rng_key rng_seed key",
    "random_state": "seed random_seed rng rng_key",
    "progressbar": "progress progress_bar show_progress verbose refresh",
    "thin": "thinning n_thin",
    "method": "sampler nuts_sampler algorithm inference_method step backend kernel",
    "starts": "init inits initvals init_params initial_values start",
    "checkpoint": "file save_to resume",
    "priors": "prior priors_dict",
    "weights": "weight freq_weights sample_weight case_weights frequency_weights var_weights",
    "offset": "offsets",
    "family": "likelihood distribution",
    "data": "rows df frame table newdata new_data x",
    "rows": "data df frame table newdata new_data x",
    "missing": "dropna na_action",
    "low": "lower lower_bound minimum min",
    "high": "upper upper_bound maximum max",
    "names": "var_names parameters pars params variables variable parm",
    "prob": "ci_prob level ci credible_interval conf_level confidence probability interval",
}
# Names that are not arguments here, and what to use instead.
INSTEAD_OF = {
    "iter n_iter": "other packages count warm-up and draws together: give tune and draws, "
    "per chain",
    "exposure": "an exposure is an offset on the log scale: add offset(log(COLUMN)) to the "
    "formula, or give mo.Rows its logarithms as offset=",
    "sigma": "a known scale is a setting of the family, mo.models.Gaussian(scale=...); otherwise "
    "it is estimated, with the prior mo.models.Gaussian(scale_prior=...)",
    "link": "the link belongs to the family: 'logistic', 'probit' and 'cloglog' are families, and "
    "mo.models.Binomial(link=...) takes a name",
    "cores n_jobs num_cores parallel_chains": "chains run in parallel on all available cores; "
    "leave it out",
    "chain_method": "chains run in parallel by default; parallel='stacked' vectorises them",
    "target_accept target_accept_prob adapt_delta": "it is a setting of the method: "
    "method=mo.NUTS(target_accept=...)",
    "max_treedepth max_tree_depth": "it is a setting of the method: method=mo.NUTS(max_depth=...)",
    "control": "these are settings of the method: method=mo.NUTS(target_accept=..., max_depth=...)",
    "step_size": "it is a setting of the method: method=mo.HMCECS(step_size=...)",
    "subsample": "it is a setting of the method: method=mo.HMCECS(subsample=...)",
    "tuning estimator integrator levels precision whitening fused": "it is one "
    "of the expert settings of HMC-ECS: mo.HMCECS(expert=mo.ECSExpert(...))",
    "ddof": "the paper's divisor of the variance is mo.HMCECS(expert=mo.ECSExpert("
    "estimator='paper'))",
    "batch_size": "it is a setting of stochastic-gradient methods: method=mo.SGLD(batch=...)",
    # Arguments of scikit-learn's estimators.
    "c": "the penalty is the prior here: C is the prior's variance, so give prior_scale=sqrt(C) "
    "to an estimator or to a family such as mo.models.Logistic",
    "alpha": "the penalty is the prior here: give its standard deviation as prior_scale, to an "
    "estimator or to a family such as mo.models.Logistic",
    "penalty": "the penalty is the prior here: normal by default (l2); for l1 give "
    "priors={'common': mo.priors.Laplace(...)}",
    "l1_ratio": "the penalty is the prior here: priors={'common': ...} takes any of mo.priors",
    "class_weight": "give each row its weight instead, as sample_weight of an estimator's fit or "
    "weights of mo.fit",
    "max_iter tol": "there is no optimiser to stop: tune and draws say how long the chains are",
    "solver": "there is no optimiser to choose: method=... names the sampler",
    "return_inferencedata idata_kwargs": "post.to_datatree() returns the draws for ArviZ",
    # Arguments of a posterior's methods.
    "hdi_prob": "intervals are equal-tailed here: prob=... is their probability",
    "type kind": "predict() gives expected outcomes with an interval, and predictive() draws "
    "outcomes",
    "re_formula re_form": "groups=... chooses whose effects are used: 'known', 'new' or 'any'",
    "allow_new_levels sample_new_groups": "groups='any' takes new groups, and newlevels=... "
    "new levels of columns",
    "round_to digits fmt": "summary() returns a data frame, which rounds: summary().round(2)",
    # Arguments of mo.fit given to mo.sample, and vice versa.
    "formula": "mo.sample takes a model and rows; mo.fit(formula, table) takes a formula",
    "priors": "priors belong to the model: mo.models.Logistic(priors={...})",
    "family": "the model says what the family is: mo.models.Poisson()",
    "weights": "weights are a field of the rows: mo.Rows(x=X, y=y, weight=w)",
    "offset": "offsets are a field of the rows: mo.Rows(x=X, y=y, offset=...)",
    "groups": "groups are part of a formula: mo.fit('y ~ x + (1 | ward)', table)",
    "missing": "drop rows with missing values beforehand, as by table.dropna()",
    "model": "the formula and the family define the model; mo.sample(model, rows) takes a model",
}
INSTEAD = {name: text for names, text in INSTEAD_OF.items() for name in names.split()}


def names_checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` explain an unknown argument by what it is called here.

    Examples
    --------
    >>> @names_checked
    ... def sample(draws=1_000, tune=1_000): ...
    >>> try:
    ...     sample(num_samples=500)
    ... except UnknownArgumentError as unknown:
    ...     print(unknown)
    sample() has no argument 'num_samples': it is called draws here.
    """
    known = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                is_class = function.__name__ == "__init__"
                called = type(args[0]).__name__ if is_class else function.__name__
                raise UnknownArgumentError(
                    f"{called}() has no argument {name!r}{_answer(name, known)}."
                )
        return function(*args, **kwargs)

    return checked


def arguments_checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` explain unknown arguments, and refuse values that its annotations exclude.

    Examples
    --------
    >>> @arguments_checked
    ... def loo(draws: Count = 4_000, groups: Literal["known", "new"] | None = None): ...
    >>> try:
    ...     loo(groups="all")
    ... except SettingError as fault:
    ...     print(fault)
    groups must be 'known', 'new' or None, not 'all'.
    """
    named, known = names_checked(function), tuple(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        rules = _rules_of_arguments(function)
        for name, value in (*zip(known, args, strict=False), *kwargs.items()):
            if name in rules:
                _require(name, value, *rules[name])
        return named(*args, **kwargs)

    return checked


def _answer(name: str, known: Collection[str]) -> str:
    """Say what an unknown argument is called here, what to use instead, or what it resembles."""
    tidy = name.lower()
    ours = [tidy, *(own for own, others in OTHER_NAMES.items() if tidy in others.split())]
    for own in ours:
        if own in known:
            return f": it is called {own} here"
    for own in ours:
        if own in INSTEAD:
            return f": {INSTEAD[own]}"
    listed = ", ".join(argument for argument in known if argument != "self")
    return suggestion(name, known) or f"; it has {listed}"


# Values ------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What a setting must be, in words and as a test; it is part of its annotation."""

    words: str
    holds: Callable[[Any], bool]
    names: Collection[str] = ()  # a registry, which is listed after the words
    kept: Callable[[Any], Any] | None = None  # what is kept of a value; None: the value

    def __str__(self) -> str:
        return f"{self.words} {', '.join(self.names)}".rstrip()


def at_least(least: int) -> Rule:
    """Accept whole numbers of at least `least`."""
    return Rule(f"a whole number of at least {least}", lambda v: is_whole(v) and v >= least)


def number(words: str, holds: Callable[[float], bool]) -> Rule:
    """Accept finite numbers for which `holds`."""
    return Rule(words, lambda v: is_number(v) and holds(v))


def among(*values: int) -> Rule:
    """Accept one of a few numbers."""
    return Rule(_listed(map(str, values)), lambda v: is_whole(v) and v in values)


def one_of(registry: Collection[str]) -> Rule:
    """Accept the names of a registry, which others may extend."""
    return Rule("one of", lambda v: isinstance(v, str) and v in registry, registry)


def _is_point(value: Any) -> bool:
    """Whether a value is numbers, or converts to them."""
    try:
        np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return False
    return value is not None and not isinstance(value, str)


def _as_tuple(value: Any) -> tuple[float, ...]:
    """Return a point as plain numbers: hashable, and fully shown by repr."""
    return tuple(np.asarray(value, np.float64).ravel().tolist())


Count: TypeAlias = Annotated[int, at_least(1)]
FromZero: TypeAlias = Annotated[int, at_least(0)]
FromTwo: TypeAlias = Annotated[int, at_least(2)]
Positive: TypeAlias = Annotated[float, number("a positive number", lambda v: v > 0)]
Share: TypeAlias = Annotated[float, number("a number between 0 and 1", lambda v: 0 < v < 1)]
BelowOne: TypeAlias = Annotated[float, number("at least 0 and below 1", lambda v: 0 <= v < 1)]
Bytes: TypeAlias = Annotated[int, number("a number of bytes", lambda v: v >= 0)]
Point: TypeAlias = Annotated[
    tuple[float, ...] | np.ndarray, Rule("a point", _is_point, (), _as_tuple)
]

LONG = 200  # characters of a value, above which its type says enough
PLAIN: dict[Any, list[Rule]] = {
    int: [Rule("a whole number", is_whole)],
    float: [Rule("a number", is_number)],
    str: [Rule("text", lambda v: isinstance(v, str))],
    bool: [
        Rule("True", lambda v: isinstance(v, bool | np.bool_) and bool(v)),
        Rule("False", lambda v: isinstance(v, bool | np.bool_) and not v),
    ],
    NoneType: [Rule("None", lambda v: v is None)],
}


def check_settings(settings: Any) -> None:  # a dataclass, for which Python has no name
    """Raise unless every field of a dataclass is what its annotation says; its `__post_init__`.

    Numbers, text, booleans, None, `Literal` and `Rule` are checked. A field whose annotation has
    anything else is left to its class. A text in the annotation is a hint, which ends the sentence.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Stage:
    ...     steps: Annotated[Count | Literal["auto"], "100 are usual"] = "auto"
    ...     def __post_init__(self): check_settings(self)
    >>> try:
    ...     Stage(steps=0)
    ... except SettingError as fault:
    ...     print(fault)
    steps must be a whole number of at least 1 or 'auto', not 0; 100 are usual.
    """
    for name, (rules, hint) in _rules(settings.__class__).items():
        value = getattr(settings, name)
        rule = _require(name, value, rules, hint)
        if rule.kept is not None:
            object.__setattr__(settings, name, rule.kept(value))


def _require(name: str, value: object, rules: Sequence[Rule], hint: str) -> Rule:
    """Return the first rule that a value obeys, or say what it must be."""
    rule = next((rule for rule in rules if rule.holds(value)), None)
    if rule is not None:
        return rule
    near = suggestion(str(value), [known for rule in rules for known in rule.names])
    shown = repr(value)
    if "\n" in shown or len(shown) > LONG:
        shown = f"a {type(value).__name__}"
    needed = f"{name} must be {_listed(map(str, rules))}, not {shown}{near}"
    raise SettingError(f"{needed}; {hint}." if hint else f"{needed}.")


def _listed(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


@cache
def _rules(kind: type[Any]) -> dict[str, tuple[list[Rule], str]]:
    """Return the rules of each field that is checked, one of which must hold, and its hint."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # the annotations of a user's class may name something local
        if kind.__module__.startswith("modicum."):
            raise
        return {}
    return _by_name({field.name: hints[field.name] for field in fields(kind)})


@cache
def _rules_of_arguments(function: Callable[..., object]) -> dict[str, tuple[list[Rule], str]]:
    """Return the rules of a function's arguments; what is true or false needs none."""
    hints: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        alone = SimpleNamespace(__annotations__={name: parameter.annotation})
        with suppress(NameError, TypeError):  # annotations for type checkers alone
            hints |= get_type_hints(alone, function.__globals__, include_extras=True)
    return _by_name({name: hint for name, hint in hints.items() if hint is not bool})


def _by_name(hints: Mapping[str, Any]) -> dict[str, tuple[list[Rule], str]]:
    """Return the rules and the hint of each annotation that has any."""
    found = {name: list(_alternatives(hint)) for name, hint in hints.items()}
    return {
        name: ([rule for rule in rules if rule is not None], _hint(hints[name]))
        for name, rules in found.items()
        if None not in rules
    }


def _alternatives(hint: Any) -> Iterator[Rule | None]:  # a type, in any form that Python has
    """Yield a rule for every alternative of a type, or None if there is none for it."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        for part in parts:
            yield from _alternatives(part)
    elif kind is Annotated:
        rules = [part for part in parts if isinstance(part, Rule)]
        yield from rules or _alternatives(parts[0])
    elif kind is Literal:
        yield from (Rule(repr(part), partial(_equal, part)) for part in parts)
    else:
        yield from PLAIN.get(hint, [None])


def _hint(annotation: Any) -> str:
    extras = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((extra for extra in extras if isinstance(extra, str)), "")


def _equal(known: object, value: object) -> bool:
    return isinstance(value, str | Number) and value == known  # arrays are not compared

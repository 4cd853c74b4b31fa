"""Tables of a posterior: its scalars, hypotheses about them, or a statistic along the run.

A hypothesis compares expressions of lines of the summary. It is read by the interpreter of
formulas, which never calls `eval`; names that are no identifiers, such as ``carrier[DL]``, are
found in the text before it is parsed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from modicum.arguments import Share
from modicum.diagnostics import r_hat
from modicum.diagnostics.weighted import diagnose, ends_of, weighted_mean
from modicum.errors import SettingError, UnknownNameError, is_number, warn_of
from modicum.libraries import pandas as pd
from modicum.models.linear_predictor import family_of
from modicum.posterior.fitted import FittedDraws, require_positive_sum, scalar_names
from modicum.rows.checks import names_like
from modicum.rows.coding import LevelArray
from modicum.rows.formula.expressions import Expression
from modicum.rows.formula.interpreter import evaluate

Statistic: TypeAlias = Callable[[dict[str, np.ndarray]], float | Mapping[str, float]]
"""Maps the chains' current draws, arrays (chain, *shape) by name, to one number or a dict."""
EFFECTS = "|("  # mark pooled coefficients, "1|ward" and "s(hour)"; they may be many, and come last
CURVE_POINTS = 50  # default number of points of a learning curve


def summary(
    post: FittedDraws,
    names: Sequence[str] | str | None = None,
    prob: Share = 0.9,
    exponentiate: bool = False,
) -> pd.DataFrame:
    """Tabulate every scalar: mean, sd, interval, Monte Carlo error, ESS, R-hat.

    The interval is equal-tailed with posterior probability `prob`; its two columns are named
    after their quantiles, such as ``5%`` and ``95%``. With signs or weights, `mcse_mean`,
    `ess_bulk`, `ess_tail` and `r_hat` are those of the ratio estimate (delta method, batch
    means), and ``attrs`` holds the mean weight and the R-hat of the weights. If chains share
    starting points (`superchains` of `mo.sample`), there is a column `nested_r_hat`. Effects of
    groups come last; `names` selects parameters (``"beta"``) or single lines (``"beta[age]"``).

    With `exponentiate`, the table is that of e^coefficient: odds ratios of a logistic regression,
    rate ratios of counts (``attrs["multiplies"]`` says of what), e^intercept being the odds or the
    rate itself. Of a parameter with a formula of its own, they are ratios of that parameter.
    Parameters that are no logarithms of ratios, such as standard deviations, are left out.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> draws = {"beta": np.log([[[2.0], [2.0], [3.0]]]), "intercept": np.zeros((1, 3))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=1), labels={"beta": ["dose"]})
    >>> post.predictor = mo.models.over_draws.ModelPredictor(mo.models.Logistic())
    >>> ratios = post.summary(exponentiate=True)
    >>> ratios["mean"].round(2).to_dict(), ratios.attrs["multiplies"]
    ({'beta[dose]': 2.33, 'intercept': 1.0}, 'odds')
    """
    multiplies = ""
    if exponentiate:
        post, multiplies = _exponentiated(post), post.fitted_model().row_model.multiplies
    superchains, weights = post.settings.get("superchains"), post.unequal_weights
    if names is None:
        names = sorted(post.draws, key=is_pooled)
    requests = [names] if isinstance(names, str) else list(names)
    parts = []
    for name in requests:
        x = post[name]
        moments = (post.mean(name), post.sd(name), *post.quantile(name, ends_of(prob)))
        columns = dict(zip(interval_columns(prob), moments, strict=False))
        columns |= diagnose(x, weights, superchains)
        index = scalar_names(name, x.shape[2:], post.labels)
        parts.append(pd.DataFrame({k: np.ravel(v) for k, v in columns.items()}, index=index))
    table = pd.concat(parts) if parts else pd.DataFrame()
    if exponentiate:
        table.attrs["multiplies"] = multiplies
    if weights is not None:
        table.attrs["mean_weight"] = float(weights.mean())
        table.attrs["r_hat_weight"] = r_hat(weights)
    return table


def _exponentiated(post: FittedDraws) -> FittedDraws:
    """Return e^coefficient in place of all parameters; refuse coefficients that only add."""
    family = post.fitted_model().row_model
    draws = {
        name: np.exp(np.asarray(x, float))
        for name, x in post.draws.items()
        # a coefficient of another parameter, "scale.beta", is that of its logarithm or logit
        if (family.multiplies or ("." in name and not is_pooled(name.partition(".")[0])))
        and (name.rpartition(".")[2] in ("beta", "intercept") or "|" in name)  # a coefficient
    }
    if not draws:
        raise SettingError(
            f"the coefficients of {type(family).__name__} are no logarithms, so that their "
            "exponentials mean nothing: leave exponentiate out, or compare predictions, by "
            "post.contrast(column, comparison='ratio')."
        )
    labels = {name: labels for name, labels in post.labels.items() if name in draws}
    return replace(post, draws=draws, labels=labels)


def is_pooled(name: str) -> bool:
    """Whether a parameter or a scalar is an effect of a group's level, or part of a smooth."""
    return any(mark in name.split("[")[0] for mark in EFFECTS)


def interval_columns(prob: float) -> list[str]:
    """Return the names of the columns that hold an estimate, its interval and its error."""
    return ["mean", "sd", *map(percent, ends_of(prob)), "mcse_mean"]


def interval_table(
    values: np.ndarray,
    labels: Iterable[tuple[Any, ...]],
    names: list[str],
    prob: float,
    **facts: object,
) -> pd.DataFrame:
    """Tabulate means, sds, intervals and errors (..., 5), a line per label; `attrs` holds facts."""
    lines = list(labels)
    index: pd.Index[Any] = pd.MultiIndex.from_tuples(lines, names=names)
    if len(names) == 1:
        index = pd.Index([line for (line,) in lines], name=names[0])
    columns = interval_columns(prob)
    table = pd.DataFrame(values.reshape(-1, len(columns)), index, columns)
    table.attrs |= facts
    return table


def interval_words(prob: float) -> str:
    """Say what a band is, in every plot in these words.

    Examples
    --------
    >>> interval_words(0.9)
    'mean and 90% interval'
    """
    return f"mean and {percent(prob)} interval"


def is_share(label: str) -> bool:
    """Whether the axis of this label has chances or shares, which plots show in per cent.

    Examples
    --------
    >>> is_share("difference in the chance of late"), is_share("slope of the chance of late")
    (True, False)
    """
    return bool(re.match("(difference in the )?(observed |predicted )?(chance|share) of", label))


def prob_of(table: pd.DataFrame) -> float:
    """Return the probability of the intervals of a table, by the names of its columns."""
    low, high = (float(name.rstrip("%")) for name in table.columns[2:4])
    return (high - low) / 100


def added_words(post: FittedDraws, name: str) -> str:
    """Say what the effect of a level or a smooth is, in every plot in these words."""
    family = family_of(post.fitted_model())
    return f"{name}, added to the {family.predictor_words(name, post.outcome_name())}"


def percent(level: float) -> str:
    """Format a probability as a column name.

    Examples
    --------
    >>> percent(0.05), percent(0.975)
    ('5%', '97.5%')
    """
    return f"{round(100 * level, 6):g}%"


def learning_curve(
    post: FittedDraws,
    statistic: Statistic,
    at: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Follow a statistic across chains, taken as independent realisations, along the run.

    Parameters
    ----------
    statistic
        Function of the chains' current draws, arrays (chain, *shape) by name, that returns a
        number or a dict of numbers.
    at
        Passes over the rows at which to evaluate it, counted for each chain from its start;
        by default 50 points from the first draw to the last.

    Returns
    -------
    DataFrame
        Indexed by passes; a column ``value``, or one for each entry of the dict.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> draws = {"beta": np.cumsum(rng.normal(size=(200, 30)), axis=1)}
    >>> stats = {"rows_touched": np.full((200, 30), 50)}
    >>> post = mo.Posterior(draws, stats, mo.Ledger(rows=100))
    >>> post.learning_curve(lambda now: now["beta"].var(), at=[0.5, 15]).round(1)
            value
    passes
    0.5       1.0
    15.0     30.7
    """
    if not callable(statistic):
        raise SettingError(
            "the statistic must be a function of draws by name, such as "
            f"lambda draws: draws['beta'].mean(axis=0), not {statistic!r}."
        )
    # the passes over the rows that each chain had made by each draw, (chain, draw)
    if "rows_touched" not in post.stats:
        raise SettingError(
            "a learning curve needs the number of rows each draw touched (stats['rows_touched']), "
            "which this posterior does not have."
        )
    before = post.settings.get("warmup_rows", 0)
    touched = np.cumsum(post.stats["rows_touched"], axis=1, dtype=float)
    spent = (touched + (before if is_number(before) else 0)) / post.ledger.rows
    number = spent.shape[1]  # by default, evenly spread draws
    places = np.unique(np.linspace(0, number - 1, min(CURVE_POINTS, number)).astype(int))
    moments = spent.max(axis=0)[places] if at is None else np.asarray(at, dtype=float)
    if moments.ndim != 1 or not np.isfinite(moments).all():
        raise SettingError(f"`at` must be a sequence of finite numbers of passes, not {at!r}.")
    # The last draw each chain had made by each moment.
    draws = np.stack([np.searchsorted(s, moments + 1e-9, side="right") - 1 for s in spent], axis=1)
    early = draws.min(axis=1) < 0
    if early.any():
        raise SettingError(
            f"no draw was made by {moments[early].max():g} passes: `at` must start at "
            f"{spent[:, 0].max():.3g} or later."
        )
    chains = np.arange(post.chains)
    values = [
        statistic({name: x[chains, number] for name, x in post.draws.items()}) for number in draws
    ]
    lines = [value if isinstance(value, Mapping) else {"value": value} for value in values]
    return pd.DataFrame(lines, index=pd.Index(moments, name="passes"))


WORD = re.compile(r"\w")
UNKNOWN = re.compile(r"[^\W\d]\w*\b(?:\[[^\]]*\]+)?(?!\s*\()")  # a name that calls no function
EQUALS = re.compile(r"(?<![<>=!])=(?!=)")


def hypothesis(
    post: FittedDraws, hypotheses: str | Sequence[str], prob: Share = 0.9
) -> pd.DataFrame:
    """Tabulate how probable hypotheses are, and the differences that they are about.

    Parameters
    ----------
    hypotheses
        One or several, such as ``"carrier[DL] < carrier[EV]"``, ``"dose > 2 * age"``,
        ``"abs(dose) < 0.1"`` or ``"(a < b) & (b < c)"``. Names are lines of the summary; those of
        coefficients may be short, ``carrier[DL]`` for ``beta[carrier[DL]]``. Numbers, brackets,
        ``+ - * / **`` and functions such as `exp`, `log` and `abs` may connect them. Where one
        name is part of another, the longest one is read.
    prob
        Posterior probability of the equal-tailed interval.

    Returns
    -------
    DataFrame
        By hypothesis: `mean`, `sd`, interval and `mcse_mean` of the left side minus the right
        (NaN where several comparisons are connected), `probability` of the hypothesis with its
        Monte Carlo error `mcse_probability`, and `evidence_ratio`, the posterior odds
        probability / (1 - probability). If all draws agree, the error is one over their effective
        number. An equality, ``"a = b"``, or an expression without a comparison has no probability
        (a continuous quantity equals no number): look at the interval, or compare a model without
        the difference by `mo.compare(..., evidence=True)`.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> draws = {"beta": rng.normal([1.0, 1.2], 0.1, size=(4, 1000, 2))}
    >>> post = mo.Posterior(draws, {}, mo.Ledger(rows=1), labels={"beta": ["dose", "ward[b]"]})
    >>> table = post.hypothesis(["dose < ward[b]", "dose / ward[b] = 1"])
    >>> table[["mean", "probability", "evidence_ratio"]].round(1)
                        mean  probability  evidence_ratio
    hypothesis
    dose < ward[b]      -0.2          0.9            11.2
    dose / ward[b] = 1  -0.2          NaN             NaN
    """
    texts = [hypotheses] if isinstance(hypotheses, str) else hypotheses
    if not isinstance(texts, Sequence) or not texts or any(not isinstance(t, str) for t in texts):
        raise SettingError(
            "a hypothesis is a text such as 'dose < 0', and there must be at least one."
        )
    weights = post.unequal_weights
    if weights is not None:
        require_positive_sum(weights, "a hypothesis")
    # the name in the summary of every scalar, by that name and by its short form
    lines = post.lines(post.draws)
    short = {line.removeprefix("beta[")[:-1]: line for line in lines if line.startswith("beta[")}
    short = {name: line for name, line in short.items() if not name.isdigit()}
    names = short | {line: line for line in lines}
    claims = {text: _claim(text, post, names) for text in dict.fromkeys(texts)}
    differences = {k: c.difference for k, c in claims.items() if c.difference is not None}
    table = _lines(post, differences, prob)[interval_columns(prob)].reindex(list(claims))
    for name in dict.fromkeys(name for claim in claims.values() for name in claim.names):
        if name in short and name in lines:
            warn_of(
                "name-twice",
                f"{name!r} in a hypothesis is the line {name!r} of the summary, and not the "
                f"coefficient of the column {name!r}",
                f"write {short[name]} if you mean the coefficient",
            )
    chances = [_chance(post, claim) for claim in claims.values()]
    probability, error = (np.array(each) for each in zip(*chances, strict=True))
    with np.errstate(divide="ignore"):
        odds = probability / (1 - probability)
    return table.assign(
        probability=probability, mcse_probability=error, evidence_ratio=odds
    ).rename_axis("hypothesis")


class _Claim(NamedTuple):
    """What a hypothesis says of each draw (chain, draw)."""

    difference: np.ndarray | None  # left minus right; None if there are several comparisons
    holds: np.ndarray | None  # None if nothing is claimed, or an equality
    about: np.ndarray  # a scalar that it is about, for the effective number of draws
    names: tuple[str, ...]  # of all scalars, as they are written


class _NamedScalars(NamedTuple):
    """The columns that a hypothesis reads: draws of scalars by name."""

    post: FittedDraws
    names: dict[str, str]

    def column(self, name: str) -> np.ndarray:
        """Return the draws of a scalar, by a name in full or in short."""
        if name not in self.names:
            raise UnknownNameError(f"there is no {name!r}: {names_like(name, self.names)}")
        return np.asarray(self.post[self.names[name]], float)

    def levels(self, name: str) -> LevelArray:
        """Refuse levels, which draws do not have."""
        raise SettingError(f"{name!r} is a number, and has no levels.")

    def row(self, index: int) -> int:
        """Return the number of a draw."""
        return index


def _quoted(text: str, names: dict[str, str]) -> str:
    """Put names into backticks, the longest that fits first, and refuse words that are none."""
    lengths = sorted({len(name) for name in names}, reverse=True)
    parts, rest, at = [], "", 0
    while at < len(text):
        found = text[at : text.find("`", at + 1) + 1] if text[at] == "`" else ""
        if not found and not (at and WORD.match(text[at - 1])):
            fitting = (text[at : at + size] for size in lengths if size <= len(text) - at)
            found = next((s for s in fitting if s in names and _ends(s, text[at + len(s) :])), "")
        if found:
            quoted = found if found[0] == "`" else f"`{found}`"
            nested = "`" in quoted[1:-1]  # as in s(`air time`)[linear]
            parts += [rest, Expression.column(found).text if nested else quoted]
            rest, at = "", at + len(found)
        else:
            rest, at = rest + text[at], at + 1
    parts.append(rest)
    for part in parts[::2]:
        for unknown in UNKNOWN.findall(part):
            if unknown != "np":
                raise UnknownNameError(f"there is no {unknown!r}: {names_like(unknown, names)}")
    parts[::2] = [EQUALS.sub("==", part) for part in parts[::2]]
    return "".join(parts)


def _ends(name: str, after: str) -> bool:
    """Whether a name ends before this text, rather than being part of a longer one or a call."""
    return not after or (
        not (WORD.match(name[-1]) and WORD.match(after[0])) and after[0] not in "[("
    )


def _claim(text: str, post: FittedDraws, names: dict[str, str]) -> _Claim:
    """Evaluate a hypothesis at every draw."""
    expression, draws = Expression(_quoted(text, names)), _NamedScalars(post, names)
    if not expression.names or expression.stateful:
        raise SettingError(
            f"the hypothesis {text!r} must be about parameters, by + - * / and functions such as "
            "exp: name lines of the summary, such as " + repr(next(iter(names))) + "."
        )
    value = np.asarray(evaluate(expression, draws, {}))
    about, tree = draws.column(expression.names[0]), expression.tree
    if value.dtype != bool:
        return _Claim(_finite(value, text), None, about, expression.names)
    if not isinstance(tree, ast.Compare) or len(tree.ops) > 1:
        return _Claim(None, value, about, expression.names)
    left, right = (expression.source(side) for side in (tree.left, tree.comparators[0]))
    apart = _finite(evaluate(Expression(f"({left}) - ({right})"), draws, {}), text)
    holds = None if isinstance(tree.ops[0], ast.Eq) else value
    return _Claim(apart, holds, apart, expression.names)


def _finite(value: object, text: str) -> np.ndarray:
    """Return an array of floats; refuse one that is not finite everywhere."""
    array = np.asarray(value, float)
    if not np.isfinite(array).all():
        raise SettingError(
            f"{text!r} is not a finite number at every draw, for instance because of a logarithm "
            "of a negative number: change the expression."
        )
    return array


def _chance(post: FittedDraws, claim: _Claim) -> tuple[float, float]:
    """Return the probability of a hypothesis and its Monte Carlo error."""
    if claim.holds is None:
        return np.nan, np.nan
    holds = claim.holds.astype(float)
    probability = float(np.clip(weighted_mean(holds, post.weights), 0.0, 1.0))
    if 0 < holds.mean() < 1:
        return probability, float(_lines(post, {"holds": holds})["mcse_mean"].iloc[0])
    return probability, float(1 / _lines(post, {"about": claim.about})["ess_bulk"].iloc[0])


def _lines(post: FittedDraws, values: dict[str, np.ndarray], prob: Share = 0.9) -> pd.DataFrame:
    """Summarise scalars of the draws, in their order."""
    if not values:
        values = {"": np.zeros((post.chains, post.num_draws))}  # for its columns
    scalars = replace(post, draws=values, stats={}, labels={}, predictor=None, predictor_spec=None)
    return summary(scalars, list(values), prob)

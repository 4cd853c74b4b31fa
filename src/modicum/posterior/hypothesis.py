"""Hypotheses about parameters: how probable they are, given the data and the prior.

A hypothesis compares expressions of lines of the summary. It is read by the interpreter of
formulas, which never calls `eval`; names that are no identifiers, such as ``carrier[DL]``, are
found in the text before it is parsed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from modicum.arguments import names_checked
from modicum.errors import SettingError, UnknownNameError
from modicum.posterior.fitted import FittedDraws, check_interval, require_positive_sum
from modicum.posterior.summary import interval_columns, summary
from modicum.posterior.weighted import weighted_mean
from modicum.rows.checks import names_like
from modicum.rows.formula.batches import LevelArray
from modicum.rows.formula.expressions import Expression
from modicum.rows.formula.interpreter import evaluate

if TYPE_CHECKING:
    import pandas as pd

WORD = re.compile(r"\w")
UNKNOWN = re.compile(r"[^\W\d]\w*\b(?:\[[^\]]*\]+)?(?!\s*\()")  # a name that calls no function
EQUALS = re.compile(r"(?<![<>=!])=(?!=)")


@names_checked
def hypothesis(
    post: FittedDraws, hypotheses: str | Sequence[str], prob: float = 0.9
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
    check_interval(prob)
    texts = [hypotheses] if isinstance(hypotheses, str) else hypotheses
    if not isinstance(texts, Sequence) or not texts or any(not isinstance(t, str) for t in texts):
        raise SettingError(
            "a hypothesis is a text such as 'dose < 0', and there must be at least one."
        )
    weights = post.unequal_weights
    if weights is not None:
        require_positive_sum(weights, "a hypothesis")
    names = _names(post)
    claims = {text: _claim(text, post, names) for text in dict.fromkeys(texts)}
    differences = {k: c.difference for k, c in claims.items() if c.difference is not None}
    table = _lines(post, differences, prob)[interval_columns(prob)].reindex(list(claims))
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


def _names(post: FittedDraws) -> dict[str, str]:
    """Return the name in the summary of every scalar, by that name and by its short form."""
    lines = post.lines(post.draws)
    short = {line.removeprefix("beta[")[:-1]: line for line in lines if line.startswith("beta[")}
    return {name: line for name, line in short.items() if not name.isdigit()} | {
        line: line for line in lines
    }


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
            parts += [rest, found if found[0] == "`" else f"`{found}`"]
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
        return _Claim(_finite(value, text), None, about)
    if not isinstance(tree, ast.Compare) or len(tree.ops) > 1:
        return _Claim(None, value, about)
    left, right = (expression.source(side) for side in (tree.left, tree.comparators[0]))
    apart = _finite(evaluate(Expression(f"({left}) - ({right})"), draws, {}), text)
    return _Claim(apart, None if isinstance(tree.ops[0], ast.Eq) else value, apart)


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
    probability = float(np.clip(weighted_mean(holds, post.unequal_weights), 0.0, 1.0))
    if 0 < holds.mean() < 1:
        return probability, float(_lines(post, {"holds": holds})["mcse_mean"].iloc[0])
    return probability, float(1 / _lines(post, {"about": claim.about})["ess_bulk"].iloc[0])


def _lines(post: FittedDraws, values: dict[str, np.ndarray], prob: float = 0.9) -> pd.DataFrame:
    """Summarise scalars of the draws, in their order."""
    if not values:
        values = {"": np.zeros((post.chains, post.num_draws))}  # for its columns
    scalars = replace(post, draws=values, stats={}, labels={}, predictor=None, predictor_spec=None)
    return summary(scalars, list(values), prob)

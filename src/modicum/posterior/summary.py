"""Tables of a posterior: scalars with errors and diagnostics, or a statistic along the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from modicum.arguments import names_checked
from modicum.diagnostics import r_hat
from modicum.errors import SettingError, is_number
from modicum.posterior.fitted import FittedDraws, check_interval, scalar_names
from modicum.posterior.weighted import diagnose

if TYPE_CHECKING:
    import pandas as pd

Statistic: TypeAlias = Callable[[dict[str, np.ndarray]], float | Mapping[str, float]]
"""Maps the chains' current draws, arrays (chain, *shape) by name, to one number or a dict."""
EFFECTS = "|("  # mark pooled coefficients, "1|ward" and "s(hour)"; they may be many, and come last
CURVE_POINTS = 50  # default number of points of a learning curve


@names_checked
def summary(
    post: FittedDraws,
    names: Sequence[str] | str | None = None,
    prob: float = 0.9,
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
    import pandas as pd

    check_interval(prob)
    multiplies = ""
    if exponentiate:
        post, multiplies = _exponentiated(post), post.fitted_model().row_model.multiplies
    superchains, weights = post.settings.get("superchains"), post.unequal_weights
    if names is None:
        names = sorted(post.draws, key=is_pooled)
    requests = [names] if isinstance(names, str) else list(names)
    ends = ((1 - prob) / 2, (1 + prob) / 2)
    parts = []
    for name in requests:
        x = post[name]
        low, high = post.quantile(name, ends)
        columns = {
            "mean": post.mean(name),
            "sd": post.sd(name),
            percent(ends[0]): low,
            percent(ends[1]): high,
            **diagnose(x, weights, superchains),
        }
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
        if (family.multiplies or _explains_another(name)) and _is_coefficient(name)
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


def _is_coefficient(name: str) -> bool:
    """Whether draws of this name are coefficients: "beta", "scale.intercept", "1|ward"."""
    return name.rpartition(".")[2] in ("beta", "intercept") or "|" in name


def _explains_another(name: str) -> bool:
    """Whether a coefficient is that of another parameter's logarithm or logit: "scale.beta"."""
    parameter, dot, _ = name.partition(".")
    return bool(dot) and not is_pooled(parameter)


def interval_columns(prob: float) -> list[str]:
    """Return the names of the columns that hold an estimate, its interval and its error."""
    ends = map(percent, ((1 - prob) / 2, (1 + prob) / 2))
    return ["mean", "sd", *ends, "mcse_mean"]


def interval_table(
    values: np.ndarray,
    labels: Iterable[tuple[Any, ...]],
    names: list[str],
    prob: float,
    **facts: object,
) -> pd.DataFrame:
    """Tabulate means, sds, intervals and errors (..., 5), a line per label; `attrs` holds facts."""
    import pandas as pd

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


def prob_of(table: pd.DataFrame) -> float:
    """Return the probability of the intervals of a table, by the names of its columns."""
    low, high = (float(name.rstrip("%")) for name in table.columns[2:4])
    return (high - low) / 100


def added_words(name: str) -> str:
    """Say what the effect of a level or a smooth is, in every plot in these words."""
    return f"{name}, added to the predictor"


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
    import pandas as pd

    if not callable(statistic):
        raise SettingError(
            "the statistic must be a function of draws by name, such as "
            f"lambda draws: draws['beta'].mean(axis=0), not {statistic!r}."
        )
    spent = _passes(post)
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


def _passes(post: FittedDraws) -> np.ndarray:
    """Return the passes over the rows that each chain had made by each draw, (chain, draw)."""
    if "rows_touched" not in post.stats:
        raise SettingError(
            "a learning curve needs the number of rows each draw touched (stats['rows_touched']), "
            "which this posterior does not have."
        )
    before = post.settings.get("warmup_rows", 0)
    touched = np.cumsum(post.stats["rows_touched"], axis=1, dtype=float)
    return (touched + (before if is_number(before) else 0)) / post.ledger.rows

"""Tables of a posterior: scalars with errors and diagnostics, or a statistic along the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from modicum.diagnostics import ess, ess_tail, mcse, nested_r_hat, r_hat
from modicum.errors import ModicumWarning, SettingError
from modicum.markup import box, table, tag
from modicum.posterior.draws import Draws, check_interval, scalar_names
from modicum.posterior.weighted import (
    influence,
    weighted_ess,
    weighted_ess_tail,
    weighted_mcse,
)

if TYPE_CHECKING:
    import pandas as pd

Statistic: TypeAlias = Callable[[dict[str, np.ndarray]], float | Mapping[str, float]]
"""Maps the chains' current draws, arrays (chain, *shape) by name, to one number or a dict."""
EFFECTS = "|"  # marks effects of groups, such as "1|ward"; they may be thousands, and come last
CURVE_POINTS = 50  # default number of points of a learning curve


def summarise(
    source: Draws,
    names: Sequence[str] | str | None,
    prob: float,
    superchains: int | None = None,
) -> pd.DataFrame:
    """Tabulate mean, sd, an equal-tailed interval, Monte Carlo error, ESS and R-hat.

    With `superchains`, chains that share a starting point, nested R-hat is added.
    """
    import pandas as pd

    check_interval(prob)
    if names is None:
        names = sorted(source.draws, key=lambda name: EFFECTS in name)
    requests = [names] if isinstance(names, str) else list(names)
    ends = ((1 - prob) / 2, (1 + prob) / 2)
    parts = []
    for name in requests:
        x = source[name]
        low, high = source.quantile(name, ends)
        columns = {
            "mean": source.mean(name),
            "sd": source.sd(name),
            percent(ends[0]): low,
            percent(ends[1]): high,
            **diagnose(x, source.weights if source.weighted else None, superchains),
        }
        index = scalar_names(name, x.shape[2:], source.labels)
        parts.append(pd.DataFrame({k: np.ravel(v) for k, v in columns.items()}, index=index))
    table = pd.concat(parts) if parts else pd.DataFrame()
    if source.weighted and source.weights is not None:
        table.attrs["mean_weight"] = float(source.weights.mean())
        table.attrs["r_hat_weight"] = r_hat(source.weights)
    return table


def diagnose(
    x: np.ndarray, weights: np.ndarray | None, superchains: int | None = None
) -> dict[str, np.ndarray]:
    """Compute Monte Carlo error, effective sample sizes and R-hat of each scalar of x.

    With signs or weights these are those of the ratio estimate: by the delta method, not ArviZ.
    """
    if weights is None:
        compared = x
        measured = {
            "mcse_mean": np.asarray(mcse(x)),
            "ess_bulk": np.asarray(ess(x)),
            "ess_tail": np.asarray(ess_tail(x)),
        }
    else:
        values = np.asarray(x, dtype=float)
        compared = influence(values, weights)
        measured = {
            "mcse_mean": weighted_mcse(values, weights),
            "ess_bulk": weighted_ess(values, weights),
            "ess_tail": weighted_ess_tail(values, weights),
        }
    measured["r_hat"] = np.asarray(r_hat(compared))
    if superchains is not None:
        measured["nested_r_hat"] = np.asarray(nested_r_hat(compared, superchains))
    return measured


def percent(level: float) -> str:
    """Format a probability as a column name.

    Examples
    --------
    >>> percent(0.05), percent(0.975)
    ('5%', '97.5%')
    """
    return f"{round(100 * level, 6):g}%"


def learning_curve(
    source: Draws, statistic: Statistic, at: Sequence[float] | None, warmup_rows: float
) -> pd.DataFrame:
    """Tabulate a statistic over chains against passes; see `Posterior.learning_curve`."""
    import pandas as pd

    if not callable(statistic):
        raise SettingError(
            "the statistic must be a function of draws by name, such as "
            f"lambda draws: draws['beta'].mean(axis=0), not {statistic!r}."
        )
    spent = _passes(source, warmup_rows)
    moments = _evenly_spread(spent) if at is None else np.asarray(at, dtype=float)
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
    chains = np.arange(source.chains)
    values = [
        statistic({name: x[chains, number] for name, x in source.draws.items()}) for number in draws
    ]
    lines = [value if isinstance(value, Mapping) else {"value": value} for value in values]
    return pd.DataFrame(lines, index=pd.Index(moments, name="passes"))


def _passes(source: Draws, warmup_rows: float) -> np.ndarray:
    """Return the passes over the rows that each chain had made by each draw, (chain, draw)."""
    if "rows_touched" not in source.stats:
        raise SettingError(
            "a learning curve needs the number of rows each draw touched (stats['rows_touched']), "
            "which this posterior does not have."
        )
    touched = np.cumsum(source.stats["rows_touched"], axis=1, dtype=float)
    return (touched + warmup_rows) / source.ledger.rows


def _evenly_spread(spent: np.ndarray) -> np.ndarray:
    """Return the passes at evenly spread draws."""
    number = spent.shape[1]
    places = np.unique(np.linspace(0, number - 1, min(CURVE_POINTS, number)).astype(int))
    return np.asarray(spent.max(axis=0)[places])


SHOWN = 12  # scalars shown


def posterior_box(source: Draws, title: str, warnings: Sequence[ModicumWarning]) -> str:
    """Return a box with the first scalars of a posterior, and its warnings."""
    frame = summarise(source, _first_names(source), 0.9).head(SHOWN)
    lines = [
        (name, *(f"{line[c]:.4g}" for c in frame.columns[:4]), f"{line['ess_bulk']:,.0f}",
         f"{line['r_hat']:.3f}")
        for name, line in frame.iterrows()
    ]  # fmt: skip
    head = ("", *frame.columns[:4], "ess_bulk", "r_hat")
    total = sum(x[0, 0].size for x in source.draws.values())
    more = f"{total - len(frame):,} more scalars: post.summary()" if total > len(frame) else None
    doubts = tag("ul", [tag("li", str(doubt)) for doubt in warnings]) if warnings else None
    return box(tag("b", title.strip("<>")), table(head, lines), more and tag("div", more), doubts)


def _first_names(source: Draws) -> list[str]:
    """Return the first parameters, enough for `SHOWN` scalars; effects of groups come last."""
    ordered = sorted(source.draws, key=lambda name: "|" in name)
    names: list[str] = []
    count = 0
    for name in ordered:
        if count < SHOWN:
            names.append(name)
            count += int(source.draws[name][0, 0].size)
    return names

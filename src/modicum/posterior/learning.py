"""Learning curves: a statistic of independent chains against the passes over the data they took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from modicum.errors import SettingError

if TYPE_CHECKING:
    import pandas as pd

    from modicum.posterior.posterior import Posterior

__all__ = ["learning_curve"]

POINTS = 50  # of a curve, where none are asked for


def learning_curve(
    posterior: Posterior,
    statistic: Callable[[dict[str, np.ndarray]], Any],
    at: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Tabulate a statistic over chains; see `Posterior.learning_curve`."""
    import pandas as pd

    spent = _passes(posterior)
    wanted = _even(spent) if at is None else np.asarray(at, dtype=float)
    # The last draw each chain had made by then.
    draws = np.stack([np.searchsorted(s, wanted + 1e-9, side="right") - 1 for s in spent], axis=1)
    if draws.min() < 0:
        early = wanted[draws.min(axis=1) < 0].max()
        raise SettingError(
            f"no draw was made by {early:g} passes: the first comes after {spent[:, 0].max():.3g}."
        )
    each = np.arange(posterior.chains)
    values = [
        statistic({name: x[each, number] for name, x in posterior.draws.items()})
        for number in draws
    ]
    rows = [value if isinstance(value, dict) else {"value": value} for value in values]
    return pd.DataFrame(rows, index=pd.Index(wanted, name="passes"))


def _passes(posterior: Posterior) -> np.ndarray:
    """Passes over the rows each chain had taken by each of its draws, (chain, draw)."""
    if "rows_touched" not in posterior.stats:
        raise SettingError("this posterior does not say how many rows each draw touched.")
    touched = np.cumsum(posterior.stats["rows_touched"], axis=1, dtype=float)
    return (touched + posterior.settings.get("warmup_rows", 0)) / posterior.ledger.rows


def _even(spent: np.ndarray) -> np.ndarray:
    """Some of the moments at which draws were made, evenly spread."""
    number = spent.shape[1]
    some = np.unique(np.linspace(0, number - 1, min(POINTS, number)).astype(int))
    return np.asarray(spent.max(axis=0)[some])

"""What a user sees while chains run: draws, acceptance, live ESS and R-hat, rows touched."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import numpy as np

__all__ = ["Monitor"]

WATCHED = 16  # coordinates whose ESS and R-hat are followed
EVERY = 1.5  # seconds between two live diagnoses


class Monitor:
    """A progress bar with live diagnostics; silent where `enabled` is False."""

    def __init__(self, tune: int, draws: int, chains: int, enabled: bool) -> None:
        self.tune, self.draws, self.chains = tune, draws, chains
        self.enabled = enabled
        self._watched: list[np.ndarray] = []
        self._diagnosed = time.monotonic()
        self._text = ""
        self._bar: Any = None

    def __enter__(self) -> Monitor:
        if self.enabled:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
            from rich.progress import TimeElapsedColumn as Elapsed
            from rich.progress import TimeRemainingColumn as Remaining

            columns = (TextColumn("{task.description:8}"), BarColumn(bar_width=24))
            detail = TextColumn("{task.fields[detail]}")
            self._bar = Progress(*columns, MofNCompleteColumn(), Elapsed(), Remaining(), detail)
            self._bar.start()
            self._task = self._bar.add_task(
                "compile", total=self.tune + self.draws, detail=f"{self.chains} chains"
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, record: dict[str, np.ndarray], rows_touched: int) -> None:
        """Show that `done` iterations are over; `record` holds the newest (chain, draw, ...)."""
        if self._bar is None:
            return
        sampling = done > self.tune
        if sampling and record["position"].shape[1]:
            fresh = min(record["position"].shape[1], done - self.tune)
            self._watched.append(record["position"][:, -fresh:, :WATCHED])
            if time.monotonic() - self._diagnosed > EVERY or done == self.tune + self.draws:
                self._diagnose()
        rate = record.get("acceptance_rate", np.empty(0))  # some methods accept everything
        accept = f"accept {rate.mean():.2f} · " if rate.size else ""
        touched = f"{accept}{_short(rows_touched)} rows touched"
        self._bar.update(
            self._task,
            completed=done,
            description="sample" if sampling else "warm up",
            detail=f"{touched}{self._text}",
        )

    def _diagnose(self) -> None:
        from modicum.diagnostics import ess, r_hat

        self._watched = [np.concatenate(self._watched, axis=1)]
        watched = self._watched[0]
        if watched.shape[1] >= 20:
            smallest, largest = np.nanmin(ess(watched)), np.nanmax(r_hat(watched))
            self._text = f" · ESS {smallest:,.0f} · R-hat {largest:.3f}"
        self._diagnosed = time.monotonic()


def _short(count: int) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)

"""Progress of running chains: draws, acceptance, live ESS and R-hat, rows touched."""

from __future__ import annotations

import time
from types import TracebackType

import numpy as np

from modicum.progress import Phase, Progressbar

WATCHED = 16  # coordinates whose ESS and R-hat are monitored
EVERY = 1.5  # seconds between updates of ESS and R-hat


class Monitor:
    """Shows warm-up and sampling as phases with live diagnostics, unless `progressbar` is False."""

    def __init__(
        self, tune: int, draws: int, chains: int, progressbar: Progressbar, units: str = "rows"
    ) -> None:
        self.tune, self.draws, self.chains, self.units = tune, draws, chains, units
        self.progressbar = progressbar
        self._phase: Phase | None = None
        self._watched: list[np.ndarray] = []
        self._diagnosed = time.monotonic()
        self._text = ""

    def __enter__(self) -> Monitor:
        if self.progressbar:
            self._begin("warm-up" if self.tune else "sampling", self.tune or self.draws)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._phase is not None:
            self._phase.end()

    def _begin(self, name: str, total: int) -> Phase:
        if self._phase is not None:
            self._phase.update(self._phase.total or 0)
            self._phase.end()
        detail = f"{self.chains} chain{'s' * (self.chains != 1)}"
        self._phase = Phase(name, total, self.progressbar, detail=detail)
        self._phase.update(0)
        return self._phase

    def update(self, done: int, record: dict[str, np.ndarray], rows_touched: int) -> None:
        """Show that `done` iterations are done; `record` holds the latest (chain, draw, ...)."""
        current = self._phase
        if current is None:
            return
        if done > self.tune:
            if current.name != "sampling":
                current = self._begin("sampling", self.draws)
            self._watch(done, record["position"])
        rate = record.get("acceptance_rate", np.empty(0))  # some methods have no acceptance step
        accept = f"accept {rate.mean():.2f} · " if rate.size else ""
        detail = f"{accept}{_short(rows_touched)} {self.units} touched{self._text}"
        current.update(done - self.tune if done > self.tune else done, detail)

    def _watch(self, done: int, position: np.ndarray) -> None:
        fresh = min(position.shape[1], done - self.tune)
        if not fresh:
            return
        self._watched.append(position[:, -fresh:, :WATCHED])
        if time.monotonic() - self._diagnosed > EVERY or done == self.tune + self.draws:
            self._diagnose()

    def _diagnose(self) -> None:
        from modicum.diagnostics import ess, r_hat

        self._watched = [np.concatenate(self._watched, axis=1)]
        watched = self._watched[0]
        if watched.shape[1] >= 20:
            sizes, ratios = ess(watched), r_hat(watched)  # NaN for one chain, or a stuck one
            self._text = ""
            if np.isfinite(sizes).any():
                self._text += f" · ESS {np.nanmin(sizes):,.0f}"
            if np.isfinite(ratios).any():
                self._text += f" · R-hat {np.nanmax(ratios):.3f}"
        self._diagnosed = time.monotonic()


def _short(count: int) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)

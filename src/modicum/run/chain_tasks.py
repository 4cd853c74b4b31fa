"""Chains that run on other hosts: some on each host, one chunk of iterations per call.

A call sends the states at the start of a chunk and returns those at its end, so a host that
replaces a dead one continues from the last chunk. A chunk is a function of its states and of the
chains' keys: on processors of the same kind, draws equal those of chains in this process. While a
chunk runs, its host fetches the rows of the next one, as chains in this process do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import gcd
from typing import NamedTuple

import jax
import numpy as np

from modicum.models.model import Batch
from modicum.passes import Hosts
from modicum.passes.worker import fetched
from modicum.rows import Rows
from modicum.run.chains import Chains, ChainStates
from modicum.run.iterations import Progress, Record, side_by_side
from modicum.runtime import Array

OWN = ("keys", "start_keys", "rows")  # settings that differ between hosts, or are sent separately


class ChainShare(NamedTuple):
    """What a host builds its chains from: shared settings, and the keys of its chains."""

    shared: list[object]  # references to the settings and the rows
    keys: np.ndarray
    start_keys: np.ndarray | None


class ChainHost:
    """An actor that runs some of the chains."""

    def __init__(self) -> None:
        self._chains: Chains | None = None
        self._reached: tuple[int, int] | None = None  # what its states are, as `advance` has it

    def process(self) -> int:
        """Return the id of its process."""
        return os.getpid()

    def begin(self, share: ChainShare) -> Progress:
        """Initialise the chains; return their states, stacked along a leading axis."""
        chains = self._built(share)
        chains.begin()
        self._reached = (0, 0)
        return chains.whole()

    def advance(
        self, share: ChainShare, state: Progress, reached: tuple[int, int], counts: tuple[int, int]
    ) -> tuple[list[Record], Progress]:
        """Run iterations from these states; return the records and the new states.

        `reached` numbers the first iteration, and how often the driver has renewed the states;
        `counts` are the numbers of iterations to run and to fetch rows for meanwhile.
        """
        chains, (first, renewals) = self._built(share), reached
        if self._reached != reached:  # this host replaces a dead one, or states were renewed
            chains.restore(jax.tree.leaves(state))
        self._reached = None
        records = chains.advance(first, *counts)
        self._reached = (first + counts[0], renewals)
        return records, chains.whole()

    def _built(self, share: ChainShare) -> Chains:
        if self._chains is None:
            settings, rows = fetched(share.shared)
            self._chains = Chains(
                **settings, keys=share.keys, start_keys=share.start_keys, rows=rows
            )
        return self._chains


@dataclass
class ChainTasks(ChainStates):
    """All chains of a run, on hosts, with the interface of `Chains`.

    Parameters
    ----------
    chains
        The chains, as they would run in this process.
    hosts
        Where they run. Chains that are stacked stay on one host, so some hosts may be idle.
    """

    chains: Chains
    hosts: Hosts

    def __post_init__(self) -> None:
        chains = self.chains
        assert chains.group is not None
        number = gcd(len(self.hosts), len(chains.keys) // chains.group)
        self.keys, self.thin, self.units = chains.keys, chains.thin, chains.units
        self.capacity, self.settled = chains.capacity, chains.settled
        self.obstacle = chains.obstacle
        names = [f.name for f in fields(Chains) if f.init and f.name not in OWN]
        settings = {name: getattr(chains, name) for name in names}
        shared = self.hosts.share(settings, _to_send(chains.rows))
        size = len(self.keys) // number
        self._parts = [slice(first, first + size) for first in range(0, len(self.keys), size)]
        starts = chains.start_keys
        self._shares = [
            ChainShare(shared, self.keys[part], None if starts is None else starts[part])
            for part in self._parts
        ]
        self.state: list[Progress] = []
        self._renewals = 0

    def begin(self) -> None:
        """Initialise every chain."""
        self.state = self.hosts.calls("begin", [(share,) for share in self._shares])

    def advance(self, first: int, count: int, next_count: int = 0) -> list[Record]:
        """Run iterations `first` to `first + count` (see `Chains.advance`)."""
        reached, counts = (first, self._renewals), (count, next_count)
        pairs = zip(self._shares, self.state, strict=True)
        results = self.hosts.calls("advance", [(*pair, reached, counts) for pair in pairs])
        self.state = [state for _, state in results]
        return side_by_side([records for records, _ in results])

    def close(self) -> None:
        """Release the hosts."""
        self.chains.close()
        self.hosts.close()

    def _take(self, leaves: Sequence[Array]) -> None:
        super()._take(leaves)
        self._renewals += 1


def _to_send(rows: Batch | Rows | None) -> Batch | Rows | None:
    """Copy rows on a device to NumPy arrays."""
    return jax.tree.map(np.asarray, rows) if isinstance(rows, dict) else rows

"""Chains that run on other hosts: some on each host, one chunk of iterations per call.

A call sends the states at the start of a chunk and returns those at its end, so a host that
replaces a dead one continues from the last chunk. A chunk is a function of its states and of the
chains' keys: on processors of the same kind, draws equal those of chains in this process. While a
chunk runs, its host fetches the rows of the next one, as chains in this process do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import gcd
from typing import NamedTuple

import jax
import numpy as np

from modicum.models.model import Batch
from modicum.passes import Hosts
from modicum.passes.worker import fetched
from modicum.rows import Rows
from modicum.run.chains import Chains, refuse_other_state
from modicum.run.iterations import Progress, Record, side_by_side
from modicum.runtime import Pytree, in_double_precision

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
        self._ended = -1  # the iteration after its last; -1: its states are not current

    def process(self) -> int:
        """Return the id of its process."""
        return os.getpid()

    def begin(self, share: ChainShare) -> Progress:
        """Initialise the chains; return their states, stacked along a leading axis."""
        chains = self._built(share)
        chains.begin()
        self._ended = 0
        return jax.tree.unflatten(jax.tree.structure(chains.state[0]), chains.leaves())

    def advance(
        self, share: ChainShare, leaves: list[np.ndarray], span: tuple[int, int], next_count: int
    ) -> tuple[list[Record], list[np.ndarray]]:
        """Run iterations from these states; `span` is the first and the number of iterations.

        Return the records and the new states.
        """
        chains, (first, count) = self._built(share), span
        if self._ended != first:  # this host replaces a dead one, or states were renewed
            chains.restore(leaves)
        self._ended = -1
        records = chains.advance(first, count, next_count)
        self._ended = first + count
        return records, chains.leaves()

    def forget(self) -> None:
        """Discard the states: use those sent with the next call."""
        self._ended = -1

    def _built(self, share: ChainShare) -> Chains:
        if self._chains is None:
            settings, rows = fetched(share.shared)
            self._chains = Chains(
                **settings, keys=share.keys, start_keys=share.start_keys, rows=rows
            )
        return self._chains


@dataclass
class ChainTasks:
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
        self._leaves: list[list[np.ndarray]] = []
        self._structure: jax.tree_util.PyTreeDef | None = None

    def begin(self) -> None:
        """Initialise every chain."""
        states = self.hosts.calls("begin", [(share,) for share in self._shares])
        self._structure = jax.tree.structure(states[0])
        self._leaves = [jax.tree.leaves(state) for state in states]

    def advance(self, first: int, count: int, next_count: int = 0) -> list[Record]:
        """Run iterations `first` to `first + count` (see `Chains.advance`)."""
        pairs = zip(self._shares, self._leaves, strict=True)
        arguments = [(share, leaves, (first, count), next_count) for share, leaves in pairs]
        results = self.hosts.calls("advance", arguments)
        self._leaves = [leaves for _, leaves in results]
        return side_by_side([records for records, _ in results])

    def leaves(self) -> list[np.ndarray]:
        """Return the state as plain arrays with a leading axis for chains."""
        return [np.concatenate(parts) for parts in zip(*self._leaves, strict=True)]

    def restore(self, leaves: Sequence[np.ndarray]) -> None:
        """Restore a state from the result of `leaves`."""
        self.begin()
        refuse_other_state(leaves, self.leaves())
        self._take(leaves)

    @in_double_precision
    def renew(self, function: Callable[[Pytree], Pytree]) -> None:
        """Apply `function` to the kernel's states of all chains, stacked along a leading axis."""
        assert self._structure is not None, "chains have not begun"
        progress: Progress = jax.tree.unflatten(self._structure, self.leaves())
        self._take(jax.tree.leaves(progress._replace(state=function(progress.state))))

    def close(self) -> None:
        """Release the hosts."""
        self.chains.close()
        self.hosts.close()

    def _take(self, leaves: Sequence[np.ndarray]) -> None:
        self._leaves = [[np.asarray(leaf)[part] for leaf in leaves] for part in self._parts]
        self.hosts.calls("forget", [()] * len(self._parts))


def _to_send(rows: Batch | Rows | None) -> Batch | Rows | None:
    """Copy rows on a device to NumPy arrays."""
    return jax.tree.map(np.asarray, rows) if isinstance(rows, dict) else rows

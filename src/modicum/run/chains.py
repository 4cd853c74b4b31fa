"""All chains of a run: a thread each on a CPU, one stacked axis on an accelerator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from modicum.kernels.base import Kernel, travelling
from modicum.precision import in_double_precision
from modicum.rows import Rows
from modicum.run import advance as compiled

__all__ = ["Chains", "Parallel", "chain_keys", "default_parallel"]

Parallel = Literal["threads", "stacked"]
Record = dict[str, np.ndarray]


@dataclass
class Chains:
    """The states of all chains, and how to move them on.

    Parameters
    ----------
    kernel, context
        The Markov step and the arrays it reads.
    keys
        One key a chain.
    signals
        One entry an iteration, warm-up and sampling together.
    capacity
        The most iterations of one call.
    rows
        The rows the kernel wants by index: on the device (a dict of arrays), or a `Rows` to fetch
        from ahead of time, or None for a kernel that wants none.
    parallel
        "threads" or "stacked"; by default threads on a CPU.
    """

    kernel: Kernel
    context: Any
    keys: jax.Array
    signals: Any
    capacity: int
    rows: dict[str, Any] | Rows | None = None
    parallel: Parallel | None = None
    state: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.parallel is None:
            self.parallel = default_parallel()
        workers = min(len(self.keys), os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(workers)
        self._reader = ThreadPoolExecutor(1)
        self._ahead: tuple[int, int, Future[Any]] | None = None
        self._each_key = [] if self.parallel == "stacked" else list(self.keys)

    # The two calls ------------------------------------------------------------------------

    @in_double_precision
    def begin(self) -> None:
        """Put every chain at its start."""
        batches = self._first_batches()
        if self.parallel == "stacked":
            self.state = compiled.begin_together(
                self.kernel, self.context, self._on_device, batches, self.keys
            )
            return
        compiling = self._pool.submit(in_double_precision(self._compile), batches)
        self.state = [
            compiled.begin(self.kernel, self.context, self._on_device, _chain(batches, c), key)
            for c, key in enumerate(self._each_key)
        ]
        compiling.result()

    def _compile(self, batches: Any) -> None:
        """Compile the loop before threads race to do so, and while `begin` is being compiled."""
        blank = jax.eval_shape(
            partial(compiled.begin, self.kernel),
            self.context,
            self._on_device,
            _chain(batches, 0),
            self._each_key[0],
        )
        state = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), blank)
        fetched = self._fetch(0) if isinstance(self.rows, Rows) else None
        self._one(0, (np.int64(0), np.int64(0)), fetched, state)

    @in_double_precision
    def advance(self, first: int, count: int, next_count: int = 0) -> Record:
        """Run iterations `first` to `first + count`; return what they recorded, (chain, count, ..).

        Rows for the `next_count` iterations after these are fetched meanwhile.
        """
        batches = self._batches(first, count)
        if next_count:
            self._fetch_ahead(first + count, next_count)
        span = (np.int64(first), np.int64(count))
        if self.parallel == "stacked":
            self.state, record = compiled.advance_together(
                self.kernel,
                self.capacity,
                self.context,
                self._on_device,
                self.signals,
                span,
                batches,
                self.state,
                self.keys,
            )
            return {name: np.asarray(values)[:, :count] for name, values in record.items()}
        run = in_double_precision(self._one)
        futures = [
            self._pool.submit(run, c, span, batches, state) for c, state in enumerate(self.state)
        ]
        results = [future.result() for future in futures]
        self.state = [state for state, _ in results]
        records = [record for _, record in results]
        return {k: np.stack([r[k][:count] for r in records]) for k in records[0]}

    def _one(self, c: int, span: Any, batches: Any, state: Any) -> tuple[Any, Record]:
        state, record = compiled.advance(
            self.kernel,
            self.capacity,
            self.context,
            self._on_device,
            self.signals,
            span,
            _chain(batches, c),
            state,
            self._each_key[c],
        )
        return state, {name: np.asarray(values) for name, values in record.items()}

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    # Rows the kernel wants ----------------------------------------------------------------

    @property
    def _on_device(self) -> Any:
        return None if isinstance(self.rows, Rows) else self.rows

    def _first_batches(self) -> Any:
        if not isinstance(self.rows, Rows):
            return None
        drawn = [compiled.wanted_at_start(self.kernel, self.context, key) for key in self.keys]
        return None if drawn[0] is None else self._read(drawn)  # some kernels start without rows

    def _batches(self, first: int, count: int) -> Any:
        """Rows of the next iterations, one leading axis for chains and one for iterations."""
        if not isinstance(self.rows, Rows):
            return None
        if self._ahead is not None and self._ahead[:2] == (first, count):
            return self._ahead[2].result()
        return self._fetch(first)

    def _fetch_ahead(self, first: int, count: int) -> None:
        if isinstance(self.rows, Rows):
            fetch = in_double_precision(self._fetch)
            self._ahead = (first, count, self._reader.submit(fetch, first))

    def _fetch(self, first: int) -> dict[str, np.ndarray]:
        iterations = np.arange(first, first + self.capacity)
        return self._read(
            [compiled.wanted(self.kernel, self.context, key, iterations) for key in self.keys]
        )

    def _read(self, drawn: list[Any]) -> dict[str, np.ndarray]:
        """Rows of all chains in one bulk read, with what travels with them."""
        assert isinstance(self.rows, Rows)
        wanted = type(drawn[0])(*(np.stack(parts) for parts in zip(*drawn, strict=True)))
        return self.rows.take(wanted.rows) | travelling(wanted)

    # Saving and restoring -----------------------------------------------------------------

    def leaves(self) -> list[np.ndarray]:
        """The state as plain arrays with a leading axis for chains."""
        if self.parallel == "stacked":
            return [np.asarray(leaf) for leaf in jax.tree.leaves(self.state)]
        each = [jax.tree.leaves(state) for state in self.state]
        return [
            np.stack([np.asarray(leaf) for leaf in leaves]) for leaves in zip(*each, strict=True)
        ]

    @in_double_precision
    def restore(self, leaves: Sequence[np.ndarray]) -> None:
        """Take a state back from `leaves`; its structure is that of a freshly begun one."""
        self.begin()
        if self.parallel == "stacked":
            structure = jax.tree.structure(self.state)
            self.state = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])
            return
        structure = jax.tree.structure(self.state[0])
        self.state = [
            jax.tree.unflatten(structure, [jnp.asarray(leaf[c]) for leaf in leaves])
            for c in range(len(self.keys))
        ]


def default_parallel() -> Parallel:
    """Threads on a CPU, one stacked axis on an accelerator."""
    return "threads" if jax.default_backend() == "cpu" else "stacked"


def chain_keys(seed: int, chains: int) -> jax.Array:
    """One key a chain, as an array of keys; every bit of the seed counts."""
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
    return _chain_keys(words, np.arange(chains, dtype=np.uint32))


@jax.jit
def _chain_keys(words: jax.Array, numbers: jax.Array) -> jax.Array:
    root = jax.random.wrap_key_data(words)
    return jax.vmap(lambda c: jax.random.fold_in(root, c))(numbers)


def _chain(batches: Any, c: int) -> Any:
    return None if batches is None else {name: values[c] for name, values in batches.items()}

"""Rows fetched ahead and rows on the device feed a kernel the same numbers."""

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers.slow import slowly
from helpers.targets import gaussian_rows
from modicum.kernels.designs import Drawn
from modicum.kernels.protocols import Kernel
from modicum.random import chain_keys
from modicum.run.chains import Chains
from modicum.run.runner import run

ROWS, BATCH, LENGTH = 97, 6, 25


def drawn_rows(key, context):
    drawn = jax.random.randint(key, (BATCH,), 0, context["rows"])
    return Drawn(drawn, jnp.full(BATCH, 1.0) / context["rows"])


@dataclass(frozen=True)
class Accumulate(Kernel):
    """Adds up what it reads: its state depends on every row it was given, in order."""

    at_start: bool = True

    def initial_row_request(self, key, context):
        return drawn_rows(key, context) if self.at_start else None

    def row_request(self, key, context):
        return drawn_rows(key, context)

    def prepare(self, batch, context):
        return batch

    def init(self, key, batch, context):
        return batch["x"].sum(0) if self.at_start else jnp.zeros(3, context["like"].dtype)

    def chances(self, key, context):
        return jax.random.normal(key, (3,))

    def step(self, chances, state, flags, batch, context):
        state = 0.5 * state + (batch["x"] * batch["y"][:, None]).sum(0) + flags
        drawn = {"position": state, "noise": chances[0], "chance": batch["probability"].sum()}
        return state, drawn


def sources(tmp_path):
    memory = gaussian_rows(ROWS, dtype="float32")
    store = mo.rows.ingest(memory, tmp_path / "store", shard_rows=20, progressbar=False)
    whole = memory.slice(0, ROWS)
    return {"device": {k: jnp.asarray(v) for k, v in whole.items()}, "memory": memory,
            "store": store}  # fmt: skip


def chains_of(rows, parallel=None, kernel=None, flags=None, **more):
    """Return three chains that have not begun."""
    context = {"rows": np.asarray(ROWS), "like": np.zeros(1, np.float32)}
    flags = np.linspace(0, 1, LENGTH, dtype=np.float32) if flags is None else flags
    kernel = kernel or Accumulate()
    return Chains(kernel, context, chain_keys(7, 3), flags, 8, rows, parallel, **more)


def records(rows, counts, parallel="threads", **more):
    with jax.enable_x64(True):
        chains = chains_of(rows, parallel, **more)
        chains.begin()
        done, parts = 0, []
        for count, after in zip(counts, [*counts[1:], 0], strict=True):
            parts += chains.advance(done, count, next_count=after)
            done += count
        chains.close()
    return {name: np.concatenate([p[name] for p in parts], axis=1) for name in parts[0]}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("parallel", ["threads", *slowly("stacked")])
def test_fetched_ahead_is_gathered_on_the_device(tmp_path, parallel):
    given = sources(tmp_path)
    truth = records(given["device"], [8, 8, 8, 1], parallel)
    assert truth["position"].shape == (3, LENGTH, 3)
    assert len(np.unique(truth["position"][:, -1, 0])) == 3  # every chain reads its own rows
    for name in ("memory", "store"):
        for counts in ([8, 8, 8, 1], [1, 3, 8, 5, 8], [4, 8, 8, 5]):
            assert_same(records(given[name], counts, parallel), truth)
    assert_same(records(given["device"], [5, 5, 5, 5, 5], parallel), truth)


@pytest.mark.parametrize(
    ("source", "thin"), [("device", 3), ("store", 1), *slowly(("device", 1), ("store", 3))]
)
def test_windows_give_the_record_of_one_call(tmp_path, monkeypatch, thin, source):
    # as on an accelerator: parts of a call are copied while others are computed
    rows, counts = sources(tmp_path)[source], [8, 7, 8, 2]
    truth = records(rows, counts, "stacked", thin=thin, length=2)
    assert truth["position"].shape[1] == LENGTH // thin
    monkeypatch.setattr(Chains, "_through_pinned_pages", True)
    monkeypatch.setattr("modicum.run.iterations.RESERVED", 2**16)  # a GPU fills more in no time
    assert_same(records(rows, counts, "stacked", thin=thin, length=2), truth)


@pytest.mark.parametrize("length", [3, *slowly(1, 8)])
def test_draws_do_not_depend_on_how_many_are_prepared_together(tmp_path, length):
    rows = sources(tmp_path)["device"]
    assert_same(records(rows, [6, 6, 6, 6, 1], length=length), records(rows, [8, 8, 8, 1]))


def test_a_guess_that_was_wrong_is_fetched_again(tmp_path):
    # the chunk size may change: rows fetched for another span must not be used
    given, done = sources(tmp_path), 0
    truth = records(given["device"], [8, 8, 8, 1])
    with jax.enable_x64(True):
        chains = chains_of(given["store"])
        chains.begin()
        for count in (3, 7, 2):
            (part,) = chains.advance(done, count, next_count=5)  # not the next count
            np.testing.assert_array_equal(part["position"], truth["position"][:, done:][:, :count])
            done += count
        chains.close()


def test_state_saved_and_restored_continues_the_same(tmp_path):
    rows = sources(tmp_path)["store"]
    for parallel in ("threads", "stacked"):
        truth = records(rows, [8, 8], parallel)
        with jax.enable_x64(True):
            first, second = chains_of(rows, parallel), chains_of(rows, parallel)
            first.begin()
            first.advance(0, 8)
            second.restore(first.leaves())
            (part,) = second.advance(8, 8)
        np.testing.assert_array_equal(part["position"], truth["position"][:, 8:])


def test_runs_that_differ_in_length_share_compiled_code(tmp_path):
    traced = []

    class Watched(Accumulate):
        def step(self, chances, state, flags, batch, context):
            traced.append(flags)
            return super().step(chances, state, flags, batch, context)

    rows, kernel = sources(tmp_path)["device"], Watched()
    steps, drawn = np.linspace(0, 1, 40, dtype=np.float32), []
    for length in (10, 25, 40):
        with jax.enable_x64(True):
            chains = chains_of(rows, kernel=kernel, flags=steps[:length])
            drawn.append(run(chains, tune=2, draws=length - 2, progressbar=False).position)
    assert len(traced) == 1
    for short, long in pairwise(drawn):  # draws do not depend on how many will follow
        np.testing.assert_array_equal(long[:, : short.shape[1]], short)

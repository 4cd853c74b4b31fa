"""Weights kept by workers, without a cluster: the same tables, orders and draws.

Workers are objects in this process here; `test_ray.py` uses a real cluster.
"""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import modicum as mo
from modicum.kernels.designs import Weighted, certainty_rows, weight_tables
from modicum.methods.weights import sample_on_host
from modicum.passes.engine import LocalEngine, chunk_rows
from modicum.passes.ray_engine import NumbersAtWorkers, RayEngine
from modicum.passes.worker import Parcel, Worker
from modicum.rows import weight_classes
from modicum.rows.weight_classes import extent_of

N = 100_003
SHARD = 16_384  # rows per shard: seven, the last shorter, none a multiple of a chunk


class EngineHere(RayEngine):
    """Three workers in this process, which answer at once and can lose what they keep."""

    def __init__(self, rows, work):
        self.workers, self.asked = [Worker(1) for _ in range(3)], []
        for worker in self.workers:
            worker._rows[0], worker._work = rows, (1, work)
        super().__init__([_Handle(self, number) for number in range(3)], progressbar=False)

    def source(self, rows):
        return Parcel(0, None)

    def owners(self, rows, row_ids):
        return np.asarray(row_ids) // 20_000 % 3

    def _answer(self, call):
        return call.answers[0]


def numbers_at(engine, rows):
    return NumbersAtWorkers(engine, Parcel(1, None), rows, "design")


def forget(engine):
    for worker in engine.workers:
        worker._kept.clear()


class _Handle:
    def __init__(self, engine, number):
        self._engine, self._number = engine, number

    def __getattr__(self, name):
        def call(*arguments):
            self._engine.asked.append((self._number, name))
            return getattr(self._engine.workers[self._number], name)(*arguments)

        return SimpleNamespace(remote=call)


def sizes(arguments, batch, present):
    """Weights from 0 to e^8, so that some classes have no rows."""
    return np.exp(arguments * batch["x"][:, 0]) * (batch["x"][:, 1] > -1)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    x = np.random.default_rng(1).normal(size=(N, 2))
    place = tmp_path_factory.mktemp("rows") / "store"
    return mo.rows.ingest({"x": x}, place, dtype=None, progressbar=False)


@pytest.fixture
def there(rows, monkeypatch):
    monkeypatch.setattr(weight_classes, "BLOCK", SHARD)
    workers = EngineHere(rows, (sizes, 2.0))
    assert chunk_rows(rows) % SHARD
    return workers, weight_tables(numbers_at(workers, rows))


@pytest.fixture
def here(rows, monkeypatch):
    monkeypatch.setattr(weight_classes, "BLOCK", SHARD)
    return weight_tables(LocalEngine(1, progressbar=False).map_rows(sizes, 2.0, rows))


def test_tables_and_order_match_one_machine(rows, here, there):
    workers, tables = there
    for name in ("start", "size", "cumulative", "probability"):
        np.testing.assert_array_equal(getattr(tables, name), getattr(here, name))
    assert len(tables.order) == N
    places = np.random.default_rng(2).integers(0, N, (50, 4))
    np.testing.assert_array_equal(tables.order[places], here.order[places])
    np.testing.assert_array_equal(np.asarray(tables.order), here.order)
    np.testing.assert_array_equal(tables.order[N - 7 :], here.order[N - 7 :])
    np.testing.assert_array_equal(tables.order[N - 30_000 :: 5], here.order[N - 30_000 :: 5])
    forget(workers)  # like workers that replace others
    np.testing.assert_array_equal(tables.order[places], here.order[places])


def test_sums_depend_on_blocks_so_that_these_must_be_the_same(rows, here, monkeypatch):
    """Negative control: other shards give other bits."""
    monkeypatch.setattr(weight_classes, "BLOCK", SHARD // 2)
    other = weight_tables(LocalEngine(1, progressbar=False).map_rows(sizes, 2.0, rows))
    assert (other.probability != here.probability).any()
    np.testing.assert_allclose(other.probability, here.probability, rtol=1e-12)


def test_chains_draw_places_and_get_the_same_rows(rows, here, there):
    workers, tables = there
    key = jax.random.key(3)
    with jax.enable_x64(True):
        ours, fed = Weighted().placed(tables, rows)
        draw = jax.jit(lambda tables: Weighted().draw(key, 500, tables))
        placed, drawn = draw(ours), draw(jax.tree.map(np.asarray, here))
    assert ours.order is None
    assert (np.asarray(placed.row_ids) != np.asarray(drawn.row_ids)).any()
    np.testing.assert_array_equal(placed.probability, drawn.probability)
    workers.asked.clear()
    read = fed.take(np.asarray(placed.row_ids).reshape(100, 5))["x"]
    assert sorted(workers.asked) == [(k, "take_sorted") for k in range(3)]  # one call for each
    np.testing.assert_array_equal(read, rows.take(np.asarray(drawn.row_ids).reshape(100, 5))["x"])
    places = np.asarray(placed.row_ids).reshape(100, 5)
    _, ordered = Weighted().placed(here, rows)
    np.testing.assert_array_equal(ordered.take(places)["x"], read)
    for view in (fed, ordered):
        np.testing.assert_array_equal(view.slice(5, 9)["x"], rows.take(here.order[5:9])["x"])
    on_device = {"x": rows.slice(0, N)["x"]}  # rows of this process need the whole order
    np.testing.assert_array_equal(Weighted().placed(tables, on_device)[0].order, here.order)


def test_certainty_rows_and_samples_are_the_same(here, there):
    _, tables = there
    for count in (1, 300, 25_000):
        ours, theirs = (certainty_rows(each, count) for each in (tables, here))
        np.testing.assert_array_equal(ours.row_ids, theirs.row_ids)
    pairs = (sample_on_host(np.random.default_rng(4), 900, each) for each in (tables, here))
    for a, b in zip(*pairs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_number_that_is_not_finite_is_found(rows, monkeypatch):
    monkeypatch.setattr(weight_classes, "BLOCK", SHARD)

    def broken(arguments, batch, present):
        return np.where(batch["x"][:, 0] == arguments, np.nan, 1.0)

    at = rows.slice(70_001, 70_002)["x"][0, 0]
    assert numbers_at(EngineHere(rows, (broken, at)), rows).extent().bad == 70_001
    whole = LocalEngine(1, progressbar=False).map_rows(broken, at, rows)
    assert extent_of(whole).bad == 70_001
    assert extent_of(np.ones(10, np.float32)).bad == -1

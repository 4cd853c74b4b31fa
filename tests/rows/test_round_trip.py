"""Rows in memory and in a store behave the same, bit for bit."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from helpers.refusals import refused
from modicum.errors import DataError, SettingError
from modicum.rows import Rows, ingest

N, D = 1003, 5


def make_fields(dtype, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((N, D)).astype(dtype),
        "y": rng.integers(0, 2, N).astype(dtype),
        "offset": rng.standard_normal(N).astype(dtype),
        "weight": rng.random(N).astype(dtype),
        "c": rng.standard_normal((N, 2, 3)).astype(dtype),
    }


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return np.dtype(request.param)


@pytest.fixture(params=[None, 97, 1003, 1], ids=lambda s: f"shard_rows={s}")
def pair(request, dtype, tmp_path):
    shard_rows = request.param
    fields = make_fields(dtype)
    if shard_rows == 1:  # one file per row: keep it to a few
        fields = {name: array[:7] for name, array in fields.items()}
    memory = Rows(**fields)
    store = ingest(memory, tmp_path / "s", dtype=dtype, shard_rows=shard_rows, progressbar=False)
    return memory, store


def same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert one[name].shape == other[name].shape
        assert one[name].tobytes() == other[name].tobytes(), name


def test_store_equals_memory(pair, dtype):
    memory, store = pair
    assert len(memory) == len(store)
    fields = {"x": (D,), "y": (), "offset": (), "weight": (), "c": (2, 3)}
    assert memory.fields == store.fields == fields
    assert memory.dtype == store.dtype == dtype
    assert memory.columns == store.columns == tuple(f"x{j}" for j in range(D))
    assert memory.nbytes == store.nbytes == len(memory) * (D + 3 + 6) * dtype.itemsize
    assert memory.row_bytes == store.row_bytes == (D + 3 + 6) * dtype.itemsize
    assert not memory.is_store
    assert store.is_store
    assert memory.fingerprint() == store.fingerprint()


def test_take_any_shape(pair):
    memory, store = pair
    rng = np.random.default_rng(1)
    for shape in [(), (3,), (4, 5), (2, 3, 4), (0,)]:
        for kind in (np.int32, np.int64, np.uint64):
            indices = rng.integers(0, len(memory), shape).astype(kind)
            same(memory.take(indices), store.take(indices))
            assert memory.take(indices)["c"].shape == (*shape, 2, 3)
    edges = [0, len(memory) - 1, 0]
    same(memory.take(edges), store.take(edges))
    assert np.array_equal(store.take(edges)["y"], store.slice(0, len(store))["y"][edges])


def test_slices_and_chunks(pair):
    memory, store = pair
    n = len(memory)
    for start, stop in [(0, n), (0, 0), (n, n), (3, 5), (n - 1, n), (1, n - 1)]:
        same(memory.slice(start, stop), store.slice(start, stop))
        assert len(store.slice(start, stop)["x"]) == stop - start
    for size in (1 if n < 10 else 100, 64, n, n + 1):
        pieces = list(memory.chunks(size)), list(store.chunks(size))
        full, rest = divmod(n, size)
        assert [len(p["y"]) for p in pieces[0]] == [size] * full + [rest] * (rest > 0)
        for one, other in zip(*pieces, strict=True):
            same(one, other)
        whole = np.concatenate([p["x"] for p in pieces[1]])
        assert whole.tobytes() == memory.slice(0, n)["x"].tobytes()


def test_outside_is_refused(pair):
    for rows in pair:
        n = len(rows)
        for bad in ([-1], [0, n], [[n + 5]]):
            refused(DataError, rf"(-1|{n}|{n + 5}) does not exist.*0 to {n - 1}", rows.take, bad)
            with pytest.raises(IndexError):
                rows.take(bad)
        refused(DataError, "do not exist", rows.slice, 0, n + 1)
        for size in (0, -1, 2.5, True):
            refused(SettingError, "the size of chunks must be a whole number", rows.chunks, size)


def test_rows_do_not_change(pair):
    for rows in pair:
        with pytest.raises(ValueError, match="read-only"):
            rows.slice(0, 2)["x"][:] = 0
        for chunk in rows.chunks(10):
            assert not any(part.flags.writeable for part in chunk.values())


def test_users_array_is_neither_copied_nor_frozen():
    x = np.zeros((4, 2), np.float32)
    rows = Rows(x=x)
    assert np.shares_memory(rows.slice(0, 4)["x"], x)
    assert x.flags.writeable
    assert not np.shares_memory(Rows(x=x, dtype=np.float64).slice(0, 4)["x"], x)
    ordered = Rows(x=np.asfortranarray(np.arange(6.0).reshape(3, 2))).slice(0, 3)["x"]
    assert ordered.flags.c_contiguous
    assert ordered.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_fingerprint_notices():
    fields = make_fields(np.float64)
    first = Rows(**fields).fingerprint()
    assert first == Rows(**dict(reversed(fields.items()))).fingerprint()
    assert first == Rows(**{k: v.copy() for k, v in fields.items()}).fingerprint()
    assert first != Rows(**make_fields(np.float64, seed=1)).fingerprint()
    assert first != Rows(**make_fields(np.float32)).fingerprint()
    assert first != Rows(**{k: v[:-1] for k, v in fields.items()}).fingerprint()
    renamed = {("z" if k == "c" else k): v for k, v in fields.items()}
    assert first != Rows(**renamed).fingerprint()
    tall = np.arange(50_000.0)
    for at in (0, -1):
        other = tall.copy()
        other[at] += 0.5
        assert Rows(c=tall).fingerprint() != Rows(c=other).fingerprint()


def test_threads_read_at_once(tmp_path):
    fields = make_fields(np.float32)
    store = ingest(fields, tmp_path / "s", shard_rows=200, progressbar=False)
    memory = Rows(**fields)

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            indices = rng.integers(0, N, 50)
            same(memory.take(indices), store.take(indices))
            start, stop = np.sort(rng.integers(0, N, 2))
            same(memory.slice(start, stop), store.slice(start, stop))
        same(*({"x": np.concatenate([c["x"] for c in r.chunks(130)])} for r in (memory, store)))
        return seed

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


def test_pickle(pair):
    for rows in pair:
        copy = pickle.loads(pickle.dumps(rows))
        assert copy.fingerprint() == rows.fingerprint()
        assert copy.is_store == rows.is_store
        with pytest.raises(ValueError, match="read-only"):
            copy.slice(0, 1)["y"][:] = 1


def test_repr(tmp_path):
    rows = Rows(x=np.zeros((2000, 3)), y=np.zeros(2000))
    assert repr(rows) == "Rows(2,000 rows: x (3,), y; float64, 64 kB in memory)"
    store = ingest(rows, tmp_path / "s", progressbar=False)
    assert repr(store) == f"Rows(2,000 rows: x (3,), y; float32, 32 kB in {tmp_path / 's'})"

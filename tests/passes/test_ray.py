"""A real local Ray, of one node or several: the same sums, whatever happens to a worker."""

import os
import subprocess
import sys
import textwrap
import time
from functools import partial

import numpy as np
import pytest

import modicum as mo
from helpers.targets import logistic_rows, quick, same_draws
from modicum.passes import LocalEngine, ray_engine
from modicum.passes.ray_engine import OrderAtWorkers
from modicum.rows import weight_classes

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know the tests

MODEL = mo.models.Logistic()
N = 150_000  # three chunks


@pytest.fixture(scope="module")
def rows():
    return logistic_rows(N)


@pytest.fixture(scope="module")
def engine():
    made = mo.engines.Ray(workers=2, object_store=100_000_000)
    yield made
    made.close()


@pytest.fixture(scope="module")
def local(rows):
    return quick(MODEL, rows, method="hmc-ecs")


def outcomes(arguments, batch, present):
    """Outcomes of very different size, so that the order of summation matters."""
    values = np.where(present, np.exp(20 * batch["x"][:, 0]), 0.0)
    return (values.sum(), np.array([values.sum(), present.sum()]) * arguments)


def dies_once(marker, arguments, batch, present):
    if not os.path.exists(marker):
        open(marker, "w").close()
        os._exit(1)
    return outcomes(arguments, batch, present)


def always_dies(arguments, batch, present):
    os._exit(1)


def has_no_memory(arguments, batch, present):
    raise MemoryError


def test_draws_match_one_machine_with_any_number_of_workers(rows, engine, local, tmp_path):
    heard = []
    post = quick(MODEL, rows, method="hmc-ecs", engine=engine, progressbar=heard.append)
    assert same_draws(post, local)
    assert post.ledger.counts == local.ledger.counts
    store = mo.rows.ingest(rows, tmp_path / "store", dtype=None, progressbar=False)
    alone = quick(MODEL, store, method="hmc-ecs")  # of a store, the mode is approached otherwise
    assert same_draws(quick(MODEL, store, method="hmc-ecs", engine=engine), alone)


def test_weights_stay_with_workers_and_draws_are_the_same(engine, tmp_path, monkeypatch):
    """Chains draw positions, workers look up their rows, and one worker is killed."""
    monkeypatch.setattr(weight_classes, "BLOCK", 16_384)  # rows per shard: ten shards
    monkeypatch.setattr("modicum.run.iterations.SMALL_STORE", 0)
    store = mo.rows.ingest(logistic_rows(N), tmp_path / "store", dtype=None, progressbar=False)
    assert engine.connect(False).keeps(store)
    gathered, killed = [], []
    monkeypatch.setattr(OrderAtWorkers, "__array__", lambda *_, **__: gathered.append(1))

    def kill_one(event):
        if event.phase == "sampling" and event.done and not killed:
            killed.append(engine._actors[0])
            ray.kill(engine._actors[0], no_restart=False)

    for method in ("hmc-ecs", mo.SGLDCV(design="weighted", certainty=50)):
        alone = quick(MODEL, store, method=method)
        post = quick(MODEL, store, method=method, engine=engine, progressbar=kill_one)
        assert same_draws(post, alone)
        assert post.ledger.counts == alone.ledger.counts
    assert killed
    assert not gathered  # the driver never had the order of all rows
    digests = (mo.digest(MODEL, store, size=500, random_seed=1, progressbar=False, engine=e)
               for e in (None, engine))  # fmt: skip
    assert len({digest.fingerprint() for digest in digests}) == 1


def test_sums_are_the_same_to_the_last_bit_after_a_worker_died(rows, engine, tmp_path):
    alone = LocalEngine(progressbar=False).map_reduce(outcomes, 1.0, rows)
    there = engine.connect(False)
    ours = there.map_reduce(partial(dies_once, str(tmp_path / "died")), 1.0, rows)
    assert (tmp_path / "died").exists()
    assert ours[0] == alone[0]
    np.testing.assert_array_equal(ours[1], alone[1])
    backwards = sum(np.exp(20 * chunk["x"][::-1, 0]).sum() for chunk in rows.chunks(1000))
    assert backwards != alone[0]  # negative control: another order gives other bits


def test_a_worker_that_is_killed_between_passes_is_replaced(rows, engine, local):
    engine.connect(False)
    ray.kill(engine._actors[0], no_restart=False)
    assert same_draws(quick(MODEL, rows, method="hmc-ecs", engine=engine), local)


def test_a_custom_model(rows, engine):
    scale = 2.0
    own = mo.Model(
        lambda th: -0.5 * th["a"] ** 2 / scale,
        lambda th, batch: -0.5 * (batch["y"] - th["a"]) ** 2,
        init={"a": 0.1},
    )
    a, b = (quick(own, rows, method="hmc-ecs", engine=e) for e in (None, engine))
    assert same_draws(a, b)


def test_a_worker_without_memory_is_a_clear_error(rows, engine):
    with pytest.raises(mo.ResourceError, match="memory ran out on a worker"):
        engine.connect(False).map_reduce(has_no_memory, 0, rows)


def test_what_a_worker_cannot_import_is_a_clear_error(rows, engine, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def made(a, batch, present):\n    return (a,)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    with pytest.raises(mo.SettingError, match="install it on every node"):
        engine.connect(False).map_reduce(only_here.made, 1.0, rows)


def test_errors_of_a_worker_come_back_as_they_are(rows, engine, tmp_path):
    store = mo.rows.ingest(rows, tmp_path / "store", dtype=None, progressbar=False)
    os.rename(tmp_path / "store", tmp_path / "elsewhere")
    with pytest.raises(mo.DataError, match="under the same path on every node"):
        engine.connect(False).map_reduce(outcomes, 1.0, store)


def test_progress_says_workers_and_rows_per_second(rows, engine, monkeypatch):
    monkeypatch.setattr(ray_engine, "PATIENCE", 0.0)
    heard = []
    engine.connect(heard.append).map_reduce(outcomes, 1.0, rows, "mode")
    assert heard[-1].done == N
    assert "2 workers · " in heard[-1].detail
    assert heard[-1].detail.endswith("rows/s")


def test_a_worker_that_keeps_dying_is_a_clear_error(rows, engine, monkeypatch):
    monkeypatch.setattr(ray_engine, "RESTARTS", 0)
    engine.close()
    with pytest.raises(mo.ResourceError, match=r"a worker died.*checkpoint"):
        engine.connect(False).map_reduce(always_dies, 0, rows)
    engine.close()


@pytest.mark.parametrize("address", ["nowhere.invalid:6379", "127.0.0.1:9", "nonsense", "auto"])
def test_addresses_where_no_cluster_is_are_a_clear_error(rows, engine, address):
    engine.close()
    with pytest.raises(
        mo.SettingError, match=r"cannot connect to a Ray cluster|is not the address"
    ):
        quick(MODEL, rows, engine=mo.engines.Ray(address=address))


def test_a_killed_driver_resumes_to_the_same_draws(rows, engine, tmp_path):
    """It is killed while sampling with its workers, and resumed here without any."""
    engine.close()
    script = textwrap.dedent(f"""
        import os, sys
        sys.path.insert(0, {str(os.path.dirname(os.path.dirname(__file__)))!r})
        import modicum as mo
        from helpers.targets import logistic_rows

        def watch(event):
            if event.phase == "sampling" and event.done > 0:
                os.kill(os.getpid(), 9)

        mo.sample(mo.models.Logistic(), logistic_rows({N}), method="hmc-ecs", draws=400, tune=100,
                  chains=2, random_seed=5, progressbar=watch, checkpoint={str(tmp_path / "c")!r},
                  engine=mo.engines.Ray(workers=2, object_store=100_000_000))
    """)
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()[-2000:]
    assert (tmp_path / "c" / "run.json").exists()
    settings = {"method": "hmc-ecs", "draws": 400}
    resumed = quick(MODEL, rows, checkpoint=tmp_path / "c", **settings)
    assert same_draws(resumed, quick(MODEL, rows, **settings))


# Several nodes: workers that feed chains, lost nodes, exhausted memory -----------------------


ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know the tests

RUN = {"method": "hmc-ecs", "draws": 600}
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    place = tmp_path_factory.mktemp("rows") / "store"
    return mo.rows.ingest(logistic_rows(N), place, dtype=None, progressbar=False)


@pytest.fixture(scope="module")
def of_store(store):
    return quick(MODEL, store, **RUN)


@pytest.fixture
def fetched(monkeypatch):
    """Chains fetch their rows, 200 iterations at a time."""
    monkeypatch.setattr("modicum.run.iterations.SMALL_STORE", 0)
    monkeypatch.setattr(sys.modules["modicum.sample"], "capacity_for", lambda *_: 200)


@pytest.fixture(params=[2, 1], ids=["with room", "without room"])
def cluster(request):
    """Start a node of one or two cores; tests add others, with room for a worker to move."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": request.param})
    yield made
    ray.shutdown()
    made.shutdown()


def test_chains_are_fed_by_workers_and_a_node_that_goes_changes_no_draw(
    store, of_store, cluster, fetched, monkeypatch
):
    monkeypatch.setattr(ray_engine, "PATIENT", 2.0)
    monkeypatch.setattr(ray_engine, "REPLY", 5.0)
    extra = cluster.add_node(**NODE)
    engine = mo.engines.Ray(address=cluster.address, workers=2)
    there, asked, gone = engine.connect(False), [], []
    nodes = {ray.get(actor.node.remote()) for actor in engine._actors}
    assert len(nodes) == 2  # one worker on each
    take = type(there).take
    monkeypatch.setattr(
        type(there), "take", lambda self, *a: asked.append(bool(gone)) or take(self, *a)
    )

    def remove_a_node(event):
        if event.phase == "sampling" and event.done and not gone:
            gone.append(extra)
            cluster.remove_node(extra)

    post = quick(MODEL, store, engine=engine, progressbar=remove_a_node, **RUN)
    assert gone
    assert sum(asked) >= 1  # rows were requested after it was lost
    assert same_draws(post, of_store)
    ids = np.random.default_rng(1).integers(0, N, (40, 5))
    for name, values in there.take(store, ids).items():
        np.testing.assert_array_equal(values, store.take(ids)[name])
    engine.close()


def test_a_node_that_is_lost_while_workers_start_is_done_without(
    store, of_store, cluster, monkeypatch
):
    """The run once ended after two minutes, since one worker could not be started."""
    extra = cluster.add_node(**NODE | {"num_cpus": 3})
    resources, calls = ray.cluster_resources, []

    def lost(*_):
        there = resources()
        if not calls:
            cluster.remove_node(extra)
        calls.append(there)
        return there

    engine, said = mo.engines.Ray(address=cluster.address), []
    monkeypatch.setattr(ray, "cluster_resources", lost)
    since = time.monotonic()
    post = quick(MODEL, store, engine=engine, progressbar=said.append, **RUN)
    assert len(engine._actors) in (1, 2)
    assert time.monotonic() - since < 60
    assert any(f"only {len(engine._actors)} of " in event.phase for event in said)
    assert same_draws(post, of_store)
    engine.close()


def test_a_node_out_of_memory_is_a_clear_error(store, monkeypatch):
    """Ray's monitor kills workers when a node's memory is nearly full: here, at once."""
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    engine = mo.engines.Ray(workers=1, object_store=80_000_000)
    with pytest.raises(mo.ResourceError, match="its node had no memory left"):
        engine.connect(False).map_reduce(slow, 0, store)
    engine.close()


def slow(arguments, batch, present):
    import time

    time.sleep(5)
    return (np.ones(1),)

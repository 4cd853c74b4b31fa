"""Several local Ray nodes: workers that feed chains, lost nodes, exhausted memory."""

import sys
import time

import numpy as np
import pytest

import modicum as mo
from helpers.targets import logistic_rows, quick, same_draws
from modicum.passes import ray_engine

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know the tests

MODEL = mo.models.Logistic()
N = 150_000  # three chunks
RUN = {"method": "hmc-ecs", "draws": 600}
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    place = tmp_path_factory.mktemp("rows") / "store"
    return mo.rows.ingest(logistic_rows(N), place, dtype=None, progressbar=False)


@pytest.fixture(scope="module")
def local(store):
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
    store, local, cluster, fetched, monkeypatch
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
    assert same_draws(post, local)
    ids = np.random.default_rng(1).integers(0, N, (40, 5))
    for name, values in there.take(store, ids).items():
        np.testing.assert_array_equal(values, store.take(ids)[name])
    engine.close()


def test_a_node_that_is_lost_while_workers_start_is_done_without(
    store, local, cluster, monkeypatch
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
    assert same_draws(post, local)
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

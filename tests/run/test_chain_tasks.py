"""Chains on other hosts: the same draws, whatever happens to a host.

Hosts are objects of this process in the quick tests, and actors of a real Ray in the slow ones.
"""

import os
import signal
import sys

import numpy as np
import pytest

import modicum as mo
from helpers.refusals import refused
from helpers.targets import logistic_rows, quick, same_draws
from modicum.passes import LocalEngine
from modicum.passes.worker import RayHosts
from modicum.rows import weight_classes
from modicum.run import chains
from modicum.run.chains import ChainHost

MODEL = mo.models.Logistic()


class HostsHere:
    """Two hosts that answer at once; one is replaced before a given call."""

    accelerators = False

    def __init__(self, dies_before=()):
        self.hosts = [ChainHost() for _ in range(2)]
        self.dies_before, self.count, self.closed = set(dies_before), 0, False

    def __len__(self):
        return len(self.hosts)

    def share(self, settings, rows):
        return [settings, rows]

    def calls(self, method, arguments):
        self.count += 1
        if self.count in self.dies_before:
            self.hosts[1] = ChainHost()
        pairs = zip(self.hosts, arguments, strict=False)
        return [getattr(host, method)(*each) for host, each in pairs]

    def close(self):
        self.closed = True


@pytest.fixture
def elsewhere(monkeypatch):
    """Run chains on hosts in this process; return the hosts, the last first."""
    made = []
    monkeypatch.setattr(chains, "fetched", tuple)

    def hosts(self, kind, most):
        made.insert(0, HostsHere(dies_before=(3, 5)))
        return made[0]

    return made, lambda: monkeypatch.setattr(LocalEngine, "hosts", hosts)


@pytest.mark.parametrize("method", ["hmc-ecs", mo.SVRGLD(batch=100)], ids=["rows", "passes"])
def test_draws_match_chains_that_run_here(elsewhere, method, monkeypatch):
    """One host dies twice; snapshots of SVRG are renewed by the driver between chunks."""
    monkeypatch.setattr(sys.modules["modicum.sample"], "capacity_for", lambda *_: 32)
    made, begin = elsewhere
    rows = logistic_rows()
    here = quick(MODEL, rows, method=method)
    begin()
    there = quick(MODEL, rows, method=method)
    assert same_draws(here, there)
    assert made[0].count > 5
    assert made[0].closed


def test_a_state_that_is_not_taken_back_changes_draws(elsewhere, monkeypatch):
    """Negative control: a new host starts over instead of continuing."""
    monkeypatch.setattr(sys.modules["modicum.sample"], "capacity_for", lambda *_: 32)
    rows = logistic_rows()
    here = quick(MODEL, rows, method="hmc-ecs")
    elsewhere[1]()
    monkeypatch.setattr("modicum.run.chains.Chains.restore", lambda self, leaves: self.begin())
    assert not same_draws(here, quick(MODEL, rows, method="hmc-ecs"))


def test_where_chains_run_is_checked():
    refused(mo.SettingError, "chains must be 'driver' or 'tasks'", mo.engines.Ray, chains="gpu")


# A real Ray ---------------------------------------------------------------------------------

N = 60_000


@pytest.fixture(scope="module")
def engine():
    pytest.importorskip("ray")
    made = mo.engines.Ray(workers=2, object_store=100_000_000, chains="tasks")
    yield made
    made.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    place = tmp_path_factory.mktemp("rows") / "store"
    return mo.rows.ingest(logistic_rows(N), place, dtype=None, progressbar=False)


@pytest.fixture
def fetched(monkeypatch):
    """Chains fetch their rows, 200 iterations at a time, and workers keep weights."""
    monkeypatch.setattr("modicum.run.iterations.SMALL_STORE", 0)
    monkeypatch.setattr(weight_classes, "BLOCK", 16_384)
    monkeypatch.setattr(sys.modules["modicum.sample"], "capacity_for", lambda *_: 200)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "store"])
def test_a_killed_task_resumes_from_its_last_chunk(engine, store, where, request, monkeypatch):
    import ray

    rows = store.subset(np.arange(N)) if where == "memory" else store
    if where == "store":
        request.getfixturevalue("fetched")
    killed, pids = [], []
    calls = RayHosts.calls

    def watched(self, method, arguments):
        if method == "advance" and not pids:
            pids.extend(ray.get([actor.process.remote() for actor in self._actors]))
        return calls(self, method, arguments)

    monkeypatch.setattr(RayHosts, "calls", watched)

    def kill_one(event):
        if event.phase == "sampling" and event.done and not killed:
            killed.append(pids[-1])
            os.kill(pids[-1], signal.SIGKILL)

    run = {"method": "hmc-ecs", "draws": 1000}
    post = quick(MODEL, rows, engine=engine, progressbar=kill_one, **run)
    assert killed
    assert os.getpid() not in pids
    assert len(set(pids)) == 2
    assert same_draws(post, quick(MODEL, rows, **run))


@pytest.mark.slow
def test_a_run_resumes_from_a_checkpoint_with_chains_elsewhere(engine, store, tmp_path, fetched):
    whole = quick(MODEL, store, method="hmc-ecs", draws=600)

    def stop(event):
        if event.phase == "sampling" and event.done:
            raise KeyboardInterrupt

    run = {"method": "hmc-ecs", "draws": 600, "checkpoint": tmp_path / "c"}
    with pytest.raises(KeyboardInterrupt):
        quick(MODEL, store, engine=engine, progressbar=stop, **run)
    assert same_draws(quick(MODEL, store, engine=engine, **run), whole)

"""Engines without a cluster: settings, errors, and sums that do not depend on the engine."""

from types import SimpleNamespace

import pytest

import modicum as mo
from helpers.refusals import refused
from helpers.targets import logistic_rows, quick, same_draws
from modicum.cli.fitting import build_engine
from modicum.engines import engine_for
from modicum.passes import LocalEngine, ray_engine

MODEL = mo.models.Logistic()


def test_threads_do_not_change_a_draw():
    rows = logistic_rows()
    one, four = (quick(MODEL, rows, engine=mo.engines.Local(threads)) for threads in (1, 4))
    assert same_draws(one, four)
    assert same_draws(one, quick(MODEL, rows))


class FakeRay:
    """What starting workers needs of Ray: of `asked` workers, those with these numbers answer."""

    class exceptions:  # noqa: N801 - as Ray calls them
        RayError = RuntimeError
        OutOfMemoryError = MemoryError

    def __init__(self, answering, cores=(3, 1), broken=()):
        self.answering, self.cores, self.broken = set(answering), list(cores), set(broken)
        self.asked = self.looks = 0
        self.killed = []

    def remote(self, **_):
        return lambda worker: SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=self.actor)
        )

    def actor(self, cpus):
        number, self.asked = self.asked, self.asked + 1
        return SimpleNamespace(number=number, ready=SimpleNamespace(remote=lambda: number))

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": float(self.cores.pop(0) if len(self.cores) > 1 else self.cores[0])}

    def wait(self, answers, num_returns, timeout):
        self.looks += 1
        return [answer for answer in answers if answer in self.answering | self.broken], []

    def get(self, answer):
        if answer in self.broken:
            raise self.exceptions.RayError("its node has died")

    def kill(self, actor):
        self.killed.append(actor.number)


def connected(ray, monkeypatch, **settings):
    """Return the numbers of the workers that an engine goes on with, and what it said."""
    monkeypatch.setattr(ray_engine, "ray_library", lambda: ray)
    monkeypatch.setattr(ray_engine, "START", 0.1)
    engine, said = mo.engines.Ray(**settings), []
    engine.connect(said.append)
    return sorted(actor.number for actor in engine._actors), [event.phase for event in said]


def test_workers_that_do_not_start_are_done_without(monkeypatch):
    ray = FakeRay(answering=[0, 2])
    numbers, (said,) = connected(ray, monkeypatch)
    assert (numbers, ray.killed) == ([0, 2], [1])
    assert ray.looks == 1  # a node was lost, so nobody waits for its worker
    assert said.startswith("only 2 of 3 workers of 1 cores could be started")
    ray = FakeRay(answering=[0], broken=[1], cores=[2])
    numbers, (said,) = connected(ray, monkeypatch, workers=2)
    assert numbers == [0]
    assert "(its node has died)" in said
    assert connected(FakeRay([0, 1], [2]), monkeypatch) == ([0, 1], [])
    with pytest.raises(mo.ResourceError, match="no worker of 1 cores could be started"):
        connected(FakeRay([], [2]), monkeypatch)
    with pytest.raises(mo.SettingError, match=r"cannot be started .*\(its node has died\)"):
        connected(FakeRay([], [2], broken=[0, 1]), monkeypatch)


def test_what_is_not_an_engine_is_refused():
    for wrong in ("ray", 3, LocalEngine(progressbar=False)):
        refused(mo.SettingError, r"engine must be mo.engines.Local\(\)", engine_for, wrong, False)
    assert isinstance(engine_for(mo.engines.Local, False), LocalEngine)
    for settings in ({"workers": 0}, {"cpus": "two"}, {"address": ""}, {"object_store": -1}):
        with pytest.raises(mo.SettingError):
            mo.engines.Ray(**settings)
    refused(mo.SettingError, "threads must be a whole number", mo.engines.Local, threads=0)


def test_without_ray_a_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(mo.SettingError, match=r"pip install 'modicum\[ray\]'"):
        quick(MODEL, logistic_rows(), engine=mo.engines.Ray())


def test_the_command_line_names_engines():
    assert build_engine("local", None) == mo.engines.Local()
    assert build_engine("ray", "auto").address == "auto"
    refused(mo.SettingError, "--engine must be local or ray", build_engine, "spark", None)
    refused(mo.SettingError, "add --engine ray", build_engine, "local", "auto")


def test_a_ray_that_does_not_start_is_a_clear_error(monkeypatch):
    def busy(**settings):
        raise Exception("The current node timed out during startup.\nMore of it.")

    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", busy)
    with pytest.raises(mo.ResourceError, match=r"Ray could not be started .*timed out during st"):
        mo.engines.Ray(workers=1).connect(False)

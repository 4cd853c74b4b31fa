"""Engines without a cluster: settings, errors, and sums that do not depend on the engine."""

import numpy as np
import pytest

import modicum as mo
from helpers.targets import logistic_rows, quick, same_draws
from modicum.cli.fitting import build_engine
from modicum.engines import engine_for
from modicum.engines.ray_engine import _tasks
from modicum.passes import LocalEngine
from modicum.passes.engine import added, joined

MODEL = mo.models.Logistic()


def test_threads_do_not_change_a_draw():
    rows = logistic_rows()
    one, four = (quick(MODEL, rows, engine=mo.engines.Local(threads)) for threads in (1, 4))
    assert same_draws(one, four)
    assert same_draws(one, quick(MODEL, rows))


def test_parts_are_added_in_order_and_joined_without_padding():
    rows = mo.Rows(y=np.arange(5.0))
    assert added([(np.array(1e16),), (np.array(1.0),), (np.array(-1e16),)])[0] == 0.0
    assert added([(np.array(1e16),), (np.array(-1e16),), (np.array(1.0),)])[0] == 1.0
    np.testing.assert_array_equal(joined([np.arange(8.0)], rows), np.arange(5.0))


@pytest.mark.parametrize(("chunks", "workers"), [(1, 3), (7, 2), (100, 3), (1000, 3), (3, 30)])
def test_every_chunk_is_in_one_task_in_order(chunks, workers):
    tasks = _tasks(chunks, workers)
    assert [number for task in tasks for number in task] == list(range(chunks))
    assert max(map(len, tasks)) <= 16


def test_what_is_not_an_engine_is_refused():
    for wrong in ("ray", 3, LocalEngine(progressbar=False)):
        with pytest.raises(mo.SettingError, match=r"engine must be mo.engines.Local\(\)"):
            engine_for(wrong, False)
    assert isinstance(engine_for(mo.engines.Local, False), LocalEngine)
    for settings in ({"workers": 0}, {"cpus": "two"}, {"address": ""}, {"object_store": -1}):
        with pytest.raises(mo.SettingError):
            mo.engines.Ray(**settings)
    with pytest.raises(mo.SettingError, match="threads must be a whole number"):
        mo.engines.Local(threads=0)


def test_without_ray_a_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(mo.SettingError, match=r"pip install 'modicum\[ray\]'"):
        quick(MODEL, logistic_rows(), engine=mo.engines.Ray())


def test_the_command_line_names_engines():
    assert build_engine("local", None) == mo.engines.Local()
    assert build_engine("ray", "auto").address == "auto"
    with pytest.raises(mo.SettingError, match="--engine must be local or ray"):
        build_engine("spark", None)
    with pytest.raises(mo.SettingError, match="add --engine ray"):
        build_engine("local", "auto")


def test_a_ray_that_does_not_start_is_a_clear_error(monkeypatch):
    def busy(**settings):
        raise Exception("The current node timed out during startup.\nMore of it.")

    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", busy)
    with pytest.raises(mo.ResourceError, match=r"no Ray could be started .*timed out during st"):
        mo.engines.Ray(workers=1).connect(False)

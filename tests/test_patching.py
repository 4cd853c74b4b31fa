"""Patches of names that compiled functions looked up: see helpers/patching.py."""

from pkgutil import resolve_name

import jax
import pytest

from helpers.patching import PLAIN
from modicum.kernels import firefly as flymc
from modicum.passes import engine, mode
from modicum.run import runner

TRACED = []  # numbers that were looked up while a function was traced


@jax.jit
def sizes(x):
    TRACED.append(engine.BLOCK)
    return x + engine.BLOCK + mode.MAX_STEPS + flymc.UPDATES["of this test"]


@pytest.fixture(autouse=True)
def update(monkeypatch):
    monkeypatch.setitem(flymc.UPDATES, "of this test", 0)


def test_compiled_code_neither_hides_a_patch_nor_keeps_it(monkeypatch):
    before = int(sizes(0))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "BLOCK", engine.BLOCK + 1)
        assert int(sizes(0)) == before + 1
        patch.setattr("modicum.passes.engine.BLOCK", engine.BLOCK + 1)  # patched by its dotted name
        assert int(sizes(0)) == before + 2
    assert int(sizes(0)) == before
    with monkeypatch.context() as patch:
        patch.setitem(flymc.UPDATES, "of this test", 5)
        assert int(sizes(0)) == before + 5
    assert int(sizes(0)) == before


def test_other_patches_leave_it_alone(monkeypatch):
    sizes(0)
    before = len(TRACED)
    monkeypatch.setattr(mode, "MAX_STEPS", 1)  # which no compiled function looks up
    monkeypatch.setattr(runner, "CHUNK_SECONDS", 0.0)
    monkeypatch.setattr("os.sep", "/")
    monkeypatch.setitem(flymc.UPDATES, "another", 1)  # a new entry was never looked up
    monkeypatch.setenv("MODICUM_OF_THIS_TEST", "1")
    sizes(0)
    assert len(TRACED) == before


@pytest.mark.parametrize("name", PLAIN)
def test_names_that_plain_python_looks_up_are_there(name):
    resolve_name(name)

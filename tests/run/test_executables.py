"""Compiled loops from earlier processes."""

import os
import shutil
import threading
from unittest import mock

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import modicum as mo
from modicum.run import executables, iterations
from modicum.runtime import let_compiled_code_go

RNG = np.random.default_rng(3)
ROWS = mo.Rows(x=RNG.normal(size=(200, 2)), y=RNG.integers(0, 2, 200))


@pytest.fixture(autouse=True, scope="module")
def no_cache_of_jax():
    """Disable JAX's disk cache: code found there is not kept again."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def draws(method="hmc"):
    post = mo.sample(
        mo.models.Logistic(), ROWS, method=method, draws=100, tune=100, random_seed=1,
        progressbar=False,
    )  # fmt: skip
    return np.asarray(post["beta"])


@pytest.fixture(scope="module")
def first_process(tmp_path_factory, no_cache_of_jax):
    """Return a folder with the loops that a run kept, and its draws."""
    folder = tmp_path_factory.mktemp("kept")
    let_compiled_code_go()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executables, "_folder", lambda: folder)
        drawn = draws()
        wait_until_written()
    yield folder, drawn
    let_compiled_code_go()


def wait_until_written():
    """Code is written by a thread, when chains have run."""
    for thread in threading.enumerate():
        if getattr(thread, "_target", None) is executables._name_and_write:
            thread.join()


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """Keep loops in a folder of the test."""
    monkeypatch.setattr(executables, "_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def folder(first_process, empty_folder):
    """Act as a second process that finds the folder and has traced nothing yet."""
    shutil.copytree(first_process[0], empty_folder, dirs_exist_ok=True)
    let_compiled_code_go()
    return empty_folder


def keys_in(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("code-"))


def test_a_later_process_takes_them_from_disk_and_draws_the_same(folder, first_process):
    traced = []
    with mock.patch.object(executables, "keep", traced.extend):
        np.testing.assert_array_equal(draws(), first_process[1])
    assert sorted(executables._loaded) == keys_in(folder)
    assert len(executables._loaded) == 3
    assert not traced


def test_a_key_that_ignores_settings_would_be_noticed(folder, first_process, monkeypatch):
    """Negative control of the test above: code of other settings gives their draws."""
    for name in keys_in(folder):
        (folder / name).rename(folder / name.split("-")[0])
    monkeypatch.setattr(executables, "key_of", lambda function, *_: function.__name__)
    np.testing.assert_array_equal(draws(mo.HMC(target_accept=0.95)), first_process[1])


def test_what_does_not_run_is_traced_as_ever(folder, first_process, monkeypatch):
    def broken(*_):
        raise RuntimeError("Function fusion.4 not found")

    monkeypatch.setattr(executables, "_read", lambda *_: broken)
    np.testing.assert_array_equal(draws(), first_process[1])


def test_half_a_file_is_not_used(folder):
    names = keys_in(folder)
    assert len(executables.stored(*names)) == 3
    let_compiled_code_go()
    content = (folder / names[1]).read_bytes()
    (folder / names[1]).write_bytes(content[: len(content) // 2])
    assert executables.stored(*names) is None
    assert executables.stored(names[0], None) is None
    assert executables.stored(names[0], "another") is None
    assert len(executables.stored(names[0])) == 1


@pytest.mark.parametrize("part", [0, 0.3, 0.6, 0.999])
def test_damaged_code_is_not_loaded_and_written_again(folder, part):
    """Of 33 flipped bits, 2 ended the process."""
    names = keys_in(folder)
    code = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(code.read_bytes())
    content[int(part * len(content))] ^= 16
    code.write_bytes(content)
    assert executables.stored(*names) is None
    assert not code.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
@pytest.mark.parametrize("harm", ["file", "code", "folder", "owner"])
def test_what_others_can_write_is_not_loaded(folder, monkeypatch, harm):
    names = keys_in(folder)
    place = {"folder": folder, "code": next(folder.glob("code-*"))}.get(harm, folder / names[0])
    if harm != "owner":
        place.chmod(0o720)
    elif os.geteuid() == 0:
        os.chown(place, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert executables.stored(*names) is None


def test_its_folder_is_closed_to_others_before_anything_is_kept(tmp_path):
    compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
    tmp_path.chmod(0o777)
    executables._write(tmp_path, "a", "code-a", compiled)
    for path in (tmp_path, *tmp_path.iterdir()):
        assert path.stat().st_mode & 0o077 == 0
    assert float(executables._read(tmp_path, "a")(1.0)) == 2


def test_code_is_found_again_by_another_version_that_compiles_the_same(
    folder, first_process, monkeypatch
):
    """JAX's cache has the code, so it cannot be written again, and it need not be."""
    monkeypatch.setattr(executables, "_sources", lambda: "another version of a file")
    before = keys_in(folder)
    lowered = {}
    monkeypatch.setattr(
        executables, "_write", lambda _, key, name, compiled: lowered.update({key: name})
    )
    draws()
    wait_until_written()
    assert len(set(lowered) - set(before)) == 3
    assert all((folder / name).exists() for name in lowered.values())


def test_the_oldest_files_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(executables, "MOST_FILES", 4)
    compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
    for k, name in enumerate("abc"):
        executables._write(tmp_path, name, f"code-{name}", compiled)
        for file in (name, f"code-{name}"):
            os.utime(tmp_path / file, (k, k))
    executables._write(tmp_path, "d", "code-d", compiled)
    assert {path.name for path in tmp_path.iterdir()} == {"c", "code-c", "d", "code-d"}


SETTINGS, ARGUMENTS = (mo.HMC(),), ({"x": np.zeros(3)},)


def key(static=SETTINGS, arguments=ARGUMENTS, function=iterations.begin):
    return executables.key_of(function, static, arguments)


@pytest.mark.usefixtures("empty_folder", "x64")
def test_keys_are_of_all_that_a_trace_depends_on(monkeypatch):
    same = key()
    assert key() == same
    others = [
        key(static=(mo.HMC(target_accept=0.9),)),
        key(arguments=({"x": np.zeros(4)},)),
        key(arguments=({"x": np.zeros(3, np.float32)},)),
        key(arguments=({"z": np.zeros(3)},)),
        key(function=iterations.begin_together),
    ]
    with jax.default_matmul_precision("float32"):
        others.append(key())
    monkeypatch.setattr(executables, "_sources", lambda: "another version of a file")
    others.append(key())
    assert None not in others
    assert len({same, *others}) == 1 + len(others)


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("value", [lambda x: x, key, np.testing.assert_allclose, pytest.Item])
def test_what_has_functions_of_others_has_no_key(value):
    trusted = getattr(value, "__module__", "").startswith("numpy")
    assert (key(static=(value,)) is not None) == trusted


def test_nothing_is_kept_without_jaxs_cache_or_where_it_is_switched_off(monkeypatch, tmp_path):
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        monkeypatch.setenv("MODICUM_KEEP_COMPILED", "1")
        assert executables._folder() == tmp_path / "modicum"
        monkeypatch.setenv("MODICUM_KEEP_COMPILED", "0")
        assert executables._folder() is None
        monkeypatch.delenv("MODICUM_KEEP_COMPILED")
        jax.config.update("jax_compilation_cache_dir", "gs://bucket/cache")
        assert executables._folder() is None
        jax.config.update("jax_compilation_cache_dir", None)
        assert executables._folder() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)

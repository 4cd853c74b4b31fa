"""`runtime.jit` compiles like `jax.jit`, with options that a compiler may not know."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.patching import pretend_device
from modicum import runtime
from modicum.runtime import (
    FASTEST_COMPILE,
    GPU_GRAPHS,
    backend,
    in_blocks,
    in_equal_blocks,
    in_threads,
    jit,
    make_room,
    to_device,
    usable_options,
)


def traced(log):
    @jit(static=1)
    def power(x, k):
        """Raise to a power."""
        log.append(k)
        return x**k

    return power


def test_options_that_the_compiler_does_not_know_or_somebody_set_are_left_out(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    # options change with the compiler's version; these have existed for long
    known = {"xla_backend_optimization_level": 1, "xla_cpu_enable_fast_math": False}
    assert usable_options(known | {"xla_no_such_option": True}) == known
    assert usable_options({}) is None
    monkeypatch.setenv("XLA_FLAGS", "--xla_other=1 --xla_backend_optimization_level=3")
    assert usable_options(known) == {"xla_cpu_enable_fast_math": False}


def test_options_are_known_and_those_of_the_device(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    for kind, options in (("cpu", FASTEST_COMPILE), ("gpu", GPU_GRAPHS), ("tpu", None)):
        pretend_device(monkeypatch, kind)
        # a misspelt option would be left out silently
        assert usable_options(FASTEST_COMPILE, GPU_GRAPHS) == options


def test_compiled_code_is_let_go_before_the_maps_run_out(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime.COMPILED, "since_cleared", 0)  # earlier tests have counted
    log = []
    power = traced(log)
    power(jnp.arange(3.0), 2)
    maps, most = tmp_path / "maps", tmp_path / "most"
    monkeypatch.setattr(runtime, "MAPS", maps)
    monkeypatch.setattr(runtime, "MOST", most)
    maps.write_text("map\n" * 700)
    most.write_text("1001\n")
    assert not make_room()
    power(jnp.arange(3.0), 2)
    assert log == [2]
    most.write_text("1000\n")
    assert make_room()
    np.testing.assert_allclose(power(jnp.arange(3.0), 2), [0, 1, 4])
    assert log == [2, 2]
    maps.unlink()
    assert not make_room()


def test_equal_blocks_compile_one_shape():
    log = []
    power = traced(log)
    for count in (1, 5, 8, 13):
        points = np.arange(count, dtype=float)
        found = in_equal_blocks(lambda some: np.asarray(power(some, 2)), points, 5)
        np.testing.assert_allclose(found, points**2)
    assert log == [2]


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (1_000, 3)])
def test_what_goes_to_the_device_is_a_copy(shape, x64):
    array = np.ones(shape)
    there = to_device({"array": array})["array"]
    array[...] = 2.0
    np.testing.assert_array_equal(there, np.ones(shape))


def test_there_is_one_answer_to_where_chains_run_and_threads_hear_it(monkeypatch):
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu), jax.enable_x64(True):
        assert (runtime.devices(), runtime.backend()) == ([cpu], "cpu")
        (heard,) = in_threads(lambda _: (runtime.devices(), jnp.ones(()).dtype), [0])
    assert heard == ([cpu], np.float64)
    with ThreadPoolExecutor(1) as plain:  # negative control: its own precision, and every device
        assert plain.submit(lambda: jnp.ones(()).dtype).result() == np.float32
    pretend_device(monkeypatch, "gpu")
    assert runtime.on_accelerator()
    assert runtime.backend() == "gpu"


def test_code_is_compiled_with_the_options_of_the_device_it_runs_on(monkeypatch):
    seen = []
    monkeypatch.setattr(runtime, "usable_options", lambda *options: seen.append(backend()))
    double = jit()(lambda x: 2 * x)
    for kind in ("cpu", "gpu", "cpu"):
        pretend_device(monkeypatch, kind)
        assert double(jnp.ones(3)).tolist() == [2, 2, 2]
    assert seen == ["cpu", "gpu"]  # once for each


def test_beside_an_accelerator_the_cpu_computes_unless_the_user_chose(monkeypatch):
    cpu, where = jax.devices("cpu")[0], lambda: jax.config.jax_default_device
    with runtime.on_cpu():
        assert where() is None  # there is nothing else
    pretend_device(monkeypatch, "gpu")
    with runtime.on_cpu():
        assert where() == cpu
        with runtime.on_cpu():
            assert where() == cpu
    assert where() is None
    assert runtime.computed_on_cpu(lambda: (where(), jnp.ones(()).dtype))() == (cpu, np.float64)
    with jax.default_device("gpu"), runtime.on_cpu():
        assert where() == "gpu"


@pytest.mark.parametrize("step", [0, 1, 3, 7, 10])
def test_blocks_are_joined_in_order_whoever_comes_first(step):
    x = np.arange(14.0).reshape(7, 2)

    def made(some):
        return {"twice": 2 * x[some], "sums": (x[some].sum(axis=1).astype(int),)}

    joined = in_blocks(made, len(x), step)
    np.testing.assert_array_equal(joined["twice"], 2 * x)
    np.testing.assert_array_equal(joined["sums"][0], made(slice(None))["sums"][0])
    assert joined["sums"][0].dtype == int
    np.testing.assert_array_equal(in_blocks(made, 7, step, by_threads=False)["twice"], 2 * x)

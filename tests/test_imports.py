"""`import modicum` is cheap: a second over JAX at most, and nothing that only some runs need."""

import subprocess
import sys

# processor time, not wall time: a busy machine must not fail the test
TIMED = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"


def in_child(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_takes_under_a_second_more_than_jax():
    # alternate, so that a busy moment hits both; the least of three is the import itself
    times = {"jax": [], "modicum": []}
    for _ in range(3):
        for name in times:
            times[name].append(float(in_child(TIMED.format(name))))
        if min(times["modicum"]) - min(times["jax"]) < 1.0:
            break
    assert min(times["modicum"]) - min(times["jax"]) < 1.0


def test_import_leaves_out_what_only_some_runs_need():
    heavy = ("pandas", "matplotlib", "arviz", "arviz_stats", "polars", "rich", "pyarrow", "xarray")
    code = f"import modicum, sys; print([m for m in {heavy} if m in sys.modules])"
    assert in_child(code) == "[]"


def test_import_changes_no_setting_of_jax():
    code = "import modicum, jax; print(jax.config.jax_enable_x64)"
    assert in_child(code) == "False"


def test_public_names_are_all_there():
    code = "import modicum as mo; print(all(hasattr(mo, name) for name in mo.__all__))"
    assert in_child(code) == "True"

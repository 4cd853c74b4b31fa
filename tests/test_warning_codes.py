"""Every warning has a code that is documented, and no documented code is dead."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "warnings.md"


def codes_in(source):
    """Return the codes that Python source gives to `ModicumWarning(...)` and `warn_of(...)`."""
    if "ModicumWarning" not in source and "warn_of" not in source:  # most files; parsing is slow
        return set()
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    named = [c for c in calls if getattr(c.func, "id", "") in {"ModicumWarning", "warn_of"}]
    passed_on = "def warn_of(" in source  # the code is that of its caller
    assert len(named) == 1 or not passed_on
    return set() if passed_on else {ast.literal_eval(call.args[0]) for call in named}


def documented(page):
    """Return the codes in the first cells of the page's tables."""
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}


def test_codes_and_page_agree():
    files = (ROOT / "src" / "modicum").rglob("*.py")
    used = set().union(*(codes_in(file.read_text()) for file in files))
    assert len(used) > 30
    assert used == documented(PAGE.read_text())


def test_a_code_that_is_not_documented_is_found():
    assert codes_in('found.append(ModicumWarning("new-doubt", "it is doubtful"))') == {"new-doubt"}
    assert documented("| `old-doubt`, `older` | ... |\n") == {"old-doubt", "older"}

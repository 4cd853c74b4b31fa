"""Tables of figures in the documentation are those of their file."""

import json
import re
from pathlib import Path

import pytest

from modicum_lab.bench import figures
from modicum_lab.bench.parts import gpu
from modicum_lab.bench.tables import Table

DOCS = Path(__file__).parents[4] / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "<!-- figures:" in p.read_text(encoding="utf-8"))
DESCRIPTIONS = (  # heads of the other tables of the benchmarks, which hold no figures of runs
    "| in `bench-output/` | |",
    "| option | |",
    "| | rows | d | reference |",
    "| | settings |",
)


def typed(page):
    """Return the heads of the tables that no file has."""
    lines = figures.PLACE.sub("", page).splitlines()
    return [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if line.startswith("|") and not before.startswith("|")
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_file(path):
    page, kept = path.read_text(encoding="utf-8"), figures.read(DOCS)
    assert figures.with_figures(page, kept) == page, "python -m modicum_lab.bench.figures"
    for name in figures.PLACE.findall(page):
        changed = json.loads(json.dumps(kept))
        changed[name]["rows"][-1][-1] = "another"
        assert figures.with_figures(page, changed) != page


def test_no_table_of_figures_is_typed():
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert tuple(typed(page)) == DESCRIPTIONS
    assert typed(f"{page}\n| seconds | rows |\n| --- | --- |\n| 1.5 | 2 |\n")[-1:] == [
        "| seconds | rows |"
    ]


def test_a_part_that_is_run_again_replaces_its_tables_and_no_others(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / figures.FILE).write_text("{}")
    columns = ["what", "seconds"]
    figures.keep("a-more", [Table("Another", columns, [["a walk", 7]])], "Measured then", tmp_path)
    figures.keep("a", [Table("A", columns, [["a pass", 3]], "A note.")], "Measured then", tmp_path)
    (tmp_path / "page.md").write_text(
        "Before.\n\n<!-- figures: a-1 -->\n<!-- end of figures -->\n\nBetween.\n\n"
        "<!-- figures: a-more-1 -->\n<!-- end of figures -->\n\nAfter.\n"
    )
    figures.write_pages(tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert "| a pass | 3 |" in page
    assert "A note. Measured then." in page
    now = [Table("A", columns, [["a pass", 1.23456789]]), Table("B", columns, [["b", 1]])]
    figures.keep("a", now, "Measured now", tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert re.findall(r"^\w+\.$", page, flags=re.MULTILINE) == ["Before.", "Between.", "After."]
    assert "| a pass | 1.23 |" in page
    assert "| a pass | 3 |" not in page
    assert "| a walk | 7 |" in page
    assert (page.count("Measured now."), page.count("Measured then.")) == (1, 1)
    assert set(figures.read(tmp_path)) == {"a-1", "a-2", "a-more-1"}


def test_the_report_of_an_accelerator_has_a_column_per_number_of_chains():
    def line(name, chains, rate):
        values = {"method": name, "precision": "float64", "chains": chains, "ESS per second": rate}
        return [values.get(column, 2.0) for column in gpu.COLUMNS]

    lines = [line("signed", 1, 5.0), line("signed", 32, 50.0), line("hmc", 1, 3.0)]
    rates, costs = gpu.by_chains(Table("On a card", gpu.COLUMNS, lines), [1, 32])
    assert rates.columns[1:] == ["1", "32"]
    assert rates.rows == [["signed, float64", 5.0, 50.0], ["hmc, float64", 3.0, None]]
    assert costs.rows[0] == ["signed, float64: microseconds", 2.0, 2.0]
    assert costs.rows[-1] == ["share of the arithmetic, %", 2.0, None]

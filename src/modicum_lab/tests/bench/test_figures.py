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
WRITTEN = ("gallery/index.md", "benchmarks/last.md", "benchmarks/quick/last.md")  # by commands
TYPED = [DOCS.parent / "README.md", *sorted({*DOCS.rglob("*.md")} - {DOCS / k for k in WRITTEN})]
NOT_FIGURES = {  # heads of tables of sizes, and of those that other tests compare with their runs
    "README.md": ["| data | rows x parameters | seconds to 1,000 effective draws |"],
    "benchmarks.md": ["| | rows | d | reference |"],
    "datasets.md": ["| loader | rows x columns |", "| `mo.datasets.frame(...)` | rows |"],
    "papers.md": ["| HIGGS, 10,500,000 stand-in rows | acceptance |"],
}
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
OLDER = {  # runs that did not record when, on what and by which version; to shrink
    *("gpu-1", "gpu-2", "gpu-fused-1", "high_dimension-1", "iterations-1", "lake-billion-1"),
    *("lake-ray-1", "multilevel-1", "multilevel-2", "multilevel-3", "multilevel-4"),
    *("numpyro_models-1", "small_models-1"),
}
RUN = re.compile(r"`python -m \S.*` on \d{4}-\d\d-\d\d, .+, modicum \S+, jax \S+$")
TIMED = re.compile(
    r"\b(?:took|takes?|makes?) (?:about |over )?\d[\d.,]*(?: to \d[\d.,]*)?"
    r" (?:(?:micro|milli)?seconds|m?s|minutes|million)\b"
)
CHECKED = ("index.md", "papers.md")  # pages whose figures other tests compare with their runs


def typed(page):
    """Return the heads of tables that no file has and in which half of a column are numbers."""
    heads = []
    for table in re.findall(
        r"(?:^\|.*\n?)+", CODE.sub("", figures.PLACE.sub("", page)), re.MULTILINE
    ):
        head, _, *lines = table.splitlines()
        cells = [re.split(r"(?<!\\)\|", line)[2:-1] for line in lines]
        for column in zip(*cells, strict=True):
            said = [cell.strip() for cell in column if cell.strip()]
            if sum(bool(re.match(r"\**[-+]?\.?\d", cell)) for cell in said) * 2 >= max(
                len(said), 1
            ):
                heads.append(head)
                break
    return heads


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tables_are_those_of_the_file(path):
    page, kept = path.read_text(encoding="utf-8"), figures.read(DOCS)
    assert figures.with_figures(page, kept) == page, "python -m modicum_lab.bench.figures"
    for name in figures.PLACE.findall(page):
        changed = json.loads(json.dumps(kept))
        changed[name]["rows"][-1][-1] = "another"
        assert figures.with_figures(page, changed) != page


@pytest.mark.parametrize("path", TYPED, ids=lambda path: path.name)
def test_no_table_of_figures_is_typed(path):
    page, known = path.read_text(encoding="utf-8"), NOT_FIGURES.get(path.name, [])
    heads = typed(page)
    assert [head.startswith(k) for head, k in zip(heads, known, strict=True)] == [True] * len(known)
    more = "\n| table | chosen | seconds |\n| --- | --- | --- |\n| a | b | 1.5 |\n| c | d | |\n"
    assert typed(page + more) == [*heads, "| table | chosen | seconds |"]
    assert typed(page + more.replace("1.5", "a wall")) == heads
    place = f"\n<!-- figures: a-1 -->\n{more}\n<!-- end of figures -->\n"
    assert typed(f"{page}{place}\n```\n{more}\n```\n") == heads


@pytest.mark.parametrize("path", TYPED, ids=lambda path: path.name)
def test_no_time_of_a_run_is_typed(path):
    page = CODE.sub("", figures.PLACE.sub("", path.read_text(encoding="utf-8")))
    words = " ".join(page.split())
    assert path.name in CHECKED or TIMED.findall(words) == []
    more = [
        "A fit takes 3.5 seconds.",
        "It took about 2.4 to 2.6 s.",
        "It makes 149 million draws.",
    ]
    assert len(TIMED.findall(" ".join([words, *more]))) == len(TIMED.findall(words)) + 3


def test_every_table_of_the_file_is_shown_and_says_what_it_was_measured_by():
    kept, shown = figures.read(DOCS), "".join(p.read_text(encoding="utf-8") for p in PAGES)
    assert {name for name, table in kept.items() if not RUN.search(table["measured"])} == OLDER
    assert sorted(figures.PLACE.findall(shown)) == sorted(kept)


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

"""Figures on the front page are those of the stored run of the benchmark."""

import re
from pathlib import Path

import pytest

from modicum_lab.bench.front_page import PAGES
from modicum_lab.bench.report import from_json

ROOT = Path(__file__).parents[4]
OURS, THEIRS = "Modicum HMC-ECS, defaults", "NumPyro HMCECS, m = 200, Hessian as mass"
COLUMNS = {  # columns of the front page to sampler and column of the run
    2: (OURS, "s to 1,000 effective draws"),
    3: (THEIRS, "s to 1,000 effective draws"),
    4: (OURS, "mean off, sd"),
    5: (THEIRS, "mean off, sd"),
}


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def stored(run, name, rows):
    """Return the table of a problem, by sampler and column, and its caption."""
    sections = re.split(r"^### ", run, flags=re.MULTILINE)[1:]
    (section,) = (s for s in sections if s.startswith(name) and f"Data: {rows} rows" in s)
    head, _, *lines = (cells(line) for line in section.splitlines() if line.startswith("|"))
    return {line[0].strip("*"): dict(zip(head, line, strict=True)) for line in lines}, section


def misquoted(page, run):
    """Return the figures of the page's table that are not those of the run."""
    table = page[page.index("| data | rows x parameters |") :].split("\n\n")[0]
    wrong = []
    for line in table.splitlines()[2:]:
        found = cells(line)
        rows, size = found[1].split(" x ")
        of, section = stored(run, found[0], rows)
        wrong += [] if f"d = {size};" in section else [found[1]]
        wrong += [found[k] for k, (who, what) in COLUMNS.items() if found[k] != of[who][what]]
    if match := re.search(r"there are ([\d.]+) times", page):
        kept = next(
            cells(line)[1] for line in run.splitlines() if "disk over memory, plain-100m" in line
        )
        wrong += [] if match[1] == kept else [match[1]]
    return wrong


def misquoted_by_landing_page(page, run):
    """Return the figures of the site's first page that are not those of the run."""
    (of, section), said = stored(run, "New York flights", "327,346"), " ".join(page.split())
    times = f"**{of[OURS][COLUMNS[2][1]]} seconds against {of[THEIRS][COLUMNS[3][1]]}.**"
    errors = f"off by {of[OURS]['mean off, sd']} posterior sd at most, and by"
    wanted = (times, errors, f"by {of[THEIRS]['mean off, sd']}.", "as 151 columns")
    return [words for words in wanted if words not in said] + ["d"] * ("d = 151;" not in section)


@pytest.fixture(scope="module")
def page():
    return (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def run():
    return (ROOT / "docs" / "benchmarks" / "last.md").read_text()


def error_of_uniform_rows(page):
    """Return what the page says of uniform rows on Covertype, and what the gallery has."""
    claim = r"by ([\d.]+) posterior standard deviations on Covertype, with ([\d,]+)"
    said, m = re.search(claim, page).groups()
    gallery = (ROOT / "docs" / "gallery" / "index.md").read_text()
    (line,) = (found for found in gallery.splitlines() if f"| covertype | uniform | {m} |" in found)
    return float(said), float(cells(line)[4])


def test_the_error_of_uniform_rows_is_that_of_the_gallery(page):
    said, kept = error_of_uniform_rows(" ".join(page.split()))
    assert said == round(kept, 2)
    said, kept = error_of_uniform_rows(" ".join(page.split()).replace("by 0.39", "by 0.38"))
    assert said != round(kept, 2)


def test_figures_are_those_of_the_stored_run(page, run):
    assert misquoted(page, run) == []


def test_another_figure_is_noticed(page, run):
    line = next(line for line in page.splitlines() if line.startswith("| New York flights |"))
    disk = re.search(r"there are [\d.,]+ times", page)[0]
    for figure in (*(f"| {cell} |" for cell in cells(line)[2:]), "x 151", disk):
        assert page.count(figure) == 1
        changed = figure.replace("1", "2") if "1" in figure else re.sub(r"\d", "7", figure)
        assert misquoted(page.replace(figure, changed), run)


def test_figures_are_written_by_the_run(page):
    """Pages of the stored results are as they are; with other results their figures follow."""
    results = from_json((ROOT / "docs" / "benchmarks" / "last.json").read_text())
    for name, written in PAGES.items():
        assert written((ROOT / name).read_text(), results) == (ROOT / name).read_text()
    for m in results.measured:
        for each in m.runs if m.contender == "modicum" else ():
            each.before = 1e4
    for name, written in PAGES.items():
        other = written((ROOT / name).read_text(), results)
        changed = re.findall(r"10,00\d", other)
        assert len(changed) == {"README.md": 4, "docs/index.md": 2}[name]
        assert written(other, results) == other


def test_figures_of_the_landing_page_are_those_of_the_stored_run(run):
    page = (ROOT / "docs" / "index.md").read_text()
    assert misquoted_by_landing_page(page, run) == []
    (of, _) = stored(run, "New York flights", "327,346")
    for figure in (*(of[who][what] for who, what in COLUMNS.values()), "151"):
        assert figure in page
        assert misquoted_by_landing_page(page.replace(figure, "7"), run)


def ratios_of_the_text(page):
    """Return the ratios to NumPyro that the page of the benchmarks says in its text."""
    text = " ".join(page.split("## What the ratio to NumPyro depends on")[1].split())
    documented = r"makes (\S+) \(m = 200\) and (\S+) \(m = 1,300\)"
    return re.search(rf"{documented}.*? ratio is (\S+), and .*? (\S+) and (\S+) \(", text).groups()


def test_ratios_in_the_text_are_those_of_the_stored_run(run):
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    small, million, ten = (
        stored(run, "HIGGS-shaped", rows)[0] for rows in ("100,000", "1,000,000", "10,000,000")
    )
    column = "Modicum's over it"
    documented = [small[f"NumPyro HMCECS, m = {m}"][column] for m in ("200", "1,300")]
    given = [table[THEIRS][column] for table in (small, million, ten)]
    assert [*ratios_of_the_text(page)] == [*documented, *given]
    assert "791" not in ratios_of_the_text(page.replace("791", "971"))

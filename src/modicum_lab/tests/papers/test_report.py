"""Files, page and command of a toy experiment."""

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import modicum as mo
from modicum.cli import app
from modicum.plots import colour_of, new_axes
from modicum_lab.papers import EXPERIMENTS, Figure, Result, Table, experiment


def picture():
    ax = new_axes()
    ax.plot([1, 2], [1, 4], color=colour_of("hmc"), label="hmc")
    ax.set(xlabel="passes", ylabel="error")
    return ax.figure


@pytest.fixture
def toy(monkeypatch):
    """Replace the paper's experiments by two: one that works, one whose data are missing."""
    monkeypatch.setitem(EXPERIMENTS, "hmc-ecs", {})
    monkeypatch.setattr("modicum_lab.papers.experiments._modules", lambda paper: [])

    @experiment("hmc-ecs", "missing", "An experiment without its data")
    def missing(scale, seed):
        raise mo.DataError("the data set x <y> is not in here; put it there.")

    @experiment("hmc-ecs", "toy", "A <toy>")
    def toy(scale, seed):
        rows = [["a | b", 1.23456789, None], ["<c>", 10_500_000, 2.5]]
        table = Table("table-1", ["method", "CT", "CT (paper)"], rows, "A stand-in.")
        return Result(
            tables=[table],
            figures=[Figure("figure-1", picture, "Error against passes")],
            settings={"seed seen": seed, "scale seen": scale},
            ledger={"hmc": 12_345},
            notes=["Ours is half of theirs."],
        )


def run(*arguments):
    return CliRunner().invoke(app, ["reproduce", *(str(a) for a in arguments)])


def test_files_of_an_experiment(toy, tmp_path):
    result = run("hmc-ecs", "toy", "--out", tmp_path, "--scale", "smoke", "--seed", 7)
    assert result.exit_code == 0, result.output
    assert "1 table, 1 figure" in result.stdout
    folder = tmp_path / "hmc-ecs" / "toy"
    with open(folder / "table-1.csv", newline="") as file:
        head, first, second = csv.reader(file)
    assert head == ["method", "CT", "CT (paper)"]
    assert (first[0], float(first[1]), first[2]) == ("a | b", 1.23456789, "")
    assert second == ["<c>", "10500000", "2.5"]
    lines = (folder / "table-1.md").read_text().splitlines()
    assert lines[0] == "**Table 1**"
    assert lines[4] == r"| a \| b | 1.235 |  |"
    assert lines[-1] == "A stand-in."
    assert (folder / "figure-1.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (folder / "figure-1.svg").read_text()
    record = json.loads((folder / "settings.json").read_text())
    assert record["settings"] == {"seed seen": 7, "scale seen": "smoke"}
    assert (record["seed"], record["scale"], record["ledger"]) == (7, "smoke", {"hmc": 12_345})
    assert record["seconds"] >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
    assert record["machine"]
    assert record["versions"]["modicum"] == mo.__version__


def test_one_failure_does_not_stop_the_others(toy, tmp_path):
    result = run("hmc-ecs", "--out", tmp_path, "--scale", "smoke")
    assert result.exit_code == 1
    assert "missing: the data set x <y> is not in here; put it there." in result.stderr
    page = (tmp_path / "index.html").read_text()
    assert "the data set x &lt;y&gt; is not in here" in page
    assert "A &lt;toy&gt;" in page


def test_the_page_stands_alone_and_grows(toy, tmp_path):
    run("hmc-ecs", "missing", "--out", tmp_path)
    assert "toy" not in (tmp_path / "index.html").read_text()
    run("hmc-ecs", "toy", "--out", tmp_path)
    page = (tmp_path / "index.html").read_text()
    for text in ("hmc-ecs-missing", "hmc-ecs-toy", "10,500,000", "Ours is half", "A stand-in."):
        assert text in page
    assert '<td class="paper">2.5</td>' in page
    # the page loads nothing
    assert re.findall(r'(?:src|href)="(?!data:image/png|#)', page) == []


def test_a_failure_keeps_what_was_found_before(toy, tmp_path, monkeypatch):
    run("hmc-ecs", "toy", "--out", tmp_path)

    @experiment("hmc-ecs", "toy", "A <toy>")
    def broken(scale, seed):
        raise mo.DataError("gone.")

    assert run("hmc-ecs", "toy", "--out", tmp_path).exit_code == 1
    assert "Ours is half" in (tmp_path / "index.html").read_text()


def test_list_runs_nothing(toy, tmp_path):
    result = run("hmc-ecs", "--list", "--out", tmp_path)
    assert result.exit_code == 0
    assert [line.split()[1] for line in result.stdout.splitlines()] == ["missing", "toy"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hmc-esc"], "there is no paper 'hmc-esc' (did you mean 'hmc-ecs'?)"),
        (["hmc-ecs", "toyy"], "has no experiment 'toyy' (did you mean 'toy'?)"),
        (["hmc-ecs", "--scale", "huge"], "scale must be one of smoke, laptop, gpu, paper"),
        ([], "name the paper"),
    ],
)
def test_errors_are_a_sentence(toy, arguments, said):
    result = run(*arguments)
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_gallery_of_the_documentation(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = run("hmc-ecs", "toy", "--out", "out", "--docs")
    assert told.exit_code == 1
    assert "there is no folder docs here" in told.stderr
    (tmp_path / "docs" / "gallery").mkdir(parents=True)
    (tmp_path / "docs" / "gallery" / "old.png").write_bytes(b"")
    told = run("hmc-ecs", "--out", "out", "--docs", "--scale", "smoke")
    assert told.exit_code == 1  # one of the two could not be run
    page = (tmp_path / "docs" / "gallery" / "index.md").read_text()
    assert "modicum reproduce hmc-ecs toy --scale smoke" in page
    assert re.search(r"### A <toy> \(.+, \d{4}-\d\d-\d\d\)\n", page)
    assert "- Ours is half of theirs." in page
    assert "without its data" not in page
    pictures = [path.name for path in (tmp_path / "docs" / "gallery").glob("*.png")]
    assert pictures == ["hmc-ecs-toy-figure-1.png"]
    assert f"]({pictures[0]})" in page
    assert re.search(r"; modicum \S+, jax \S+\.\n", page)


def test_experiments_that_are_not_run_again_stay_in_the_gallery(toy, tmp_path, monkeypatch):
    gallery = tmp_path / "docs" / "gallery"
    gallery.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    run("hmc-ecs", "toy", "--out", "first", "--docs", "--scale", "smoke")
    page = (gallery / "index.md").read_text()

    @experiment("ewsg", "other", "Another")
    def other(scale, seed):
        return Result(notes=["Of the other paper."])

    assert run("ewsg", "other", "--out", "second", "--docs", "--scale", "smoke").exit_code == 0
    both = (gallery / "index.md").read_text()
    assert both.startswith(page)
    assert both.count("\n## ") == 2
    assert (gallery / "hmc-ecs-toy-figure-1.png").exists()
    run("hmc-ecs", "toy", "--out", "third", "--docs", "--scale", "laptop")
    again = (gallery / "index.md").read_text()
    assert again.count("reproduce hmc-ecs toy") == 1  # replaced
    assert "toy --scale laptop" in again
    assert "- Of the other paper." in again


# The page of the papers --------------------------------------------------------------------

DOCS = Path(__file__).parents[4] / "docs"
LINES = {  # first cells of the page's table: the line of the gallery, and which of its figures
    "perturbed (paper)": ("HMC-ECS perturbed", 1),
    "perturbed, anchored at the mode": ("HMC-ECS perturbed", 0),
    "perturbed, the paper's schedule": ("HMC-ECS perturbed, paper's schedule", 0),
    "signed (paper)": ("HMC-ECS signed", 1),
    "signed, anchored at the mode": ("HMC-ECS signed", 0),
    "signed, the paper's schedule": ("HMC-ECS signed, paper's schedule", 0),
    "weighted, our default": ("HMC-ECS weighted (our default)", 0),
}
FIGURES = ("acceptance", "IF", "full HMC, times the cost")


def tables_of(text):
    """Return the lines of all tables, by table and first cell, as dictionaries by column."""
    found = []
    for block in text.split("\n\n"):
        lines = [line.strip("|").split("|") for line in block.splitlines() if line[:1] == "|"]
        cells = [[cell.strip() for cell in line] for line in lines]
        found += [{line[0]: dict(zip(cells[0], line, strict=True)) for line in cells[2:]}]
    return [table for table in found if table]


DISAGREE = r" warned: the chains disagree: R-hat is ([\d.]+)"
FULL = r" \| 0(?:[^|]*\|){14} ([\d.]+) \|"  # cost of full HMC, in a line of Table 4
PASS = "FlyMC, one pass: .*? touch ([\\d.]+) n .*? another ([\\d.]+) passes"
SAID = (  # an experiment, figures in its section of the gallery, and what the page says of them
    ("hmc-ecs tables-1-2", f"\n- SGLD{DISAGREE}", "R-hat is {} on HIGGS"),
    ("hmc-ecs tables-1-2", f"SGLD, no control variates{DISAGREE}", "{} there without control"),
    ("hmc-ecs tables-1-2", r"SGLD's step .*? is ([\d.]+) times 4", "These steps are {} times"),
    ("hmc-ecs tables-1-2", f"stable step{DISAGREE}", "posterior of HIGGS, with an R-hat of {}."),
    ("hmc-ecs tables-3-4", f"\n- SGLD{DISAGREE}", "and {} on the firms"),
    ("hmc-ecs tables-3-4", r"SGLD's step .*? is ([\d.]+) times 4", "and {} times the largest"),
    ("hmc-ecs tables-3-4", f"L = 7{DISAGREE}", "L = 7, whose R-hat is {}."),
    ("hmc-ecs tables-3-4", f"stable step{DISAGREE}", "On the firms R-hat is {}, and"),
    (
        "hmc-ecs tables-3-4",
        r"stable step warned: the (\d+) draws are worth only (\d+)",
        "{} draws are worth {}:",
    ),
    ("hmc-ecs tables-3-4", rf"perturbed, paper's schedule{FULL}", "It is {} times that of"),
    ("hmc-ecs tables-3-4", rf"signed, paper's schedule{FULL}", "and {} times that of the signed"),
    ("hmc-ecs tables-3-4", rf"perturbed{FULL}", "at the mode the costs are {} and"),
    ("hmc-ecs tables-3-4", rf"signed{FULL}", "and {}."),
    ("hmc-ecs tables-3-4", r"subset \| ([\d,]+) \|", "({} here)"),
    ("hmc-ecs figures-1-3", r"seed 1, (\d+) s", "`figures-1-3` {} after"),
    ("ewsg figure-3", r"realisations (\d+), hid.* realisations (\d+), ch", "with {} and {} real"),
    ("ewsg table-1", "FlyMC: R-hat is ([\\d.]+) for", "R-hat is {} for the median"),
    ("ewsg table-1", "coefficient and ([\\d.]+) for the worst", "and {} for the worst"),
    ("ewsg table-1", r"\| FlyMC \| ([\d.]+) \|", "have an accuracy of {} %"),
    ("ewsg table-1", r"\| mode of all rows \| ([\d.]+) \|  \| (\S+) \|", "the mode {} % and {}."),
    ("ewsg table-1", PASS, "{} n on average in the stored run"),
    ("ewsg table-1", "another ([\\d.]+) passes", "the bounds took another {} passes"),
    ("ewsg table-1", r"seed 1, (\d+) s", "stored run of Table 1 took {} s."),
)


def unsaid(page, gallery):
    """Return what the page should say of the gallery's figures, and does not."""
    text, missing = " ".join(page.split()), []
    for command, figures, said in SAID:
        section = gallery.split(f"`modicum reproduce {command} ")[1].split("\n### ")[0]
        words = said.format(*re.search(figures, section).groups())
        missing += [] if words in text else [words]
    return missing


def test_what_differs_is_said_with_the_figures_of_the_gallery():
    page, gallery = ((DOCS / name).read_text() for name in ("papers.md", "gallery/index.md"))
    assert unsaid(page, gallery) == []
    changed = re.sub(r"\d", "7", page)
    assert len(unsaid(changed, gallery)) == len(SAID)


def misquoted(page, gallery):
    """Return the figures of the page that the gallery's Tables 1 and 2 do not have."""
    section = gallery.split("`modicum reproduce hmc-ecs tables-1-2")[1].split("\n### ")[0]
    relative, efficiency = tables_of(section)[:2]
    (ours,) = (table for table in tables_of(page) if "perturbed (paper)" in table)
    wrong = []
    for said, line in ours.items():
        label, paper = LINES[said]
        kept = [efficiency[label][name + " (paper)" * paper] for name in FIGURES]
        wrong += [
            cell for cell, old in zip(list(line.values())[1:], kept, strict=True) if cell != old
        ]
    default = relative["HMC-ECS weighted (our default)"]
    shares = default["RCT median"], default["RCT median, charged the other way"]
    took = re.search(r"seed 1, (\d+) s", section)[1]
    words = f"takes {shares[0]} of", f"and {shares[1]} in sampling alone", f"took {took} seconds"
    return wrong + [text for text in words if text not in " ".join(page.split())]


def test_figures_on_the_page_are_those_of_the_gallery():
    page, gallery = ((DOCS / name).read_text() for name in ("papers.md", "gallery/index.md"))
    assert misquoted(page, gallery) == []
    for figure in ("499", "0.8189", "642.8", "180 seconds", "0.2914", "0.008292"):
        assert misquoted(page.replace(figure, "7"), gallery), figure

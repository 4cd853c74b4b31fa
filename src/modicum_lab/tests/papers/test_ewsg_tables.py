"""The EWSG paper's experiments on real tables: Covertype and MNIST."""

import gzip
import re
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from modicum.posterior import Score
from modicum_lab.papers.ewsg import covertype, mnist
from modicum_lab.papers.experiments import EXPERIMENTS

mpl.use("Agg")


def test_the_experiments_are_registered():
    assert {"table-1", "figure-3"} <= set(EXPERIMENTS["ewsg"])


@pytest.fixture
def tiny_covertype(tmp_path, monkeypatch):
    """A file in the public format, in which one soil never occurs."""
    rng = np.random.default_rng(1)
    ones = rng.integers(0, 2, size=(400, 44))
    ones[:, -1] = 0
    table = np.c_[rng.integers(0, 3000, size=(400, 10)), ones, 1 + np.arange(400) % 7]
    text = "\n".join(",".join(str(v) for v in row) for row in table) + "\n"
    path = tmp_path / "covtype" / "covtype.data.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("MODICUM_DATA", str(tmp_path))


@pytest.mark.usefixtures("tiny_covertype")
def test_covertype_is_split_and_standardised():
    split = covertype.Split.drawn(None, seed=1)
    assert (len(split.fit), len(split.test)) == (320, 80)
    both = [part.slice(0, len(part)) for part in (split.fit, split.test)]
    x = np.concatenate([part["x"] for part in both])
    assert x.shape == (400, 53)  # a constant column is dropped
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0), 1, rtol=1e-4)
    assert sum(part["y"].sum() for part in both) == sum(np.arange(400) % 7 == 1)
    assert len(covertype.Split.drawn(100, seed=1).fit) == 80


def made_score(accuracy, density):
    return Score(
        accuracy, density, 0.66, -3.0, np.array([0.65, 0.67]), np.array([-2.0, -4.0]), 10, 2
    )


def test_table_1_has_the_papers_figures_beside_ours():
    scores = {"psgld, h / n": made_score(0.7, -0.6), "ewsg": made_score(0.7563, -0.5201)}
    table = covertype.table(scores, 464_810)
    other, ewsg = table.rows
    single = ["66.00 ± 1.00", "-3.000 ± 1.000"]
    assert ewsg == ["EWSG", 75.63, "75.293 ± 0.045", -0.5201, "-0.523 ± 0.000", *single]
    assert other[0] == "pSGLD, h / n"
    assert other[2] is None
    assert "+0.34 points" in table.note
    assert "+0.0029 in log-likelihood" in table.note


def test_figures_2_and_3_have_labels():
    parts = ("accuracy", "log_density", "single_accuracy", "single_log_density", "train", "test")
    curve = pd.DataFrame(
        {part: [0.5, 0.6] for part in parts}, index=pd.Index([0.5, 1.0], name="passes")
    )
    two = covertype.draw(
        {"ewsg": curve, "psgld, h / n": curve},
        made_score(0.76, -0.5),
        "draws of FlyMC, which have converged",
    )
    learned = mnist.Learned(curve, {"train": 0.01, "test": 0.02})
    three = mnist._draw({"mlp": {"ewsg": learned}, "cnn": {"sgld": learned}})
    for ax in two.axes + three.axes:
        assert ax.get_xlabel() == "data passes"
        assert ax.get_ylabel()
    assert all(ax.get_legend() is not None for ax in three.axes)
    (legend,) = two.legends  # below the panels, where it covers no curve
    assert [text.get_text() for text in legend.get_texts()] == [
        *("draws of FlyMC, which have converged", "EWSG", "pSGLD, h / n")
    ]
    two.canvas.draw()
    assert legend.get_window_extent().y1 < min(ax.get_tightbbox().y0 for ax in two.axes)
    mpl.pyplot.close("all")


def test_figure_3_says_what_is_smaller_than_in_the_paper():
    assert mnist._size_note("paper") == ""
    said = mnist._size_note("laptop")
    assert "200 passes" in said
    assert "CNN: passes 2, realisations 1" in said
    assert "CNN: passes 200, realisations 8, channels (32, 64)" in mnist._size_note("gpu")


def test_figure_3_orders_methods_and_says_how_sure_it_is():
    frames = (
        pd.DataFrame({"train": [0.1, last], "test": 0.5, "single": 0.4, "log_density": -1.0})
        for last in (0.5, 0.9)
    )
    errors = dict.fromkeys(("train", "test", "single", "log_density"), 0.03)
    low, high = (mnist.Learned(frame, errors) for frame in frames)
    runs = {"sgld": low, "ewsg": high}
    assert mnist._ordered(runs) == "EWSG, SGLD"
    first, second = mnist._table({"mlp": runs}, mnist.SIZES["gpu"], "").rows
    assert (first[3], first[-1]) == ("50.00 ± 3.00", "40.00 ± 4.24")  # two independent errors
    assert second[-1] is None
    (claim,) = mnist._claims({"mlp": runs}).rows
    assert claim == ("MLP: EWSG trains better than SGLD", "by 40.00 ± 4.24 points", "yes", True)
    (claim,) = mnist._claims({"mlp": {"sgld": high, "ewsg": low}}).rows
    assert claim[-1] is False
    unsure = mnist._table({"mlp": {"ewsg": mnist.Learned(high.curve, {})}}, mnist.SIZES["gpu"], "")
    assert unsure.rows[0][3] == "90.00"


def test_scores_of_averages_and_their_errors():
    sure = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]])  # rows, classes
    said = np.stack([sure, sure, 1 - sure])  # the third realisation is wrong throughout
    seen = {part: {"y": np.array([0, 1, 1])} for part in ("train", "test")}
    score = mnist.scores({"train": said, "test": said}, seen)
    assert score["test"] == 1.0
    assert score["single"] == pytest.approx(2 / 3)
    chance = [(0.9 + 0.9 + 0.1) / 3, (0.8 + 0.8 + 0.2) / 3, (0.6 + 0.6 + 0.4) / 3]
    assert score["log_density"] == pytest.approx(np.log(chance).mean())
    errors = mnist._errors({"train": said, "test": said}, seen)
    assert errors["single"] == pytest.approx(1 / 3)  # sd of (1, 1, 0) over sqrt(3)
    # without the third realisation the average is right three times; without another it is even
    even = float(np.mean(np.full((3, 2), 0.5).argmax(axis=1) == [0, 1, 1]))
    assert errors["test"] == pytest.approx(mnist.jackknife([even, even, 1.0]))
    assert mnist._errors({"train": said[:2], "test": said[:2]}, seen) == {}


def test_draws_of_exact_chains_are_said_to_stand_in_for_realisations():
    two = made_score(0.75, -0.52)  # ten rows, two draws of two chains: each a realisation
    assert "stand in" not in covertype.table({"ewsg": two, "flymc": two}, 100).note
    longer = replace(two, draws=40)
    note = covertype.table({"ewsg": two, "flymc": longer}, 100).note
    assert "40 draws of FlyMC stand in for realisations" in note
    assert "-2.0000 and -4.0000" in note


@pytest.mark.usefixtures("real_tables")
def test_smoke_of_table_1():
    result = covertype.table_1("smoke", 1)
    by = {row[0]: row for row in result.tables[0].rows}
    for name in ("EWSG", "SGHMC", "SGLD", "mode of all rows"):
        assert abs(by[name][1] - by["FlyMC"][1]) < 3, name  # per cent, of 2,000 rows
    assert {"ewsg", "flymc", "mode of all rows"} <= set(result.ledger)
    assert any(note.startswith("FlyMC: R-hat is") for note in result.notes)
    assert "FlyMC, one pass" in by
    short = result.ledger["flymc, one pass"]
    assert short < result.ledger["flymc"]
    (note,) = (note for note in result.notes if note.startswith("FlyMC, one pass"))
    average, most = (float(x) for x in re.findall(r"([\d.]+) n (?:rows )?in", note))
    assert 0.3 < average <= most <= 1


@pytest.mark.slow
@pytest.mark.usefixtures("real_tables")
def test_table_1_at_laptop_scale():
    by = {row[0]: row for row in covertype.table_1("laptop", 1).tables[0].rows}
    ewsg = by["EWSG"]
    assert abs(ewsg[1] - 75.3) < 0.5
    assert abs(ewsg[3] - -0.523) < 0.015
    single = float(ewsg[6].split(" ")[0])
    assert single < -1  # one realisation by itself is nowhere near


@pytest.mark.usefixtures("real_tables")
def test_smoke_of_figure_3():
    result = mnist.figure_3("smoke", 1)
    rows = result.tables[0].rows
    assert [row[:2] for row in rows] == [["MLP", "SGLD"], ["MLP", "EWSG"], ["CNN", "EWSG"]]
    by = {(row[0], row[1]): float(row[6].split(" ± ")[0]) for row in rows}  # test log-likelihood
    # ten passes over 1,000 rows are only a start: about chance level, while a network that
    # diverged would be far below
    assert by["MLP", "EWSG"] > np.log(0.1) - 0.05


@pytest.mark.slow
@pytest.mark.usefixtures("real_tables")
def test_figure_3_with_all_methods(monkeypatch):
    every = replace(mnist.SIZES["smoke"], only=None)
    monkeypatch.setitem(mnist.SIZES, "smoke", every)
    rows = mnist.figure_3("smoke", 1).tables[0].rows
    assert [row[0] for row in rows] == ["MLP"] * 6 + ["CNN"] * 5
    shown = [row[3:7] for row in rows if row[1] != "EWSG, V the sum"]
    assert np.isfinite([[float(x.split(" ± ")[0]) for x in row] for row in shown]).all()

"""Reports of a run: Markdown, JSON round trip, plots, description of the machine."""

import json
from pathlib import Path

import numpy as np
import pytest

from modicum_lab.bench.contenders import CONTENDERS
from modicum_lab.bench.machine import describe_machine, in_words
from modicum_lab.bench.measurements import Measurements
from modicum_lab.bench.report import from_json, markdown, to_json, write_report
from modicum_lab.tests.bench.made_up import MACHINE, measurements, results, run_result

KEPT = Path(__file__).parents[4] / "docs" / "benchmarks"


def usual():
    left = Measurements("higgs-1m", "numpyro-nuts", reason="it would take a week")
    return results(
        [
            measurements(
                "higgs-1m",
                "modicum",
                run_result(rate=900),
                run_result(rate=1000),
                run_result(rate=1200),
            ),
            measurements("higgs-1m", "numpyro-ecs-200", rate=5.0, before=20.0),
            measurements("higgs-1m", "blackjax-sgld", rate=50.0, shift=1.0),
            measurements("higgs-1m", "laplace", rate=50.0),
            left,
        ]
    )


def test_a_report_survives_the_way_to_json_and_back():
    first = usual()
    again = from_json(to_json(first))
    assert markdown(again) == markdown(first)
    assert from_json(to_json(again)) == again  # rounding happens once
    assert vars(again).keys() == vars(first).keys()
    for one, other in zip(again.measured, first.measured, strict=True):
        assert (one.problem, one.contender, one.reason) == (
            other.problem,
            other.contender,
            other.reason,
        )
        np.testing.assert_allclose([r.rate for r in one.runs], [r.rate for r in other.runs], 1e-6)
    assert {"machine", "measured", "limits"} <= set(json.loads(to_json(first)))


@pytest.mark.skipif(not KEPT.exists(), reason="the documentation is not installed")
def test_the_page_of_the_documentation_is_that_of_its_measurements():
    page = (KEPT / "last.md").read_text(encoding="utf-8")
    results = from_json((KEPT / "last.json").read_text(encoding="utf-8"))
    assert markdown(results, ["esspersecond", "error-against-time", "memory"]) == page


def test_the_page_has_ratios_medians_marks_and_what_was_left_out():
    page = markdown(usual())
    line = next(row for row in page.splitlines() if "NumPyro HMCECS, m = 200" in row)
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[2:4] == ["5", "200"]  # the median of Modicum's three runs, over 5
    assert cells[5].startswith("110")  # (20 + 1000 / 5) s over (1 + 1000 / 1000) s
    wrong = next(row for row in page.splitlines() if "BlackJAX SGLD" in row)
    assert "| wrong |" in wrong
    assert "3 (30%)" in page  # runs and their spread
    assert "NumPyro NUTS, all rows on higgs-1m: it would take a week." in page
    assert "not installed: statsmodels" in page
    assert "**" not in page  # nobody who is right is sooner


def test_who_is_right_and_sooner_than_the_default_is_in_bold():
    found = [
        measurements("groups-100", "modicum-fit", before=3.0),
        measurements("groups-100", "lme4", before=1.0),
        measurements("groups-100", "glmmtmb", before=1.0, shift=1.0),  # wrong
        measurements("groups-100", "gpboost", before=5.0),  # later
    ]
    page = markdown(results(found))
    assert "**lme4's glmer, point estimate**" in page
    assert page.count("**") == 2
    assert "Reference: made up" in page


def test_the_report_is_written_with_its_pictures(tmp_path):
    page = write_report(usual(), tmp_path)
    assert page == tmp_path / "bench.md"
    for name in ("esspersecond", "error-against-time", "memory"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000
        assert (tmp_path / f"{name}.svg").exists()
        assert f"({name}.png)" in page.read_text()


def test_every_contender_is_drawn(tmp_path):
    everybody = [measurements("higgs-1m", name, run_result(rate=9)) for name in CONTENDERS]
    assert (write_report(results(everybody), tmp_path).parent / "memory.svg").exists()


def test_problems_that_are_not_run_again_stay_with_their_run():
    first = [("higgs-100k", "modicum"), ("higgs-100k", "laplace"), ("covertype", "modicum")]
    earlier = results([measurements(*each, rate=7.0) for each in first])
    again = [measurements("covertype", name, rate=11.0) for name in ("modicum", "laplace")]
    now = results(again)
    now.machine = MACHINE | {"date": "2026-02-02 00:00 UTC", "processor": "another"}
    both = now.after(earlier)
    assert [m.problem for m in both.measured] == ["higgs-100k"] * 2 + ["covertype"] * 2
    assert both.measured[2].middle("rate") == pytest.approx(11.0)
    page = markdown(both)
    first = page.index("## higgs-100k (2026-01-01)")
    second = page.index("## covertype (2026-02-02)")
    assert first < page.index("on a processor") < second < page.index("on another")
    assert page.index("### the problem covertype") > second
    assert markdown(from_json(to_json(both))) == page


def test_the_machine_is_described():
    about = describe_machine()
    assert about["cores"] >= 1
    assert about["versions"]["modicum"]
    assert set(about) == set(MACHINE)
    assert f"{about['cores']} cores" in in_words(about)
    json.dumps(about)


def test_versions_of_r_and_its_packages_are_in_the_report(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "R" not in describe_machine()["versions"]
    program = tmp_path / "Rscript"
    program.write_text("#!/bin/sh\necho R 4.2.2\necho lme4 1.1.31\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert in_words(describe_machine()).endswith("R 4.2.2, lme4 1.1.31.")


def test_a_problem_without_reference_is_reported():
    huge = results([measurements("plain-100m", name) for name in ("modicum-store", "modicum")])
    huge.references.clear()
    page = markdown(huge)
    assert "No reference" in page
    assert "Reference:" not in page

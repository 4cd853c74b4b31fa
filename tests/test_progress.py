"""Progress: every phase is reported, on standard error, in a log, or to a callback."""

import io
import logging
import re
import sys

import pytest

import modicum as mo
from helpers.scripts import Script
from helpers.targets import gaussian_rows, quick
from modicum import progress
from modicum.progress import phase
from modicum.run.runner import Monitor

MODEL = mo.models.Gaussian(scale=0.7)
PHASES = ["mode", "compile", "warm-up", "sampling", "checks"]


def test_a_callback_receives_every_phase_to_its_end():
    heard = []
    post = quick(MODEL, gaussian_rows(150), progressbar=heard.append)
    assert [name for name in dict.fromkeys(e.phase for e in heard) if name in PHASES] == PHASES
    for name, total in (("warm-up", 100), ("sampling", 40)):
        done = [e.done for e in heard if e.phase == name]
        assert done == sorted(done)
        assert done[-1] == total == next(e.total for e in heard if e.phase == name)
    assert any("rows touched" in e.detail for e in heard)
    assert post.num_draws == 40
    silent = quick(MODEL, gaussian_rows(150), progressbar=False)
    assert (silent["beta"] == post["beta"]).all()


@pytest.mark.parametrize(
    ("paces", "told"),
    [
        ([0.004] * 5, []),  # it takes no ten seconds
        ([0.1] * 5, ["about 3 minutes", "first 404"]),
        # trajectories of early warm-up are long, and another program may come
        ([0.1] * 2 + [0.015] * 3, ["about 3 minutes", "first 404", "about 10 s", "last 400"]),
        ([0.02] * 2 + [0.2] * 3, ["about 30 s", "first 404", "about 3 minutes", "last 400"]),
        ([0.1] * 2 + [0.08] * 3, ["about 3 minutes", "first 404"]),  # near enough
    ],
)
def test_a_long_run_says_how_long_by_its_pace(paces, told):
    """Predicted times were off by a factor of five on busy machines, and nothing corrected them."""
    heard = []
    monitor, now, done = Monitor(1000, 1000, 4, heard.append), 50.0, 4
    monitor.tell(done, now)  # after 50 s of compiling, which say nothing
    for pace in paces:  # seconds per iteration
        done, now = min(done + 400, 2000), now + 400 * pace
        monitor.tell(done, now)
    lines = [event.phase for event in heard]
    said = [re.fullmatch(r"(.+) to go, by the pace of the (.+) iterations", line) for line in lines]
    assert [part for match in said for part in match.groups()] == told


def test_a_run_tells_its_pace_by_chunks(monkeypatch):
    heard = []
    monkeypatch.setattr(Monitor, "tell", lambda monitor, done, now: heard.append(done))
    quick(MODEL, gaussian_rows(150), draws=600)
    assert heard == sorted(set(heard))  # once per chunk, which may have several records
    assert heard[-1] == 700


def test_a_log_gets_one_line_per_phase(caplog):
    with caplog.at_level(logging.INFO, logger="modicum"):
        quick(MODEL, gaussian_rows(150), progressbar=True)
    lines = [r.getMessage() for r in caplog.records if r.name == "modicum"]
    named = [line.partition(",")[0] for line in lines]
    assert [name for name in named if name in PHASES] == PHASES
    assert "sampling, 40 iterations (2 chains)" in lines


def test_without_a_log_the_lines_go_to_standard_error(tmp_path):
    code = (
        "import numpy as np, modicum as mo;"
        "from modicum.progress import phase\n"
        "with phase('ingest', 7, True, 'rows') as going: going.advance(7)\n"
        "with phase('quick', None, False): pass"
    )
    with Script(code) as script:
        assert script.stdout.read() == ""
        assert script.stderr.read() == "modicum: ingest, 7 rows\n"


class Cell:
    """Records what IPython is asked to display under a cell."""

    def __init__(self):
        self.shown, self.updates = [], 0

    def display(self, shown, raw, display_id):
        assert raw
        assert display_id
        self.shown.append(shown)
        return self

    def update(self, shown, raw):
        assert raw
        self.updates += 1
        self.shown[-1] = shown


def test_a_notebook_needs_no_widgets(monkeypatch, recwarn):
    cell = Cell()
    monkeypatch.setitem(sys.modules, "IPython.display", cell)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)  # an import of it fails
    monkeypatch.setattr(progress._bars().console, "is_jupyter", True)
    for _ in range(2):
        with phase("sampling", 4) as going:
            going.update(2, "accept <0.8>")
            with phase("pass", 10, unit="rows"):
                assert "pass" in cell.shown[-1]["text/plain"]
            going.update(4, "done")
    assert len(cell.shown) == 2  # one output per run, updated in place
    assert cell.updates > 2
    assert cell.shown[-1]["text/plain"] == f"sampling {'█' * 24} 4/4 done"
    with phase("sampling", 4) as going:
        going.update(2, "accept <0.8>")
        with phase("mode"):
            assert "&lt;0.8&gt;" in cell.shown[-1]["text/html"]
    assert not [w for w in recwarn if "ipywidgets" in str(w.message)]


@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_a_long_pass_is_counted_and_a_quick_one_is_silent(patience):
    heard = []
    with phase("gradient", 10, heard.append, "rows", patience) as progress:
        for _ in range(3):
            progress.advance(4)
    shown = [(0, 10), (4, 10), (8, 10), (10, 10)]  # never more than there are
    assert [(e.done, e.total) for e in heard] == ([] if patience else shown)


def test_phases_inside_each_other_share_one_display(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    progress._bars.cache_clear()
    with phase("mode"), phase("gradient", 10, True, "rows") as rows:
        rows.advance(3)
    with phase("sampling", 5) as sampling:
        sampling.update(5, "accept 0.80")
    for word in ("mode", "gradient", "sampling", "accept 0.80"):
        assert word in screen.getvalue()

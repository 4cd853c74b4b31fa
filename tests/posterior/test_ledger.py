"""The ledger's sums."""

import json

import pytest

from helpers.refusals import refused
from modicum.errors import SettingError
from modicum.ledger import Ledger


@pytest.fixture
def ledger():
    ledger = Ledger(rows=1_000, full_data=500_000)
    ledger.add("mode", 3_000, "hessian", passes=3)
    ledger.add("sampling", 1_500, "gradient")
    ledger.add("sampling", 500, "gradient")
    ledger.add("sampling", 250, "density")
    return ledger


def test_sums(ledger):
    assert ledger.evaluations == 5_250
    assert ledger.passes == 5.25
    assert ledger.sweeps == 3
    assert ledger.by_purpose == {"mode": 3_000, "sampling": 2_250}
    assert ledger.by_kind == {"hessian": 3_000, "gradient": 2_000, "density": 250}
    assert ledger.share == pytest.approx(0.0105)
    assert Ledger(rows=5).share is None


def test_round_trip_and_merge(ledger):
    copy = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert copy == ledger
    assert copy.merge(ledger) is copy
    assert copy.evaluations == 2 * ledger.evaluations
    assert copy.full_data == 1_000_000
    assert copy.sweeps == 6
    assert Ledger(rows=1_000).merge(ledger).full_data == 500_000
    assert Ledger(rows=1_000).merge(Ledger(rows=1_000)).full_data is None
    ledger.merge(ledger)
    assert ledger == copy


def test_text(ledger):
    lines = str(ledger).splitlines()
    assert lines[0] == "5,250 row evaluations: 5.2 passes over 1,000 rows"
    assert len({len(line) for line in lines[1:5]}) == 1
    assert lines[-1].endswith("1.05% of that")
    assert "full-data" not in str(Ledger(rows=3))
    assert repr(ledger) == str(ledger)


def test_passes_are_counted_in_the_evaluations(ledger):
    for evaluations, passes in ((5, 1), (-5, 0)):
        with pytest.raises(SettingError, match="count the passes' rows"):
            ledger.add("mode", evaluations, "gradient", passes)
    assert ledger.evaluations == 5_250


def test_refuses_another_data_set(ledger):
    refused(SettingError, "different data sets", ledger.merge, Ledger(rows=7))

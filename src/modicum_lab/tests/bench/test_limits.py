"""The ratios that must hold: kept, missed, and not measured."""

from modicum_lab.bench.limits import limits_of, limits_table
from modicum_lab.bench.measurements import Measurements
from modicum_lab.tests.bench.made_up import measurements


def measured(rate, cold_peer, slow, disk, memory):
    return [
        measurements("higgs-100k", "modicum", rate=1000.0, iteration=1e-3),
        measurements("higgs-1m", "modicum", rate=rate, before=1.0),
        measurements("higgs-1m", "numpyro-ecs-200", rate=8.0, before=cold_peer),
        measurements("higgs-1m", "numpyro-ecs-1300", rate=10.0, before=cold_peer),
        measurements("higgs-10m", "modicum", rate=1000.0, iteration=slow),
        measurements("higgs-10m", "modicum-store", rate=1000.0, iteration=disk, memory=memory),
    ]


def test_all_are_kept():
    limits = limits_of(measured(2000.0, 5.0, 1.1e-3, 1.5e-3, 1e9))
    assert [one.kept for one in limits] == [True] * 5
    assert limits[0].measured == 200.0  # against the better of the two
    assert " NO " not in limits_table(limits).markdown()


def test_none_is_kept_and_the_table_says_by_how_much():
    limits = limits_of(measured(400.0, 5.0, 2e-3, 8e-3, 3e9))
    kept = [one.kept for one in limits]
    assert kept == [False, True, False, False, False]
    page = limits_table(limits).markdown()
    assert page.count("| NO |") == 4
    assert "0.4 times the limit" in page


def test_a_slow_cold_start_is_seen():
    limits = limits_of(measured(2000.0, -95.0, 1e-3, 1e-3, 1e9))  # 5 s for the peer, 1.5 for us
    assert not limits[1].kept


def test_the_huge_table_is_compared_with_a_tenth_of_it_in_memory():
    limits = limits_of(
        [
            measurements("plain-10m", "modicum", rate=1000.0, iteration=1e-3),
            measurements("plain-100m", "modicum-store", rate=1000.0, iteration=1.25e-3),
        ]
    )
    assert [round(one.measured, 2) for one in limits] == [0.8, 1.0]


def test_nothing_is_claimed_about_what_was_not_run():
    assert limits_of([]) == []
    assert limits_of([Measurements("higgs-1m", "modicum", reason="no memory")]) == []

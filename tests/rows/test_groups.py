"""Rows as groups, in memory and in a store sorted by group."""

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.refusals import refused
from modicum.errors import DataError, SettingError
from modicum.methods.whole_groups import uneven_groups
from modicum.rows import ingest
from modicum.rows.grouped_rows import GroupedRows, GroupIndex
from modicum.rows.reading import read_formula
from modicum.rows.writing import sorted_blocks


def table(n=500, groups=37, seed=1):
    rng = np.random.default_rng(seed)
    g = rng.integers(0, groups, n)
    return {"x": rng.normal(size=(n, 2)), "y": np.arange(n, dtype=float), "g": g.astype(float)}


def test_batches_hold_whole_groups():
    fields = table()
    rows = mo.Rows(**fields)
    groups = GroupedRows(rows, GroupIndex.of(rows, "g"))
    assert len(groups) == 37
    batch = groups.take([5, 0, 5])
    for place, level in enumerate((5, 0, 5)):
        mine = batch["group_of_row"] == place
        np.testing.assert_array_equal(batch["y"][mine], fields["y"][fields["g"] == level])
    assert list(batch["group_rows"]) == [np.sum(fields["g"] == k) for k in (5, 0, 5)]
    few = groups.subset(np.array([3, 9]))
    assert list(few.index.values) == [3, 9]
    np.testing.assert_array_equal(few.take([1])["y"], fields["y"][fields["g"] == 9])


def test_a_giant_group_does_not_fill_the_others_chunks_with_padding(monkeypatch):
    monkeypatch.setattr("modicum.rows.grouped_rows.FLAT_ROWS", 64)
    monkeypatch.setattr("modicum.rows.grouped_rows.MOST_GROUPS", 16)
    g = np.r_[np.zeros(2_000), 1 + np.repeat(np.arange(400), 3)]
    rows = mo.Rows(x=np.ones((len(g), 1)), y=np.arange(len(g), dtype=float), g=g)
    groups = GroupedRows(rows, GroupIndex.of(rows, "g"))
    count = len(groups.chunk_starts) - 1
    assert count * groups.flat_rows < 3 * len(rows)
    seen = []
    for k in range(count):
        batch, _ = groups.chunk(k)
        seen.extend(batch["y"][batch["group_of_row"] < groups.flat_groups])
    np.testing.assert_array_equal(np.sort(seen), np.arange(len(rows)))
    assert [note.code for note in uneven_groups(groups, 10)] == ["groups-uneven"]
    assert not uneven_groups(groups, 1)


@pytest.mark.parametrize("groups", [1, 3, 200])
def test_external_sort(tmp_path, groups):
    """With small runs, and groups larger than a run, the order is that of a stable sort."""
    fields = table(1000, groups)
    rows = mo.Rows(**fields)
    about = rows._description
    blocks = (about.pack(chunk) for chunk in rows.chunks(60))
    made = list(sorted_blocks(about, blocks, "g", tmp_path, run_bytes=100 * about.row_bytes))
    assert max(map(len, made)) <= 220
    order = np.argsort(fields["g"], kind="stable")
    values = np.concatenate([about.split(block)["y"] for block in made])
    np.testing.assert_array_equal(values, fields["y"][order])
    assert not list(tmp_path.iterdir())


def test_store_sorted_by_group(tmp_path):
    fields = table()
    plain = ingest(fields, tmp_path / "plain", dtype="float64", progressbar=False)
    refused(DataError, "sort_by='g'", GroupIndex.of, plain, "g")
    store = ingest(plain, tmp_path / "store", dtype=None, sort_by="g", progressbar=False)
    index = GroupIndex.of(store, "g")
    assert index.order is None
    memory = mo.Rows(**fields)
    there = GroupedRows(store, index).take([4, 30])
    here = GroupedRows(memory, GroupIndex.of(memory, "g")).take([4, 30])
    for name in here:
        np.testing.assert_array_equal(there[name], here[name])
    with pytest.raises(SettingError, match="one number per row"):
        ingest(fields, tmp_path / "other", sort_by="x", progressbar=False)
    assert not (tmp_path / "other").exists()


def test_rows_of_a_formula_with_groups_alone_may_be_stored_again(tmp_path):
    frame = pd.DataFrame({"y": np.arange(8.0), "g": list("abcdabcd")})
    rows = read_formula("y ~ 1 + (1 | g)", frame, progressbar=False)
    store = ingest(rows, tmp_path / "s", dtype=None, progressbar=False)
    assert store.fingerprint() == rows.fingerprint()

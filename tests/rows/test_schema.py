"""The schema says what a later table must match, in memory and in a store."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from modicum.errors import DataError
from modicum.rows import CodedTerm, Coding, Rows, RowsSchema, ingest

FRAME = pd.DataFrame(
    {
        "delay": [3.5, -1.0, 0.0],
        "carrier": ["UA", "AA", "DL"],
        "hour": [5, 6, 5],
        "late": [1, 0, 0],
    }
)
SETTINGS = {"outcome": "late", "categorical": {"carrier": "DL", "hour": None}}
EXPECTED = RowsSchema(
    columns=("delay", "carrier[AA]", "carrier[UA]", "hour[6]"),
    fields={"x": (1,), "carrier": (), "hour": (), "y": ()},
    outcome="late",
    levels={"carrier": ("DL", "AA", "UA"), "hour": ("5", "6")},
    coding=Coding((0,), (CodedTerm("carrier", 1, 2), CodedTerm("hour", 3, 1))),
)
DENSE = replace(EXPECTED, fields={"x": (4,), "y": ()}, coding=None)


def test_schema_of_tables_and_stores(tmp_path):
    assert Rows.from_table(FRAME, **SETTINGS).schema == EXPECTED
    ingest(FRAME, tmp_path / "s", **SETTINGS, progressbar=False)
    assert Rows.open(tmp_path / "s").schema == EXPECTED
    copy = ingest(tmp_path / "s", tmp_path / "t", progressbar=False)
    assert copy.schema == EXPECTED
    assert Rows.from_table(FRAME, **SETTINGS, dense=True).schema == DENSE
    other = Rows.from_table(FRAME, outcome="late", categorical=["carrier", "hour"]).schema
    assert other != EXPECTED
    assert other.reference == {"carrier": "AA", "hour": "5"}


def test_schema_of_arrays():
    schema = Rows(x=np.eye(3), y=[0, 1, 1], c=np.zeros((3, 2, 4))).schema
    assert schema == RowsSchema(("x0", "x1", "x2"), {"x": (3,), "y": (), "c": (2, 4)})
    assert schema.outcome is None
    assert schema.levels == schema.reference == {}
    assert Rows(c=np.eye(3)).schema.columns == ()


def test_schema_survives_json():
    for schema in (EXPECTED, Rows(x=np.eye(2)).schema):
        assert RowsSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


@pytest.mark.parametrize(
    "change",
    [
        {"columns": [1, 2]},
        {"columns": None},
        {"fields": ["x"]},
        {"fields": {"x": ["four"]}},
        {"outcome": 3},
        {"levels": {"carrier": [1]}},
        {"reference": {}},
        {"reference": {"carrier": "ZZ", "hour": "5"}},
    ],
)
def test_damaged_schema(change):
    with pytest.raises(DataError, match="the saved schema of the rows is damaged"):
        RowsSchema.from_dict({**EXPECTED.to_dict(), **change})

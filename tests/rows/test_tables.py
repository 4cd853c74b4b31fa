"""Tables become rows: roles, categoricals, schemas and errors, the same for three libraries."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from helpers.refusals import refused
from modicum.errors import DataError, SettingError
from modicum.rows import CodedTerm, Coding, Rows, RowsSchema, ingest
from modicum.rows.formula import FormulaEncoding
from modicum.rows.reading import encode_table, read_formula

COLUMNS = {
    "delay": [3.5, -1.0, 0.0, 12.25, 7.0],
    "carrier": ["UA", "AA", "DL", "UA", "AA"],
    "hour": [5, 6, 5, 7, 6],
    "night": [True, False, False, True, False],
    "late": [1, 0, 0, 1, 1],
    "exposure": [0.5, 1.0, 1.5, 2.0, 2.5],
    "times": [1, 2, 1, 3, 0],
}
KINDS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "pandas-category": lambda d: pd.DataFrame(d).astype({"carrier": "category"}),
    "polars-category": lambda d: pl.DataFrame(d).cast({"carrier": pl.Categorical}),
    "pandas-nullable": lambda d: pd.DataFrame(d).convert_dtypes(),
}
SETTINGS = {"outcome": "late", "offset": "exposure", "weight": "times"}
SETTINGS["categorical"] = {"carrier": "DL", "hour": None}


@pytest.fixture(params=KINDS)
def table(request):
    return KINDS[request.param](COLUMNS)


def test_encoding(table, tmp_path):
    rows = Rows.from_table(table, **SETTINGS)
    store = ingest(table, tmp_path / "s", **SETTINGS, dtype=None, progressbar=False)
    dense = Rows.from_table(table, **SETTINGS, dense=True)
    for made in (rows, store, dense):
        names = "delay carrier[AA] carrier[UA] hour[6] hour[7] night"
        assert made.columns == tuple(names.split())
        assert made.outcome == "late"
        assert made.levels == {"carrier": ("DL", "AA", "UA"), "hour": (5, 6, 7)}
        whole = made.slice(0, 5)
        assert (made.coding is None) == (made is dense)
        x = whole["x"] if made is dense else made.coding.densely(whole)
        assert x.tolist() == [
            [3.5, 0, 1, 0, 0, 1],
            [-1, 1, 0, 1, 0, 0],
            [0, 0, 0, 0, 0, 0],
            [12.25, 0, 1, 0, 1, 1],
            [7, 1, 0, 1, 0, 0],
        ]
        assert whole["y"].tolist() == COLUMNS["late"]
        assert whole["offset"].tolist() == COLUMNS["exposure"]
        assert whole["weight"].tolist() == COLUMNS["times"]
    assert rows.fingerprint() == store.fingerprint() != dense.fingerprint()
    assert rows.fields["x"] == (2,)
    assert rows.slice(0, 5)["hour"].tolist() == [0, 1, 0, 2, 1]
    again = Rows.from_table(table, like=rows)
    assert again.schema == rows.schema
    assert again.fingerprint() == rows.fingerprint()
    assert Rows.from_table(table, like=dense).fingerprint() == dense.fingerprint()


def test_chosen_predictors(table):
    rows = Rows.from_table(table, outcome="late", predictors=["hour", "delay"])
    assert rows.columns == ("hour", "delay")
    assert rows.take(3)["x"].tolist() == [7, 12.25]
    assert Rows.from_table(table, outcome=None, predictors=["hour"]).fields == {"x": (1,)}
    whole = Rows.from_table(table, outcome="late", categorical=["carrier"])
    assert whole.columns[:3] == ("delay", "carrier[DL]", "carrier[UA]")


def test_an_unused_column_may_hold_anything():
    frame = pd.DataFrame({"a": [1, 2], "y": [0, 1], "junk": [object(), "u"]})
    assert Rows.from_table(frame, predictors=["a"]).columns == ("a",)


def test_long_table_keeps_row_numbers():
    n = 200_000
    frame = pd.DataFrame(
        {"a": np.arange(n), "y": np.zeros(n), "g": np.where(np.arange(n) % 3, "u", "v")}
    )
    rows = Rows.from_table(frame, categorical=["g"])
    assert np.array_equal(rows.slice(0, n)["x"][:, 0], np.arange(n))
    assert np.array_equal(rows.slice(0, n)["g"], np.arange(n) % 3 == 0)
    missing = "a missing value"
    for column, value, word in [("a", np.nan, missing), ("y", np.inf, "inf"), ("g", None, missing)]:
        bad = frame.astype({"a": float})
        bad.loc[150_123, column] = value
        with pytest.raises(DataError, match=f"column '{column}' holds {word} in row 150123"):
            Rows.from_table(bad, categorical=["g"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"outcome": "lat"}, "outcome column 'lat' is not in the data: did you mean 'late'"),
        ({"outcome": "zzz"}, "'zzz' is not in the data: there are 'delay', 'carrier'"),
        ({"outcome": 3}, "outcome must be the name of a column, not int"),
        ({"predictors": ["times"], "weight": "times"}, "the weight column 'times' is among"),
        ({"predictors": []}, "there are no predictors"),
        ({"predictors": "delay"}, r"pass \['delay'\]"),
        ({"predictors": ["delay", "delay"]}, "predictor 'delay' is named twice"),
        ({"weight": "late"}, "one column cannot have two roles"),
        ({"categorical": ["carier"]}, "categorical column 'carier' is not.*'carrier'"),
        ({"categorical": "carrier"}, r"pass \['carrier'\]"),
        ({"predictors": ["hour"], "categorical": ["carrier"]}, "is not among the predictors"),
        ({"categorical": {"carrier": "U"}}, "level 'U' does not occur in column 'carrier'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(SettingError, match=message):
        Rows.from_table(pd.DataFrame(COLUMNS), **{"outcome": "late", **settings})


def test_text_is_levels_and_no_outcome(table):
    told = Rows.from_table(table, outcome="late", categorical=["carrier"])
    untold = Rows.from_table(table, outcome="late")
    assert untold.columns == told.columns
    assert untold.fingerprint() == told.fingerprint()
    with pytest.raises(
        DataError, match=r"column 'carrier' holds .*convert it to numbers \(such as 0 and 1\)"
    ):
        Rows.from_table(table, outcome="carrier")


def test_other_types_and_missing_values():
    def refuse(message, **columns):
        with pytest.raises(DataError, match=message):
            Rows.from_table(
                pa.table({"y": [0, 1], **columns}), categorical=["g"] if "g" in columns else ()
            )

    dates = pa.array([0, 1], pa.date32())
    refuse("column 'day' holds values of type date32.* convert it to a number first", day=dates)
    refuse("column 'l' holds values of type list", l=[[1], [2]])
    refuse("column 'a' holds a missing value in row 1", a=[1, None])
    refuse("column 'g' holds a missing value in row 1", g=["u", None])
    refuse("column 'g' holds a missing value in row 1", g=[1.0, float("nan")])
    refuse("categorical column 'g' holds a time in row 0", g=pa.array([0, 1], pa.time32("s")))
    rows = Rows.from_table(pa.table({"y": [0, 1], "d": pa.array([1, 2], pa.decimal128(5, 2))}))
    assert rows.slice(0, 2)["x"].tolist() == [[1], [2]]


def test_things_that_are_not_tables_are_refused():
    with pytest.raises(
        SettingError, match="from_table takes a pandas, polars or pyarrow table, not dict"
    ):
        Rows.from_table({"a": [1]})
    refused(DataError, "there are no rows", Rows.from_table, pd.DataFrame({"a": [], "y": []}))


def test_too_many_levels():
    frame = pd.DataFrame({"g": np.arange(10_001), "y": 0})
    with pytest.raises(DataError, match="column 'g' has more than 10000 levels"):
        Rows.from_table(frame, categorical=["g"])


def test_a_factor_may_have_the_name_of_a_field():
    frame = pd.DataFrame({"x": ["u", "v", "u"], "weight": ["a", "b", "c"], "y": [0, 1, 1]})
    rows = Rows.from_table(frame)
    assert rows.columns == ("x (code)[v]", "weight (code)[b]", "weight (code)[c]")
    assert rows.slice(0, 3)["x (code)"].tolist() == [0, 1, 0]
    new = pd.DataFrame({"weight": ["c"], "x": ["v"]})
    made = Rows.from_table(new, like=rows)
    assert made.coding == rows.coding
    assert {k: v.tolist() for k, v in made.slice(0, 1).items()} == {
        "x (code)": [1], "weight (code)": [2],
    }  # fmt: skip


# Schemas --------------------------------------------------------------------------------

FRAME = pd.DataFrame(
    {"delay": [3.5, -1.0, 0.0], "carrier": ["UA", "AA", "DL"], "hour": [5, 6, 5], "late": [1, 0, 0]}
)
ROLES = {"outcome": "late", "categorical": {"carrier": "DL", "hour": None}}
EXPECTED = RowsSchema(
    columns=("delay", "carrier[AA]", "carrier[UA]", "hour[6]"),
    fields={"x": (1,), "carrier": (), "hour": (), "y": ()},
    outcome="late",
    levels={"carrier": ("DL", "AA", "UA"), "hour": ("5", "6")},
    coding=Coding((0,), (CodedTerm("carrier", 1, 2), CodedTerm("hour", 3, 1))),
)
DENSE = replace(EXPECTED, fields={"x": (4,), "y": ()}, coding=None)


def test_schema_of_tables_and_stores(tmp_path):
    assert Rows.from_table(FRAME, **ROLES).schema == EXPECTED
    ingest(FRAME, tmp_path / "s", **ROLES, progressbar=False)
    assert Rows.open(tmp_path / "s").schema == EXPECTED
    copy = ingest(tmp_path / "s", tmp_path / "t", progressbar=False)
    assert copy.schema == EXPECTED
    assert Rows.from_table(FRAME, **ROLES, dense=True).schema == DENSE
    other = Rows.from_table(FRAME, outcome="late", categorical=["carrier", "hour"]).schema
    assert other != EXPECTED
    assert other.reference == {"carrier": "AA", "hour": "5"}


def test_schema_survives_json():
    for schema in (EXPECTED, Rows(x=np.eye(2)).schema):
        assert RowsSchema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


def test_columns_of_any_name():
    names = ["a`b`c", "", "`", "x + y", "class", "µ"]
    frame = pd.DataFrame({name: [float(i), 7.0] for i, name in enumerate(names)})
    rows = Rows.from_table(frame.assign(y=[0, 1], **{"g`": ["u", "v"]}))
    assert rows.columns == (*names, "g`[v]")
    assert rows.slice(0, 1)["x"].tolist() == [[0, 1, 2, 3, 4, 5]]
    assert Rows.from_table(frame, outcome="`").outcome == "`"


DAYS = [pd.Timestamp(2020, *day) for day in ((2, 1), (1, 31), (2, 1), (2, 3, 6, 30))]


def test_dates_are_levels_in_whatever_table(tmp_path):
    """They are called as ISO has them, so that no table's dates become other levels."""
    frame = pd.DataFrame({"y": [0.0, 1, 2, 3], "day": DAYS, "year": [2019, 2020, 2020, 2021]})
    rows = read_formula("y ~ C(day) + C(year) + (1 | day)", frame, progressbar=False)
    texts = ("2020-01-31", "2020-02-01", "2020-02-03 06:30:00")
    assert rows.levels["day"] == rows.levels["C(day)"] == texts
    assert rows.slice(0, 4)["day"].tolist() == [1, 0, 1, 2]
    chosen = Rows.from_table(frame, categorical=["day"])
    assert chosen.columns[:2] == tuple(f"day[{day}]" for day in texts[1:])
    frame.to_csv(tmp_path / "d.csv", index=False)
    frame.to_parquet(tmp_path / "d.parquet")
    tables = [str(tmp_path / "d.parquet"), pl.from_pandas(frame)]
    tables.append(frame.assign(day=frame["day"].astype("category")))
    for table in tables:
        again = read_formula("y ~ C(day) + C(year) + (1 | day)", table, progressbar=False)
        assert again.levels == rows.levels
    encoding = FormulaEncoding.from_dict(rows.schema.encoding.to_dict())  # as from a file
    for table in (*tables, str(tmp_path / "d.csv"), frame.assign(day=frame["day"].map(str))):
        ours, theirs = (r.slice(0, 4) for r in (rows, encode_table(encoding, table, outcome=True)))
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    late = frame.assign(day=frame["day"] + pd.Timedelta(1, "h"))  # the control: other dates
    with pytest.raises(DataError, match="holds '2020-02-01 01:00:00' in row 0, "):
        encode_table(encoding, late, outcome=True)
    for formula in ("y ~ day", "y ~ s(day)", "y ~ C(year) + np.log(day)"):
        with pytest.raises(DataError, match=r"number first \(as in \(day - day.min\(\)\).dt.days"):
            read_formula(formula, frame, progressbar=False)


def test_numbers_used_as_levels_may_be_written_otherwise():
    """In C(...) and as groups, a year is 2019, "2019" or a category, where nothing else fits."""
    frame = pd.DataFrame({"y": [0, 1, 2, 3], "year": [2019, 2020, 2020, 2021], "x": [1.0, 2, 3, 4]})
    rows = read_formula("y ~ C(year) + x + (1 | year)", frame, progressbar=False)
    ways = [str, float, lambda year: f"{year}.0"]
    tables = [frame.assign(year=[way(year) for year in frame["year"]]) for way in ways]
    tables += [table.assign(year=table["year"].astype("category")) for table in (frame, *tables)]
    for table in tables:
        other = encode_table(rows.schema.encoding, table, outcome=True)
        ours, theirs = (r.slice(0, 4) for r in (rows, other))
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    for year, words in (
        (["2019", "2020", "'21", "2021"], "held numbers or booleans in the fit and holds text"),
        (pd.Categorical([2019, 2019, 2018, 2019]), "holds 2018 in row 2, which the rows"),
    ):
        with pytest.raises(DataError, match=words):
            encode_table(rows.schema.encoding, frame.assign(year=year), outcome=True)
    with pytest.raises(DataError, match="column 'x' held numbers in the fit and holds text"):
        encode_table(rows.schema.encoding, frame.assign(x=["1", "2", "3", "4"]), outcome=True)

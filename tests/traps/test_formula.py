"""Mistakes that a formula and a table could make silently."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from modicum.fit import model_for
from modicum.rows import csv as csv_module
from modicum.rows import ingest, sources
from modicum.rows.formula import FormulaEncoding, parsing
from modicum.rows.formula.expressions import CALLED_ELSEWHERE, NATURAL
from modicum.rows.formula.parsing import parse
from modicum.rows.reading import encode_table, read_formula


def rows_of(formula, data, **settings):
    return read_formula(formula, data, progressbar=False, **settings)


def column(rows, name):
    """Return one column of the model matrix."""
    batch = rows.slice(0, len(rows))
    dense = batch["x"] if rows.coding is None else rows.coding.densely(batch)
    return dense[:, rows.columns.index(name)]


def test_narrow_integers_do_not_wrap_around():
    frame = pd.DataFrame({"y": [0.0, 1.0], "x": np.array([100, 3], np.int8)})
    assert column(rows_of("y ~ I(x ** 2)", frame), "I(x ** 2)").tolist() == [10_000, 9]
    assert column(rows_of("y ~ I(x * x + x)", frame), "I(x * x + x)").tolist() == [10_100, 12]


def test_true_and_true_add_up_to_two():
    frame = pd.DataFrame({"y": [0.0, 1.0, 0.0], "x": [1.0, 2.0, 3.0], "b": [False, True, True]})
    for term, expected in {
        "I(b + (x > 2))": [0, 1, 2],
        "I((x > 2) - b)": [0, -1, 0],
        "I(-b)": [0, -1, -1],
        "np.exp(b)": [1, np.e, np.e],
    }.items():
        assert column(rows_of(f"y ~ {term}", frame), term).tolist() == expected


def test_a_boolean_may_be_compared_with_one():
    frame = pd.DataFrame({"y": [0.0, 1.0, 0.0], "x": [1.0, 2.0, 3.0], "b": [False, True, True]})
    for term in ("I((b == 1) & (x > 2))", "I((b != 0) & (x > 2))", "I((b in [1]) & (x > 2))"):
        assert column(rows_of(f"y ~ {term}", frame), f"{term}[True]").tolist() == [0, 0, 1]


@cases(
    "term reason",
    ("I(x > 1 & b == 1)", "brackets around every comparison"),  # x > (1 & b) == 1
    ("I(b | x > 2)", "brackets around every comparison"),
    ("I(x & 2)", r"true and false \(or 1 and 0\), not on 'x'"),  # not a test of a bit
    ("I(b & 1)", "not on '1'"),
    ("I(~x)", "not on 'x'"),
)
def test_and_and_or_are_for_truths(term, reason):
    frame = pd.DataFrame({"y": [0.0, 1.0, 0.0], "x": [1.0, 2.0, 3.0], "b": [0, 1, 1]})
    refused(mo.SettingError, reason, rows_of, f"y ~ {term}", frame)
    both = column(rows_of("y ~ I((x > 1) & b)", frame), "I((x > 1) & b)[True]")
    assert both.tolist() == [0, 1, 1]


@cases(
    "term reason",
    ("minimum(x, z, where=x > 2)", "minimum has no argument where"),  # memory nobody wrote
    ("np.abs(x, z)", "gives abs 2 arguments, and it takes 1"),  # would overwrite z
    ("log(x, 2)", "gives log 2 arguments"),
    ("where(x > 2, 1)", "gives where 2 arguments, and it takes 3"),
    ("clip(x, 0, 1, out=z)", "clip has no argument out"),
    ("I(x, z)", "gives I 2 arguments"),
    ("C(x, level=[1, 2])", "C has no argument level"),
    ("C(x, contr.sum, [1, 2])", "C takes levels by name"),
    ("C(x, contr.treatment(1, 2))", "one argument without a name"),
    ("offset(x, z)", "'x, z', which is not one number or level per row"),
    ("I([x, z])", "not one number or level per row"),
)
def test_functions_have_no_further_arguments(term, reason):
    frame = pd.DataFrame({"y": [0.0, 1.0, 0.0], "x": [1.0, 2.0, 3.0], "z": [3.0, 2.0, 2.0]})
    refused(mo.SettingError, reason, rows_of, f"y ~ {term} + z", frame)


def test_the_largest_of_three_columns_overwrites_none():
    frame = pd.DataFrame({"y": [0.0, 1.0], "x": [1.0, 2.0], "z": [3.0, 1.0], "w": [2.0, 4.0]})
    terms = {"maximum(x, z, w)": [3, 4], "np.fmin(x, z, w)": [1, 1], "w": [2, 4]}
    rows = rows_of(f"y ~ {' + '.join(terms)} + clip(w, a_min=3, a_max=9)", frame)
    assert {term: column(rows, term).tolist() for term in terms} == terms
    assert column(rows, "clip(w, a_min=3, a_max=9)").tolist() == [3, 4]


@cases(
    "formula arguments terms",
    ("y ~ .", {"offset": "off", "weights": "w"}, "x k n `a b` g"),
    ("y ~ . + offset(log(off + 9))", {}, "x k n w `a b` g"),
    ("k | trials(n) ~ .", {}, "x y w off `a b` g"),  # k was a term as well
    ("k + n > 5 ~ .", {}, "x y w off `a b` g"),
    ("y | trials(`a b` + n) ~ . + (1 | g) - off", {}, "x k w"),
)
def test_a_dot_leaves_out_columns_with_another_role(formula, arguments, terms):
    values = np.arange(1.0, 7)
    frame = pd.DataFrame(dict.fromkeys(("x", "y", "k", "n", "w", "off", "a b"), values))
    rows = rows_of(formula, frame.assign(g=list("aabbcc")), **arguments)
    assert set(rows.schema.terms) == {t.strip("`") for t in re.findall("`.*?`|[a-z]+", terms)}


@cases(
    "formula family remedy",
    ("y | cens(c) ~ x", "von-mises", r"read cens\(...\) after .* circle.* family='gaussian' or"),
    (
        "y | trunc(lb=0) ~ x",
        "tweedie",
        r"read trunc\(...\) after .* amounts \(use hurdle-gamma",
    ),
    ("y | trunc(ub=9) ~ x", "probit", r"not read trunc\(...\) after \|: its outcomes are known"),
    ("k | se(e, sigma=TRUE) ~ x", "poisson", r"does not read se\(...\) after \|, so that"),
    ("y | trunc(0, 9, 3) ~ x", "gaussian", r"its arguments are lb and ub, as in 'y \| trunc"),
    ("y | cens(c, y3=e) ~ x", "gaussian", "its arguments are cens and y2"),
    ("y | se(e, sigma=2) ~ x", "gaussian", "must be True or False"),
    ("k | rate(e) ~ x", "poisson", r"add offset\(log\(e\)\) to the terms"),
    ("k | se(e) ~ x", "poisson", "use family='gaussian' or 'student-t'"),
    ("k | trials(e) ~ x", "poisson", "use family='binomial' or .*, or leave it out"),
    ("y | evnt(c) ~ x", "weibull", "'evnt' .*did you mean 'event'"),
    ("y | weights(e) ~ x", "gaussian", "pass weights='e'"),
    ("y | weight(e) ~ x", "gaussian", "pass weights='e'"),
    ("y | offset(e) ~ x", "gaussian", r"write offset\(e\) among the terms"),
    ("y | y(e) ~ x", "gaussian", "the outcome is what stands before"),  # it was e
    ("y | event(c) + event(e) ~ x", "weibull", "give it once"),
    ("k / n ~ x", "binomial", r"write 'k \| trials\(n\) ~ \.\.\.'\.$"),
    ("k ~ x", "binomial", r"write 'k \| trials\(COLUMN\) ~ .*the outcome that of successes"),
)
def test_fields_that_nobody_reads_are_refused(formula, family, remedy):
    frame = pd.DataFrame({name: [1.0, 2.0, 4.0] for name in ("y", "x", "k", "e", "n")})
    with pytest.raises(mo.SettingError, match=remedy):
        mo.fit(formula, frame.assign(c=[0, 1, 1]), family, progressbar=False)


@cases(
    "terms",
    "*".join(f"a{i}" for i in range(20)),
    f"({' + '.join(f'a{i}' for i in range(30))})**4",
    f"x + ({' + '.join(f'a{i}' for i in range(30))})^" + "9" * 5000,
    f"(1 + {'*'.join(f'a{i}' for i in range(20))} | g)",
)
def test_terms_without_end_are_refused_before_they_are_formed(terms):
    refused(mo.SettingError, r"too many terms \(the limit is 10,000\)", parse, f"y ~ {terms}")


def test_terms_that_end_are_formed(monkeypatch):
    assert len(parse(f"y ~ {'/'.join(f'a{i}' for i in range(20))}").terms) == 20
    for power in ("5", "60", "9" * 5000):
        assert len(parse(f"y ~ (x + z + c + r + g)**{power} - 1").terms) == 31
    refused(mo.SettingError, "more than 50 brackets", parse, f"y ~ {'(' * 2000}x{')' * 2000}")
    monkeypatch.setattr(parsing, "MOST_TERMS", 100)  # of products: sums have no limit
    assert len(parse("y ~ . + (a0 + a1):a2", [f"a{i}" for i in range(200)]).terms) == 202
    with pytest.raises(mo.SettingError, match=r"'\. \* x' .* too many terms"):
        parse("y ~ . * x", [f"a{i}" for i in range(200)])


@pytest.mark.parametrize(("factors", "reason"), [(10, "write . instead of :"), (20, "limit is 13")])
def test_interactions_of_many_factors_are_refused(factors, reason):
    frame = pd.DataFrame({f"a{i}": ["a", "b"] for i in range(factors)}).assign(y=[1.0, 2.0])
    with pytest.raises(mo.SettingError, match=reason):
        rows_of("y ~ " + ":".join(f"a{i}" for i in range(factors)), frame)


@cases("name", "if", "lambda", "is", "class", "\u00b5", "\u212b", "e\u0301t\u00e9")
def test_names_that_python_reads_otherwise_are_columns(name):
    """Python has keywords, and takes the micro sign for a Greek letter."""
    frame = pd.DataFrame({"y": [0.0, 1.0, 2.0], name: [1.0, 2.0, 4.0], "g": list("aba")})
    for formula in (f"y ~ {name}", f"y ~ `{name}`", "y ~ . - g"):
        assert rows_of(formula, frame).columns == (name,)
    rows = rows_of(f"y ~ log({name}) + offset({name})", frame, weights=name)
    assert column(rows, f"log(`{name}`)").tolist() == np.log([1, 2, 4]).tolist()
    assert rows.slice(0, 3)["weight"].tolist() == rows.slice(0, 3)["offset"].tolist() == [1, 2, 4]
    assert len(rows_of(f"y ~ C({name}) + (1 | {name})", frame).columns) == 2
    assert rows_of(f"{name} ~ g", frame).outcome == f"`{name}`"
    other = FormulaEncoding.from_dict(rows_of(f"y ~ I({name} * 2)", frame).schema.origin)
    assert encode_table(other, frame, outcome=False).slice(0, 3)["x"].ravel().tolist() == [2, 4, 8]


def test_a_name_is_found_however_its_letters_are_typed():
    frame = pd.DataFrame({"y": [0.0, 1.0, 2.0], "\u00b5": [1.0, 2.0, 4.0]})
    assert rows_of("y ~ \u03bc", frame).columns == ("\u00b5",)
    both = frame.assign(**{"\u03bc": [3.0, 1.0, 1.0]})
    assert rows_of("y ~ \u00b5", both).slice(0, 3)["x"].ravel().tolist() == [1, 2, 4]
    assert rows_of("y ~ \u03bc", both).slice(0, 3)["x"].ravel().tolist() == [3, 1, 1]


def test_centring_is_that_of_all_rows_not_of_a_chunk(monkeypatch):
    monkeypatch.setattr(sources, "BATCH_ROWS", 10)
    frame = pd.DataFrame({"y": np.zeros(50), "x": np.arange(50.0)})
    rows = rows_of("y ~ center(x) + bs(x, df=4)", frame)
    np.testing.assert_allclose(column(rows, "center(x)"), np.arange(50) - 24.5)
    # and it centres new rows
    encoding = FormulaEncoding.from_dict(rows.schema.origin)
    one = encode_table(encoding, frame.iloc[[7]], outcome=False)
    np.testing.assert_allclose(one.slice(0, 1)["x"], rows.slice(7, 8)["x"])


def test_a_stray_text_does_not_make_levels_of_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_module, "BLOCK_BYTES", 2000)  # the text is beyond the first block
    lines = ["y,x"] + [f"{i % 2},{i % 7}.5" for i in range(2000)] + ["1,what"]
    path = tmp_path / "d.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(mo.DataError, match=r"'x' holds text \('what' in row 2000\) among numbers"):
        rows_of("y ~ x", path)
    assert len(rows_of("y ~ C(x)", path).columns) == 7  # on request they are levels
    frame = pd.DataFrame({"y": [0, 1, 0], "x": ["1", "2", "two"]})
    refused(mo.DataError, r"\('two' in row 2\).*write C\(x\)", rows_of, "y ~ x", frame)


def test_codes_with_leading_zeros_stay_apart(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("y,zip\n0,01234\n1,1234\n1,01234\n0,99\n")
    assert rows_of("y ~ C(zip)", path).levels["C(zip)"] == ("99", "01234", "1234")
    rows = rows_of("y ~ (1 | zip)", path)
    assert rows.levels["zip"] == ("99", "01234", "1234")
    assert rows.slice(0, 4)["zip"].tolist() == [1, 2, 1, 0]
    encoding = FormulaEncoding.from_dict(rows.schema.origin)
    again = encode_table(encoding, path, outcome=False)
    assert again.slice(0, 4)["zip"].tolist() == [1, 2, 1, 0]
    bare = encode_table(encoding, pd.DataFrame({"zip": [99, 1234]}), outcome=False)
    assert bare.slice(0, 2)["zip"].tolist() == [0, 2]


def test_numbers_of_groups_are_those_of_other_readers(tmp_path):
    """Effects listed by text, '7', would join with no row of what pandas reads."""
    path = tmp_path / "d.csv"
    path.write_text("y,g,h\n0,7,1.0\n1,10,2.0\n1,7,1.0\n")
    rows = rows_of("y ~ (1 | g) + (1 | h)", path)
    assert (rows.levels["g"], rows.levels["h"]) == ((7, 10), (1, 2))
    assert rows.slice(0, 3)["g"].tolist() == rows.slice(0, 3)["h"].tolist() == [0, 1, 0]
    again = encode_table(FormulaEncoding.from_dict(rows.schema.origin), path, outcome=False)
    assert again.slice(0, 3)["h"].tolist() == [0, 1, 0]


def test_long_identifiers_of_groups_stay_apart(tmp_path):
    path = tmp_path / "d.csv"  # twenty digits, more than an integer or a float holds
    path.write_text("y,id\n0,98765432109876543210\n1,98765432109876543211\n1,7\n")
    apart = ("98765432109876543210", "98765432109876543211")
    assert rows_of("y ~ (1 | id)", path).levels["id"][1:] == apart


def test_a_group_of_a_csv_file_is_written_in_one_way(tmp_path):
    (tmp_path / "a.csv").write_text("y,g,h\n0,6,1\n1,7,2\n")
    (tmp_path / "b.csv").write_text("y,g,h\n0,6.0,1\n1,,2\n")  # as pandas writes it
    for group in ("g", "h:g"):
        with pytest.raises(mo.DataError, match=r"'g' is '6' in some rows and '6\.0' in others"):
            rows_of(f"y ~ (1 | {group})", tmp_path, missing="drop")
    # a column that is also a number stays one
    rows = rows_of("y ~ g + (1 | g)", tmp_path, missing="drop")
    assert rows.levels["g"] == (6, 7)
    (tmp_path / "b.csv").write_text("y,g,h\n0,6.5,1\n1,7,2\n")
    with pytest.raises(mo.DataError, match=r"'g' holds 6\.5, and fractional numbers"):
        rows_of("y ~ (1 | g)", tmp_path)


def test_a_fit_to_numbers_reads_them_from_a_csv_file(tmp_path):
    """Text of our own reading was refused as "convert it to numbers"."""
    frame = pd.DataFrame({"y": [0.0, 1, 0, 1], "k": [8, 9, 10, 9], "g": [1, 2, 1, 2]})
    frame.to_csv(tmp_path / "d.csv", index=False)
    rows = rows_of("y ~ C(k) + (1 | g)", frame)
    encoding = FormulaEncoding.from_dict(rows.schema.origin)
    again = encode_table(encoding, tmp_path / "d.csv", outcome=True)
    for field, values in rows.slice(0, 4).items():
        np.testing.assert_array_equal(again.slice(0, 4)[field], values)


def test_texts_that_look_alike_are_levels_of_their_own():
    frame = pd.DataFrame({"y": [0.0, 1, 2, 3], "g": ["true", "True", "1", "1.0"]})
    rows = rows_of("y ~ C(g)", frame)
    assert set(rows.levels["C(g)"]) == {"true", "True", "1", "1.0"}
    assert len(set(rows.slice(0, 4)["C(g)"])) == 4


def test_true_in_a_csv_file_is_true_elsewhere(tmp_path):
    frame = pd.DataFrame({"y": [0.0, 1.0, 1.0, 0.0], "f": [True, False, True, False]})
    path = tmp_path / "d.csv"
    path.write_text("y,f\n0,true\n1,false\n1,true\n0,false\n")
    by_formula = rows_of("y ~ f", path)
    assert by_formula.columns == ("f[True]",)
    assert by_formula.fingerprint() == rows_of("y ~ f", frame).fingerprint()
    told = ingest(path, tmp_path / "s", categorical=["f"], dtype="float64", progressbar=False)
    table = mo.Rows.from_table(frame, categorical=["f"])
    assert told.columns == table.columns
    assert told.schema.levels == table.schema.levels
    like = mo.Rows.from_table(frame, like=told)
    assert like.fingerprint() == told.fingerprint()
    texts = frame.assign(f=["true", "false", "true", "false"])
    assert mo.Rows.from_table(texts, like=table).schema == table.schema


def test_an_order_of_categories_is_kept_from_frames_and_files(tmp_path):
    frame = pd.DataFrame({"y": np.zeros(6), "g": pd.Categorical(list("cbacba"), list("cab"))})
    frame.to_parquet(tmp_path / "d.parquet", row_group_size=2)
    assert rows_of("y ~ g", frame).columns == ("g[a]", "g[b]")
    assert rows_of("y ~ g", tmp_path / "d.parquet").columns == ("g[a]", "g[b]")
    # a category without rows gets no coefficient
    few = frame[frame["g"] != "a"]
    assert rows_of("y ~ g", few).columns == ("g[b]",)


def test_columns_with_the_names_of_fields_do_not_get_mixed_up():
    frame = pd.DataFrame(
        {"out": [0.0, 1, 0, 1], "y": list("abab"), "x": list("uuvv"), "weight": [1.0, 2, 3, 4]}
    )
    rows = rows_of("out ~ x + y + weight", frame)
    assert rows.columns == ("x[v]", "y[b]", "weight")
    assert column(rows, "y[b]").tolist() == [0, 1, 0, 1]
    assert column(rows, "weight").tolist() == [1, 2, 3, 4]
    assert rows.slice(0, 4)["y"].tolist() == [0, 1, 0, 1]
    assert "weight" not in rows.fields
    clash = pd.DataFrame({"y": [0.0, 1.0], "g": ["a", "b"], "g[b]": [1.0, 2.0]})
    refused(mo.DataError, r"would be named 'g\[b\]'", rows_of, "y ~ g + `g[b]`", clash)


def test_columns_may_be_called_by_words_of_python():
    frame = pd.DataFrame(
        {"class": [0.0, 1, 0, 1], "from": [1.0, 2, 4, 8], "def": list("abab"), "with": list("uvuv")}
    )
    rows = rows_of("class ~ np.log2(from) + def + C(with, levels=['u', 'v'])", frame)
    assert rows.columns == ("np.log2(`from`)", "def[b]", "C(`with`, levels=['u', 'v'])[v]")
    assert column(rows, "np.log2(`from`)").tolist() == [0, 1, 2, 3]
    assert rows.slice(0, 4)["y"].tolist() == [0, 1, 0, 1]
    with pytest.raises(mo.SettingError, match="cannot be read"):  # no operator between them
        rows_of("class ~ from not", frame)


def test_what_a_formula_makes_infinite_is_named_by_row():
    frame = pd.DataFrame({"y": [0.0, 1.0, 1.0], "x": [1.0, 0.0, 2.0]})
    with pytest.raises(mo.DataError, match=r"column 'np.log\(x\)' holds -inf in row 1"):
        rows_of("y ~ np.log(x)", frame)
    holes = frame.assign(z=[np.nan, 1.0, 2.0])
    with pytest.raises(mo.DataError, match=r"holds -inf in row 1"):  # numbered as in the source
        rows_of("y ~ z + np.log(x)", holes, missing="drop")


def test_a_tower_of_powers_ends():
    frame = pd.DataFrame({"y": [0.0, 1.0], "x": [1.0, 2.0]})
    refused(mo.DataError, "holds inf in row", rows_of, "y ~ I(x + 9 ** 9 ** 9 ** 9)", frame)


def test_one_level_or_too_many_are_refused():
    frame = pd.DataFrame({"y": np.zeros(3), "g": ["a"] * 3})
    refused(mo.DataError, "holds one level only", rows_of, "y ~ g", frame)
    many = pd.DataFrame({"y": np.zeros(400)} | {n: [f"{n}{i}" for i in range(400)] for n in "ab"})
    refused(mo.DataError, "has 159,600 combinations", rows_of, "y ~ a:b", many)


def test_dates_and_empty_tables_are_clear_errors(tmp_path):
    dates = pd.DataFrame({"y": [0.0], "day": pd.to_datetime(["2013-01-01"])})
    refused(mo.DataError, "column 'day' holds values of type timestamp", rows_of, "y ~ day", dates)
    empty = pd.DataFrame({"y": np.zeros(0), "x": np.zeros(0)})
    refused(mo.DataError, "there are no", rows_of, "y ~ x", empty)
    pq.write_table(pa.table({"y": [0.0, 1.0], "x": [None, None]}), tmp_path / "d.parquet")
    refused(mo.DataError, "column 'x' holds", rows_of, "y ~ x", tmp_path / "d.parquet")
    refused(mo.SettingError, "cannot be read as a table", rows_of, "y ~ x", 3)


def test_a_store_in_the_way_is_seen_before_the_data_are_read(tmp_path):
    frame = pd.DataFrame({"y": [0.0, 1.0], "x": [1.0, 2.0]})
    rows_of("y ~ x", frame, store=tmp_path / "s")
    refused(mo.SettingError, "exists", rows_of, "y ~ nothing", frame, store=tmp_path / "s")


def test_functions_of_other_libraries_are_named_as_ours():
    frame = pd.DataFrame({"y": [0, 1] * 20, "x": np.arange(40.0), "z": np.arange(40.0) ** 2})
    for name, instead in CALLED_ELSEWHERE.items():
        with pytest.raises(mo.SettingError, match=f"calls {name}, .*: write "):
            read_formula(f"y ~ {name}(x)", frame, progressbar=False)
        for ours in re.findall(r"\b(?:bs|cr|C)\(.*?\)", instead):  # which are formulas
            read_formula(f"y ~ {ours}", frame, progressbar=False)


@cases(
    "formula words",
    ("bf(y ~ x, sigma ~ z)", "calls bf: pass the formulas"),
    ("y ~ x + (1 |p| g)", "are not correlated"),
    ("y ~ x + (1 | gr(g, dist = 'student'))", r"write \(1 \| g\) for gr\(g\)"),
    ("y ~ 0 + Intercept + x", "leave it out, as there is an intercept"),
    ("y ~ poly(x, 2, raw = TRUE)", "write True"),
    ("y ~ as.factor(x)", r"as\.factor\(k\) is C\(k\)"),
    ("y ~ splines::bs(x, 4)", r"splines::bs\(x\) is bs\(x\)"),
    ("y | mi() ~ x", r"mi\(\) after \| names no column"),
    ("y ~ a * x; a ~ z", "a nonlinear formula of brms"),
)
def test_formulas_of_brms_are_refused_with_what_to_write(formula, words):
    frame = pd.DataFrame({"y": [0, 1] * 20, "x": np.arange(40.0), "z": np.arange(40.0) ** 2})
    with pytest.raises(mo.SettingError, match=words):
        read_formula(formula, frame.assign(g=["u", "v"] * 20), progressbar=False)


def test_columns_of_r_have_dots_in_their_names():
    frame = pd.DataFrame({"y": [0, 1] * 20, "x": np.arange(40.0)})
    frame["Sepal.Length"], frame["plot.id"] = frame["x"] + 1, ["u", "v"] * 20
    for formula in ("Sepal.Length ~ log(Sepal.Length + 1)", "y ~ Sepal.Length + (1 | plot.id)"):
        read_formula(formula, frame, progressbar=False)
    rows = read_formula("y ~ np.log(Sepal.Length)", frame, progressbar=False)
    np.testing.assert_allclose(rows.take([3])["x"], np.log(4.0))


def test_a_formula_of_what_is_no_parameter_is_refused_without_terms_too():
    """``nu ~ 1`` was read, and the degrees of freedom stayed as they were."""
    frame = pd.DataFrame({"y": np.arange(40.0), "x": np.arange(40.0) ** 2})
    model_for(read_formula("y ~ x; scale ~ 1", frame, progressbar=False), "student")
    with pytest.raises(mo.SettingError, match="'nu' is not a parameter of StudentT"):
        model_for(read_formula("y ~ x; nu ~ 1", frame, progressbar=False), "student")


def test_a_natural_spline_beside_an_intercept_is_centred():
    frame = pd.DataFrame({"y": [0, 1] * 20, "x": np.linspace(0, 1, 40) ** 2})

    def rank(formula):
        x = read_formula(formula, frame, progressbar=False).take(np.arange(40))["x"]
        return np.linalg.matrix_rank(np.c_[np.ones(40), x]) - x.shape[1]

    assert rank(f"y ~ {NATURAL}") == 1
    assert rank("y ~ cr(x, df=5)") == 0  # negative control: its columns add up to one


def test_an_offset_counts_once():
    """Given in the formula and as an argument, it was added twice."""
    table = pd.DataFrame({"y": [0, 1, 1], "x": [1.0, 2.0, 3.0], "log n": [0.0, 1.0, 2.0]})
    for formula in ("y ~ x + offset(`log n`)", "y ~ offset(`log n`) + offset(`log n`)"):
        with pytest.raises(mo.SettingError, match="the offset 'log n' is given twice"):
            read_formula(formula, table, offset="log n", progressbar=False)
    rows = read_formula("y ~ x + offset(x)", table, offset="log n", progressbar=False)
    np.testing.assert_array_equal(rows.take([0, 1, 2])["offset"], [1.0, 3.0, 5.0])


@pytest.mark.parametrize("newlevels", ["refuse", "reference"])
def test_booleans_may_be_written_as_zeros_and_ones(newlevels):
    """They were new levels, and with newlevels='reference' all of them counted as False."""
    table = pd.DataFrame({"y": [0, 1, 1], "b": [True, False, True]})
    encoding = FormulaEncoding.from_dict(rows_of("y ~ b", table).schema.origin)
    for kind in (int, float, "Int64"):
        new = table.assign(b=table["b"].astype(kind))
        rows = encode_table(encoding, new, outcome=False, newlevels=newlevels)
        np.testing.assert_array_equal(rows.slice(0, 3)["b"], [1, 0, 1])
    with pytest.raises(mo.DataError, match="column 'b' holds 2 in row 0"):
        encode_table(encoding, table.assign(b=2), outcome=False)


def test_a_column_that_is_coded_differently_has_no_new_levels():
    """With newlevels='reference' every row was predicted as the reference level."""
    table = pd.DataFrame({"y": [0, 1, 1], "c": ["u", "v", "u"], "b": [True, False, True]})
    encoding = FormulaEncoding.from_dict(rows_of("y ~ c + b", table).schema.origin)
    for new in (table.assign(c=[0, 1, 0]), table.assign(b=["T", "F", "T"])):
        with pytest.raises(mo.DataError, match=r"held .* in the fit and holds .*: convert it"):
            encode_table(encoding, new, outcome=False, newlevels="reference")
    new = encode_table(encoding, table.assign(c="w"), outcome=False, newlevels="reference")
    np.testing.assert_array_equal(new.slice(0, 3)["c"], 0)


def test_a_name_of_two_words_is_to_be_quoted():
    columns = ["y", "x", "ward name", "x + y"]
    for formula in ("y ~ x + ward name", "y ~ (1 | ward name)", "y ~ log(ward name):x"):
        with pytest.raises(mo.SettingError, match=re.escape("write `ward name` in backticks")):
            parse(formula, columns)
    quoted = ("y ~ `ward name`", "y ~ Q('ward name')", "y ~ C(x, levels=['ward name'])")
    for formula in (*quoted, "z ~ x + y"):
        parse(formula, columns)


@pytest.mark.parametrize(("degree", "words"), [(0, "at least 1"), (4, "different values.* is 4")])
@pytest.mark.parametrize("raw", [False, True])
def test_a_polynomial_has_as_many_columns_as_its_values_determine(degree, raw, words):
    table = pd.DataFrame({"w": np.arange(40) % 4, "y": np.arange(40.0)})
    with pytest.raises(mo.SettingError, match=f"cannot be computed .*{words}"):
        rows_of(f"y ~ poly(w, {degree}, raw={raw})", table)
    assert len(rows_of(f"y ~ poly(w, 3, raw={raw})", table).columns) == 3

"""Tables found in practice: separators, decimal commas, powers, levels without counts."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from helpers.targets import sums_of
from modicum.errors import as_options
from modicum.models.separation import find_silent_counts
from modicum.passes.mode import require_noise
from modicum.rows.checks import names_like
from modicum.rows.csv import Dialect
from modicum.rows.formula.parsing import parse
from modicum.rows.reading import read_formula

RUN = {"method": "laplace", "random_seed": 1, "progressbar": False, "draws": 50}
CHOSEN = RUN | {"method": "auto"}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    x = rng.normal(size=200)
    return pd.DataFrame({"x": x, "y": (rng.random(200) < 0.5).astype(int)})


@pytest.mark.parametrize(("mark", "word"), [(";", "a semicolon"), ("\t", "a tab"), ("|", "a bar")])
def test_a_file_with_another_separator_is_read_and_a_frame_named(mark, word, table, tmp_path):
    path = tmp_path / "t.csv.gz"
    table.to_csv(path, sep=mark, index=False)
    found, expected = (mo.fit("y ~ x", data, **RUN) for data in (path, table))
    np.testing.assert_array_equal(found["beta"], expected["beta"])
    with pytest.raises(mo.SettingError, match=f"seem to be separated by {word};") as refused:
        mo.fit("y ~ x", pd.read_csv(path), **RUN)
    assert f"sep={mark!r}" in str(refused.value)
    assert "separate" not in names_like("x", ["a", "b;c"])  # two columns were recognised


@cases(
    "text dialect",
    ('"x, cm";y\n1;2\n', ";."),
    ("x;y,z\n1;2,3\n", ",."),  # as before: commas if there are any
    ("x\n1;2\n", ",."),
    ("x;y\n1.5;2\n", ";."),
    ("x;y\n1,5;2\n", ";,"),
    ("x;y\n1.5;2,5\n", ";."),  # which of them is a number is for the reader to say
    ("x;y\n1,500;2\n", ";."),  # 1500?
    ("x;y\n1,500;0,250\n", ";,"),
    ("x\ty\n1,5\t2\n", "\t."),
    ("", ",."),
)
def test_how_columns_are_separated_and_numbers_are_written(text, dialect):
    assert "".join(Dialect.seen_in(text)) == dialect


def test_a_text_among_decimal_commas_is_named(table, tmp_path, monkeypatch):
    monkeypatch.setattr("modicum.rows.csv.BLOCK_BYTES", 200)  # its type is seen before the text
    path = tmp_path / "t.csv"
    lines = [f"{value:.3f};{y}".replace(".", ",") for value, y in table.to_numpy()]
    path.write_text("x;y\n" + "\n".join([*lines, "1,o;0,0"]))
    for data in (path, pd.read_csv(path, sep=";")):
        refused(mo.DataError, "'1,o' in row 200", mo.fit, "y ~ x", data, **RUN)
    refused(mo.DataError, "'1,o' in row 200", mo.rows.ingest, path, tmp_path / "rows", outcome="y")


def test_decimal_commas_and_numbers_as_text_are_not_levels(table):
    commas = table.assign(x=[f"{value:.2f}".replace(".", ",") for value in table.x])
    refused(mo.DataError, "holds numbers with a comma, such as", mo.fit, "y ~ x", commas, **RUN)
    texts = table.assign(x=[f"{value:.3f}" for value in table.x])
    refused(mo.DataError, "holds numbers that are written as text", mo.fit, "y ~ x", texts, **RUN)
    versions = table.assign(x=np.where(table.x > 0, "1.5", "2.5"))  # few distinct: levels
    assert "beta[x[2.5]]" in mo.fit("y ~ x", versions, **RUN).summary().index


@cases(
    "written is_number",
    (["5%", "10%", "12.5 %"], True),
    (["-$5", "$1,000", "$7.50"], True),
    (["5 €", "7,50 €", "1 000 €"], True),
    (["1'000", "20", "3'000.5"], True),
    (["5", "6", "7%"], True),
    (["5 mg", "10 mg", "20 mg"], False),
    (["10-20", "20-30", "30+"], False),
    (["1a", "2a", "#3"], False),
)
def test_numbers_with_signs_are_not_levels(written, is_number, tmp_path):
    frame = pd.DataFrame({"y": [0.0, 1.0, 2.0], "x": written})
    frame.to_csv(tmp_path / "table.csv", index=False)
    for data in (frame, tmp_path / "table.csv"):
        if is_number:
            with pytest.raises(mo.DataError, match=r"numbers that are written .*write C\(x\)"):
                read_formula("y ~ x", data, progressbar=False)
        else:
            assert len(read_formula("y ~ x", data, progressbar=False).columns) == 2
        assert len(read_formula("y ~ C(x)", data, progressbar=False).columns) == 2
    stray = frame.assign(x=[*written[:2], "what"])
    if is_number:
        refused(mo.DataError, "'what' in row 2", read_formula, "y ~ x", stray, progressbar=False)


@pytest.mark.parametrize("term", ["x^2", "x ** 2", "y + x^3"])
def test_a_power_of_a_column_is_not_taken_for_the_column(term, table):
    with pytest.raises(mo.SettingError, match=re.escape("write I(x ** ")):
        mo.fit(f"z ~ {term}", table.assign(z=table.x), **RUN)


def test_the_power_of_a_call_is_named_by_the_call(table):
    for term, instead in (("I(x)^2", "I(... ** 2)"), ("log(x) ** 3", "I(log(...) ** 3)")):
        refused(mo.SettingError, re.escape(f"write {instead}"), mo.fit, f"y ~ {term}", table, **RUN)


def test_powers_of_sums_and_of_numbers_stay():
    assert len(parse("y ~ (x + w)^2").terms) == 3
    assert len(parse("y ~ I(x ** 2) + x").terms) == 2


def counts(y, level):
    return mo.Rows(x=np.asarray(level, float)[:, None], y=y, columns=["ward"])


def test_counts_that_are_all_zero_leave_the_rate_to_the_prior():
    level = np.arange(60) % 2
    doubt, passes = find_silent_counts(counts(np.zeros(60), level), True)
    assert (doubt.code, passes) == ("separation", 1)
    assert doubt.sentence.startswith("every count is 0, so the rate is decided by the prior")
    doubt, _ = find_silent_counts(counts(1.0 - level, level), True)
    assert "in rows where ward differs from one value" in doubt.sentence
    assert find_silent_counts(counts(np.r_[1.0, 1.0, np.zeros(58)], level), True)[0] is None
    assert find_silent_counts(counts(np.ones(60), level), True)[0] is None


def test_a_reference_level_without_counts_is_named():
    level = np.arange(60) % 3
    for silent, words in ((0, "town[0] differs"), (2, "town[2] differs")):
        rows = mo.Rows(y=1.0 * (level != silent), codes={"town": level})
        assert words in find_silent_counts(rows, True)[0].sentence
    assert (
        find_silent_counts(mo.Rows(y=1.0 * (level != 0), codes={"town": level}), False)[0] is None
    )


@pytest.mark.parametrize("name", ["Exponential", "Weibull", "ZeroInflatedPoisson"])
def test_a_level_without_events_or_counts_is_left_to_the_prior(name):
    level, model = np.arange(60) % 2, getattr(mo.models, name)()
    events = "event" in model.partial_fields() and name != "ZeroInflatedPoisson"
    model = replace(model, observed=("event",) if events else ())
    words = "every time is censored" if events else "every count is 0"
    for some, where in (
        (1.0 - level, " in rows where ward differs"),
        (0.0 * level, ", so the rate"),
    ):
        x, y = level[:, None], np.arange(1.0, 61.0) if events else some
        rows = mo.Rows(x=x, y=y, columns=["ward"], **({"event": some} if events else {}))
        doubt, passes = model.separation(rows, {})
        assert (doubt.code, passes) == ("separation", 1)
        assert words + where in doubt.sentence
    both = mo.Rows(x=x, y=y + 1, columns=["ward"], **({"event": np.ones(60)} if events else {}))
    assert model.separation(both, {})[0] is None


def test_a_fit_of_silent_counts_warns():
    level = np.arange(60) % 2
    with pytest.warns(mo.ModicumWarning, match="in rows where ward differs"):
        post = mo.sample(mo.models.Poisson(), counts(2.0 * (1 - level), level), **CHOSEN)
    assert "separation" in [doubt.code for doubt in post.warnings]


def test_new_levels_are_allowed_by_an_option_on_the_command_line(table):
    coded = table.assign(g=np.where(table.x > 0, "a", "b"))
    post = mo.fit("y ~ g", coded, **RUN)
    new = pd.DataFrame({"g": ["c"]})
    refused(mo.DataError, "with newlevels='reference'", post.predict, new)
    with as_options(), pytest.raises(mo.DataError, match="with --newlevels reference"):
        post.predict(new)


def test_noise_is_asked_for_of_quantiles_too():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(100, 1))
    y = 2 * x[:, 0] + 1
    sums, start = sums_of(mo.models.AsymmetricLaplace(), mo.Rows(x=x, y=y))
    refused(mo.ModicumError, "without noise", require_noise, sums, start, converged=False)
    noisy = mo.Rows(x=x, y=y + 0.01 * rng.normal(size=100))
    require_noise(*sums_of(mo.models.AsymmetricLaplace(), noisy), converged=False)


def test_bins_of_pandas_are_levels_in_their_order(table):
    """Arrow turns the intervals of `pd.cut` into records; as text, (-2, 2] would come first."""
    bins = pd.cut(4 * table.x, [-30, -2, 2, 30])
    rows = read_formula("y ~ bins", table.assign(bins=bins))
    assert rows.columns == ("bins[(-2, 2]]", "bins[(2, 30]]")
    assert list(rows.levels["bins"]) == [str(level) for level in bins.cat.categories]
    np.testing.assert_array_equal(rows.take(np.arange(200))["bins"], bins.cat.codes)


def test_sparse_columns_are_numbers(table):
    sparse = table.assign(x=pd.arrays.SparseArray(table.x))
    a, b = (read_formula("y ~ x", t).take(np.arange(200))["x"] for t in (sparse, table))
    np.testing.assert_array_equal(a, b)


def test_a_column_in_the_index_is_said_to_be_there(table):
    with pytest.raises(mo.SettingError, match=r"'x' .* in the index of the data frame, so pass"):
        mo.fit("y ~ x", table.set_index("x"), **RUN)
    with pytest.raises(mo.SettingError, match="'z' of the formula is not in the data: there are"):
        mo.fit("y ~ z", table.set_index("x"), **RUN)


def test_numbers_in_another_byte_order_are_numbers(table):
    foreign = table.assign(x=table.x.astype(">f8"), y=table.y.astype(">i4"))
    one, other = (mo.fit("y ~ x", data, **RUN) for data in (table, foreign))
    np.testing.assert_array_equal(one["beta"], other["beta"])


def test_a_first_file_without_values_does_not_say_what_columns_hold(tmp_path):
    table = pd.DataFrame({"x": [1.0, 2.0, 3.0], "g": ["a", "b", "b"], "y": [0.0, 1.0, 0.0]})
    for write in ("to_csv", "to_parquet"):
        folder = tmp_path / write
        folder.mkdir()
        getattr(table.iloc[:0].astype(object), write)(folder / f"a.{write[3:]}", index=False)
        getattr(table.assign(x=None), write)(folder / f"b.{write[3:]}", index=False)
        getattr(table, write)(folder / f"c.{write[3:]}", index=False)
        rows = read_formula("y ~ x + g", folder, missing="drop", progressbar=False)
        assert rows.slice(0, len(rows))["x"][:, 0].tolist() == [1, 2, 3]
        with pytest.raises(mo.DataError, match="'x' holds a missing value in row 0"):
            read_formula("y ~ x + g", folder, progressbar=False)


def test_a_first_file_of_narrow_numbers_does_not_round_the_others(tmp_path):
    table = pd.DataFrame({"x": [1.0, 0.1], "y": [0.0, 1.0]})
    table.astype("float32").to_parquet(tmp_path / "a.parquet")
    table.to_parquet(tmp_path / "b.parquet")
    rows = read_formula("y ~ x", tmp_path, progressbar=False)
    assert rows.slice(3, 4)["x"][0, 0] == 0.1

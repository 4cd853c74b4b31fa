"""Traps after a fit: other rows, unnoticed NaN, manipulated files."""

from __future__ import annotations

import copy
import io
import json
import pickle
import warnings
import zipfile

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from modicum.models import Target
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import FitRows, Posterior, Warnings, convergence_warnings
from modicum.posterior import archive as posterior_file
from modicum.posterior.population import table_sample
from modicum.rows import ingest
from modicum.rows.reading import read_formula, table_numbers

LAPLACE = {"method": "laplace", "draws": 20, "random_seed": 1, "progressbar": False}
CARRIERS = np.array(["AA", "DL", "UA", "WN"])


def flights(n=600, seed=1):
    rng = np.random.default_rng(seed)
    carrier = CARRIERS[np.arange(n) % 4]
    table = pd.DataFrame({"age": rng.normal(size=n), "dose": 3 * rng.normal(size=n)})
    eta = 2 * table["age"] - table["dose"] + 3 * (carrier == "UA") - 2 * (carrier == "WN")
    return table.assign(carrier=carrier, late=(rng.random(n) < 1 / (1 + np.exp(-eta))) * 1)


def coded(table, **settings):
    settings = {"outcome": "late", "categorical": {"carrier": "AA"}} | settings
    return mo.Rows.from_table(table, **settings)


TABLE = flights()
ROWS = coded(TABLE)
X = ROWS.coding.densely(ROWS.slice(0, len(TABLE)))  # all columns, including levels


def posterior(rows=ROWS, model=None, seed=3, fit_rows=True, **draws):
    """Return a made-up posterior that remembers its rows as `mo.sample` does."""
    model = (model or mo.models.Logistic()).resolved(rows)
    rng = np.random.default_rng(seed)
    if not draws:
        beta = rng.normal([2.0, -1.0, 0.0, 3.0, -2.0], 0.1, size=(2, 30, 5))
        draws = {"beta": beta, "intercept": rng.normal(0, 0.1, size=(2, 30))}
    return Posterior(
        draws,
        {"lp": rng.normal(size=(2, 30))},
        mo.Ledger(rows=len(rows)),
        predictor=ModelPredictor(model),
        fit_rows=FitRows.of(rows) if fit_rows else None,
    )


@pytest.fixture(scope="module")
def sampled():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mo.ModicumWarning)
        return mo.sample(
            mo.models.Logistic(), ROWS, method=mo.Laplace(weighted=False), draws=60, chains=2,
            random_seed=1, progressbar=False,
        )  # fmt: skip


@pytest.fixture(scope="module", params=["fresh", "loaded"])
def post(request, sampled, tmp_path_factory):
    if request.param == "fresh":
        return sampled
    path = tmp_path_factory.mktemp("saved") / "p"
    sampled.save(path)
    return Posterior.load(path)


# Rows that are not those of the fit ----------------------------------------------------------


def test_columns_in_another_order_are_aligned_by_name(post):
    mean = post.predict(ROWS).mean
    swapped = coded(TABLE[["dose", "carrier", "age", "late"]])
    assert swapped.columns != ROWS.columns
    np.testing.assert_allclose(post.predict(swapped).mean, mean)
    assert post.score(swapped).log_density == pytest.approx(post.score(ROWS).log_density)
    # negative control: by position the predictions would differ
    by_place = post.predict({"x": swapped.coding.densely(swapped.slice(0, 600))}).mean
    assert np.abs(by_place - mean).max() > 0.9


def test_a_subset_of_the_levels_is_filled_with_zeros(post):
    some = TABLE["carrier"].isin(["AA", "UA"]).to_numpy()
    few = coded(TABLE[some])
    assert few.columns == ("age", "dose", "carrier[UA]")
    np.testing.assert_allclose(post.predict(few).mean, post.predict(ROWS).mean[some])


def test_other_reference_and_unseen_levels_are_refused(post):
    other = coded(TABLE, categorical={"carrier": "UA"})
    refused(mo.DataError, r"reference level 'UA', but the fit's was 'AA'", post.predict, other)
    unseen = TABLE.assign(carrier=TABLE["carrier"].replace("WN", "ZZ"))
    for ask in (post.predict, post.score):
        refused(mo.DataError, r"column 'carrier' holds 'ZZ'.*leave such rows", ask, coded(unseen))


@cases(
    "table settings sentence",
    (TABLE.rename(columns={"age": "years"}), {}, r"lack 1 column .*'age'.* have .*'years'"),
    (TABLE.drop(columns="dose"), {}, r"lack 1 column of the fit \('dose'\)"),
    (TABLE.assign(extra=1.0), {}, r"have 1 column the fit did not \('extra'\)"),
    (TABLE.drop(columns="carrier"), {"categorical": []}, r"lack 3 columns"),
    (TABLE.assign(carrier=1.0), {"categorical": []}, r"'carrier' was categorical in the fit"),
    (TABLE.assign(o=1.0), {"offset": "o"}, r"have an offset and the rows of the fit had none"),
)
def test_other_columns_are_named(post, table, settings, sentence):
    for ask in (post.predict, post.score):
        refused(mo.DataError, sentence, ask, coded(table, **settings))


def test_automatic_names_are_names():
    x, y = X, ROWS.slice(0, 600)["y"]
    nameless = mo.Rows(x=x, y=y)
    with pytest.raises(mo.DataError, match=r"lack 5 columns .*'x0', 'x1'.* in the fit's order"):
        posterior().predict(nameless)
    own = posterior(nameless)
    reversed_names = mo.Rows(x=x[:, ::-1], columns=[f"x{j}" for j in range(5)][::-1])
    np.testing.assert_allclose(own.predict(reversed_names).mean, own.predict(nameless).mean)


def test_bare_arrays_go_by_shape(post):
    x = X
    np.testing.assert_allclose(post.predict({"x": x}).mean, post.predict(ROWS).mean)
    np.testing.assert_allclose(post.predict({"x": x.tolist()}).mean, post.predict(ROWS).mean)
    for wrong in (x[:, :4], np.c_[x, x]):
        refused(mo.DataError, r"but the fit had 5 \('age', 'dose'", post.predict, {"x": wrong})
    refused(mo.DataError, r"x has no columns", post.predict, {"x": x[:, 0]})
    frame = pd.DataFrame(x, columns=ROWS.columns)[list(ROWS.columns)[::-1]]
    np.testing.assert_allclose(post.predict({"x": frame}).mean, post.predict(ROWS).mean)


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_tables_are_encoded_as_the_rows_of_the_fit_were(post, library):
    def as_table(frame):
        if library == "pyarrow":
            return pytest.importorskip("pyarrow").Table.from_pandas(frame)
        return frame if library == "pandas" else pytest.importorskip("polars").from_pandas(frame)

    mean = post.predict(ROWS).mean
    shuffled = TABLE[["late", "carrier", "dose", "age"]].assign(unused="text")
    np.testing.assert_allclose(post.predict(as_table(shuffled)).mean, mean)
    assert post.score(as_table(shuffled)).accuracy == post.score(ROWS).accuracy
    # one row, whose level is neither the reference nor the first; and no outcome
    row = shuffled.drop(columns="late").iloc[[2]]
    np.testing.assert_allclose(post.predict(as_table(row)).mean, mean[[2]])
    with pytest.raises(mo.DataError, match=r"'carrier' holds 'ZZ' in row 1, which the rows of"):
        post.predict(as_table(shuffled.assign(carrier=["AA", "ZZ", "UA"] * 200)))
    with pytest.raises(mo.ModicumError, match=r"'dose' is not in the data: did you mean 'does'"):
        post.predict(as_table(shuffled.rename(columns={"dose": "does"})))
    with pytest.raises(mo.ModicumError, match="'late' is not in the data"):
        post.score(as_table(shuffled.drop(columns="late")))
    with pytest.raises(mo.DataError, match=r"holds a missing value|holds NaN"):
        post.predict(as_table(shuffled.assign(age=np.nan)))


def test_tables_with_numbers_as_levels_and_with_offsets():
    table = pd.DataFrame({"hour": [5, 6, 7, 5, 6, 7], "n": [0, 1, 2, 0, 1, 1]})
    hours = mo.Rows.from_table(table, outcome="n", categorical=["hour"])
    draws = {"beta": np.full((2, 30, 2), [1.0, 2.0]), "intercept": np.zeros((2, 30))}
    post = posterior(hours, mo.models.Poisson(), **draws)
    expected = np.exp([2.0, 0.0])
    np.testing.assert_allclose(post.predict(pd.DataFrame({"hour": [7, 5]})).mean, expected)
    np.testing.assert_allclose(post.predict(pd.DataFrame({"hour": ["7", "5"]})).mean, expected)
    refused(mo.DataError, "'hour' holds 8 in row 1", post.predict, pd.DataFrame({"hour": [7, 8]}))
    with pytest.raises(mo.SettingError, match="does not know the columns"):
        posterior(hours, fit_rows=False, **draws).predict(table)
    with_offset = mo.Rows.from_table(table.assign(o=1.0), outcome="n", offset="o")
    draws = {"beta": np.zeros((2, 30, 1)), "intercept": np.zeros((2, 30))}
    offset_post = posterior(with_offset, mo.models.Poisson(), **draws)
    refused(mo.SettingError, "offset column 'o' is not in the data", offset_post.predict, table)
    by_name = offset_post.predict(table.assign(o=np.log([1, 2, 3, 4, 5, 6]))).mean
    np.testing.assert_allclose(by_name, [1, 2, 3, 4, 5, 6])
    arrays = mo.Rows(x=table[["hour"]], y=table["n"], offset=np.ones(6))
    with pytest.raises(mo.SettingError, match="which column of the table is the offset"):
        posterior(arrays, mo.models.Poisson(), **draws).predict(table)


@pytest.mark.parametrize("fit_rows", [True, False])
@cases(
    "batch",
    {"x": np.zeros((3, 4))},
    {"x": np.zeros(3)},
    {"x": np.zeros((3, 5, 1))},
    {"x": np.full((3, 5), np.nan)},
    {"x": np.full((3, 5), "a")},
    {"x": [[1.0, 2.0], [3.0]]},
    {"x": None},
    {"x": 5.0},
    {"x": np.zeros((3, 5)), "offset": np.zeros(2)},
    {"x": np.zeros((3, 5)), 7: np.zeros(3)},
    {"x": np.zeros((3, 5)), "columns": list("abcde")},
    {"z": np.zeros((3, 5))},
    {},
    [1, 2],
    "rows",
    None,
)
def test_odd_batches_are_a_clear_error(batch, fit_rows):
    for ask in (posterior(fit_rows=fit_rows).predict, posterior(fit_rows=fit_rows).score):
        with pytest.raises(mo.ModicumError):
            ask(batch)


def test_an_offset_must_not_be_forgotten():
    counts = mo.Rows(x=np.ones((20, 1)), y=np.arange(20) % 3, offset=np.arange(20.0) / 10)
    draws = {"beta": np.zeros((2, 30, 1)), "intercept": np.zeros((2, 30))}
    post = posterior(counts, mo.models.Poisson(), **draws)
    refused(mo.DataError, "had an offset and these have none", post.predict, {"x": np.ones((3, 1))})
    found = post.predict({"x": np.ones((3, 1)), "offset": np.ones(3)})
    np.testing.assert_allclose(found.mean, np.e)


def test_bytes_and_numbers_mean_the_same_pixels():
    pixels = np.random.default_rng(1).integers(0, 256, size=(12, 9))
    y = np.arange(12) % 3
    net = mo.models.MLP(hidden=(3,))
    as_bytes = mo.Rows(x=pixels, y=y, dtype="uint8")
    draws = {k: np.asarray(v)[None, None] for k, v in net.report(net.start(as_bytes)).items()}
    draws = {k: np.broadcast_to(v, (2, 30, *v.shape[2:])) for k, v in draws.items()}
    post = posterior(as_bytes, net, **draws)
    mean = post.predict(as_bytes).mean
    np.testing.assert_allclose(post.predict(mo.Rows(x=pixels, y=y)).mean, mean)
    np.testing.assert_allclose(post.predict({"x": pixels}).mean, mean)
    refused(mo.DataError, r"were bytes .* holds 0\.\d+ in row 0", post.predict, {"x": pixels / 255})
    as_numbers = posterior(mo.Rows(x=pixels * 1.0, y=y), net, **draws)
    apart = as_numbers.predict({"x": pixels * 1.0}).mean
    assert np.abs(apart - mean).max() > 1e-3  # negative control: the scale matters
    np.testing.assert_allclose(as_numbers.predict({"x": pixels.astype(np.uint8)}).mean, apart)


def test_other_shapes_and_custom_models():
    model = mo.Model(
        log_prior=lambda th: -0.5 * th["w"] @ th["w"],
        log_likelihood=lambda th, batch: -0.5 * (batch["y"] - batch["z"] @ th["w"]) ** 2,
        init={"w": np.zeros(2)},
        predict=lambda th, batch: batch["z"] @ th["w"],
    )
    rows = mo.Rows(z=np.ones((20, 2)), y=np.zeros(20))
    for fit_rows, sentence in ((True, "shape"), (False, r"model fails on these rows.*z \(4, 3\)")):
        post = posterior(rows, model, fit_rows=fit_rows, w=np.ones((2, 30, 2)))
        np.testing.assert_allclose(post.predict({"z": np.ones((4, 2))}).mean, 2.0)
        refused(mo.DataError, sentence, post.predict, {"z": np.ones((4, 3))})
        refused(mo.SettingError, "needs the field 'z'", post.predict, {"y": np.ones(4)})


def test_outcomes_the_model_cannot_have_are_not_scored(post):
    bad = TABLE.assign(late=np.where(np.arange(600) == 7, 2, TABLE["late"]))
    refused(mo.DataError, r"outcome is 2 in row 7, .* 0 or 1", post.score, coded(bad))
    classes = mo.Rows(x=np.ones((9, 1)), y=np.arange(9) % 3)
    draws = {"beta": np.zeros((2, 30, 2, 1)), "intercept": np.zeros((2, 30, 2))}
    softmax = posterior(classes, mo.models.Softmax(), **draws)
    assert softmax.score(classes).log_density == pytest.approx(-np.log(3))
    with pytest.raises(mo.DataError, match=r"outcome is 3 in row 0, .* 0 to 2"):
        softmax.score(mo.Rows(x=np.ones((2, 1)), y=[3, 1]))


def test_a_loaded_custom_model_is_given_again(tmp_path):
    model = mo.Model(
        log_prior=lambda th: -0.5 * th["t"] ** 2,
        log_likelihood=lambda th, batch: -0.5 * (batch["y"] - th["t"]) ** 2,
        init={"t": 0.0},
        predict=lambda th, batch: th["t"] + 0 * batch["y"],
    )
    rows = mo.Rows(y=np.ones(6))
    post = posterior(rows, model, t=np.random.default_rng(1).normal(size=(2, 30)))
    post.save(tmp_path / "p")
    for ask in ("score", "correct", "stein_discrepancy"):
        with pytest.raises(mo.SettingError, match=r"Posterior.load\(path, model=...\)"):
            getattr(Posterior.load(tmp_path / "p"), ask)(rows)
    again = Posterior.load(tmp_path / "p", model=model)
    assert again.score(rows).log_density == post.score(rows).log_density
    fixed = again.correct(rows, progressbar=False)
    np.testing.assert_array_equal(fixed.weights, post.correct(rows, progressbar=False).weights)
    other = mo.Model(lambda th: 0.0, lambda th, batch: batch["y"], init={"t": np.zeros(2)})
    with pytest.raises(mo.SettingError, match="belongs to another model"):
        Posterior.load(tmp_path / "p", model=other)
    posterior().save(tmp_path / "q")
    refused(mo.SettingError, "leave `model` out", Posterior.load, tmp_path / "q", model=model)
    refused(mo.SettingError, "model must be a model", Posterior.load, tmp_path / "p", model="mine")


def test_a_model_that_has_changed_since_is_refused():
    scale = {"sd": 1.0}
    model = mo.Model(
        log_prior=lambda th: -0.5 * th["t"] ** 2,
        log_likelihood=lambda th, batch: -0.5 * ((batch["y"] - th["t"]) / scale["sd"]) ** 2,
        init={"t": 0.0},
    )
    rows = mo.Rows(y=np.ones(6))
    post = posterior(rows, model, t=np.random.default_rng(1).normal(size=(2, 30)))
    post.settings = {"model": Target.of(model, rows)[0].identity, "jax": jax.__version__}
    assert post.correct(rows, progressbar=False).weights is not None
    scale["sd"] = 10.0
    for ask in (post.correct, post.stein_discrepancy):
        refused(mo.SettingError, "no longer computes what it did", ask, rows, progressbar=False)
    post.settings["jax"] = "0.0.1"  # another version may write the same expression differently
    assert post.correct(rows, progressbar=False).weights is not None


def test_rows_in_a_store_stream(tmp_path, monkeypatch):
    from modicum.posterior import outcomes

    swapped = TABLE[["dose", "carrier", "age", "late"]]
    settings = {"outcome": "late", "categorical": {"carrier": "AA"}, "progressbar": False}
    ingest(swapped, tmp_path / "s", dtype="float64", **settings)
    stored = mo.Rows.open(tmp_path / "s")
    sizes = []
    chunks = mo.Rows.chunks

    def counting(self, size):
        for chunk in chunks(self, size):
            sizes.append(len(chunk["x"]))
            yield chunk

    monkeypatch.setattr(mo.Rows, "chunks", counting)
    monkeypatch.setattr(outcomes, "CHUNK_BYTES", 8 * 60 * 100)
    post = posterior()
    sizes.clear()  # resolving its priors has read the rows of the fit
    found = post.predict(stored)
    assert sizes == [100] * 6
    monkeypatch.undo()
    np.testing.assert_allclose(found.mean, posterior().predict(ROWS).mean)


# Corrections and discrepancies: the rows of the fit only --------------------------------------


def test_the_rows_of_the_fit_are_taken(post, tmp_path):
    assert post.correct(ROWS, progressbar=False).weights is not None
    again = coded(TABLE.copy())
    assert np.isfinite(post.stein_discrepancy(again, draws=30, progressbar=False).squared)


@cases(
    "rows sentence",
    (coded(TABLE[["dose", "carrier", "age", "late"]]), "columns in another order"),
    (coded(TABLE.assign(dose=TABLE["dose"] + 1)), "hold different values"),
    (coded(TABLE.assign(late=1 - TABLE["late"])), "hold different values"),
    (coded(TABLE.rename(columns={"age": "years"}).assign(dose=0.0)), "lack 1 column"),
    (coded(TABLE, dtype="float32"), "are float32"),
    (coded(TABLE, categorical={"carrier": "UA"}), r"lack 1 column .*'carrier\[UA\]'"),
    (coded(TABLE[:500]), "600 rows, but 500"),
    (coded(TABLE, dense=True), "hold levels as columns of zeros and ones"),
    ({"x": np.zeros((600, 5))}, "as mo.Rows, not dict"),
)
def test_other_rows_are_refused(post, rows, sentence):
    refused(mo.ModicumError, sentence, post.correct, rows, progressbar=False)
    refused(mo.ModicumError, sentence, post.stein_discrepancy, rows, draws=30, progressbar=False)


# NaN passes no comparison ---------------------------------------------------------------------


def test_no_rows_have_predictions_of_their_shape(tmp_path):
    """A filter that leaves nothing is no mistake of the caller's."""
    table = flights()
    post = mo.fit("late ~ bs(age, df=4) + carrier", table, **LAPLACE)
    none = table[:0]
    none.to_csv(tmp_path / "none.csv", index=False)
    forms = [none, none[["age", "carrier"]], {"age": [], "carrier": []}, tmp_path / "none.csv"]
    for form in (*forms, pl.DataFrame(none), pd.DataFrame(columns=["age", "carrier"])):
        predicted = post.predict(form)
        assert predicted.mean.shape == predicted.lower.shape == (0,)
        assert predicted.mean.dtype == float
        assert post.predictive(form, draws=7).shape == (7, 0)
    assert list(post.predict(none).to_frame()) == ["mean", "lower", "upper"]
    for wrong in (post.score, post.ppc, lambda rows: post.marginal("age", data=rows)):
        with pytest.raises(mo.DataError, match=r"there are no .*rows"):
            wrong(none)  # the average of nothing
    refused(mo.DataError, r"there are no .*rows", mo.fit, "late ~ age", none, **LAPLACE)

    coded_post = posterior()
    assert len(coded_post.predict(none)) == 0
    assert len(coded_post.predict({"x": X[:0, :2], "carrier": []})) == 0
    for wrong in (coded_post.score, coded_post.ppc):
        refused(mo.DataError, "there are no rows", wrong, {"x": X[:0, :2], "carrier": [], "y": []})
    beta, intercept = np.zeros((2, 30, 2, 3)), np.zeros((2, 30, 2))
    classes = posterior(
        mo.Rows(x=X[:, :3], y=np.arange(600) % 3), mo.models.Softmax(classes=3),
        beta=beta, intercept=intercept,
    )  # fmt: skip
    assert classes.predict({"x": X[:0, :3]}).mean.shape == (0, 3)
    assert len(classes.predict({"x": X[:0, :3]}).to_frame().columns) == 9


# The table or the arrays of the fit, changed since ------------------------------------------


def scaled(table):
    table["age"] *= 1000


def lengthened(table):
    table.loc[len(table)] = table.loc[1]


def mixed(table):
    table["age"] = table["age"].to_numpy()[::-1].copy()


@pytest.mark.parametrize("change", [scaled, lengthened, mixed])
@pytest.mark.parametrize("missing", ["refuse", "drop"])
def test_a_table_that_has_changed_is_not_averaged_over(change, missing, tmp_path):
    """Columns set in other rows than those of the fit give another number, without a sign."""
    table = flights().assign(hour=np.arange(600) % 24)
    if missing == "drop":
        table.loc[::7, "dose"] = np.nan
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*rows were dropped", mo.ModicumWarning)
        post = mo.fit("late ~ poly(age, 2) + dose + carrier", table, missing=missing, **LAPLACE)
    before = post.contrast("dose")
    late = table.pop("late")
    assert post.contrast("dose").equals(before)  # which needs no outcome
    table["late"] = late
    assert post.ppc(by="hour").table.shape[0] > 1
    change(table)
    words = "table of the fit has changed since"
    refused(mo.DataError, words, post.contrast, "dose")
    refused(mo.DataError, words, post.marginal, "dose", slope=True)
    refused(mo.DataError, words, post.ppc, by="hour")
    assert not post.contrast("dose", data=table).equals(before)  # a table that is given is used
    if missing == "drop" and change is scaled:
        post.report(tmp_path / "report.html")
        assert "table of the fit has changed since" in (tmp_path / "report.html").read_text()


def test_a_file_or_a_dict_that_was_replaced_is_not_averaged_over(tmp_path):
    table, path = flights(), tmp_path / "flights.parquet"
    columns = {name: list(values) for name, values in table.items()}
    table.to_parquet(path)
    settings = {"store": tmp_path / "store", **LAPLACE}
    by_file = mo.fit("late ~ age + dose", path, **settings)
    by_dict = mo.fit("late ~ age + dose", columns, **LAPLACE)
    np.testing.assert_allclose(by_file.contrast("age"), by_dict.contrast("age"), rtol=1e-6)
    table.assign(age=1000 * table["age"]).to_parquet(path)
    columns["age"][:] = [1000 * age for age in columns["age"]]
    for post in (by_file, by_dict):
        refused(mo.DataError, "table of the fit has changed since", post.contrast, "age")


def test_rows_in_another_order_than_their_table_are_the_same(tmp_path):
    """A store is sorted by group: its rows are found in the table, and seen if they change."""
    table = flights()
    formula = "late ~ age + (1 | carrier)"
    rows = read_formula(formula, table, store=tmp_path / "store", progressbar=False)
    encoding = FitRows.of(rows).encoding

    def sample():
        return table_sample(table, ["age", "carrier", "late"], 50, 1, encoding, fitted=rows)

    assert rows.slice(0, 150)["carrier"].max() == 0
    assert len(sample()) == 50
    assert table_numbers(rows, table.drop(columns="carrier")) is None
    mixed(table)
    refused(mo.DataError, "table of the fit has changed since", sample)


@pytest.mark.parametrize("change", ["scale", "sign", "columns", "one"])
@pytest.mark.parametrize("n", [50, 40_000])
def test_arrays_that_were_written_to_are_noticed(change, n):
    x = np.random.default_rng(1).normal(size=(n, 6))
    rows = mo.Rows(x=x, y=np.zeros(n))
    rows.require_unchanged()
    before = x.copy()
    if change == "columns":
        x[:, [0, 1]] = x[:, [1, 0]]
    elif change == "one":
        x[7, 3] += 1e-9
    else:
        x *= {"scale": 1000, "sign": -1}[change]
    refused(mo.DataError, "an array was written to", rows.fingerprint)
    x[:] = before
    assert rows.fingerprint() == mo.Rows(x=before, y=np.zeros(n)).fingerprint()
    copied = pickle.loads(pickle.dumps(rows))
    x[:] = 0
    copied.require_unchanged()  # its arrays are its own


def test_tables_of_an_iterator_are_asked_for_again():
    halves = iter([TABLE.iloc[:200], TABLE.iloc[200:]])
    post = mo.fit("late ~ age", halves, **LAPLACE)
    refused(mo.DataError, "has none left, so give the tables again", post.contrast, "age", [30, 40])
    assert len(post.contrast("age", [30, 40], data=TABLE)) == 1


def test_rows_whose_arrays_were_written_to_are_not_read_again(tmp_path):
    x, y = X.copy(), TABLE["late"].to_numpy(float)
    rows = mo.Rows(x=x, y=y)
    post = mo.sample(mo.models.Logistic(), rows, **LAPLACE)
    x *= 1000
    for call in (
        lambda: post.contrast("x0"),
        lambda: post.ppc(),
        lambda: post.predictive(),
        lambda: post.loo(),
        lambda: post.loo(rows),
        lambda: post.loo(mo.Rows(x=x, y=y)),
        lambda: post.log_evidence(),
        lambda: post.stein_discrepancy(rows),
        lambda: post.resample().to_datatree(),
        lambda: post.report(tmp_path / "report.html"),
        lambda: mo.compare({"one": post, "two": post}),
        lambda: mo.sample(mo.models.Logistic(), rows, **LAPLACE),
        lambda: mo.fit("y ~ x0", rows, **LAPLACE),
    ):
        refused(mo.DataError, "an array was written to", call)
    assert len(post.predict({"x": x})) == len(x)  # rows of its own
    post.save(tmp_path / "post.mo")  # the draws are not lost, but no rows are known to be theirs
    with pytest.raises(mo.DataError, match="not the rows the posterior was sampled with"):
        Posterior.load(tmp_path / "post.mo", data=mo.Rows(x=x, y=y))


def test_a_correction_with_nan_is_an_error():
    post = posterior()
    post.stats["lp"][1, 4] = np.nan
    with pytest.raises(mo.SettingError, match="lp is not finite from draw 4 of chain 1"):
        post.correct(ROWS, progressbar=False)
    post = posterior()
    post.draws["beta"][0, 3] = np.nan
    with pytest.raises(mo.SettingError, match="beta is not finite from draw 3 of chain 0"):
        post.correct(ROWS, progressbar=False)
    with pytest.raises(mo.SettingError, match="beta is not finite"):
        post.stein_discrepancy(ROWS, draws=30, progressbar=False)
    root = mo.Model(
        log_prior=lambda th: 0.0,
        log_likelihood=lambda th, batch: -batch["y"] * (th["t"] - 1.0) ** 0.5,
        init={"t": 2.0},
    )
    rows = mo.Rows(y=np.arange(8.0))
    at = np.linspace(0.9, 3, 60).reshape(2, 30)
    with pytest.raises(mo.SettingError, match="log-posterior of all rows is nan at draw 0"):
        posterior(rows, root, t=at).correct(rows, progressbar=False)
    with pytest.raises(mo.SettingError, match="gradient of the log-posterior is not finite"):
        posterior(rows, root, t=at).stein_discrepancy(rows, draws=30, progressbar=False)


def codes(x, stats=None, weights=None):
    return [doubt.code for doubt in convergence_warnings({"b": x}, stats or {}, weights)]


def test_guards_warn_of_nan():
    x = np.random.default_rng(1).normal(size=(4, 500))
    fine, nan = np.ones((4, 500)), np.full((4, 500), np.nan)
    assert codes(x, {"acceptance_rate": 0.8 * fine}, fine) == []
    assert codes(x, {"acceptance_rate": nan}) == ["acceptance-low"]
    assert codes(x, {"reached_max_treedepth": nan}) == ["tree-depth"]
    one = fine.copy()
    one[2, 7] = np.nan
    assert codes(x, weights=one) == ["not-finite"]
    assert codes(x, weights=0 * fine) == ["weights-uneven"]
    assert codes(x[:, :3], weights=np.where(x[:, :3] > 0, 1.0, -1.0)) == ["signs-cancel"]
    signs = np.where(np.arange(500) % 20 == 0, -1.0, 1.0) * fine
    assert codes(x, weights=signs) == []
    # large values with negative signs: a negative variance, and no ESS
    assert codes(np.where(signs < 0, 10 + x, 0.1 * x), weights=signs) == ["not-finite"]


def test_predictions_that_are_not_numbers_are_warned_of():
    post = posterior()
    post.draws["beta"][:, ::2] = np.nan
    with pytest.warns(mo.ModicumWarning, match="600 of 600 rows are not finite"):
        post.predict(ROWS)
    with pytest.warns(mo.ModicumWarning, match="30 of 60 draws give NaN"):
        post.score(ROWS)
    cancelled = posterior()
    cancelled.weights = np.where(np.arange(60).reshape(2, 30) % 2, 1.0, -1.0)
    with pytest.warns(mo.ModicumWarning, match="weights .* do not add up to more than 0"):
        cancelled.predict(ROWS)
    with pytest.warns(mo.ModicumWarning, match="weights .* do not add up to more than 0"):
        cancelled.score(ROWS)
    with pytest.raises(mo.SettingError, match="signs cancel"):
        cancelled.stein_discrepancy(ROWS, draws=60, progressbar=False)


@pytest.mark.parametrize("value", [0, -1, 1.5, np.nan, "ten", None, True])
def test_odd_numbers_of_draws(value):
    post = posterior()
    all_by_default = () if value is None else (post.predict, post.score)
    for ask in (*all_by_default, post.correct, post.stein_discrepancy):
        refused(mo.SettingError, "draws must be a whole number", ask, ROWS, draws=value)
    for prob in (0, 1, 90, np.nan, "x"):
        refused(mo.SettingError, "between 0 and 1", post.predict, ROWS, prob=prob)
        refused(mo.SettingError, "between 0 and 1", post.summary, prob=prob)
    refused(mo.SettingError, "levels must be between 0 and 1", post.quantile, "beta", [0.5, np.nan])


# Warnings print as sentences ------------------------------------------------------------------


def test_warnings_are_a_list_that_prints_as_sentences(tmp_path):
    doubts = [mo.ModicumWarning("a", "it is odd", "look", x=1.0), mo.ModicumWarning("b", "so")]
    post = Posterior({"t": np.zeros((1, 2))}, {}, mo.Ledger(rows=1), warnings=doubts)
    assert repr(post.warnings) == str(post.warnings) == "it is odd; look.\nso."
    assert post.warnings == doubts
    assert repr(Posterior({"t": np.zeros((1, 2))}, {}, mo.Ledger(rows=1)).warnings) == "no warnings"
    post.save(tmp_path / "p")
    for other in (
        Posterior.load(tmp_path / "p").warnings,
        pickle.loads(pickle.dumps(post.warnings)),
        copy.deepcopy(post.warnings),
    ):
        assert isinstance(other, Warnings)
        assert other == doubts
        assert other[0].numbers == {"x": 1.0}


# Files that lie -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the JSON of a saved posterior, and its arrays."""
    path = tmp_path_factory.mktemp("lies") / "p"
    post = posterior()
    post.warnings.append(mo.ModicumWarning("a", "it is odd", "look", x=1.0))
    post.tuning = {"step": {"value": 0.5}, "mass": np.eye(2)}
    post.ledger.add("mode", 600, "hessian", passes=1)
    post.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return json.loads(members.pop(posterior_file.PAGE)), members


def write(path, page, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(posterior_file.PAGE, page if isinstance(page, str) else json.dumps(page))
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def places(value, at=()):
    """Return the paths of all values in a JSON document."""
    yield at
    if isinstance(value, dict | list):
        for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inside, (*at, key))


def replaced(page, at, value):
    page = copy.deepcopy(page)
    if not at:
        return value
    inner = page
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return page


ODD = [None, -1, 1e400, "x", [], {}, [[1, 2]], {"list": 3}, {"array": 99}, {"dict": [[[], 1]]}]


def test_any_change_of_the_page_loads_or_is_a_clear_error(saved, tmp_path):
    page, members = saved
    rng = np.random.default_rng(1)
    spots = [at for at in places(page) if at]
    refused = 0
    for number in rng.permutation(len(spots))[:120]:
        odd = ODD[int(rng.integers(len(ODD)))]
        path = write(tmp_path / "odd", replaced(page, spots[number], odd), members)
        try:
            post = Posterior.load(path)
            post.summary()
            repr(post), repr(post.warnings), repr(post.ledger)
            post.predict({"x": np.zeros((2, 5))})
        except mo.ModicumError:
            refused += 1
    assert refused > 60


@cases(
    "at odd",
    (("draws",), None),
    (("draws",), {"dict": []}),
    (("draws",), {"dict": [["beta", 3.0]]}),
    (("draws",), {"dict": [["beta", {"array": 0}], ["b", {"array": "0"}]]}),
    (("draws",), {"dict": [["beta", {"array": "../0"}]]}),
    (("draws",), {"dict": 5}),
    (("draws",), {"set": []}),
    (("draws",), {"dict": [], "list": []}),
    (("draws",), {"dict": [["\ud800", {"array": 0}]]}),
    (("settings",), {"dict": [["method", "\ud800"]]}),
    (("weights",), "heavy"),
    (("weights",), {"array": 3}),
    (("labels",), {"dict": [["nothing", {"list": ["a"]}]]}),
    (("labels",), {"dict": [["beta", 3]]}),
    (("warnings",), [{"code": 1, "sentence": "s", "remedy": "", "numbers": {}}]),
    (("warnings",), [{"code": "c", "sentence": "s", "remedy": "", "numbers": {"code": 1}}]),
    (("warnings",), ["a sentence"]),
    (("warnings",), 7),
    (("ledger",), {}),
    (("ledger", "rows"), 0),
    (("ledger", "rows"), 1e400),
    (("ledger", "counts"), [["a"]]),
    (("predictor",), "Logistic"),
    (("rows",), {}),
    (("rows", "schema", "columns"), [1]),
    (("rows", "dtype"), "object"),
    (("rows", "fingerprint"), None),
    (("version",), "2"),
    (("version",), True),
    (("version",), 1),
    (("version",), 3),
    (("format",), "zip"),
    ((), []),
    ((), "text"),
)
def test_odd_pages_are_refused(saved, tmp_path, at, odd):
    page, members = saved
    with pytest.raises(mo.DataError):
        Posterior.load(write(tmp_path / "odd", replaced(page, at, odd), members))


@cases(
    "spec",
    {"dict": [["family", "Logistic"], ["settings", {"dict": [["prior_scale", -1]]}]]},
    {"dict": [["family", "Logistic"], ["settings", {"dict": [["colour", 1]]}]]},
    {"dict": [["family", "Logistic"], ["settings", 3]]},
    {"dict": [["family", {"list": []}], ["settings", {"dict": []}]]},
    {"dict": [["family", "Logistic"]]},
)
def test_models_that_cannot_be_rebuilt(saved, tmp_path, spec):
    page, members = saved
    post = Posterior.load(write(tmp_path / "odd", replaced(page, ("predictor",), spec), members))
    refused(mo.DataError, "cannot be rebuilt", post.predict, ROWS)


def test_deep_pages_are_refused(saved, tmp_path):
    page, members = saved
    deep = '{"list":[' * 50_000 + "]}" * 50_000
    text = json.dumps(replaced(page, ("tuning",), "HERE")).replace('"HERE"', deep)
    refused(mo.DataError, "damaged", Posterior.load, write(tmp_path / "deep", text, members))


def header(shape, descr="<f8", data=b"", version=b"\x01\x00"):
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


@cases(
    "array",
    header("(10000000000000,)"),
    header("(2, 30, 10000000000000)", data=b"0" * 64),
    header("(-1,)", data=b"0" * 8),
    header("(1.5,)", data=b"0" * 8),
    header("(2, 30)", descr="|O", data=b"0" * 480),
    header("(2, 30)", descr="<M8[s]", data=b"0" * 480),
    header("(2, 30, 0, 10000000000000000000000)"),
    header("(" * 4000),
    header("(2, 30)", data=b"0" * 480, version=b"\x07\x00"),
    header("(1000000000000000000,)", descr="|S0"),
    b"",
    b"\x93NUMPY",
    pickle.dumps([1, 2]),
)
def test_odd_arrays_are_refused(saved, tmp_path, array):
    page, members = saved
    with pytest.raises(mo.DataError, match="damaged"):
        Posterior.load(write(tmp_path / "odd", page, members | {"0.npy": array}))


def test_bombs_are_not_unpacked(saved, tmp_path):
    page, members = saved
    whole = header("(2, 30, 40000)", data=bytes(2 * 30 * 40_000 * 8))
    path = write(tmp_path / "bomb", page, members | {"0.npy": whole}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**5
    refused(mo.DataError, "larger than the file", Posterior.load, path)
    huge = json.dumps(page)[:-1] + " " * 10**6 + "}"
    with pytest.raises(mo.DataError, match="larger than the file"):
        Posterior.load(write(tmp_path / "bomb", huge, members, zipfile.ZIP_DEFLATED))


def test_flipped_bytes_load_or_are_a_clear_error(saved, tmp_path):
    page, members = saved
    buffer = io.BytesIO()
    write(buffer, page, members)
    data, rng = buffer.getvalue(), np.random.default_rng(2)
    for _ in range(150):
        broken = bytearray(data)
        for at in rng.integers(len(data), size=3):
            broken[at] = rng.integers(256)
        (tmp_path / "broken").write_bytes(broken)
        try:
            Posterior.load(tmp_path / "broken")
        except mo.DataError:
            continue

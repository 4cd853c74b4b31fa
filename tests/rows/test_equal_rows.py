"""Equal rows are one row: the same posterior, from fewer rows."""

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.refusals import refused
from modicum.passes import LocalEngine, Sums
from modicum.rows import equal_rows
from modicum.rows.equal_rows import distinct_rows

N = 600
RUN = {"random_seed": 1, "progressbar": False}


def flights(n: int = N, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "carrier": rng.choice(["AA", "DL", "UA"], n, p=[0.7, 0.2, 0.1]),
            "hour": rng.integers(5, 9, n).astype(float),
            "dist": rng.normal(size=n),
            "times": rng.integers(0, 4, n),
        }
    )
    eta = 0.4 * (table["carrier"] == "UA") + 0.3 * (table["hour"] - 7)
    table["late"] = rng.random(n) < 1 / (1 + np.exp(-eta))
    table["delay"] = np.round(eta + rng.normal(size=n))
    return table


def rows_of(table: pd.DataFrame, **settings: object) -> mo.Rows:
    made = {"outcome": "late", "predictors": ["carrier", "hour"]} | settings
    return mo.Rows.from_table(table, **made)


def contents(rows: mo.Rows) -> dict[str, np.ndarray]:
    return rows.slice(0, len(rows))


# Distinct rows -------------------------------------------------------------------------------


def test_rows_are_counted_as_by_pandas(monkeypatch):
    table, names = flights(), ["late", "carrier", "hour"]
    rows = rows_of(table)
    few = contents(distinct_rows(rows))
    known = table.groupby(names).size()
    ours = {
        (bool(y), rows.levels["carrier"][code], x[0]): w
        for y, code, x, w in zip(few["y"], few["carrier"], few["x"], few["weight"], strict=True)
    }
    assert ours == known.to_dict()
    monkeypatch.setattr(equal_rows, "CHUNK", 7)  # many chunks, which are merged many times
    for name, part in contents(distinct_rows(rows)).items():
        np.testing.assert_array_equal(part, few[name])


def test_weights_repetition_and_order_do_not_matter(tmp_path):
    table = flights()
    weighted = distinct_rows(rows_of(table, weight="times"))
    repeated = table.loc[table.index.repeat(table["times"])].sample(frac=1, random_state=1)
    roles = {"outcome": "late", "predictors": ["carrier", "hour"], "progressbar": False}
    store = mo.rows.ingest(repeated, tmp_path / "store", dtype="float64", **roles)
    for other in (rows_of(repeated), store):
        few = contents(distinct_rows(other))
        for name, part in contents(weighted).items():
            np.testing.assert_array_equal(part, few[name])
    assert not np.array_equal(contents(distinct_rows(rows_of(table)))["weight"], few["weight"])


def test_rows_that_hardly_repeat_stay_as_they_are(monkeypatch):
    rows = rows_of(flights(), predictors=["dist"])
    assert distinct_rows(rows) is None
    assert len(distinct_rows(rows, always=True)) == N
    monkeypatch.setattr(equal_rows, "LOOKS", ((200, 0.99),))  # seen in a sample
    monkeypatch.setattr(mo.Rows, "chunks", None)
    assert distinct_rows(rows) is None


def test_equal_hashes_of_different_rows_are_noticed(monkeypatch):
    monkeypatch.setattr(equal_rows, "hashes", lambda about, batch: np.zeros(len(batch["y"]), "u8"))
    assert distinct_rows(rows_of(flights())) is None


def test_counts_that_single_precision_cannot_hold():
    rows = mo.Rows(y=np.float32([0, 0, -0.0, 1]), weight=np.float32([2**24, 1, 1, 1]))
    few = distinct_rows(rows)
    assert few.dtype == np.float64
    assert sorted(contents(few)["weight"]) == [1, 2**24 + 2]


# Fits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "outcome"), [(mo.models.Logistic(), "late"), (mo.models.Gaussian(), "delay")]
)
def test_sums_over_rows_are_the_same(model, outcome):
    rows = rows_of(flights(), outcome=outcome, predictors=["hour", "times"])
    few = distinct_rows(rows)
    light = mo.Rows(**{name: part for name, part in contents(few).items() if name != "weight"})
    sums = []
    for part in (rows, few, light):
        target, _ = mo.models.Target.of(model, part)
        over = Sums(target, part, LocalEngine(progressbar=False), mo.Ledger(rows=len(part)))
        parts = over.hessian(np.full(target.size, 0.1), "test")
        sums.append(np.concatenate([np.ravel(p) for p in parts]))
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-10)
    assert np.max(np.abs(sums[2] / sums[0] - 1)) > 0.1  # the negative control


@pytest.fixture(scope="module")
def fits() -> tuple[mo.Posterior, mo.Posterior]:
    settings = {"method": mo.Laplace(pool=N), "draws": 500} | RUN
    table = flights()
    fits = (mo.fit("late ~ carrier + hour", table, collapse=c, **settings) for c in (True, False))
    return tuple(fits)


def test_the_posterior_is_the_same(fits):
    few, all_rows = (post.summary() for post in fits)
    off = np.abs(few["mean"] - all_rows["mean"]) / all_rows["sd"]
    assert off.max() < 1e-4  # both weight the same draws of the same normal approximation
    assert fits[0].tuning["priors"] == fits[1].tuning["priors"]


def test_both_numbers_are_told(fits, tmp_path, capsys):
    post = fits[0]
    distinct = len(flights().drop_duplicates(["late", "carrier", "hour"]))
    assert post.ledger.collapsed == (distinct, N)
    assert (post.settings["rows"], post.settings["distinct_rows"]) == (N, distinct)
    words = f"passes over {distinct} distinct rows of 600"
    assert words in repr(post)
    assert words in str(post.ledger)
    post.save(tmp_path / "post")
    assert words in repr(mo.Posterior.load(tmp_path / "post"))
    assert fits[1].ledger.collapsed is None
    mo.fit("late ~ carrier", flights(), method="laplace", random_seed=1)
    assert "6 of 600 rows are distinct" in capsys.readouterr().err


def test_questions_are_about_the_rows_of_the_table(fits):
    table = flights()
    few, all_rows = (post.loo(draws=500, progressbar=False) for post in fits)
    assert few.elpd_i.shape == (N,)
    np.testing.assert_allclose(few.elpd_i, all_rows.elpd_i, atol=1e-5)
    assert few.n_data_points == N
    assert len(fits[0].predict(table)) == len(fits[0].predict(table[:4])) + N - 4
    assert fits[0].loo(table, draws=500, progressbar=False).elpd == pytest.approx(few.elpd)
    assert fits[0].fit_rows.fingerprint == fits[1].fit_rows.fingerprint
    refused(mo.SettingError, "sampled with 600 rows, but 9 were given", fits[0].loo, table[:9])


def test_weights_and_dropped_rows_count():
    table = flights()
    table.loc[::3, "hour"] = np.nan
    settings = {"method": "laplace", "missing": "drop", "draws": 500} | RUN
    with pytest.warns(mo.ModicumWarning, match="200 of 600 rows were dropped"):
        post = mo.fit("late ~ carrier + hour", table, weights="times", **settings)
    kept = table.dropna()
    kept = kept[kept["times"] > 0]
    assert post.ledger.collapsed == (len(kept.drop_duplicates(["late", "carrier", "hour"])), 400)
    repeated = kept.loc[kept.index.repeat(kept["times"])]
    other = mo.fit("late ~ carrier + hour", repeated, **(settings | {"missing": "refuse"}))
    np.testing.assert_allclose(post.mean("beta"), other.mean("beta"), rtol=1e-6)


def test_groups_of_equal_rows_are_not_groups_of_one():
    wards = np.arange(30) % 3
    rows = mo.Rows(x=np.zeros((30, 1)), y=wards == 1, ward=wards)
    few = distinct_rows(rows)
    model = mo.models.IntegratedEffects(mo.models.Logistic(), "ward")
    assert len(few) == len(model.units(few)) == 3
    alone = {name: part for name, part in contents(few).items() if name != "weight"}
    refused(mo.DataError, "every row has its own 'ward'", model.units, mo.Rows(**alone))

"""Digests compared with all rows: posterior, sums, added and removed rows, files."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.compiling import optimised_chains
from helpers.disks import change_page
from helpers.refusals import refused, unwarned
from helpers.targets import disagreements, exact_draws, flat_draws, sums_of
from modicum.digest.pool import expansion
from modicum.models.priors.units import moment_sums
from modicum.rows.reading import read_formula

N, SIZE = 2500, 600
MODEL = mo.models.Logistic()
RUN = {"draws": 2000, "tune": 300, "chains": 4, "random_seed": 3, "progressbar": False}
NORMAL = np.random.default_rng(1).standard_normal((100, 4))


def made_up(n=N, seed=1, shift=0.0):
    """Simulate a rare outcome and a heavy-tailed column: a posterior that is not normal."""
    rng = np.random.default_rng(seed)
    x = np.c_[rng.normal(size=(n, 2)), rng.standard_t(4, size=n)]
    eta = -4.0 + shift + x @ np.array([0.8, -0.5, 0.3])
    return x, (rng.random(n) < 1 / (1 + np.exp(-eta))) * 1.0


def rows_of(x, y):
    return mo.Rows(x=x, y=y, columns=["a", "b", "c"])


def digest_of(rows, size=SIZE, model=MODEL, **settings):
    return mo.digest(model, rows, size=size, random_seed=2, progressbar=False, **settings)


def sampled(model, data, **settings):
    with unwarned(), optimised_chains():
        return mo.sample(model, data, **({"method": mo.Auto(laplace=False)} | RUN | settings))


def wrong(digest, rows):
    """Standard deviation over the posterior of the digest's error in the log-likelihood of `rows`.

    This bounds the error of any posterior mean, in posterior standard deviations.
    """
    sums, _ = sums_of(MODEL, rows)
    factor = np.linalg.inv(np.linalg.cholesky(-digest.total.B)).T
    mode = digest.total.point + factor @ factor.T @ digest.total.A
    points = mode + NORMAL @ factor.T
    ready = digest.ready(MODEL)
    ours = replace(sums, rows=ready.rows, rest=ready.rest).values(points, "test")
    return np.std(ours - sums.values(points, "test"))


@pytest.fixture(scope="module")
def arrays():
    return made_up()


@pytest.fixture(scope="module")
def rows(arrays):
    return rows_of(*arrays)


@pytest.fixture(scope="module")
def digest(rows):
    return digest_of(rows)


@pytest.fixture(scope="module")
def full(rows):
    """Return draws of the posterior of all rows, without a chain."""
    log_posterior = mo.LogPosterior(MODEL, rows)
    return exact_draws(log_posterior.values, log_posterior.mode().point)


# The posterior -----------------------------------------------------------------------------


def test_it_is_sampled_to_the_posterior_of_all_rows(digest, full):
    post = sampled(MODEL, digest)
    assert post.settings["method"] == "hmc-ecs"
    assert post.settings["rows"] == post.ledger.rows == N
    assert disagreements(flat_draws(post), full) == []
    assert post.tuning["digest_error"]["value"] < 0.02


@pytest.fixture(scope="module")
def crude(digest):
    """Negative control: with a pool of zero weight, a digest is the Laplace approximation."""
    return replace(digest, pool=replace(digest.pool, share=np.full(len(digest.pool), 1e-9)))


def test_sums_alone_would_not_be_enough(crude, digest, rows):
    assert wrong(crude, rows) > 10 * wrong(digest, rows)


@pytest.mark.slow
def test_sums_alone_are_sampled_to_another_posterior(crude, full):
    assert "mean" in disagreements(flat_draws(sampled(MODEL, crude)), full)


@pytest.mark.slow
def test_priors_change_without_the_data(digest, rows):
    narrow = mo.models.Logistic(prior_scale=0.3, intercept_scale=3.0)
    ours, theirs = (sampled(narrow, data, method="hmc") for data in (digest, rows))
    assert disagreements(flat_draws(ours), flat_draws(theirs)) == []
    wide = sampled(MODEL, digest, method="hmc")
    assert "mean" in disagreements(flat_draws(ours), flat_draws(wide))


@pytest.mark.slow
def test_its_error_is_of_the_size_of_errors_that_occur(rows, digest):
    """Compare the actual errors of pools of many seeds with the errors they report."""
    made = [mo.digest(MODEL, rows, size=200, random_seed=k, progressbar=False) for k in range(5)]
    errors = np.array([wrong(one, rows) for one in made])
    said = np.array([one.error for one in made])
    assert 0.5 < np.sqrt(np.mean(errors**2)) / np.mean(said) < 2
    assert digest.error < 0.5 * np.mean(said)
    assert wrong(digest, rows) < 2.5 * digest.error


def test_all_rows_are_kept_where_they_are_few(rows):
    whole = digest_of(rows, size=N)
    assert len(whole.pool) == N
    assert whole.error == 0
    ready = whole.ready(MODEL)
    assert np.abs(ready.rest.B).max() < 1e-9 * np.abs(whole.total.B).max()


def test_a_changed_likelihood_is_refused(digest):
    for model in (mo.models.Probit(), mo.models.Logistic(intercept=False)):
        with pytest.raises(mo.SettingError, match="priors can be changed without the data"):
            mo.sample(model, digest, **RUN)


def test_methods_that_need_all_rows_are_refused(digest):
    refused(mo.SettingError, "sgld cannot use", mo.sample, MODEL, digest, method="sgld", **RUN)
    refused(mo.SettingError, "leave `starts` out", mo.sample, MODEL, digest, starts=3, **RUN)
    with pytest.raises(mo.SettingError, match="tuning='paper' starts from a subset"):
        mo.sample(MODEL, digest, method=mo.HMCECS(expert=mo.ECSExpert(tuning="paper")), **RUN)


@cases(
    "model data settings sentence",
    ("logistic", None, {}, "must be a model"),
    (MODEL, {"x": [1.0]}, {}, "must be mo.Rows"),
    (MODEL, None, {"size": 0}, "size must be a whole number"),
    (MODEL, None, {"like": 3}, "like must be another digest"),
    (mo.models.MLP((4,)), None, {}, "has no mode"),
)
def test_what_cannot_be_digested_is_a_clear_error(rows, model, data, settings, sentence):
    with pytest.raises(mo.SettingError, match=sentence):
        mo.digest(model, rows if data is None else data, progressbar=False, **settings)


# Adding and removing -----------------------------------------------------------------------


def parts_of(arrays, where=N // 2):
    x, y = arrays
    return rows_of(x[:where], y[:where]), rows_of(x[where:], y[where:])


def test_sums_of_two_digests_at_one_anchor_match_all_rows(arrays, rows):
    first, second = parts_of(arrays)
    one = digest_of(first)
    both = one + digest_of(second, like=one)
    sums, _ = sums_of(MODEL, rows)
    C, A, B = sums.hessian(one.total.point, "test")
    np.testing.assert_allclose(both.total.C, C, rtol=1e-13)
    np.testing.assert_allclose(both.total.A, A, atol=1e-11 * np.abs(B).max())
    np.testing.assert_allclose(both.total.B, B, rtol=1e-12)
    assert len(both) == N
    assert len(both.anchors) == 1
    assert both.units.moments().weight == N
    np.testing.assert_allclose(both.units.moments().x_sd, digest_of(rows).units.moments().x_sd)


def test_digests_of_unlike_anchors_are_merged(arrays, rows):
    first, second = parts_of(arrays)
    both = digest_of(first) + digest_of(second)
    assert wrong(both, rows) < 0.05
    assert 0.3 * wrong(both, rows) < both.error < 3 * wrong(both, rows)


def test_removed_rows_are_gone(arrays, digest):
    """The digest is right within .05 sd for the rows left; the old pool would not be."""
    x, y = arrays
    gone = np.r_[np.flatnonzero(y == 1)[::4], np.flatnonzero(y == 0)[::20]]
    left = np.setdiff1d(np.arange(N), gone)
    less = digest.remove(rows_of(x[gone], y[gone]))
    assert len(less) == len(left)
    assert wrong(less, rows_of(x[left], y[left])) < 0.05
    kept = replace(less, pool=digest.pool)
    assert wrong(kept, rows_of(x[left], y[left])) > 2 * wrong(less, rows_of(x[left], y[left]))


def test_rows_that_come_and_go_leave_no_trace(arrays, digest):
    x, y = made_up(200, seed=9)
    back = digest.add(rows_of(x, y)).remove(rows_of(x, y))
    assert len(back) == len(digest)
    assert len(back.pool) == len(digest.pool)
    np.testing.assert_allclose(back.total.B, digest.total.B, rtol=1e-12)
    np.testing.assert_allclose(back.units.squares, digest.units.squares, rtol=1e-9)
    ours, theirs = (made.ready(MODEL) for made in (back, digest))
    np.testing.assert_allclose(ours.rest.B, theirs.rest.B, rtol=1e-9, atol=1e-9)


def test_removing_some_of_equal_rows_leaves_the_others_share():
    """With levels only, every row has copies, and the pool must keep those that remain."""
    rng = np.random.default_rng(1)
    n = 4000
    x = rng.integers(0, 2, size=(n, 3)) * 1.0
    y = (rng.random(n) < 0.1 + 0.2 * x[:, 0]) * 1.0
    made = digest_of(rows_of(x, y), size=400)
    equal = np.flatnonzero((x == x[0]).all(1) & (y == y[0]))
    gone, left = equal[: len(equal) // 2], np.setdiff1d(np.arange(n), equal[: len(equal) // 2])
    less = made.remove(rows_of(x[gone], y[gone]))
    assert len(less.pool) == len(made.pool)
    right, others = wrong(less, rows_of(x[left], y[left])), replace(less, pool=made.pool)
    assert right < 0.05
    assert wrong(others, rows_of(x[left], y[left])) > 2 * right
    with pytest.raises(mo.DataError, match="are equal, but the digest holds"):
        less.remove(rows_of(x[np.r_[equal, equal[:5]]], y[np.r_[equal, equal[:5]]]))


def test_a_level_without_rows_keeps_the_prior_of_a_level():
    """Rounding left it a standard deviation of 1e-8, and so a prior 1e8 times as wide."""
    rng = np.random.default_rng(1)
    x, ward = rng.normal([0, 1e6], [1, 1], size=(3000, 2)), rng.choice(list("abc"), 3000)
    y, gone = rng.normal(size=3000), ward == "c"
    x[~gone, 0] = 2.0  # a number that varies in the removed rows alone
    whole = mo.Rows(x=x, y=y, columns=["dose", "far"], codes={"ward": ward})
    removed, left = (whole.subset(np.flatnonzero(which)) for which in (gone, ~gone))
    after, right = moment_sums(whole) - moment_sums(removed), moment_sums(left)
    assert after.moments().x_unit[[0, 3]].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(after.moments().x_unit, right.moments().x_unit, rtol=1e-6)
    some = moment_sums(whole) - moment_sums(whole.subset(np.flatnonzero(gone)[1:]))
    assert some.moments().x_unit[3] == 1.0  # of a level with one row


def test_a_mode_that_leaves_the_anchor_is_warned_of(arrays, digest):
    x, y = arrays
    x_new, y_new = made_up(N, seed=5, shift=1.5)
    with pytest.warns(mo.ModicumWarning, match="make the digest again") as said:
        moved = digest.add(rows_of(x_new, y_new))
    assert said[0].message.code == "anchor-left"
    assert moved.distance > 3 > 0.05 > digest.distance
    with warnings.catch_warnings():
        warnings.simplefilter("error", mo.ModicumWarning)
        digest.remove(rows_of(x[:50], y[:50]))
    _, mode, factor = moved._normal
    codes = [d.code for d in moved.doubts(mode, factor, moved.error)]
    assert "anchor-left" in codes


@pytest.mark.slow
def test_a_pool_of_too_few_rows_is_warned_of():
    crude = digest_of(rows_of(*made_up(400, seed=6)), size=20)
    post = sampled(MODEL, crude, method="hmc", draws=20, tune=20)
    assert "digest-crude" in {doubt.code for doubt in post.warnings}
    assert post.tuning["digest_error"]["value"] > 0.1


def test_other_rows_are_refused(digest, arrays):
    x, y = arrays
    refused(mo.DataError, "other fields, columns or levels", digest.add, mo.Rows(x=x[:, :2], y=y))
    with pytest.raises(mo.DataError, match="float32 and the rows of the digest are float64"):
        digest.remove(mo.Rows(x=x, y=y, columns=["a", "b", "c"], dtype="float32"))
    refused(mo.DataError, "at least one must be left", digest.remove, rows_of(x, y))
    refused(mo.SettingError, r"must be mo.Rows or a table", digest.add, 3)
    with pytest.raises(mo.SettingError, match="different likelihoods"):
        digest + replace(digest, likelihood="Probit()")
    with pytest.raises(TypeError):
        digest + 1


def codes(call):
    """Return the codes of a call's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", mo.ModicumWarning)
        call()
    return {warning.message.code for warning in caught}


def test_rows_that_would_count_twice_are_warned_of(arrays, digest):
    first, second = parts_of(arrays)
    one, other = digest_of(first), digest_of(second, like=digest)
    with pytest.raises(mo.DataError, match="of the same rows"):
        one + one
    assert codes(lambda: digest + one) == {"digest-overlap"}
    assert codes(lambda: digest.add(rows_of(*(a[:300] for a in arrays)))) == {"digest-overlap"}
    assert codes(lambda: one + other) == set()  # different rows of one population


def test_rows_that_were_never_added_are_warned_of(arrays, digest):
    """A tenth of all rows is kept, so of this many some should be; of strangers none is."""
    strangers = rows_of(*made_up(400, seed=11))
    assert codes(lambda: digest.remove(strangers)) == {"digest-unknown-rows"}
    x, y = arrays
    for seed in range(5):
        known = np.random.default_rng(seed).choice(N, 400, replace=False)
        assert codes(lambda known=known: digest.remove(rows_of(x[known], y[known]))) == set()


# Formulas and users' own models ------------------------------------------------------------


def some_trips(n):
    rng = np.random.default_rng(1)
    trips = pd.DataFrame({"dose": rng.normal(size=n), "ward": rng.choice(list("abc"), n)})
    eta = trips["dose"] - (trips["ward"] == "b")
    return trips.assign(well=rng.random(n) < 1 / (1 + np.exp(-eta)))


def test_files_and_questions_of_a_fit_from_a_digest(tmp_path):
    trips = some_trips(1500)
    settings = {"draws": 50, "method": "laplace", "random_seed": 1, "progressbar": False}
    post = mo.fit("well ~ dose + ward", trips, **settings)
    made = mo.digest(post, trips, size=600, random_seed=1, progressbar=False)
    trips.iloc[:100].to_csv(tmp_path / "old.csv")
    for old in (trips.iloc[:100], tmp_path / "old.csv"):  # the same sums from a frame and a file
        assert pytest.approx(made.remove(trips.iloc[:100]).total.C) == made.remove(old).total.C
        assert len(made.remove(old)) == 1400
    with pytest.raises(mo.DataError, match=r"'z' in row 0.*make a digest of a fit to rows") as said:
        made.add(trips.iloc[:10].assign(ward="z"))
    assert "newlevels" not in str(said.value)  # add takes no such argument
    with pytest.raises(mo.DataError, match=r"'z' in row 0.*leaving rows out needs the same rows"):
        post.loo(trips.assign(ward="z"))
    for settled in ({"weights": "dose"}, {"missing": "drop"}, {"encoding": "latin-1"}):
        (name,) = settled
        with pytest.raises(mo.SettingError, match=f"{name} would have no effect: leave {name} out"):
            mo.fit("well ~ dose + ward", made, **settled, **settings)
    grouped = read_formula("well ~ (1 | ward)", trips, progressbar=False).schema
    with_groups = replace(made, fit_rows=replace(made.fit_rows, schema=grouped))
    with pytest.raises(mo.SettingError, match="groups='integrate' would have no effect"):
        mo.fit("well ~ (1 | ward)", with_groups, groups="integrate", **settings)
    refused(mo.SettingError, "made for the formula", mo.fit, "well ~ dose", made, **settings)
    again = replace(post, rows=None, table=None)  # like a fit of the digest
    refused(mo.SettingError, "from a digest, or loaded from a file", again.marginal, "dose")
    assert len(again.marginal("dose", at=[0, 1], data=trips)) == 2


def encoded(formula, table):
    return read_formula(formula, table, progressbar=False)


def test_columns_encoded_otherwise_are_not_added(tmp_path):
    """Each hospital's scale(x) is about its own mean: one coefficient cannot be of both."""
    rng = np.random.default_rng(1)
    z, here = rng.normal(size=600), np.repeat([True, False], 300)
    x = np.where(here, z, 3 + 2 * z)
    table = pd.DataFrame({"x": x, "z": rng.normal(size=600)})
    table["y"] = np.where(rng.random(600) < 1 / (1 + np.exp(1 - x)), "well", "ill")
    ours, theirs = table[here], table[~here]
    turned = theirs.assign(y=pd.Categorical(theirs["y"], ["well", "ill"]))
    others = [(f"y ~ {term} + z", theirs) for term in ("center(x)", "bs(x, df=4)", "poly(x, 2)")]
    for formula, other in [("y ~ scale(x) + z", theirs), ("y ~ x + z", turned), *others]:
        made = digest_of(encoded(formula, ours))
        with pytest.raises(mo.DataError, match="has learned other means, knots or levels"):
            made + digest_of(encoded(formula, other))
    assert len(digest_of(encoded("y ~ x + z", ours)) + digest_of(encoded("y~x+z", theirs))) == 600

    formula = "y ~ scale(x) + z"
    digest_of(encoded(formula, ours)).save(tmp_path / "ours.digest")
    made = mo.Digest.load(tmp_path / "ours.digest")
    remedy = mo.Rows.from_table(theirs, like=made)  # what the error says
    settings = {"draws": 50, "method": "laplace", "random_seed": 1, "progressbar": False}
    all_rows = mo.fit("y ~ I((x - a) / b) + z", table.assign(**_scale(ours["x"])), **settings)
    at = pd.DataFrame({"x": [0.0, 1.0], "z": [0.0, 0.5]})
    expected = all_rows.predict(at.assign(**_scale(ours["x"]))).mean
    for both in (made.add(theirs), made + digest_of(remedy, like=made)):
        post = mo.fit(formula, both, **settings)
        np.testing.assert_allclose(post.predict(at).mean, expected, atol=1e-3)


def _scale(x):
    return {"a": x.mean(), "b": x.std()}


def decay(sd=1.0, power=1.0):
    import jax.numpy as jnp

    return mo.Model(
        lambda th: -0.5 * jnp.sum(th["t"] ** 2) / sd**2,
        lambda th, batch: -0.5 * (batch["y"] - jnp.exp(-th["t"][0] * batch["u"]) * power) ** 2,
        init={"t": np.array([0.5])},
    )


def test_digests_without_unique_rows_are_added():
    """Of factors alone, every row has equals, and an empty array has no shape to guess."""

    def made(n):
        rows = mo.Rows(y=np.arange(n) // 4 % 2, codes={"ward": np.arange(n) % 4})
        return mo.digest(MODEL, rows, random_seed=1, progressbar=False)

    assert len(made(64) + made(80)) == 144


@pytest.mark.slow
def test_a_custom_model_is_known_by_what_it_computes(tmp_path):
    rng = np.random.default_rng(2)
    u = rng.uniform(0, 3, 3000)
    rows = mo.Rows(u=u, y=np.exp(-0.7 * u) + rng.normal(size=3000))
    made = digest_of(rows, 300, decay())
    made.save(tmp_path / "own")
    with pytest.raises(mo.SettingError, match="loaded without its model"):
        _ = mo.Digest.load(tmp_path / "own").error
    with pytest.raises(mo.SettingError, match="priors can be changed"):
        mo.Digest.load(tmp_path / "own", model=decay(power=2.0))
    loaded = mo.Digest.load(tmp_path / "own", model=decay())
    assert loaded.error == made.error
    loaded.ready(decay(sd=2.0))  # another prior
    refused(mo.SettingError, "priors can be changed", loaded.ready, decay(power=2.0))


# The file ----------------------------------------------------------------------------------


def test_a_saved_digest_is_the_same(tmp_path, digest):
    path = tmp_path / "made.digest"
    digest.save(path)
    loaded = mo.Digest.load(path)
    assert loaded.fingerprint() == digest.fingerprint()
    assert (len(loaded), loaded.error, loaded.model) == (len(digest), digest.error, digest.model)
    ours, theirs = (made.ready(MODEL) for made in (digest, loaded))
    np.testing.assert_array_equal(ours.rest.B, theirs.rest.B)
    assert ours.rows.fingerprint() == theirs.rows.fingerprint()
    assert path.stat().st_size < 1.3 * digest.nbytes + 20_000


def swap(first, second):
    def change(page):
        arrays = dict(page["arrays"]["dict"])
        arrays[first], arrays[second] = arrays[second], arrays[first]
        page["arrays"]["dict"] = list(arrays.items())

    return change


@cases(
    "change",
    lambda p: p.update(version=99),
    lambda p: p.update(format="modicum posterior"),
    lambda p: p.update(rows=-3),
    lambda p: p.update(rows="many"),
    lambda p: p["description"].update(rows=7),
    lambda p: p["description"].update(columns=["a"]),
    lambda p: p.update(arrays={"dict": []}),
    lambda p: p.update(fields={"dict": []}),
    lambda p: p.update(ledger=[]),
    lambda p: p.update(notes=[{"code": 1, "sentence": "", "remedy": "", "numbers": {}}]),
    lambda p: p.update(units={"dict": [["weight", 1.0]]}),
    swap("point", "size"),
    swap("stratum", "part"),
    swap("size", "drawn"),
)
def test_hostile_files_are_refused(tmp_path, digest, change):
    digest.save(tmp_path / "made")
    change_page(tmp_path / "made", "digest.json", change)
    words = "is not a digest|was saved by a newer"
    refused(mo.DataError, words, mo.Digest.load, tmp_path / "made")


def test_a_file_that_was_cut_off_is_refused(tmp_path, digest):
    digest.save(tmp_path / "made")
    whole = (tmp_path / "made").read_bytes()
    for end in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:end])
        refused(mo.DataError, "is not a digest", mo.Digest.load, tmp_path / "cut")


@pytest.mark.parametrize("size", [10_000, 300])
def test_rows_leave_the_anchor_they_came_to(size):
    """Rows removed from a sum of digests take the expansion of their own anchor with them."""
    halves = [made_up(1000, seed=1, shift=2.0), made_up(1000, seed=2, shift=4.0)]
    parts = [digest_of(rows_of(*half), size) for half in halves]
    with unwarned():
        both = parts[0] + parts[1]
        for gone, left in ((0, 1), (1, 0)):
            less = both.remove(rows_of(*halves[gone]))
            assert len(less) == 1000
            assert len(less.anchors) == 1
            assert wrong(less, rows_of(*halves[left])) < (1e-6 if size > 1000 else 0.1)
        # expanded about the other anchor, their remainder moves the posterior
        about_first = sums_about(both.anchors[0], rows_of(*halves[1]))
        apart = replace(less, total=both.total - about_first)
        assert wrong(apart, rows_of(*halves[0])) > 1


@pytest.mark.parametrize("size", [10_000, 400])
def test_rows_of_several_anchors_leave_at_once(size):
    halves = [made_up(1000, seed=1, shift=3.0), made_up(1000, seed=2, shift=3.5)]
    parts = [digest_of(rows_of(*half), size) for half in halves]
    gone, left = ([np.concatenate([h[k][part] for h in halves]) for k in range(2)]
                  for part in (slice(0, 300), slice(300, None)))  # fmt: skip
    with unwarned():
        less = (parts[0] + parts[1]).remove(rows_of(*gone))
    assert len(less) == 1400
    assert wrong(less, rows_of(*left)) < (1e-6 if size > 1000 else 0.2)


def sums_about(point, rows):
    sums, _ = sums_of(MODEL, rows)
    return expansion(sums, point)

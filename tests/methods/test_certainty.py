"""Certainty rows are always read, never drawn, and nothing is lost or counted twice."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modicum as mo
from helpers import toy
from helpers.cases import cases
from helpers.coded import pair
from helpers.expansion import Expansion
from helpers.interrupted import planned
from helpers.targets import (
    disagreements,
    flat_draws,
    heavy_rows,
    logistic_rows,
    poisson_rows,
    probabilities,
    quick,
)
from modicum.kernels.control_variates import LinearTaylor
from modicum.kernels.designs import (
    Drawn,
    Uniform,
    UniformTables,
    Weighted,
    certainty_rows,
    draw_on_host,
    weight_tables,
)
from modicum.kernels.energy_conserving import EnergyConservingContext, EnergyConservingKernel
from modicum.kernels.gradients import Taylor
from modicum.kernels.likelihood_estimates import Perturbed
from modicum.kernels.moves import HMCMove
from modicum.kernels.protocols import StochasticGradientContext
from modicum.methods.weights import sample_on_host

M = mo.models

# The design over the others -----------------------------------------------------------------

EXPECTED = np.random.default_rng(1).lognormal(sigma=2.0, size=40)


def test_the_rows_of_the_largest_weights_are_set_apart():
    tables = weight_tables(EXPECTED)
    certain = certainty_rows(tables, 7)
    before, after = probabilities(tables, 40), probabilities(certain.rest, 40)
    others = np.setdiff1d(np.arange(40), certain.row_ids)
    assert len(certain) == len(set(certain.row_ids.tolist())) == 7
    assert before[certain.row_ids].min() >= before[others].max()
    assert np.all(after[certain.row_ids] == 0)
    assert after.sum() == pytest.approx(1)
    assert np.all(after[others] >= 0.1 / 33 * 0.999)  # the floor counts only the remaining rows
    # as if there were no certainty rows, up to the width of a class
    alone = weight_tables(EXPECTED[others])
    np.testing.assert_allclose(after[others], probabilities(alone, 33), rtol=0.1)
    drawn = Drawn(np.arange(40), before)
    np.testing.assert_allclose(certain.probability(drawn), after, rtol=1e-9)


@pytest.mark.parametrize("design", [Uniform(), Weighted()])
def test_certain_rows_are_never_drawn_and_the_others_as_often_as_they_should(design):
    tables = weight_tables(EXPECTED)
    certain = certainty_rows(tables, 7)
    rest = design.without(certain, UniformTables(40) if design == Uniform() else tables)
    drawn = jax.jit(lambda tables: design.draw(jax.random.key(1), 40_000, tables))(rest)
    found = np.bincount(np.asarray(drawn.row_ids), minlength=40) / 40_000
    right = probabilities(certain.rest, 40)
    if design == Uniform():
        right = np.where(np.isin(np.arange(40), certain.row_ids), 0.0, 1 / 33)
    np.testing.assert_allclose(np.asarray(drawn.probability), right[drawn.row_ids], rtol=1e-5)
    assert np.all(found[certain.row_ids] == 0)
    assert np.all(np.abs(found - right) < 4.5 * np.sqrt(right / 40_000) + 1e-9)


def test_a_pilot_takes_once_what_would_be_drawn_often():
    """If two rows have nearly all of the weight, sums over all rows are still accurate."""
    expected = np.r_[np.full(2, 1e6), np.random.default_rng(2).lognormal(size=4_998)]
    tables = weight_tables(expected)
    values = expected * np.random.default_rng(3).normal(size=5_000)
    rng = np.random.default_rng(4)
    sums = []
    for _ in range(200):
        some = sample_on_host(rng, 500, tables)
        assert some.row_ids.shape == (500,)
        sums.append(np.sum(values[some.row_ids] / some.expected))
    assert 2 <= some.certain < 500
    assert {0, 1} <= set(some.row_ids[: some.certain].tolist())
    assert np.all(some.expected[: some.certain] == 1)
    np.testing.assert_allclose(some.probability, probabilities(tables, 5_000)[some.row_ids])
    error = np.std(sums) / np.sqrt(200)
    assert abs(np.mean(sums) - values.sum()) < 4.5 * error
    drawn = draw_on_host(rng, 500, tables)  # otherwise hardly any of the other rows would be drawn
    spread = np.std(values[drawn.row_ids] / drawn.probability) / np.sqrt(500)
    assert np.std(sums) < spread / 50
    every = sample_on_host(rng, 6_000, tables)
    assert np.sum(values[every.row_ids] / every.expected) == pytest.approx(values.sum())


# Unbiased, by enumeration of all subsamples --------------------------------------------------

Z = np.array([0.7, -1.2, 0.4, 0.9])


@pytest.fixture(scope="module")
def six():
    with jax.enable_x64(True):
        return Expansion(M.Logistic(), logistic_rows(6), 2, form=LinearTaylor)


def split(e, left_in):
    """Return two certainty rows and the others' probabilities; `left_in` draws both kinds."""
    tables = weight_tables(np.abs(e.residuals(Z)))
    certain = certainty_rows(tables, 2)
    return certain, probabilities(tables if left_in else certain.rest, e.n)


def context_with(e, certain, centre=0.0):
    return EnergyConservingContext(
        e.proxy,
        (),
        jnp.asarray(centre),
        jnp.zeros(()),
        e.cache(np.ones(len(certain)), certain.row_ids),
    )


@pytest.mark.parametrize(("left_in", "right"), [(False, True), (True, False)])
def test_the_difference_estimate_is_unbiased(six, left_in, right, x64):
    """Average the kernel's log-density, plus half its variance, over all pairs of rows."""
    certain, probability = split(six, left_in)
    context = context_with(six, certain)
    kernel = EnergyConservingKernel(six.cv, Perturbed(), Weighted(), HMCMove(), 2, 2, 1)

    @jax.jit
    def log(subsample):
        density, values = kernel.log_density(subsample, jnp.ones(2, bool), context)(Z)
        return density + Perturbed().combine(values, None, None).variance / 2

    total = 0.0
    for u in product(np.flatnonzero(probability), repeat=2):
        chance = probability[list(u)]
        total += chance.prod() * float(log(six.cache(chance, list(u))))
    exact = six.residuals(Z).sum() + float(six.cv.log_proxy(jnp.asarray(Z), six.proxy))
    assert bool(total == pytest.approx(exact, rel=1e-10)) is right


@pytest.mark.parametrize(("left_in", "right"), [(False, True), (True, False)])
def test_the_gradient_of_a_batch_is_unbiased(six, left_in, right, x64):
    certain, probability = split(six, left_in)
    estimator = Taylor(order=2).bind(six.target, "float64")
    rows = six.rows.take(certain.row_ids) | {"probability": np.ones(2)}
    nothing = jnp.zeros(())
    context = StochasticGradientContext(
        *(six.proxy.where, nothing, nothing, nothing, ()),
        estimator.arrays(six.anchor, rows),
    )
    assert estimator.certain_rows(context) == 2
    slope = jax.jit(lambda batch: estimator.gradient(jnp.asarray(Z), batch, (), context))
    chances = [(k, chance) for k, chance in enumerate(probability) if chance]
    total = sum(chance * np.asarray(slope(six.cache([chance], [k]))) for k, chance in chances)

    def log_posterior(z):
        t = six.proxy.where.unwhiten(z)
        values = six.target.log_likelihood(t, six.rows.slice(0, 6))
        return values.sum() + six.target.log_prior(t)

    exact = -jax.jit(jax.grad(log_posterior))(jnp.asarray(Z))
    assert np.allclose(total, exact, rtol=1e-8) is right


# Methods ------------------------------------------------------------------------------------


def kinds_of_rows():
    rng = np.random.default_rng(3)
    further = {"weight": rng.integers(1, 4, 600).astype(float)}
    fields = poisson_rows(600).slice(0, 600)
    assert "offset" in fields
    yield "weights and offsets", M.Poisson(), mo.Rows(**fields, **further)
    yield "codes", M.Logistic(), pair(600, weight=True).coded
    yield "extra parameters", M.Gaussian(), pair(600, "real").dense


@pytest.mark.parametrize(
    ("model", "rows"), [k[1:] for k in kinds_of_rows()], ids=[k[0] for k in kinds_of_rows()]
)
def test_certain_rows_of_every_kind_have_their_whole_residual(model, rows, x64):
    """The certainty part and the others' residuals add up to those of all rows."""
    plan, _ = planned(model, rows, mo.HMCECS(certainty=30))
    assert plan.tuning["certainty"] == {"value": 30, "why": "set by hand"}
    kernel, context = plan.kernel, plan.context
    cv, n = kernel.control_variate, len(rows)

    @jax.jit
    def total(batch, z):
        cached = cv.cache(batch, context.proxy)
        return jnp.sum(cv.values(cached, z, context.proxy))

    z = 0.8 * np.cos(np.arange(len(context.proxy.a)))
    every = total(rows.slice(0, n) | {"probability": np.ones(n)}, z)
    always = jax.jit(lambda z: jnp.sum(cv.values(context.certain, z, context.proxy)))(z)
    order, size = np.asarray(context.design.order), np.asarray(context.design.size)
    start = np.asarray(context.design.start)
    drawn = np.concatenate([order[s : s + k] for s, k in zip(start, size, strict=True)])
    assert len(drawn) == n - 30
    rest = total(rows.take(np.sort(drawn)) | {"probability": np.ones(n - 30)}, z)
    assert float(always) + float(rest) == pytest.approx(float(every), rel=1e-9)
    assert float(always) != pytest.approx(float(every), rel=1e-3)


@pytest.fixture(scope="module")
def small():
    return M.Logistic(), logistic_rows(600, dtype="float32")


ECS = {"method": mo.HMCECS(certainty=40, subsample=40, blocks=20, refreshes=4), "tune": 60}


@pytest.fixture(scope="module")
def fitted(small):
    return quick(*small, **ECS)


def test_they_are_counted_and_explained(small, fitted):
    steps, touched = fitted.stats["n_steps"], fitted.stats["rows_touched"]
    np.testing.assert_array_equal(touched, 8 + (40 + 40) * (steps + 1))
    assert fitted.tuning["certainty"] == {"value": 40, "why": "set by hand"}
    without, _ = planned(*small, mo.HMCECS())
    assert without.tuning["certainty"]["value"] == 0
    assert "would not save a tenth" in without.tuning["certainty"]["why"]


@cases(
    "method words",
    (mo.HMCECS(design="uniform", subsample=100), "design='uniform'"),
    (mo.HMCECS(subsample=100), "subsample is set by hand"),
    (mo.SignedHMCECS(products=20), "products is set by hand"),
    (mo.SGLDCV(design="uniform"), "design='uniform'"),
    (mo.SGLDCV(step_size=1e-3), "step_size is set by hand"),
    (mo.SGLDCV(), "gradient noise is small"),
    (mo.SGLD(step_size=1e-4), "no control variates"),
)
def test_none_are_taken_where_they_are_not_asked_for(method, words):
    chosen = planned(M.Logistic(), logistic_rows(3_000), method)[0].tuning["certainty"]
    assert chosen["value"] == 0
    assert words in chosen["why"]


@cases(
    "make words",
    (
        lambda: mo.HMCECS(certainty=5, expert=mo.ECSExpert(tuning="paper")),
        "leave `certainty` out",
    ),
    (lambda: planned(*SMALL, mo.HMCECS(certainty=600)), "leaves none of 600 rows"),
    (lambda: planned(*SMALL, mo.SGLDCV(certainty=600)), "leaves none of 600 rows"),
    (lambda: planned(*SMALL, mo.SGLD(certainty=9)), "control variates"),
    (lambda: planned(*SMALL, mo.SGLDCV(certainty=9, design="stratified")), "certainty=0"),
)
def test_settings_that_make_no_sense(make, words):
    with pytest.raises(mo.SettingError, match=words) as caught:
        make()
    assert str(caught.value).endswith(".")


SMALL = (M.Logistic(), logistic_rows(600))


# Right answers --------------------------------------------------------------------------------

POOR = {"anchor": toy.poor_anchor(), "subsample": 40, "blocks": 20, "refreshes": 20}


@pytest.mark.slow
@cases(
    "method",
    mo.HMCECS(certainty=300, **POOR),
    mo.HMCECS(certainty=300, design="uniform", exact="delayed", **POOR),
    mo.SignedHMCECS(certainty=300, anchor=toy.poor_anchor()),
    ids=["perturbed", "delayed", "signed"],
)
def test_the_toy_posterior(method):
    post = toy.sample(method, draws=3_000, chains=4, random_seed=1)
    assert post.tuning["certainty"]["value"] == 300
    assert toy.faults(post) == []


@pytest.mark.slow
def test_rows_that_are_certain_and_drawn_are_noticed(monkeypatch):
    """Negative control: certainty rows may be drawn as well."""
    monkeypatch.setattr(Weighted, "without", lambda self, certain, tables: tables)
    post = toy.sample(mo.HMCECS(certainty=300, **POOR), draws=3_000, chains=4, random_seed=1)
    assert "mean" in toy.faults(post)


@pytest.mark.slow
def test_stochastic_gradients_with_certain_rows():
    rows = heavy_rows()
    run = {"draws": 4_000, "tune": 500, "chains": 2, "random_seed": 2, "progressbar": False}
    right = mo.sample(M.Logistic(), rows, method="nuts", **run)
    # Set by hand: these gradients have so little noise that none would be chosen. A draw is a
    # short step; keep one in twenty.
    method = mo.SGHMCCV(design="weighted", bias=0.1, certainty=50)
    post = mo.sample(M.Logistic(), rows, method=method, **run | {"draws": 20_000, "tune": 1_000})
    assert post.tuning["certainty"] == {"value": 50, "why": "set by hand"}
    found, truth = flat_draws(post), flat_draws(right)
    assert disagreements(found, truth) in ([], ["sd"])  # variances may be 10 % off
    off = found.mean((0, 1)) - truth.mean((0, 1))
    assert np.all(np.abs(off) < 0.1 * truth.std((0, 1)))

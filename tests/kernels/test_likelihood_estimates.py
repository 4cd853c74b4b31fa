"""Likelihood estimates: their formulas, expectations, signs and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import poisson

from helpers.targets import TIMES
from modicum.kernels.likelihood_estimates import (
    EMPTY,
    BlockPoisson,
    BlockPoissonTables,
    Perturbed,
    most_factors,
)
from modicum.methods.ecs.signed_products import NormalFactors

# d, sigma_m, lambda, a, and what theory says: positive share and variance of log |Lhat|
SETTINGS = [
    pytest.param(0.0, 10.0, 20, -20.0, 0.7013, 11.720, marks=pytest.mark.slow),
    pytest.param(0.0, 5.0, 20, -20.0, 0.9994, 1.572, marks=pytest.mark.slow),
    (0.5, 3.0, 5, -4.5, 0.8100, 4.037),
]


# Compiled as one function; operation by operation it takes much longer.
combine = jax.jit(BlockPoisson.combine, static_argnums=0)
describe = jax.jit(BlockPoisson.describe, static_argnums=0)
arrange = jax.jit(BlockPoisson.arrange, static_argnums=0)
place = jax.jit(BlockPoisson.place, static_argnums=0)
replace = jax.jit(BlockPoisson.replace, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def draw_present(estimator, key):
    """Draw the factors of all blocks; return which slots have one."""
    counts = estimator.counts(key, estimator.blocks)
    return jnp.arange(estimator.slots) < jnp.sum(counts)


def slot_rows(estimator):
    return estimator.slots * estimator.batch


def by_hand(values, present, products, batch, centre):
    """Return log |Lhat| - sum q and its sign, by a loop over the factors."""
    a, log, sign = centre - products, centre, 1
    for part, there in zip(values.reshape(-1, batch), present, strict=True):
        if there:
            factor = (part.mean() - a) / products
            log, sign = log + np.log(abs(factor)), sign * (1 if factor >= 0 else -1)
    return log, sign


@partial(jax.jit, static_argnums=(0, 1))
def simulate(estimator, count, d, deviation, centre):
    """Independent estimates with normal residuals: log |Lhat|, its sign, factors in use."""

    def one(key):
        present_key, values_key = jax.random.split(key)
        present = draw_present(estimator, present_key)
        noise = jax.random.normal(values_key, (slot_rows(estimator),))
        values = d + deviation * np.sqrt(estimator.batch) * noise
        given = (values, present, BlockPoissonTables(centre))
        estimate = estimator.combine(*given)
        told = estimator.describe(estimate, *given)
        return estimate.log, told["sign"], told

    return jax.lax.map(one, jax.random.split(jax.random.key(1), count), batch_size=2000)


@pytest.mark.parametrize(("d", "deviation", "products", "lower", "positive", "variance"), SETTINGS)
def test_expectation_sign_and_variance_are_what_theory_says(
    d, deviation, products, lower, positive, variance, x64
):
    theory = NormalFactors(d, deviation, products, lower)
    assert theory.positive == pytest.approx(positive, abs=5e-5)
    assert theory.log_variance == pytest.approx(variance, abs=5e-4)
    estimator = BlockPoisson(products, batch=2, blocks=products // 5 if products > 5 else 1)
    log, sign, told = (
        jax.tree.map(np.asarray, part)
        for part in simulate(estimator, 100_000, d, deviation, lower + products)
    )
    root = np.sqrt(len(log))
    assert abs((sign > 0).mean() - theory.positive) < 3 * np.sqrt(positive * (1 - positive)) / root
    assert abs(log.mean() - theory.log_mean) < 3 * log.std() / root
    squares = (log - theory.log_mean) ** 2
    assert abs(squares.mean() - theory.log_variance) < 3 * squares.std() / root
    assert abs(told["variance_estimate"].mean() - theory.log_variance) < (
        3 * told["variance_estimate"].std() / root
    )
    ratio = sign * np.exp(log - d)  # Lhat / L
    assert abs(ratio.mean() - 1) < 3 * ratio.std() / root
    weight = np.abs(ratio)
    error = np.std(ratio - theory.chain_sign * weight) / weight.mean() / root
    assert abs(ratio.mean() / weight.mean() - theory.chain_sign) < TIMES * error
    # negative control: without signs the expectation is off if factors are negative
    if positive < 0.99:
        assert abs(weight.mean() - 1) > 3 * weight.std() / root


def test_combine_is_the_formula_in_whichever_slots(x64):
    estimator, centre = BlockPoisson(12, batch=3, blocks=4), -1.3
    rng = np.random.default_rng(2)
    present = np.asarray(draw_present(estimator, jax.random.key(3)))
    values = 20 * rng.normal(size=slot_rows(estimator))
    tables = BlockPoissonTables(jnp.asarray(centre))
    right, sign = by_hand(values, present, 12, 3, centre)
    order = rng.permutation(estimator.slots)
    elsewhere = values.reshape(-1, 3)[order].ravel(), present[order]
    for D, there in ((values, present), elsewhere):
        estimate = combine(estimator, D, there, tables)
        assert float(estimate.log) == pytest.approx(right, rel=1e-13)
        described = describe(estimator, estimate, D, there, tables)
        assert float(described["sign"]) == sign
        assert int(described["factors"]) == int(np.sum(present))


def test_rows_in_empty_slots_do_not_matter(x64):
    estimator = BlockPoisson(12, batch=3, blocks=4)
    present = np.asarray(draw_present(estimator, jax.random.key(3)))
    values = np.random.default_rng(2).normal(size=slot_rows(estimator))
    spoiled = np.where(np.repeat(present, 3), values, np.nan)

    @jax.jit
    @jax.value_and_grad
    def log(D):
        return estimator.combine(D, present, BlockPoissonTables(0.0)).log

    (one, _), (other, slope) = log(values), log(spoiled)
    assert float(one) == float(other)
    assert np.isfinite(np.asarray(slope)).all()


def test_the_gradient_is_its_slope_on_both_sides_of_zero(x64):
    estimator = BlockPoisson(6, batch=4, blocks=2)
    rng = np.random.default_rng(5)
    x, t = rng.normal(size=(slot_rows(estimator), 3)), rng.normal(size=3)
    present = jnp.arange(estimator.slots) % 3 > 0

    @jax.jit
    @jax.value_and_grad
    def log(t):
        return estimator.combine(25 * jnp.sin(x @ t), present, BlockPoissonTables(0.4)).log

    d = 25 * np.sin(x @ t).reshape(-1, 4)
    c = (25 * np.cos(x @ t))[:, None] * x
    dhat, slopes = d.mean(1), c.reshape(-1, 4, 3).mean(1)
    there = np.asarray(present)
    right = (slopes / (dhat - (0.4 - 6))[:, None])[there].sum(0)
    assert (dhat[there] < 0.4 - 6).any()  # some factors are negative
    np.testing.assert_allclose(log(t)[1], right, rtol=1e-11)
    h = 1e-6
    differences = [float(log(t + h * e)[0] - log(t - h * e)[0]) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(differences, right, rtol=1e-6)


@pytest.mark.parametrize(
    "blocks", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(20, marks=pytest.mark.slow)]
)
def test_refreshing_one_block_leaves_a_correlation_of_one_less_its_share(blocks, x64):
    estimator = BlockPoisson(20, batch=1, blocks=blocks)

    def pair(key):
        first, second, which, a, b = jax.random.split(key, 5)
        all_blocks = 10 * jax.random.normal(a, (estimator.rows,))
        before, owners = estimator.arrange(all_blocks, estimator.counts(first, blocks))
        block = jax.random.randint(which, (), 0, blocks).astype(jnp.uint32)
        placement = estimator.place(block, estimator.counts(second, 1)[0], owners)
        fresh = 10 * jax.random.normal(b, (estimator.parts,))
        after = estimator.replace(before, fresh, placement.slots)

        def log(D, owners):
            return estimator.combine(D, owners != EMPTY, BlockPoissonTables(0.0)).log

        return log(before, owners), log(after, placement.owners)

    before, after = jax.jit(jax.vmap(pair))(jax.random.split(jax.random.key(1), 20_000))
    assert abs(np.corrcoef(before, after)[0, 1] - (1 - 1 / blocks)) < 0.02


def test_counts_are_poisson(x64):
    estimator = BlockPoisson(12, batch=1, blocks=4)
    keys = jax.random.split(jax.random.key(1), 20_000)
    counts = np.asarray(jax.jit(jax.vmap(lambda key: estimator.counts(key, 4)))(keys)).ravel()
    for k in range(8):
        right = poisson.pmf(k, 3)
        error = np.sqrt(right * (1 - right) / len(counts))
        assert abs((counts == k).mean() - right) < TIMES * error


def test_there_is_room_but_not_to_waste():
    for mean in (1, 2, 5, 20, 100, 1000):
        room = most_factors(mean)
        assert poisson.sf(room, mean) <= 1e-6 < poisson.sf(room - 1, mean)


def contents(rows, owners, batch):
    """Return the factors of each block, as sorted tuples of their rows."""
    parts = np.asarray(rows).reshape(-1, batch)
    owners = np.asarray(owners)
    return {
        int(block): sorted(map(tuple, parts[owners == block]))
        for block in np.unique(owners[owners != EMPTY])
    }


def test_blocks_take_the_place_of_others_whatever_their_numbers_of_factors(x64):
    estimator = BlockPoisson(products=12, batch=2, blocks=3)
    rng = np.random.default_rng(3)
    room, last = estimator.parts, np.array([np.pi] * 5)  # rows after the slots stay as they are

    def fresh_block():
        return rng.normal(size=(room, 2))

    for counts in ([0, 0, 0], [5, 0, 2], [room, 1, 1]):
        blocks = [fresh_block() for _ in counts]
        rows, owners = arrange(estimator, np.concatenate(blocks).ravel(), jnp.asarray(counts))
        rows = np.concatenate([rows, last])
        known = {
            b: sorted(map(tuple, block[:k]))
            for b, (block, k) in enumerate(zip(blocks, counts, strict=True))
            if k
        }
        for _ in range(40):
            block, count = rng.integers(3), rng.integers(room + 1)
            fresh, offered = fresh_block(), (np.uint32(block), np.uint32(count))
            placement = place(estimator, *offered, owners)
            others = sum(len(parts) for b, parts in known.items() if b != block)
            assert bool(placement.fits) == (others + count <= estimator.slots)
            refused = replace(estimator, rows, fresh.ravel(), placement.slots, False)
            np.testing.assert_array_equal(refused, rows)
            if not placement.fits:
                continue
            rows = np.asarray(replace(estimator, rows, fresh.ravel(), placement.slots))
            owners = placement.owners
            known[int(block)] = sorted(map(tuple, fresh[:count]))
            known = {b: parts for b, parts in known.items() if parts}
            assert contents(rows[: -len(last)], owners, 2) == known
            np.testing.assert_array_equal(rows[-len(last) :], last)


# The perturbed estimate ---------------------------------------------------------------------

D = np.random.default_rng(1).gamma(2.0, 3.0, 25) - 4


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_perturbed_estimate_is_its_formula(ddof, x64):
    estimate = jax.jit(lambda D: Perturbed(ddof).combine(D, None, {}))(D)
    m = len(D)
    variance = ((D - D.mean()) ** 2).sum() / (m**2 if ddof == 0 else m * (m - 1))
    assert float(estimate.difference) == pytest.approx(D.mean(), rel=1e-14)
    assert float(estimate.variance) == pytest.approx(variance, rel=1e-14)
    assert float(estimate.log) == pytest.approx(D.mean() - variance / 2, rel=1e-14)


def test_the_unbiased_divisor_is_the_default_and_is_unbiased(x64):
    draws = np.random.default_rng(2).gamma(2.0, 1.0, (20_000, 8))  # variance 2

    def variances(ddof):
        combine = jax.vmap(lambda D: Perturbed(ddof).combine(D, None, {}).variance)
        return np.asarray(jax.jit(combine)(draws))

    found = variances(1)
    error = found.std() / np.sqrt(len(found))
    assert abs(found.mean() - 2 / 8) < 4.5 * error
    assert Perturbed() == Perturbed(1)
    assert abs(variances(0).mean() - 2 / 8) > 20 * error  # too small by a factor 1 - 1/m


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_gradient_of_the_perturbed_estimate_needs_one_pass(ddof, x64):
    # grad (dhat - s2/2) = sum_i c_i x_i (1 - (D_i - Dbar) / (m - ddof)) / m
    rng = np.random.default_rng(3)
    x, t, m = rng.normal(size=(12, 3)), rng.normal(size=3), 12

    def log(t):
        return Perturbed(ddof).combine(jnp.sin(jnp.asarray(x) @ t) * 5, None, {}).log

    slope = jax.jit(jax.grad(log))(t)
    d, c = 5 * np.sin(x @ t), 5 * np.cos(x @ t)
    right = x.T @ (c * (1 - (d - d.mean()) / (m - ddof))) / m
    np.testing.assert_allclose(slope, right, rtol=1e-12)

"""Designs draw rows with the probabilities they report, whatever the weights."""

from functools import partial

import jax
import numpy as np
import pytest
from scipy.stats import chi2

from helpers.patching import pretend_device
from helpers.refusals import refused
from helpers.targets import probabilities
from modicum import SettingError, files
from modicum.kernels.designs import (
    DESIGNS,
    RowFacts,
    Uniform,
    UniformTables,
    Weighted,
    weight_tables,
)
from modicum.rows.weight_classes import CLASSES

pytestmark = pytest.mark.usefixtures("x64")
RNG = np.random.default_rng(1)
WEIGHTS = {
    "lognormal": RNG.lognormal(0, 2, 500),
    "a few zeros": np.where(np.arange(300) % 3 == 0, 0.0, RNG.random(300)),
    "all zeros": np.zeros(40),
    "all equal": np.full(70, 3.0),
    "one row": np.array([2.0]),
    "two rows": np.array([1.0, 5.0]),
    "extreme": np.concatenate([np.full(200, 1e-12), [1e9, 3e9, 7e8]]),
    "float32": RNG.pareto(1.0, 400).astype(np.float32),
}


def draw(design, tables, count, seed=1):
    tables = jax.tree.map(np.asarray, tables)
    drawn = _draw(design, jax.random.key(seed), count, tables)
    return np.asarray(drawn.row_ids), np.asarray(drawn.probability)


@partial(jax.jit, static_argnums=(0, 2))
def _draw(design, key, count, tables):
    return design.draw(key, count, tables)


def chi_square(rows, probability):
    """Return Pearson's statistic in standard units; rows that are too rare are pooled."""
    count = np.bincount(rows, minlength=len(probability))
    expected = probability * len(rows)
    rare = expected < 5
    count = np.append(count[~rare], count[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    count, expected = count[expected > 0], expected[expected > 0]
    if len(count) < 2:
        return 0.0, 1.0
    return ((count - expected) ** 2 / expected).sum(), chi2.isf(1e-5, len(count) - 1)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_rows_come_as_often_as_their_probability_says(name, floor):
    weights = WEIGHTS[name]
    tables = weight_tables(weights, floor)
    probability = probabilities(tables, len(weights))
    assert probability.sum() == pytest.approx(1, abs=1e-12)
    rows, said = draw(Weighted(), tables, 100_000)
    np.testing.assert_array_equal(said, probability[rows])
    found, limit = chi_square(rows, probability)
    assert found < limit


def test_tables_of_very_many_rows_are_files_of_the_same_numbers(monkeypatch):
    held = weight_tables(WEIGHTS["lognormal"])
    monkeypatch.setattr(files, "MAPPED_FROM", 100)
    mapped = weight_tables(WEIGHTS["lognormal"])
    assert isinstance(mapped.order, np.memmap)
    assert not isinstance(held.order, np.memmap)
    np.testing.assert_array_equal(mapped.order, held.order)


def test_the_same_check_notices_rows_drawn_uniformly():
    tables = weight_tables(WEIGHTS["lognormal"])
    found, limit = chi_square(RNG.integers(0, 500, 100_000), probabilities(tables, 500))
    assert found > 10 * limit


@pytest.mark.parametrize("name", WEIGHTS)
def test_probabilities_are_close_to_the_weights_and_above_the_floor(name):
    weights, n = WEIGHTS[name].astype(float), len(WEIGHTS[name])
    floor = 0.1
    probability = probabilities(weight_tables(WEIGHTS[name], floor), n)
    share = weights / weights.sum() if weights.any() else np.full(n, 1 / n)
    wanted = (1 - floor) * share + floor / n
    # a class spans 1/255 of the range of log w, and a row gets the average of its class
    width = np.ptp(np.log(wanted)) / (CLASSES - 1)
    np.testing.assert_allclose(np.log(probability), np.log(wanted), atol=width * 1.01 + 1e-9)
    assert probability.min() >= floor / n * (1 - 1e-9) * np.exp(-width)


@pytest.mark.parametrize("bad", [[1.0, np.nan], [1.0, np.inf], [1.0, -0.1]])
def test_impossible_weights_are_refused(bad):
    refused(SettingError, "finite numbers from 0", weight_tables, np.array(bad))


def test_uniform_rows():
    rows, probability = draw(Uniform(), UniformTables(40), 40_000)
    np.testing.assert_array_equal(probability, 1 / 40)
    found, limit = chi_square(rows, np.full(40, 1 / 40))
    assert found < limit
    assert draw(Uniform(), UniformTables(1), 5)[0].tolist() == [0] * 5
    many = draw(Uniform(), UniformTables(2**33), 1000)[0]
    assert many.max() > 2**32  # row numbers beyond 32 bits


def test_an_accelerator_draws_the_same_rows(monkeypatch):
    tables = weight_tables(np.random.default_rng(2).exponential(size=5_000))
    here = _draw(Weighted(), jax.random.key(3), 1_000, tables)
    pretend_device(monkeypatch, "gpu")  # traced again
    there = _draw(Weighted(), jax.random.key(3), 1_000, tables)
    np.testing.assert_array_equal(here.row_ids, there.row_ids)
    np.testing.assert_array_equal(here.probability, there.probability)


# The registry --------------------------------------------------------------------------------

FACTS = RowFacts(
    n=60, count=12, expected=lambda: RNG.random(60), clusters=lambda: np.arange(60) % 4
)


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_makes_its_own_tables_and_is_unbiased(name):
    design = DESIGNS[name]()
    tables = design.tables(FACTS)
    assert isinstance(tables, design.layout)
    assert type(tables)(**tables._asdict()) == tables  # as a checkpoint does
    assert design.description
    keys = jax.random.split(jax.random.key(1), 400)
    draws = jax.jit(jax.vmap(lambda key, tables: design.draw(key, 12, tables), in_axes=(0, None)))
    drawn = draws(keys, tables)
    values = np.arange(60.0)
    sums = np.mean(values[np.asarray(drawn.row_ids)] / np.asarray(drawn.probability), axis=1)
    error = np.std(sums, ddof=1) / np.sqrt(len(sums))
    assert abs(np.mean(sums) - values.sum()) < 4.5 * error
    assert abs(np.mean(sums) - values.sum()) + 4.5 * error < 0.5 * values.sum()  # it could fail

"""The EWSG paper's Gaussian experiments: index chain, KL orderings, tables and figures."""

import matplotlib as mpl
import numpy as np
import pytest

from modicum_lab.papers.ewsg import divergence, gaussian, index_chain, optimal_weights
from modicum_lab.papers.ewsg.error_bound import figure_1j_1l
from modicum_lab.papers.ewsg.gaussian import FRICTION, STEP, Gaussian, methods
from modicum_lab.papers.experiments import EXPERIMENTS, Result

mpl.use("Agg")

TARGET = Gaussian.drawn(20, seed=1)


def drawn(result):
    """Draw every figure; return all axes."""
    axes = [ax for figure in result.figures for ax in figure.draw().axes if ax.axison]
    mpl.pyplot.close("all")
    return axes


def labelled(axes):
    return all(ax.get_xlabel() and ax.get_ylabel() and ax.get_legend() for ax in axes)


def test_the_experiments_are_registered():
    names = {"figure-1a", "figure-1b", "figure-1c", "figure-1d-1i", "figure-1j-1l"}
    assert names <= set(EXPERIMENTS["ewsg"])


def test_centres_are_the_same_for_the_same_seed_and_set():
    assert np.array_equal(Gaussian.drawn(20, 1).centres, TARGET.centres)
    assert not np.array_equal(Gaussian.drawn(20, 1, number=1).centres, TARGET.centres)
    exact = TARGET.mean + TARGET.sd * np.random.default_rng(1).normal(size=(20_000, 2))
    assert TARGET.kl(exact) < 0.001
    assert TARGET.kl(exact + TARGET.sd) == pytest.approx(1.0, rel=0.1)  # half of 1 a coordinate


# The index chain ---------------------------------------------------------------------------


def test_uniform_batches_are_unbiased_with_the_variance_of_the_centres():
    bias, variance = index_chain.local_error(TARGET, (0,), states=3, seed=1)[0]
    assert bias == pytest.approx(0, abs=1e-20)
    assert variance == pytest.approx(20**2 * TARGET.centres.var(axis=0).sum())


def test_the_index_chain_tends_to_the_exponential_weights():
    """Its law after many steps is that of eq. 4."""
    bias, variance = index_chain.local_error(TARGET, (4000,), states=5, seed=1)[4000]
    assert (bias, variance) == pytest.approx(by_weights(+1), rel=1e-6)
    # negative control: the sign of x matters
    assert bias != pytest.approx(by_weights(-1)[0], rel=0.05)


def by_weights(sign):
    rng = np.random.default_rng([1, 5])
    sigma, pairs = np.sqrt(2 * FRICTION), []
    for _ in range(5):
        g = 20 * (TARGET.mean + TARGET.sd * rng.normal(size=2) - TARGET.centres)
        x = sign * np.sqrt(STEP) * FRICTION * rng.normal(size=2) / sigma
        log_p = 0.5 * np.sum((x + np.sqrt(STEP) * g / sigma) ** 2, axis=1)
        p = np.exp(log_p - log_p.max())
        p /= p.sum()
        mean = p @ g
        pairs.append((np.sum((mean - g.mean(axis=0)) ** 2), p @ np.sum((g - mean) ** 2, axis=1)))
    return tuple(np.mean(pairs, axis=0))


# Theorem 1 ---------------------------------------------------------------------------------


def test_the_optimal_selection_is_sparse_unbiased_and_best():
    rng = np.random.default_rng(1)
    errors = rng.normal(size=(30, 2))
    errors -= errors.mean(axis=0)
    p = optimal_weights.optimal_weights(errors)
    assert (p > 1e-9).sum() <= 3
    np.testing.assert_allclose(p @ errors, 0, atol=1e-9)
    best = p @ np.sum(errors**2, axis=1)
    assert best < np.mean(np.sum(errors**2, axis=1))
    # no other unbiased selection of three rows does better
    for _ in range(300):
        some = rng.choice(30, 3, replace=False)
        system = np.vstack([errors[some].T, np.ones(3)])
        other = np.linalg.solve(system, [0.0, 0.0, 1.0])
        if (other >= 0).all():
            assert other @ np.sum(errors[some] ** 2, axis=1) >= best - 1e-9


def test_exponential_weights_are_those_of_the_long_index_chain():
    long = index_chain.local_error(TARGET, (4000,), states=3, seed=1)[4000]
    rng, pairs = np.random.default_rng([1, 5]), []
    for _ in range(3):
        g = 20 * (TARGET.mean + TARGET.sd * rng.normal(size=2) - TARGET.centres)
        p = optimal_weights.exponential_weights(g, rng.normal(size=2))
        mean = p @ g
        pairs.append((np.sum((mean - g.mean(axis=0)) ** 2), p @ np.sum((g - mean) ** 2, axis=1)))
    assert long == pytest.approx(tuple(np.mean(pairs, axis=0)), rel=1e-6)


@pytest.mark.parametrize("h", [STEP, STEP / 100])
@pytest.mark.parametrize("n", [20, 50, 100])
def test_the_variance_falls_where_few_rows_have_all_the_chance(n, h, monkeypatch):
    """Theorem 3 says that it falls everywhere; and where it does, the bias is more than that."""
    monkeypatch.setattr(gaussian, "STEP", h)
    local = index_chain.local_error(Gaussian.drawn(n, 1), (0, 500), states=50, seed=1)
    (_, uniform), (bias, variance) = local.values()
    assert (variance < 0.6 * uniform) == (h == STEP and n > 20)
    assert variance < 0.6 * uniform or variance > 1.001 * uniform
    assert variance > uniform or bias > uniform - variance


def test_theorem_1():
    result = optimal_weights.theorem_1("smoke", 1)
    assert [row[3] for row in result.tables[1].rows] == [True, True]
    assert labelled(drawn(result))


# Divergence --------------------------------------------------------------------------------


def test_ewsg_ends_nearer_to_the_target_than_sghmc():
    result = Result()
    both = {name: method for name, method in methods().items() if name in ("sghmc", "ewsg")}
    found = divergence.divergences(result, both, "smoke", seed=1)
    # with 400 realisations, the error of a KL of 0.5 is about 0.1
    assert found.last["ewsg"][0] < 0.7 * found.last["sghmc"][0]
    for passes, kl in found.curves.values():
        assert passes[-1] == pytest.approx(30, abs=0.1)
        assert kl[0] > 5 > kl[-1]  # from N(0, I), twenty times too wide
    assert result.ledger["ewsg"] == pytest.approx(result.ledger["sghmc"], rel=0.01)
    assert {doubt.code for doubt in result.doubts.values()} == {"gradient-noise"}
    assert set(result.doubts) == set(both)
    assert all(any(str(d) in note for note in result.notes) for d in result.doubts.values())
    table = found.table("t", "method", "")
    assert [row[-1] for row in table.rows] == ["0 of 1", "1 of 1"]


def test_figures_have_labels_and_one_colour_per_method():
    line = (np.arange(1, 4), np.array([3.0, 2.0, 1.0]))
    curves = {"ewsg": line, "sghmc": line}
    figure = divergence._figure("f", "title", curves, None, "caption").draw()
    (ax,) = figure.axes
    assert [item.get_color() for item in ax.get_lines()] == ["#d62728", "#1f77b4"]
    assert ax.get_yscale() == "log"
    assert labelled([ax])


@pytest.mark.slow
def test_orderings_of_figure_1a_and_1c_at_laptop_scale():
    result = divergence.figure_1a("laptop", 1)
    kl = {row[0]: row[2] for row in result.tables[0].rows}  # medians over sets of centres
    assert kl["EWSG"] < min(kl["SGHMC"], kl["SGLD"], kl["pSGLD"]), kl
    assert labelled(drawn(result))
    by_x = [row[2] for row in divergence.figure_1c("laptop", 1).tables[0].rows]
    assert by_x[0] < min(by_x[1:]), by_x


def test_smoke_of_figure_1b():
    result = divergence.figure_1b("smoke", 1)
    rows = result.tables[0].rows
    by = {(row[0], row[1]): row for row in rows}
    for name in ("SGHMC", "EWSG"):  # larger steps mix faster, and are less accurate
        assert by[name, 0.05][2] < by[name, 0.01][2]
    assert by["SGHMC", 0.05][4] > by["SGHMC", 0.01][4]
    assert by["EWSG", 0.05][4] < by["SGHMC", 0.05][4]
    # at a small step EWSG is biased by skewness, by its first-order bias, and SGHMC is not
    off, predicted = by["EWSG", 0.01][5:7]
    assert off == pytest.approx(predicted, rel=0.35)
    assert by["SGHMC", 0.01][5] < 0.05 < off
    assert by["EWSG", 0.01][7] < by["SGHMC", 0.01][7]
    assert labelled(drawn(result))


def test_smoke_of_figures_1d_to_1i():
    result = index_chain.figure_1d_1i("smoke", 1)
    local, best, _ = result.tables
    assert [row[1] for row in local.rows] == sorted(row[1] for row in local.rows)  # bias grows
    assert [row[0] for row in best.rows] == [20, 50, 100]
    assert labelled(drawn(result))


def test_smoke_of_figures_1j_to_1l():
    result = figure_1j_1l("smoke", 1)
    words = {row[0]: row for row in result.tables[3].rows}
    assert words["1l: power of h, SGHMC"][2:] == (2, True)
    over_time = [row[2] for row in result.tables[0].rows if row[0] == "EWSG"]
    assert over_time[0] > over_time[1] > over_time[2]
    long = {(row[0], row[1]): row[2] for row in result.tables[2].rows}
    assert long["SGHMC", 0.1] > 4 * long["SGHMC", 0.02]
    assert labelled(drawn(result))

"""The experiments of the HMC-ECS paper: their parts, and each of them at the smallest scale."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

import modicum as mo
from helpers.normal_factors import normal_factors
from modicum.plots import METHOD_COLOURS
from modicum.posterior import Posterior
from modicum_lab.papers import report
from modicum_lab.papers.experiments import PAPERS, experiments_of
from modicum_lab.papers.fits import Contender, Fit, Length
from modicum_lab.papers.hmc_ecs import designs, dimension
from modicum_lab.papers.hmc_ecs.comparison import (
    PERTURBED,
    SCHEDULE,
    SIGNED_SCHEDULE,
    STEP,
    higgs_rows,
    stable_step,
)
from modicum_lab.papers.hmc_ecs.higgs import HIGGS, SIZES, roc_curves
from modicum_lab.papers.hmc_ecs.pictures import density
from modicum_lab.papers.hmc_ecs.tables import (
    accurate,
    bias_claim,
    calibration_table,
    full_data_ratio,
    optimal_products,
    relative_table,
    rule_table,
)
from modicum_lab.papers.pages import write_page
from modicum_lab.papers.references import TABLES, reference

NAMES = {
    *("tables-1-2", "figures-1-3", "tables-3-4", "figures-4-6"),
    *("figure-7", "figures-8-9", "rows-compared", "equation-4-6"),
}


def made(label, draws, evaluations, weights=None, rows=1_000, **ledger):
    """Make a fit in which only draws and counts matter."""
    counts = mo.Ledger(rows=rows)
    for purpose, n in {"sampling": evaluations, **ledger}.items():
        counts.add(purpose.replace("_", "-"), n, "gradient")
    contender = Contender(label, mo.HMCECS(), draws.shape[1], 0)
    return Fit(contender, Posterior({"beta": draws}, {}, counts, weights=weights))


def test_every_experiment_of_the_paper_is_there():
    assert {one.name for one in experiments_of("hmc-ecs")} >= NAMES
    for paper in PAPERS:
        assert all(one.paper == paper for one in experiments_of(paper))


# Measures of a fit -------------------------------------------------------------------------


def test_the_best_lambda_is_a_few_deviations():
    ratios = [optimal_products(s, 0.01) / s for s in (10.0, 30.0, 100.0)]
    assert all(2.9 < ratio < 4.5 for ratio in ratios), ratios
    assert optimal_products(10.0, 1.0) > optimal_products(10.0, 0.01)  # all products drawn anew


def test_no_other_lambda_takes_less_time_by_the_theory_of_normal_factors():
    """The soft lower bound is d - lambda; variance and sign are those of an independent helper."""

    def time(products, refreshed=0.01):
        theory = normal_factors(0.0, 30.0, products, -products)
        accepted = 2 * norm.cdf(-np.sqrt(2 * theory.log_variance * refreshed) / 2)
        return products * (2 - accepted) / accepted / (2 * theory.positive - 1) ** 2

    best = optimal_products(30.0, 0.01)
    assert time(best) < 1.001 * min(time(share * best) for share in (0.9, 0.97, 1.03, 1.1))
    assert time(best) < 0.99 * min(time(0.7 * best), time(1.4 * best))  # and it matters


def test_m_and_lambda_follow_from_the_variance_along_the_chain():
    fit = made("a", np.zeros((1, 50, 1)), 1)
    fit.post.tuning["subsample"] = {"value": 1_000, "why": ""}
    fit.post.stats["variance_estimate"] = np.full((1, 50), 30.0)
    m, products = rule_table(HIGGS, fit, 1_000, "").rows
    assert m[1] == 1_300
    assert m[2] == pytest.approx(30_000 / 232, abs=2)
    assert products[1:3] == [100, optimal_products(np.sqrt(1_000), 0.01)]


def test_costs_are_those_of_one_chain():
    draws = np.random.default_rng(1).normal(size=(4, 500, 2))
    fit = made("a", draws, 8_000, mode=3_000, warm_up=400)
    assert fit.evaluations(training=False) == 2_000
    assert fit.evaluations(training=True) == 2_000 + 3_000 + 100
    np.testing.assert_allclose(fit.inefficiency, 1, atol=0.3)
    np.testing.assert_allclose(fit.computational_time(), fit.inefficiency * 5_100)


def test_costs_of_a_longer_run_are_reckoned_from_an_iteration():
    fit = made("a", np.random.default_rng(1).normal(size=(2, 500, 1)), 8_000, mode=3_000, warm_up=4)
    fit.contender = replace(fit.contender, tune=250)
    longer = Length(1_000, 2_000, rows=10_000)  # ten times the rows
    assert fit.evaluations(False, longer) == 16_000
    assert fit.evaluations(True, longer) == 16_000 + 30_000 + 8


def test_signs_that_cancel_cost_their_square():
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(2, 2_000, 1))
    signs = np.where(rng.random((2, 2_000)) < 0.75, 1.0, -1.0)
    plain, signed = made("a", draws, 1_000), made("b", draws, 1_000, weights=signs)
    ratio = signed.computational_time() / plain.computational_time()
    np.testing.assert_allclose(ratio, 1 / signs.mean() ** 2, rtol=0.15)


def test_relative_table_has_the_baseline_at_one():
    rng = np.random.default_rng(1)
    base = made("HMC-ECS perturbed", rng.normal(size=(2, 500, 3)), 1_000)
    other = made("SG-HMC", base.draws, 3_000)
    other.contender = replace(other.contender, training=False)
    table = relative_table("t", HIGGS, {base.label: base, other.label: other}, "")
    first, second = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert first["RCT median"] == 1
    assert second["RCT median"] == pytest.approx(3)
    assert second["RCT median (paper)"] == 2.97
    assert second["median over the paper's"] == pytest.approx(3 / 2.97)


def test_chains_that_disagree_are_not_compared():
    draws = np.random.default_rng(1).normal(size=(2, 500, 3))
    base, other = made("HMC-ECS perturbed", draws, 1_000), made("SG-HMC", draws, 3_000)
    lost = made("SGLD", draws + np.array([0.0, 1.0])[:, None, None], 1_000)  # two places
    table = relative_table("t", HIGGS, {fit.label: fit for fit in (base, other, lost)}, "")
    found = columns_of(table)
    assert found["RCT median"] == [1, pytest.approx(3), "not comparable"]
    assert found["RCT max"][2] is None
    assert found["RCT median (paper)"][2] == 12.46
    assert found["R-hat"][0] < 1.1 < found["R-hat"][2]


def test_stochastic_gradients_are_charged_for_sampling_on_both_sides():
    """As in the captions of Tables 1 and 3, the passes of HMC-ECS are not charged."""
    draws = np.random.default_rng(1).normal(size=(2, 2_000, 3))
    base = made("HMC-ECS perturbed", draws, 1_000, rows=HIGGS.rows, mode=50_000)
    gradients = made("SG-HMC", draws, 3_000, rows=HIGGS.rows)
    gradients.contender = replace(gradients.contender, training=False)
    exact = made("HMC-ECS signed", draws, 3_000, rows=HIGGS.rows, mode=50_000)
    fits = {fit.label: fit for fit in (base, gradients, exact)}
    found = columns_of(relative_table("t", HIGGS, fits, ""))
    assert found["charged for"] == ["entire run", "sampling alone", "entire run"]
    sampling, entire = 3, (1_500 + 50_000) / (500 + 50_000)
    np.testing.assert_allclose(found["RCT median"], [1, sampling, entire])
    other_way = [1, (1_500) / (500 + 50_000), sampling]
    np.testing.assert_allclose(found["RCT median, charged the other way"], other_way)


def test_the_signed_method_by_the_papers_schedule_is_compared_with_its_like():
    draws = np.random.default_rng(1).normal(size=(1, 2_000, 3))
    labels = {PERTURBED: 1_000, SCHEDULE: 10_000, SIGNED_SCHEDULE: 12_000}
    fits = {label: made(label, draws, n, rows=HIGGS.rows) for label, n in labels.items()}
    found = columns_of(relative_table("t", HIGGS, fits, ""))
    np.testing.assert_allclose(found["RCT median"], [1, 10, 1.2])
    assert found["RCT median (paper)"] == [None, None, 1.15]


def test_claims_of_accuracy_are_judged():
    rng = np.random.default_rng(1)
    truth, good = (made("a", rng.normal(size=(2, 5_000, 3)), 1) for _ in range(2))
    fits = {"good": good, "bad": made("bad", truth.draws + np.array([0, 0, 1.0]), 1)}
    assert accurate("good", fits, truth, "Figure 2")[-1]
    assert not accurate("bad", fits, truth, "Figure 2")[-1]
    assert bias_claim("bad", fits, truth, "Figure 2")[-1]
    assert bias_claim("good", fits, truth, "Figure 2")[-1] is False


def test_chains_that_have_not_converged_are_not_compared():
    rng = np.random.default_rng(1)
    truth = made("a", rng.normal(size=(2, 5_000, 3)), 1)
    drifting = truth.draws + np.linspace(0, 9, 5_000)[:, None]
    for judge in (accurate, bias_claim):
        _, found, _, agree = judge("lost", {"lost": made("lost", drifting, 1)}, truth, "Figure 2")
        assert agree is None
        assert "not comparable" in found


def test_the_recalibration_of_m_is_shown_beside_the_papers():
    fit = made("a", np.zeros((1, 10, 1)), 1)
    path = [0.8] * 100 + [0.5] * 900
    fit.post.tuning.update({"burn-in variance": path, "recalibration": [60_000.0, 900.0]})
    found = columns_of(calibration_table(fit, 120_000, "Data: a stand-in."))
    assert (found["m"], found["m (paper)"]) == ([60_000, 900], [62_000, 1_000])
    assert found["m for a variance of 232"] == [
        round(60_000 * 0.8 / 231.8),
        round(900 * 0.5 / 231.8),
    ]


def test_full_hmc_costs_what_the_paper_counts():
    """3,000 iterations of 7 evaluations of n rows, against 20 passes and 3,000 of 1,300 rows."""
    n = 10_500_000
    fit = made("a", np.zeros((1, 2_000, 1)), 2_000 * 7 * 1_300, rows=n, mode=20 * n)
    assert full_data_ratio(fit, n) == pytest.approx(3_000 * 7 * n / (20 * n + 3_000 * 7 * 1_300))


def test_stable_step_is_the_smallest_variance():
    scale = np.array([3.0, 0.5])
    fit = made("a", np.random.default_rng(1).normal(size=(2, 20_000, 2)) * scale, 1)
    assert stable_step(fit) == pytest.approx(0.25, rel=0.03)


def test_density_respects_signs():
    rng = np.random.default_rng(1)
    wrong, right = rng.normal(5, 1, 2_000), rng.normal(0, 1, 6_000)
    values = np.concatenate([right, wrong, wrong])  # values with both signs cancel
    weights = np.concatenate([np.ones(6_000), np.ones(2_000), -np.ones(2_000)])
    at = np.array([0.0, 5.0])
    np.testing.assert_allclose(density(values, weights, at), [0.38, 0.0], atol=0.06)
    assert density(values, np.abs(weights), at)[1] > 0.1  # without signs it would not


# Data --------------------------------------------------------------------------------------


def test_missing_data_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("MODICUM_DATA", str(tmp_path))
    with pytest.raises(mo.DataError, match=r"higgs is not in .*HIGGS\.csv\.gz"):
        higgs_rows.__wrapped__(1_000, 1)


@pytest.mark.usefixtures("real_tables")
def test_stand_in_has_test_rows_in_the_papers_proportion():
    data = higgs_rows.__wrapped__(21_000, 1)
    assert (len(data.rows), len(data.test)) == (21_000, 1_000)
    assert "stand-in" in data.description


def test_references_are_of_the_tables():
    for name in TABLES:
        truth = reference(name)
        assert truth.mean.shape == truth.sd.shape == truth.mcse.shape
        assert (truth.sd > 0).all()
        assert (truth.mcse / truth.sd).max() < 0.02


def test_a_table_of_another_size_has_no_reference():
    fit = made("a", np.zeros((1, 10, 1)), 1)
    data = replace(dimension.simulated(50, 2, 1), name="claims")
    with pytest.raises(mo.DataError, match="has 50 rows, but its reference"):
        designs._judge("claims", data, fit)


def test_a_perfect_prediction_has_a_perfect_curve():
    x = np.linspace(-3, 3, 400)
    rows = mo.Rows(x=x[:, None], y=x > 0)
    post = SimpleNamespace(predict=lambda rows, draws: SimpleNamespace(mean=1 / (1 + np.exp(-x))))
    (curve,) = roc_curves([Fit(Contender("a", mo.HMCECS(), 10, 0), post)], rows).values()
    assert np.trapezoid(curve[1], curve[0]) > 0.999


# Runs --------------------------------------------------------------------------------------


def run_smoke(name, out):
    (one,) = experiments_of("hmc-ecs", name)
    result = one.run("smoke", 1)
    folder = report.write_result(one, result, out, "smoke", 1, 1.0)
    page = write_page(out).read_text()
    record = json.loads((folder / "settings.json").read_text())
    assert record["ledger"]
    assert record["notes"]
    assert {t["name"] for t in record["tables"]} == {p.stem for p in folder.glob("*.csv")}
    assert {f["name"] for f in record["figures"]} == {p.stem for p in folder.glob("*.svg")}
    assert f'id="hmc-ecs-{name}"' in page
    return result


def columns_of(table):
    return {name: [row[k] for row in table.rows] for k, name in enumerate(table.columns)}


def test_a_contender_keeps_its_warnings_and_its_length():
    method = mo.HMCECS(design="uniform", order=1, subsample=20, step_size=0.5)
    data = dimension.simulated(500, 20, 1)
    fit = Contender("a", method, 30, 0, colour="hmc").run(data, 1, 1)  # raises no warning
    assert "subsample-small" in {doubt.code for doubt in fit.post.warnings}
    assert fit.draws.shape == (1, 30, 20)
    assert fit.colour == METHOD_COLOURS["hmc"]


def test_figure_7(tmp_path, monkeypatch):
    small = replace(dimension.SIZES["smoke"], dimensions=(2,), draws=30, tune=60)
    monkeypatch.setitem(dimension.SIZES, "smoke", small)
    table, powers = run_smoke("figure-7", tmp_path).tables
    found = columns_of(table)
    assert found["method"] == list(dimension.STYLES)
    assert found["variance of lhat"][0] == 0  # the target is quadratic
    assert found["variance of lhat"][1] > 0
    assert columns_of(powers)["power of d (paper)"] == [-0.25] * 4


def test_order_1_takes_no_more_rows_than_there_are():
    assert dimension._rows_of_order_1(128, 10_000) == 8_200
    assert dimension._rows_of_order_1(256, 10_000) == 10_000
    (note,) = dimension._bounded(dimension.SIZES["paper"])
    assert "At d = 256 a variance of 1 would take m = 32,768 of 10,000 rows" in note


@pytest.mark.slow
def test_step_size_falls_with_the_dimension(tmp_path):
    small, large = [], []
    for d, steps in ((4, small), (64, large)):
        data = dimension.simulated(4_000, d, 1)
        size = dimension.Size(4_000, (d,), 200, 800)
        for one in dimension._contenders(d, size)[:2]:
            steps.append(one.run(data, 2, 1).stat("step_size"))
    # 16 times the dimension: half the step by d^(-1/4), .4 of it by d^(-1/3), a quarter by d^(-1/2)
    np.testing.assert_allclose(np.divide(large, small), 0.5, atol=0.13)


@pytest.mark.slow
@pytest.mark.usefixtures("real_tables")
def test_tables_1_2(tmp_path, monkeypatch):
    whole = replace(SIZES["smoke"], rows=100_000, draws=1_000, to_see_that_it_runs=False)
    monkeypatch.setitem(SIZES, "smoke", whole)
    relative, efficiency, _ = run_smoke("tables-1-2", tmp_path).tables
    found = columns_of(relative)
    median = dict(zip(found["method"], found["RCT median"], strict=True))
    assert median["SG-HMC"] > 1
    assert median["SGLD"] == "not comparable"
    other = dict(zip(found["method"], found["RCT median, charged the other way"], strict=True))
    assert other["HMC-ECS signed"] > 1
    assert other["HMC-ECS weighted (our default)"] < 0.2
    row = dict(zip(efficiency.columns, efficiency.rows[0], strict=True))
    assert row["L"] == round(1.2 / STEP)
    assert row["acceptance"] == pytest.approx(row["acceptance (paper)"], abs=0.01)
    assert row["IF"] == pytest.approx(row["IF (paper)"], abs=0.3)
    assert "stand-in" in relative.note


@pytest.mark.usefixtures("real_tables")
@pytest.mark.parametrize("name", sorted(NAMES - {"figure-7", "figures-8-9", "tables-1-2"}))
def test_other_experiments_run(name, tmp_path):
    result = run_smoke(name, tmp_path)
    assert all(len(table.rows) > 0 for table in result.tables)
    if name not in {"rows-compared", "equation-4-6"}:  # real outcomes, and none of the paper's
        tables = [table for table in result.tables if table.name != "in-words"]
        assert all("stand-in" in table.note for table in tables)
        assert all(table.title.endswith(", stand-in rows") for table in result.tables)


@pytest.mark.usefixtures("real_tables")
def test_order_0_is_flagged_and_order_1_is_right(tmp_path):
    (table,) = run_smoke("figures-8-9", tmp_path).tables
    found = columns_of(table)
    assert found["warned"][0]
    assert found["variance of lhat, median"][0] > 10
    assert found["largest sd ratio"][1] < 1.5
    assert found["acceptance"][0] > 0.3  # a chain that moves, on a target that is not the posterior
    assert np.isfinite(found["IF"][0])
    assert found["method"][-1] == "SG-HMC, order 1"

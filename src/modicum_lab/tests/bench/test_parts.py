"""Timings of Modicum's parts: what they compute, without the clock."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from modicum_lab.bench import tall
from modicum_lab.bench.parts import __main__ as parts
from modicum_lab.bench.parts import (
    digest,
    gpu,
    numpyro_models,
    passes,
    real_tables,
    scalable_subsampling,
    small_models,
    smooths,
    walk,
)
from modicum_lab.bench.stand_ins import plain
from modicum_lab.papers.references import Reference
from modicum_lab.tests import validation


def posterior(draws, weights=None):
    named = {"beta": draws[..., :-1], "intercept": draws[..., -1]}
    return mo.Posterior(named, {}, mo.Ledger(100), weights=weights)


@pytest.fixture
def draws():
    return 2 + 3 * np.random.default_rng(1).normal(size=(4, 2_000, 3))


def test_moments_of_each_chain_and_of_all(draws):
    each, together = gpu.moments(posterior(draws))
    np.testing.assert_allclose(each.mean, draws.mean(1))
    np.testing.assert_allclose(together.mean, draws.mean((0, 1)))
    np.testing.assert_allclose(together.sd, draws.std((0, 1)))


def test_signs_count_in_moments_and_effective_draws(draws):
    weights = np.ones(draws.shape[:2])
    far = draws.copy()
    far[:, :200], far[:, 200:400] = 50.0, 50.0
    weights[:, :200] = -1.0  # values with both signs cancel
    _, together = gpu.moments(posterior(far, weights))
    np.testing.assert_allclose(together.mean, draws[:, 400:].mean((0, 1)))
    plain = gpu.moments(posterior(far))[1]
    assert abs(plain.mean[0] - 2) > 5  # without signs it would be elsewhere


def test_independent_draws_are_all_effective_and_no_chain_is_off(draws):
    post = posterior(draws)
    each, together = gpu.moments(post)
    ess = gpu.effective(post, each.mean, together.sd)
    np.testing.assert_allclose(ess, 8_000, rtol=0.35)  # batch means of 8,000 draws
    worst, compared = gpu.worst_chain(each, together, ess)
    assert worst < 4.5
    assert compared == 12
    shifted = each._replace(mean=each.mean + 3.0)  # one posterior sd
    assert gpu.worst_chain(shifted, together, ess)[0] > 20


def test_the_command_line_of_the_accelerator_makes_its_cases():
    arguments = gpu.parser().parse_args(["--chains", "1", "8", "--hmc-chains", "2"])
    cases = gpu.cases(arguments)
    assert len(cases) == 4 * 2 * 2 + 1  # methods, precisions, chains; and HMC on all rows
    assert {case.thin for case in cases if case.name == "sghmc-cv"} == {10}
    assert (cases[-1].name, cases[-1].chains) == (gpu.ALL_ROWS, 2)
    both = gpu.cases(arguments, "flights")
    assert {(case.name, case.method.expert.fused) for case in both} == {
        ("perturbed", False),
        ("fused", "auto"),
    }


def test_the_pass_is_that_of_numpy():
    x, y, beta = passes.made_up(500)
    model = mo.models.Logistic(prior_scale=passes.PRIOR, intercept=False)
    _, gradient, hessian = mo.LogPosterior(model, mo.Rows(x=x, y=y)).hessian(beta)
    by_numpy = passes.in_numpy(x.astype(np.float64), y, beta)
    np.testing.assert_allclose(gradient, by_numpy[0], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(hessian, by_numpy[1], rtol=1e-4, atol=1e-3)


def test_an_unknown_part_is_a_sentence(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["parts", "iteration"])
    with pytest.raises(SystemExit):
        parts.main()
    assert (
        "there is no benchmark iteration; there are certainty, codes, digest, gpu"
        in capsys.readouterr().err
    )


def test_made_up_rows_are_the_same_in_memory_and_in_files(tmp_path):
    small = tall.Shape(4, 2, block=300)
    assert tall.write_parquet(tmp_path, 1000, small, part_blocks=2) > 0
    assert len(list(tmp_path.iterdir())) == 2
    read = mo.rows.ingest(tmp_path, tmp_path / "store", outcome="y", progressbar=False)
    held = tall.rows(1000, small)
    np.testing.assert_array_equal(read.slice(0, 1000)["x"], held.slice(0, 1000)["x"])
    np.testing.assert_array_equal(read.slice(0, 1000)["g3"], held.slice(0, 1000)["g3"])
    assert read.slice(0, 1000)["y"].sum() == held.slice(0, 1000)["y"].sum() > 0


@pytest.mark.slow
def test_a_digest_gives_the_posteriors_of_all_rows():
    """Also after rows are removed; the negative control compares without removing them."""
    (table,) = digest.run(quick=True)
    values = {what: value for what, value, *_ in table.rows}
    kept = {what: kept for what, _, _, kept in table.rows if "seconds" not in what}
    assert set(kept.values()) == {"yes", ""}
    assert len([what for what in values if "largest difference" in what]) == 4
    assert values["for comparison: means with no row removed"] > 2 * digest.MEANS


def test_models_of_numpyros_documentation_are_those_that_rows_are_simulated_from():
    pytest.importorskip("numpyro")
    for name, model in numpyro_models.MODELS.items():
        x, y = numpyro_models.simulated(name, 500, 3)
        assert x.shape == (500, 3)
        assert np.issubdtype(y.dtype, np.integer)
        taken = mo.from_numpyro(model, mo.Rows(data=x, obs=y), subsample_size=50)
        assert taken.init["theta"].shape == (3,)
        assert ("concentration" in taken.init) == (name == "negative binomial")


@pytest.mark.slow
def test_hmcecs_of_numpyro_is_compiled_before_it_is_timed_and_agrees(monkeypatch):
    pytest.importorskip("numpyro")
    monkeypatch.setattr(numpyro_models, "TUNE", 100)
    x, y = numpyro_models.simulated("logistic", 5_000, 3)
    ours = numpyro_models.by_modicum("logistic", x, y, 200, "hmc-ecs")
    theirs = numpyro_models.by_numpyro("logistic", x, y, 200, ours.draws)
    off = np.abs(ours.draws["theta"].mean((0, 1)) - theirs.draws["theta"].mean((0, 1)))
    sd = ours.draws["theta"].std((0, 1))
    allowed = 4 * sd * np.sqrt(1 / ours.effective + 1 / theirs.effective)
    assert np.all(off < allowed)
    assert not np.all(off + 3 * sd < allowed)  # negative control


@pytest.mark.parametrize(("share", "holds"), [(1.0, True), (0.02, False)])
def test_rows_per_step_bound_the_residuals(monkeypatch, share, holds):
    """Of the log-likelihood about the mode, at points of the length that the bound assumes."""
    monkeypatch.setattr(scalable_subsampling, "THIRD", share * scalable_subsampling.THIRD)
    data = plain(3_000, 4)
    d, bound, *_ = scalable_subsampling.rows_per_step(data)
    posterior = mo.LogPosterior(data.model, data.rows)
    mode = posterior.mode().point
    factor = np.linalg.inv(np.linalg.cholesky(-posterior.hessian(mode)[-1])).T
    x = np.column_stack([next(data.rows.chunks(3_000))["x"], np.ones(3_000)]).astype(float)
    z = np.random.default_rng(2).normal(size=(d, 20))
    move = x @ factor @ (z * np.sqrt(d) / np.linalg.norm(z, axis=0))
    at = (x @ mode)[:, None]
    chance = 1 / (1 + np.exp(-at))
    expansion = np.logaddexp(0, at) + chance * move + chance * (1 - chance) * move**2 / 2
    residuals = np.abs(np.logaddexp(0, at + move) - expansion).sum(axis=0)
    assert (residuals.max() < bound / 2) == holds  # half of it is for each end of a step


@pytest.mark.slow
def test_exact_draws_of_smooths_are_those_of_the_model():
    rng = np.random.default_rng(2)
    table = pd.DataFrame(rng.uniform(0, 1, (2_000, 3)), columns=list(smooths.COLUMNS))
    eta = np.sin(6 * table["hour"]) + table["distance"] ** 2 + np.cos(5 * table["day"])
    table["late"] = (rng.random(2_000) < 1 / (1 + np.exp(-eta))).astype(float)
    grid = smooths.grid_of(table)
    x, y = table[list(smooths.COLUMNS)].to_numpy(), table["late"].to_numpy()
    exact = smooths.exact_draws(x, y, grid.to_numpy(), np.random.default_rng(3))
    _, largest, least, most, scales, error = smooths.compared(table, grid, exact, 2.5)
    assert error < 0.05
    assert max(largest, scales) < 0.05 + 4 * error
    assert 0.85 < least < most < 1.15
    other = smooths.compared(table, grid, exact, 0.05)  # the control: another prior
    assert max(other[1], other[4]) > 0.5


def test_errors_of_the_default_are_in_posterior_sds(monkeypatch):
    data, truth = plain(20_000), []
    post = mo.sample(data.model, data.rows, draws=250, random_seed=2, progressbar=False)
    mean, sd = (np.append(of("beta"), of("intercept")) for of in (post.mean, post.sd))
    monkeypatch.setattr(real_tables, "reference", lambda _: truth[-1])
    for shift in (0.0, 1.0):  # in posterior sds; the second is the negative control
        truth.append(Reference(len(data.rows), 1_000, mean + shift * sd, sd, sd / 1_000**0.5))
        *_, off, noise, spread, _ = real_tables.line("plain", data, draws=250)
        assert (off < 5 * noise) == (shift == 0.0)
        assert spread < 20


@pytest.mark.slow
def test_the_default_on_two_models_of_posteriordb():
    path = Path(validation.__file__).with_name("posteriordb.json")
    table = small_models.by_default(json.loads(path.read_text())["posteriors"], quick=True)
    assert [row[0] for row in table.rows] == ["arK-arK", "earnings-earn_height"]
    assert max(row[5] for row in table.rows) < 4.5


def test_functions_that_run_are_counted_once_by_room():
    with walk.walked() as found:
        for _ in range(2):
            mo.Ledger(100)
            mo.priors.Normal(0, 1)
    table = walk.by_room({"it": sorted(found)}, "")
    assert {file.rsplit("/", 1)[1] for file, _ in found} >= {"ledger.py"}
    assert table.rows[-1] == ["all", f"{len(found)} ({len({file for file, _ in found})})"]
    assert [where for where, _ in table.rows[:-1]].count(walk.BESIDE) == 1
    with walk.walked() as none:
        json.dumps([1])  # of no room
    assert none == set()

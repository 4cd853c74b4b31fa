"""The DataTree for ArviZ: its groups, plots and files; sensitivities by ArviZ's distances."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import modicum as mo
from helpers.targets import Conjugate, all_of
from modicum.errors import SettingError
from modicum.models.over_draws import ModelPredictor, log_priors
from modicum.posterior import FitRows

mpl.use("Agg")
CONJUGATE = Conjugate()
N, SCALE = 200, 0.7
X = np.c_[all_of(CONJUGATE.rows)["x"], np.ones(N)]
Y = all_of(CONJUGATE.rows)["y"]
PRIOR_SD = np.r_[np.full(3, 0.3), 0.5]
LABELS = {"beta": ("dose", "age", "hour")}


def log_density(z):
    """Return the log-likelihood of all rows, and the log-prior."""
    likelihood = norm.logpdf(Y, z @ X.T, SCALE).sum(axis=-1)
    return likelihood, norm.logpdf(z, 0, PRIOR_SD).sum(axis=-1)


@pytest.fixture(scope="module")
def post():
    z = np.random.default_rng(1).multivariate_normal(CONJUGATE.mean, CONJUGATE.cov, (2, 200))
    draws = {"beta": z[..., :3], "intercept": z[..., 3]}
    stats = {"lp": sum(log_density(z)), "diverging": np.zeros((2, 200), bool)}
    about = {"predictor": ModelPredictor(CONJUGATE.model), "fit_rows": FitRows.of(CONJUGATE.rows)}
    ledger = mo.Ledger(rows=N)
    return mo.Posterior(draws, stats, ledger, labels=LABELS, rows=CONJUGATE.rows, **about)


@pytest.fixture(scope="module")
def tree(post):
    return post.to_datatree(sample=60)


def test_groups_and_coordinates(post, tree):
    assert set(tree.children) == {
        *("posterior", "sample_stats", "log_prior", "prior", "observed_data", "log_likelihood"),
        *("posterior_predictive", "prior_predictive"),
    }
    assert list(tree["posterior/beta"].coords["beta_dim_0"]) == ["dose", "age", "hour"]
    assert list(tree["prior/beta"].coords["beta_dim_0"]) == ["dose", "age", "hour"]
    ids = tree["observed_data"]["row"].values
    assert len(np.unique(ids)) == 60
    np.testing.assert_array_equal(tree["observed_data/y"], Y[ids])
    z = np.concatenate([post["beta"], post["intercept"][..., None]], axis=-1)
    likelihood = norm.logpdf(Y[ids], z @ X[ids].T, SCALE)
    np.testing.assert_allclose(tree["log_likelihood/y"], likelihood, atol=1e-10)
    np.testing.assert_allclose(tree["log_prior/all"], log_density(z)[1], atol=1e-10)
    assert tree["posterior_predictive/y"].shape == (2, 200, 60)
    spread = tree["prior/beta"].std().item()
    assert spread == pytest.approx(0.3, rel=4 / np.sqrt(2 * 3000))


def test_posterior_alone_where_that_is_asked_for(post):
    assert set(post.to_datatree(sample=0).children) == {"posterior", "sample_stats"}
    bare = mo.Posterior(post.draws, {}, post.ledger)
    assert set(bare.to_datatree().children) == {"posterior"}


def test_a_file_comes_back_as_it_was(post, tree, tmp_path):
    pytest.importorskip("h5netcdf")
    pytest.importorskip("h5py")
    import xarray as xr

    post.to_netcdf(tmp_path / "post.nc", sample=60)
    back = xr.open_datatree(tmp_path / "post.nc", engine="h5netcdf")
    assert set(back.children) == set(tree.children)
    np.testing.assert_array_equal(back["log_likelihood/y"], tree["log_likelihood/y"])


def test_a_file_without_its_library_is_refused(post, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingError, match="pip install h5netcdf"):
        post.to_netcdf("post.nc", sample=0)


PLOTS = (
    *("plot_dist", "plot_forest", "plot_trace", "plot_rank", "plot_autocorr", "plot_ess"),
    *("plot_ppc_dist", "plot_ppc_pit", "plot_prior_posterior", "plot_ppc_tstat", "plot_loo_pit"),
)


@pytest.mark.parametrize("name", PLOTS)
def test_plots_of_arviz_run(tree, name):
    plots = pytest.importorskip("arviz_plots")
    few = {} if "ppc" in name or "loo" in name else {"var_names": ["intercept"]}
    assert getattr(plots, name)(tree, backend="matplotlib", **few) is not None


def test_rows_left_out_are_drawn_by_arviz(post):
    plots = pytest.importorskip("arviz_plots")
    assert plots.plot_khat(post.loo(), backend="matplotlib") is not None


def test_counts_are_whole_numbers_to_arviz(tree):
    """ArviZ chooses between a rootogram and a density by their type."""
    plots = pytest.importorskip("arviz_plots")
    rows = mo.Rows(x=np.zeros((40, 1)), y=np.arange(40) % 4)
    draws = {"beta": np.zeros((1, 50, 1)), "intercept": np.zeros((1, 50))}
    about = {"predictor": ModelPredictor(mo.models.Poisson()), "rows": rows}
    counts = mo.Posterior(draws, {}, mo.Ledger(rows=40), **about).to_datatree()
    assert counts["posterior_predictive/y"].dtype == counts["observed_data/y"].dtype == np.int64
    assert plots.plot_ppc_rootogram(counts, backend="matplotlib") is not None
    assert tree["observed_data/y"].dtype == np.float64


# Sensitivity -------------------------------------------------------------------------------


def test_sensitivities_are_arvizs_of_all_rows(post):
    from arviz_base import from_dict
    from arviz_stats import psense_summary

    z = np.concatenate([post["beta"], post["intercept"][..., None]], axis=-1)
    groups = {
        "posterior": post.draws,
        "log_prior": {"all": log_density(z)[1]},
        "log_likelihood": {"y": norm.logpdf(Y, z @ X.T, SCALE)},
    }
    theirs = psense_summary(from_dict(groups))
    ours = post.sensitivity()
    assert ours.index[0] == "beta[dose]"
    np.testing.assert_allclose(ours["prior"], theirs["prior"], atol=2e-3)
    np.testing.assert_allclose(ours["likelihood"], theirs["likelihood"], atol=2e-3)
    by_pass = post.sensitivity(CONJUGATE.rows)
    np.testing.assert_allclose(by_pass[["prior", "likelihood"]], ours[["prior", "likelihood"]])


def test_a_sensitivity_of_one_draw_is_refused(post):
    one = mo.Posterior(
        {name: x[:1, :1] for name, x in post.draws.items()},
        {"lp": post.stats["lp"][:1, :1]},
        post.ledger,
        predictor=post.predictor,
    )
    with pytest.raises(SettingError, match=r"1 draw is too few .* at least 100"):
        one.sensitivity()


def test_a_strong_prior_is_seen_and_a_weak_one_is_not():
    tight = np.full(4, 0.02)

    def found(prior_sd):
        precision = X.T @ X / SCALE**2 + np.diag(prior_sd**-2.0)
        mean = np.linalg.solve(precision, X.T @ Y) / SCALE**2
        z = np.random.default_rng(2).multivariate_normal(mean, np.linalg.inv(precision), (2, 500))
        lp = norm.logpdf(Y, z @ X.T, SCALE).sum(-1) + norm.logpdf(z, 0, prior_sd).sum(-1)
        scale = float(prior_sd[0])
        model = mo.models.Gaussian(scale=SCALE, prior_scale=scale, intercept_scale=scale)
        draws = {"beta": z[..., :3], "intercept": z[..., 3]}
        about = {"predictor": ModelPredictor(model)}
        return mo.Posterior(draws, {"lp": lp}, mo.Ledger(rows=N), **about).sensitivity()

    assert (found(tight)["prior"] > 0.05).all()
    weak = found(np.full(4, 30.0))
    assert (weak["prior"] < 0.05).all()
    assert (weak["likelihood"] > 0.05).all()


def test_weights_become_repetition(post):
    z = post["beta"][..., 0]
    weights = np.exp((z - z.mean()) / z.std())  # moves the mean by one sd
    about = {"predictor": post.predictor, "rows": post.rows}
    weighted = mo.Posterior(post.draws, post.stats, post.ledger, weights=weights, **about)
    alike = weighted.resample()
    assert alike.weights is None
    error = weighted.sd("beta") / np.sqrt(400)
    assert (np.abs(alike.mean("beta") - weighted.mean("beta")) < error).all()
    assert (np.abs(post.mean("beta") - weighted.mean("beta")) > 10 * error).any()
    pd.testing.assert_frame_equal(weighted.sensitivity(), alike.sensitivity())
    with pytest.warns(mo.ModicumWarning, match="post.resample"):
        tree = weighted.to_datatree(sample=20)
    assert "posterior_predictive" in tree.children
    weighted.weights = np.where(weights > 0.2, 1.0, -1.0)
    with pytest.raises(SettingError, match="negative signs"):
        weighted.sensitivity()
    assert post.resample() is post


def test_effects_are_not_a_prior():
    """Scaling the prior moves effects only through their standard deviation."""
    rng = np.random.default_rng(1)
    ward = np.repeat(np.arange(20), 10)
    rows = mo.Rows(x=np.zeros((200, 1)), y=rng.normal(size=200), codes={"ward": ward})
    model = mo.models.Gaussian(scale=1.0, groups="ward").resolved(rows)
    draws = {
        "beta": rng.normal(size=(2, 50, 1)),
        "1|ward": rng.normal(size=(2, 50, 20)),
        "intercept": rng.normal(size=(2, 50)),
        "group_sd": rng.uniform(0.5, 2, size=(2, 50, 1)),
    }
    whole, without = log_priors(model, draws), log_priors(model, draws, effects=False)
    of_effects = norm.logpdf(draws["1|ward"], 0, draws["group_sd"]).sum(axis=-1)
    np.testing.assert_allclose(whole - without, of_effects, atol=1e-10)

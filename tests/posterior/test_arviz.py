"""The DataTree for ArviZ: its groups, plots and files; sensitivities by ArviZ's distances."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from scipy.stats import expon, halfnorm, norm

import modicum as mo
from helpers.posteriors import bare, drawn, fixed, made, named, normal_draws
from helpers.refusals import refused
from helpers.targets import Conjugate
from modicum.errors import SettingError
from modicum.models.over_draws import log_priors

mpl.use("Agg")
CONJUGATE = Conjugate()
X, Y, SCALE = CONJUGATE.x, CONJUGATE.y, CONJUGATE.scale
LABELS = {"beta": ("dose", "age", "hour")}


def log_likelihood(z):
    return norm.logpdf(Y, z @ X.T, SCALE)


def log_prior(z, prior_sd=CONJUGATE.prior_sd):
    return norm.logpdf(z, 0, prior_sd).sum(axis=-1)


def together(post):
    return np.concatenate([post["beta"], post["intercept"][..., None]], axis=-1)


def exactly(prior_sd, shape, seed, **about):
    """Return the posterior under normal priors with these sds, by exact draws."""
    draws = normal_draws(*CONJUGATE.of(X, Y, prior_sd), shape, seed)
    first, *_, last = map(float, prior_sd)
    model = mo.models.Gaussian(scale=SCALE, prior_scale=first, intercept_scale=last)
    post = made(model.resolved(CONJUGATE.rows), CONJUGATE.rows, draws, **about)
    z = together(post)
    post.stats["lp"] = log_likelihood(z).sum(axis=-1) + log_prior(z, prior_sd)
    return post


@pytest.fixture(scope="module")
def post():
    stats = {"diverging": np.zeros((2, 200), bool)}
    settings = {"method": "hmc-ecs", "versions": {"jax": "0"}}
    about = {"labels": LABELS, "stats": stats, "settings": settings}
    return exactly(CONJUGATE.prior_sd, (2, 200), 1, **about)


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
    np.testing.assert_array_equal(tree["posterior/beta"].sel(beta_dim_0="age"), post["beta[age]"])
    assert set(tree.sample_stats) == {"diverging", "lp"}
    assert tree.attrs["method"] == "hmc-ecs"
    assert tree.posterior.attrs["inference_library"] == "modicum"
    ids = tree["observed_data"]["row"].values
    assert len(np.unique(ids)) == 60
    np.testing.assert_array_equal(tree["observed_data/y"], Y[ids])
    z = together(post)
    np.testing.assert_allclose(tree["log_likelihood/y"], log_likelihood(z)[..., ids], atol=1e-10)
    np.testing.assert_allclose(tree["log_prior/all"], log_prior(z), atol=1e-10)
    assert tree["posterior_predictive/y"].shape == (2, 200, 60)
    spread = tree["prior/beta"].std().item()
    assert spread == pytest.approx(0.3, rel=4 / np.sqrt(2 * 3000))


def test_posterior_alone_where_that_is_asked_for(post):
    assert set(post.to_datatree(sample=0).children) == {"posterior", "sample_stats"}
    assert set(bare(None, post.draws).to_datatree().children) == {"posterior"}


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
    refused(SettingError, "pip install h5netcdf", post.to_netcdf, "post.nc", sample=0)


PLOTS = ("plot_forest", "plot_trace", "plot_ppc_dist", "plot_prior_posterior", "plot_loo_pit")


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
    counts = made(mo.models.Poisson(), rows, fixed(50, beta=[0], intercept=0)).to_datatree()
    assert counts["posterior_predictive/y"].dtype == counts["observed_data/y"].dtype == np.int64
    assert plots.plot_ppc_rootogram(counts, backend="matplotlib") is not None
    assert tree["observed_data/y"].dtype == np.float64


def test_counts_of_classes_are_observed_as_they_are_drawn():
    """The trees of multinomial fits were refused by xarray; y alone has the first class."""
    counts = np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0]])
    fields = dict(zip(("y", "b", "c"), counts.T, strict=True))
    rows = mo.Rows(x=np.zeros((2, 1)), trials=counts.sum(axis=1), **fields)
    model = mo.models.Multinomial(counts=("b", "c"))
    tree = made(model, rows, fixed(50, beta=np.zeros((2, 1)), intercept=[0, 9])).to_datatree()
    np.testing.assert_array_equal(tree["observed_data/y"], counts)
    drawn = tree["posterior_predictive/y"].values
    np.testing.assert_array_equal(drawn.sum(axis=-1), np.broadcast_to([4, 7], (1, 50, 2)))
    assert drawn[..., 1].mean() > 5  # nearly all are of the second class


# Sensitivity -------------------------------------------------------------------------------


def test_sensitivities_are_arvizs_of_all_rows(post):
    from arviz_base import from_dict
    from arviz_stats import psense_summary

    z = together(post)
    groups = {"posterior": post.draws, "log_prior": {"all": log_prior(z)}}
    groups["log_likelihood"] = {"y": log_likelihood(z)}
    theirs = psense_summary(from_dict(groups))
    ours = post.sensitivity()
    assert ours.index[0] == "beta[dose]"
    np.testing.assert_allclose(ours["prior"], theirs["prior"], atol=2e-3)
    np.testing.assert_allclose(ours["likelihood"], theirs["likelihood"], atol=2e-3)
    by_pass = post.sensitivity(CONJUGATE.rows)
    np.testing.assert_allclose(by_pass[["prior", "likelihood"]], ours[["prior", "likelihood"]])


def test_a_sensitivity_of_one_draw_is_refused(post):
    one = bare(CONJUGATE.model, named(together(post)[:1, :1]), stats={"lp": np.zeros((1, 1))})
    refused(SettingError, r"1 draw is too few .* at least 100", one.sensitivity)


def test_a_strong_prior_is_seen_and_a_weak_one_is_not():
    strong, weak = (exactly(np.full(4, sd), (2, 500), 2).sensitivity() for sd in (0.02, 30.0))
    assert (strong["prior"] > 0.05).all()
    assert (weak["prior"] < 0.05).all()
    assert (weak["likelihood"] > 0.05).all()


def test_weights_become_repetition(post):
    z = post["beta"][..., 0]
    weights = np.exp((z - z.mean()) / z.std())  # moves the mean by one sd
    weighted = replace(post, weights=weights)
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
    refused(SettingError, "negative signs", weighted.sensitivity)
    assert post.resample() is post


def test_priors_are_scaled_as_they_are_stated():
    """They are those of what draws show, and effects are no prior beyond their standard deviation.

    The logarithm of an sd, which is sampled, has a prior of its own, whose powers are no wider or
    narrower half-normals.
    """
    rng = np.random.default_rng(1)
    codes = {"ward": np.repeat(np.arange(20), 10)}
    rows = mo.Rows(x=rng.normal(size=(200, 1)), y=rng.normal(size=200), columns=["a"], codes=codes)
    half, rate = mo.priors.HalfNormal(0.5), mo.priors.Exponential(2.0)
    priors = {"a": rate, "scale": half, "group_sd": half, "intercept": mo.priors.Normal(0, 1)}
    groups = [mo.models.GroupTerm("ward", ("1", "a"))]
    model = mo.models.Gaussian(priors=priors, groups=groups).resolved(rows)
    draws = {name: x.astype(float) for name, x in drawn(model, rows).items()}
    r = draws["group_cor"][..., 0]
    stated = expon.logpdf(draws["beta"][..., 0], scale=0.5) + norm.logpdf(draws["intercept"])
    stated += halfnorm.logpdf(draws["scale"], scale=0.5) + np.log(1 - r**2)  # LKJ(2)
    stated += halfnorm.logpdf(draws["group_sd"], scale=0.5).sum(axis=-1)
    gap = log_priors(model, draws, stated=True) - stated
    np.testing.assert_allclose(gap - gap[0, 0], 0, atol=1e-9)
    slopes = [draws["beta"], draws["scale"][..., None], draws["group_sd"], 1 - r[..., None] ** 2]
    sd = draws["group_sd"][..., None, :]
    first, second = draws["1|ward"], draws["a|ward"]
    z = first / sd[..., 0], (second / sd[..., 1] - r[..., None] * first / sd[..., 0])
    root = np.sqrt(1 - r[..., None] ** 2)
    effects = norm.logpdf(z[0]) + norm.logpdf(z[1] / root) - np.log(root * sd[..., 0] * sd[..., 1])
    rest = np.log(np.concatenate(slopes, axis=-1)).sum(axis=-1) + effects.sum(axis=-1)
    np.testing.assert_allclose(log_priors(model, draws) - gap[0, 0] - stated, rest, atol=1e-8)

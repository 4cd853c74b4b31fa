"""Random walks and neighbouring regions in `mo.fit`, against Gaussian posteriors that are known."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.command import done, failed
from helpers.quadrature import away, mixed, shares
from helpers.refusals import refused
from modicum import plots
from modicum.errors import DataError, SettingError
from modicum.rows.formula.neighbours import steps

NOISE = 0.5
GAUSSIAN = mo.models.Gaussian(scale=NOISE)
PRIORS = {"common": mo.priors.Normal(0, 2), "intercept": mo.priors.Normal(0, 5)}
PRIORS["smooth_sd"] = mo.priors.HalfNormal(1)
# Two islands: a grid of three by three regions, and a chain of four.
GRID = [(i, j) for i in range(9) for j in range(i) if i - j == 3 or (i - j == 1 and i % 3)]
CHAIN = [(9, 10), (10, 11), (11, 12)]
PAIRS = pd.DataFrame([(f"r{min(p)}", f"r{max(p)}") for p in GRID + CHAIN], columns=["a", "b"])
REGIONS = tuple(dict.fromkeys([*PAIRS.to_numpy().ravel()]))


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(5)
    week, region = rng.integers(0, 12, 400), rng.integers(0, 13, 400)
    week[week == 7] = 8  # a week without rows
    y = np.sin(week / 3) + 0.2 * region + NOISE * rng.normal(size=400)
    names = [f"r{r}" for r in region]
    return pd.DataFrame({"week": week, "region": names, "y": y, "late": y > 1})


def fitted(formula, table, family=GAUSSIAN, **settings):
    if "car" in str(formula):
        settings = {"matrices": {"W": PAIRS}} | settings
    settings = {"priors": PRIORS, "random_seed": 1, "progressbar": False} | settings
    return mo.fit(formula, table, family, **settings)


def structure(pairs, size):
    """The matrix S of pairs of neighbours."""
    S = np.zeros((size, size))
    for j, k in pairs:
        S[[j, k], [j, k]] += 1
        S[[j, k], [k, j]] -= 1
    return S


def exact(codes, y, parts, size, scaled=True):
    """Posterior mean and sd of the effects and mean of their sd, from pseudo-inverses of S.

    Effects of all levels are normal with covariance sd^2 S^-, and a constant is added to those of
    each part but the first. The sd is integrated over a grid. The likelihood is that of the means
    of levels, since how rows vary about these says nothing of effects.
    """
    there, counts = np.unique(codes, return_counts=True)
    Z, y = np.eye(size)[there], np.bincount(codes, y)[there] / counts
    K, M = np.zeros((size, size)), np.zeros((size, size))
    for number, (levels, pairs) in enumerate(parts):
        local = [(levels.index(j), levels.index(k)) for j, k in pairs]
        inverse = np.linalg.pinv(structure(local, len(levels)))
        typical = np.exp(np.log(np.diag(inverse)).mean()) if scaled else 1.0
        K[np.ix_(levels, levels)] = inverse / typical
        if number:
            M[np.ix_(levels, levels)] = 4.0
    logs, means, variances, sds = [], [], [], np.exp(np.linspace(-4, 2, 300))
    for sd in sds:
        C = sd**2 * K + M
        V = Z @ C @ Z.T + 25.0 + NOISE**2 * np.diag(1 / counts)
        gain = np.linalg.solve(V, Z @ C).T
        logs.append(
            -np.linalg.slogdet(V)[1] / 2 - y @ np.linalg.solve(V, y) / 2 - sd**2 / 2 + np.log(sd)
        )
        means.append(gain @ y)
        variances.append(np.diag(C - gain @ Z @ C))
    return *mixed(logs, means, variances), shares(logs) @ sds


def walk(table, size=12, **how):
    levels = list(range(size))
    parts = [(levels, list(pairwise(levels)))]
    return exact(table["week"].to_numpy(), table["y"].to_numpy(), parts, size, **how)


def regions(table, islands=((range(9), GRID), (range(9, 13), CHAIN)), **how):
    codes = table["region"].str[1:].astype(int).to_numpy()
    parts = [(list(levels), pairs) for levels, pairs in islands]
    return exact(codes, table["y"].to_numpy(), parts, 13, **how)


def error(post, name, levels, answer):
    """Return how far effects and their sd are from the exact ones, in posterior sds."""
    mean, sd, scale = answer
    of_sd = abs(post.mean(f"smooth_sd[{name}]") - scale) / post.sd(f"smooth_sd[{name}]")
    return max(away(post.effects(name, levels=levels), mean, sd), float(of_sd))


@pytest.fixture(scope="module")
def of_regions(table):
    return fitted("y ~ car(region, W)", table, draws=2_000)


def test_effects_of_a_walk_are_those_of_the_pseudo_inverse(table):
    post = fitted("y ~ rw(week)", table, draws=2_000)
    answer = walk(table)
    assert error(post, "rw(week)", None, answer) < 0.08  # one Monte Carlo error: 0.02
    assert error(post, "rw(week)", None, walk(table, scaled=False)) > 0.3
    assert list(post.effects("rw(week)").index) == list(range(12))  # also the week without rows


def test_effects_of_regions_are_those_of_the_pseudo_inverse(of_regions, table):
    names = [f"r{i}" for i in range(13)]
    assert error(of_regions, "car(region)", names, regions(table)) < 0.08
    assert error(of_regions, "car(region)", names, regions(table, scaled=False)) > 0.3
    other = ((range(13), [*GRID, (8, 9), *CHAIN]),)  # a bridge between the islands
    assert error(of_regions, "car(region)", names, regions(table, other)) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nuts", "hmc-ecs"])
def test_chains_agree_with_the_pseudo_inverse(table, method):
    names = [f"r{i}" for i in range(13)]
    post = fitted("y ~ car(region, W)", table, draws=1_000, tune=500, method=method)
    assert error(post, "car(region)", names, regions(table)) < 0.15


def test_a_walk_goes_on_beyond_the_rows(table):
    longer = fitted("y ~ rw(week, upper_bound=14)", table, draws=2_000)
    assert error(longer, "rw(week)", None, walk(table, 15)) < 0.08
    sds = longer.effects("rw(week)", levels=[12, 13, 14])["sd"]
    assert np.all(np.diff(sds) > 0)


def test_islands_have_constants_and_the_first_has_the_intercept(of_regions):
    assert "beta[car(region)[part of r9]]" in of_regions.summary().index
    by_level = of_regions.effects("car(region)")
    assert tuple(by_level.index) == REGIONS
    assert abs(by_level["mean"][:9].sum()) < 1e-9
    assert by_level["mean"][9:].sum() > 1


def test_squares_and_weights_say_the_same_as_pairs(of_regions, table):
    W = pd.DataFrame(0.0, index=REGIONS, columns=REGIONS)
    for a, b in PAIRS.to_numpy():
        W.loc[a, b] = W.loc[b, a] = 2.0  # a common factor is nothing but another unit
    turned = PAIRS[["b", "a"]].set_axis(["a", "b"], axis=1)
    twice = pd.concat([PAIRS, turned], ignore_index=True).assign(w=3.0)
    for same in (W, twice):
        post = fitted("y ~ car(region, W)", table, matrices={"W": same}, draws=2_000)
        ours, theirs = post.effects("car(region)"), of_regions.effects("car(region)")
        assert np.allclose(ours.loc[theirs.index, "mean"], theirs["mean"], atol=0.02)


def test_posteriors_are_saved_and_predict_new_tables(of_regions, table, tmp_path):
    of_regions.save(tmp_path / "post")
    again = mo.Posterior.load(tmp_path / "post")
    new = pd.DataFrame({"region": ["r12", "r0"]})
    assert np.array_equal(again.predict(new).mean, of_regions.predict(new).mean)
    assert again.effects("car(region)").equals(of_regions.effects("car(region)"))
    mean = of_regions.effects("car(region)", levels=["r12", "r0"])["mean"].to_numpy()
    assert np.allclose(of_regions.predict(new).mean, of_regions.mean("intercept") + mean)
    refused(DataError, "holds 'r13' in row 0", again.predict, pd.DataFrame({"region": ["r13"]}))
    refused(DataError, "'r13' is not a level", again.effects, "car(region)", levels=["r13"])
    fewer = of_regions.update(data=table[:300])
    assert len(fewer.effects("car(region)")) == 13


def test_terms_stand_beside_others_and_in_other_predictors(table):
    post = fitted("y ~ rw(week) + (1 | region)", table, draws=500)
    assert {"smooth_sd[rw(week)]", "group_sd[region]"} <= set(post.summary().index)
    priors = mo.priors.default("late ~ car(region, W)", table, matrices={"W": PAIRS})
    assert priors["smooth_sd[car(region)]"] == "exponential(0.4)"


@pytest.mark.slow
def test_a_walk_of_the_noise(table):
    noise = np.exp(np.linspace(-1.5, 0.5, 12))
    table = table.assign(y=noise[table["week"]] * np.random.default_rng(1).normal(size=400))
    post = fitted(("y ~ 1", "scale ~ rw(week)"), table, "gaussian")
    log_noise = post["scale.intercept"].mean() + post.effects("scale.rw(week)")["mean"]
    assert np.abs(log_noise - np.log(noise)).max() < 0.5  # an sd of some 0.12 each


def test_ordered_categories_are_walked_along_in_their_order(table):
    names = ["low", "mid", "high", "top"]
    sizes = table.assign(size=pd.Categorical.from_codes(table["week"] % 4, names, ordered=True))
    post = fitted("y ~ rw(size)", sizes)
    assert list(post.effects("rw(size)").index) == names


def test_plots(of_regions, table):
    ax = plots.caterpillar(of_regions, "car(region)")
    assert {text.get_text() for text in ax.get_yticklabels()} == set(REGIONS)
    refused(SettingError, "no curve", plots.smooth, of_regions, "car(region)")
    line = plots.smooth(fitted("y ~ rw(week)", table)).lines[0]
    assert np.array_equal(line.get_xdata(), np.arange(12))


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (PAIRS[PAIRS["b"] != "r12"], "'r12', which has no neighbours"),
        (PAIRS.assign(c=1, d=1), "has 4 columns"),
        (PAIRS.assign(w=[-1.0, *[1.0] * (len(PAIRS) - 1)]), "weight -1"),
        (pd.concat([PAIRS, pd.DataFrame({"a": ["r0"], "b": ["r0"]})]), "its own neighbour"),
        (
            pd.DataFrame([("a", "b", 1), ("b", "a", 2)], columns=["a", "b", "w"]),
            "not symmetric: 'b' and 'a'|not symmetric: 'a' and 'b'",
        ),
    ],
)
def test_unusable_neighbours_are_refused(table, pairs, words):
    refused(DataError, words, fitted, "y ~ car(region, W)", table, matrices={"W": pairs})


def test_misuse_is_refused(table):
    def no(words, formula, table=table, error=SettingError, **settings):
        refused(error, words, fitted, formula, table, **settings)

    no("was not given", "y ~ car(region, V)", matrices=None)
    no("does not use", "y ~ week", matrices={"W": PAIRS})
    no("which does not say whose", "y ~ car(region, W)", matrices={"W": np.eye(3)})
    no("must map the names", "y ~ car(region, W)", matrices=PAIRS)
    no("a table of neighbours", "y ~ car(region)", matrices=None)
    no("term of its own", "y ~ rw(week):region")
    no("twice", "y ~ rw(week) + rw(week, upper_bound=20)")
    no("beyond the values", "y ~ rw(week, upper_bound=5)")
    no("equally spaced", "y ~ rw(x)", table.assign(x=np.sqrt(table["week"])))
    no("no order that is known", "y ~ rw(region)", error=DataError)
    post = fitted("y ~ rw(week)", table)
    refused(DataError, "holds 12 in row 0", post.predict, pd.DataFrame({"week": [12]}))


def test_values_between_those_that_occur_are_levels():
    assert steps([1, 4, 2], None, None) == (1, 2, 3, 4)
    assert np.allclose(steps([0.1, 0.3, 0.2, 0.6], None, 0.7), np.arange(1, 8) / 10)


def test_the_command_line_reads_pairs(table, tmp_path):
    numbered = table.assign(region=table["region"].str[1:].str.zfill(2))  # texts such as "01"
    numbered.to_csv(tmp_path / "t.csv", index=False)
    PAIRS.map(lambda name: name[1:].zfill(2)).to_csv(tmp_path / "w.csv", index=False)
    out = tmp_path / "out"
    command = ["fit", tmp_path / "t.csv", "y ~ car(region, W)", "--out", out, "-q"]
    command += ["--family", "gaussian", "--draws", "200", "--seed", "1"]
    done(*command, "--matrix", f"W={tmp_path / 'w.csv'}")
    levels = mo.Posterior.load(out / "posterior").effects("car(region)").index
    assert {"00", "12"} <= set(levels)
    assert "NAME=FILE" in failed(*command, "--overwrite", "--matrix", "W")

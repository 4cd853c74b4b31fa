"""The command line, run in this process on small files."""

import inspect
import json
import re

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import modicum as mo
from helpers.cases import cases
from helpers.command import done, failed, run
from helpers.refusals import refused, unwarned
from helpers.slow import slowly
from modicum.cli import app
from modicum.cli.fitting import build_model, chosen_columns, read_rows

SHORT = ["--draws", "100", "--tune", "100", "--chains", "2", "--seed", "1", "--method", "hmc"]
DRAWN = [*SHORT, "--method", "laplace", "--tune", "0"]  # no chains: nothing is compiled
USUAL = ["--outcome", "well", "--categorical", "ward=B"]  # the same columns: compiled once


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    x = rng.normal(size=300).round(3)
    return pd.DataFrame(
        {
            "dose": x,
            "ward": rng.choice(["A", "B", "C"], 300),
            "well": (rng.random(300) < 1 / (1 + np.exp(-x))).astype(int),
        }
    )


@pytest.fixture
def csv(table, tmp_path):
    path = tmp_path / "patients.csv"
    table.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def fitted(table, tmp_path_factory):
    """Return the folder of a fit without a formula, and what the command printed."""
    folder = tmp_path_factory.mktemp("fitted")
    table.to_csv(folder / "patients.csv", index=False)
    result = run("fit", folder / "patients.csv", *USUAL, "--out", folder / "run", *SHORT)
    return folder / "run", result


def test_fit_prints_and_writes(fitted):
    out, result = fitted
    assert result.exit_code == 0, result.output
    assert "Read 300 rows" in result.stdout
    assert "ward: 3 levels, compared with B" in result.stdout
    assert "hmc: 2 chains of 100 draws after 100 of warm-up, seed 1" in result.stdout
    assert "passes over 300 rows" in result.stdout
    assert re.search(r"beta\[ward\[A\]\] +-?\d", result.stdout)
    post = mo.Posterior.load(out / "posterior")
    table = pd.read_csv(out / "summary.csv", index_col="parameter")
    assert list(table.index) == list(post.summary().index)
    np.testing.assert_allclose(table["mean"], post.summary()["mean"])
    assert not (out / "checkpoint").exists()  # the run is complete


def test_quiet_prints_nothing(csv, tmp_path):
    result = done("fit", csv, *USUAL, "--out", tmp_path / "run", "--quiet", *DRAWN)
    assert result.stdout == ""


@pytest.mark.parametrize("suffix", ["parquet", *slowly("feather")])
def test_fit_reads_other_formats_and_families(table, tmp_path, suffix):
    path = tmp_path / f"patients.{suffix}"
    getattr(table, f"to_{suffix}")(path)
    result = done(
        *("fit", path, "--outcome", "dose", "--predictors", "well", "--family", "student-t"),
        *("--df", "5", "--out", tmp_path / "run", *DRAWN),
    )
    assert "scale" in result.stdout


def test_resumes_to_the_same_draws(csv, tmp_path, monkeypatch):
    command = ["fit", csv, *USUAL, *SHORT]
    done(*command, "--out", tmp_path / "whole")

    from modicum.run.checkpoint import Checkpoint

    append = Checkpoint.append

    def dies(self, *arguments):
        append(self, *arguments)
        raise KeyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "append", dies)
        assert isinstance(run(*command, "--out", tmp_path / "killed").exception, KeyError)
    saved = json.loads((tmp_path / "killed" / "checkpoint" / "run.json").read_text())
    assert saved["iterations"] > 0

    result = done(*command, "--out", tmp_path / "killed")
    assert "Continuing from the checkpoint" in result.stdout
    one, other = (mo.Posterior.load(tmp_path / f / "posterior") for f in ("whole", "killed"))
    np.testing.assert_array_equal(one["beta"], other["beta"])


def test_stopped_before_the_first_draw(csv, tmp_path, monkeypatch):
    def stopped(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("modicum.run.checkpoint.Checkpoint.remember", stopped)
    result = run("fit", csv, *USUAL, *SHORT, "--out", tmp_path / "run")
    assert result.exit_code == 130
    assert result.stderr.endswith("Stopped: run the same command again to continue.\n")


def test_a_checkpoint_of_another_run_is_refused(csv, tmp_path):
    command = ["fit", csv, *USUAL]
    command += ["--out", tmp_path / "run", "--checkpoint", tmp_path / "kept", *SHORT]
    done(*command)
    assert (tmp_path / "kept" / "run.json").is_file()  # named by the user, so it stays
    other = failed(*command, "--prior-scale", "1", "--overwrite")
    assert "belongs to another run" in other


def test_rows_are_read_again_only_when_something_changes(csv, tmp_path):
    say, about = Console(quiet=True), tmp_path / "rows" / "rows.json"

    def made(*columns):
        choice = chosen_columns("well", columns, None, None, None, None)
        return len(read_rows(str(csv), choice, tmp_path, say)), about.stat().st_mtime_ns

    first = made("dose")
    assert made("dose") == first
    csv.write_text(csv.read_text().replace("ward", "wing") + "0.5,A,1\n")
    assert made("dose")[0] == 301
    with pytest.raises(mo.SettingError):
        made("dose", "ward")
    assert made("dose")[0] == 301  # a failed read does not affect the next one


def test_ingest_then_fit_the_store(csv, tmp_path):
    store = tmp_path / "store"
    options = ["--outcome", "well", "--categorical", "ward", "--dtype", "float64"]
    made = done("ingest", csv, store, *options)
    assert "Read 300 rows" in made.stdout
    again = failed("ingest", csv, store, *options)
    assert "--overwrite" in again
    done("fit", store, "--out", tmp_path / "run", *DRAWN)
    text = failed("fit", store, "--outcome", "dose", "--out", tmp_path / "other", *SHORT)
    assert "is a row store" in text


def test_summary_of_a_saved_run(fitted, csv, tmp_path):
    result = done("summary", fitted[0], "--prob", "0.5")
    assert "beta[dose]" in result.stdout
    assert "25%" in result.stdout
    odds = json.loads(run("summary", fitted[0], "--exponentiate", "--json").stdout)
    plain = json.loads(run("summary", fitted[0], "--json").stdout)
    ends = [s["parameters"]["beta[dose]"]["5%"] for s in (plain, odds)]
    assert ends[1] == pytest.approx(np.exp(ends[0]), rel=1e-3)
    asked = done("hypothesis", fitted[0], "dose > 0", "ward[A] < ward[C]")
    assert "dose > 0" in asked.stdout
    assert "there is no 'dos'" in failed("hypothesis", fitted[0], "dos > 0")
    assert "there is no posterior" in failed("summary", tmp_path / "nowhere")
    assert "is not a posterior" in failed("summary", csv)
    wrong = failed("predict", fitted[0], csv, "--out", tmp_path / "p.csv")
    assert "not from a fit with a formula" in wrong


COLUMNS, FORMULA = ("--outcome", "well", "--predictors", "dose"), ("well ~ dose",)


@cases(
    "options said",
    ((), "--outcome"),
    ((*COLUMNS, "--scale", "2"), "--scale does not apply"),
    ((*COLUMNS, "--groups", "explicit"), "needs a formula with group terms"),
    ((*FORMULA, "--groups", "some"), "must be explicit or integrate"),
    ((*FORMULA, "--set", "desing=u"), "did you mean 'design'"),
    ((*FORMULA, "--set", "design=best"), "design must be"),
    ((*FORMULA, "--method", "hmc", "--set", "trajectory=0"), "trajectory must be"),
    ((*FORMULA, "--method", "nuts", "--set", "subsample=3"), "is not a setting of nuts"),
    ((*FORMULA, "--outcome", "well"), "leave out --outcome"),
    ((*FORMULA, "--no-intercept"), "write '0 +'"),
    ((*FORMULA, "--missing", "no"), "--missing must be"),
)
def test_what_cannot_be_fitted_is_one_line(csv, tmp_path, options, said):
    assert said in failed("fit", csv, *options, "--out", tmp_path / "run")


def test_version_and_help():
    assert run("--version").stdout.strip() == f"modicum {mo.__version__}"
    done("--help")


def test_options_name_columns_by_commas_or_repeated():
    choice = chosen_columns("y", ["a,b", "c"], None, None, ["a", "c=no such"], None)
    assert choice["predictors"] == ["a", "b", "c"]
    assert choice["categorical"] == {"a": None, "c": "no such"}


def test_families_by_name():
    options = {"prior_scale": 1.0, "intercept": False, "scale": 2.0, "df": 7.0, "link": None}
    made = build_model("Student_T", options)
    assert made == mo.models.StudentT(prior_scale=1.0, intercept=False, scale=2.0, df=7.0)
    made = build_model("asymmetric-laplace", {"quantile": 0.9}, ["smoothing=0.2"])
    assert made == mo.models.AsymmetricLaplace(quantile=0.9, smoothing=0.2)
    assert build_model("binomial", {"link": "probit"}) == mo.models.Binomial(link="probit")
    assert build_model("ordinal", {}, ["classes=4"]) == mo.models.Ordinal(classes=4)


@cases(
    "family options settings words",
    ("poisson", {"quantile": 0.9}, [], "--quantile does not apply to the family poisson"),
    ("poisson", {}, ["df=3"], "--family-set df=3 is not a setting of the family poisson"),
    ("student-t", {}, ["priors=3"], "a setting of the family student-t.*scale, scale_prior"),
    ("student-t", {"df": 3.0}, ["df=4"], "df is given by --df and by --family-set"),
)
def test_unknown_settings_of_families_are_refused(family, options, settings, words):
    refused(mo.SettingError, words, build_model, family, options, settings)


def test_every_family_and_its_settings_are_in_the_help():
    from typer.main import get_command

    fit = get_command(app).commands["fit"]
    options = {option.name: option for option in fit.params}
    assert all(name in options["family"].help for name in mo.models.FAMILIES)
    assert {"quantile", "link", "classes", "groups", "family_set", "scale", "df"} < options.keys()
    assert options["method"].default == inspect.signature(mo.sample).parameters["method"].default


def test_a_report_that_cannot_be_written_is_refused_before_any_draw(csv, tmp_path):
    assert "is not a folder" in failed("fit", csv, "--outcome", "well", "--out", csv)
    (tmp_path / "run" / "report.html").mkdir(parents=True)
    said = failed("fit", "no.csv", "n ~ 1", "--report", "--out", tmp_path / "run")
    assert "report.html' is a folder" in said


@pytest.mark.slow
def test_a_family_with_a_field_of_its_own_and_groups(tmp_path):
    """`trials` is part of the formula, and `--groups` is passed on."""
    rng = np.random.default_rng(1)
    games = rng.integers(1, 9, 200)
    frame = pd.DataFrame(
        {"team": rng.choice(list("abcd"), 200), "games": games, "wins": rng.binomial(games, 0.4)}
    )
    frame.to_csv(tmp_path / "g.csv", index=False)
    formula = "wins | trials(games) ~ 1 + (1 | team)"
    family = ("--family", "binomial", "--link", "probit", "--groups", "explicit")
    run("fit", tmp_path / "g.csv", formula, *family, "--out", tmp_path / "run", *SHORT)
    post = mo.Posterior.load(tmp_path / "run" / "posterior")
    assert "link='probit'" in post.settings["model"]
    assert post.tuning["groups"]["value"] == "explicit"
    frame.iloc[:6].to_csv(tmp_path / "known.csv", index=False)
    frame.iloc[:6].assign(team="z").to_csv(tmp_path / "unseen.csv", index=False)

    def predicted(name, *options):
        given = ("predict", tmp_path / "run", tmp_path / name, "--out", tmp_path / "p.csv")
        return [*given, "--overwrite", *options]

    means = []
    for name, groups in (("known.csv", "known"), ("unseen.csv", "new"), ("unseen.csv", "any")):
        done(*predicted(name, "--groups", groups))
        means.append(pd.read_csv(tmp_path / "p.csv")["mean"].to_numpy())
    np.testing.assert_allclose(means[0], post.predict(frame.iloc[:6]).mean)
    np.testing.assert_array_equal(means[1], means[2])
    assert np.abs(means[0] - means[1]).max() > 0.01
    assert "'z' in row 0, a group that the rows" in failed(*predicted("unseen.csv"))
    assert "known or new or any, not all" in failed(*predicted("known.csv", "--groups", "all"))


def test_a_formula_is_fitted_summarised_and_predicted(csv, table, tmp_path):
    """The same posterior as `mo.fit`, and predictions for another file."""
    out, formula = tmp_path / "run", "well ~ dose + ward"
    said = done("fit", csv, formula, "--out", out, "--set", "pool=250", "--report", *DRAWN)
    report = (out / "report.html").read_text()
    assert formula in report
    assert "<figcaption><strong>dose</strong>" in report  # the effect of a column, from the file
    assert "report.html" in said.stdout
    post = mo.Posterior.load(out / "posterior")
    method, settings = mo.Laplace(pool=250), {"draws": 100, "chains": 2, "random_seed": 1}
    with unwarned():  # of so few draws
        mine = mo.fit(formula, table, method=method, progressbar=False, **settings)
    np.testing.assert_allclose(mine.draws["beta"], post.draws["beta"], rtol=1e-8)
    page = json.loads(run("summary", out, "--json").stdout)
    assert page["settings"]["formula"] == formula
    assert page["parameters"]["beta[dose]"]["mean"] == post.summary().loc["beta[dose]", "mean"]
    new = table.drop(columns="well").iloc[:7]
    new.to_parquet(tmp_path / "new.parquet")
    for ending, read in ((".parquet", pd.read_parquet), (".csv", pd.read_csv)):
        target = tmp_path / f"p{ending}"
        done("predict", out, tmp_path / "new.parquet", "--out", target)
        np.testing.assert_allclose(read(target)["mean"], post.predict(new).mean)
    again = failed("predict", out, tmp_path / "new.parquet", "--out", tmp_path / "p.csv")
    assert "add --overwrite" in again
    new.assign(id=[f"00{i}" for i in range(7)], upper=1).to_csv(tmp_path / "ids.csv", index=False)
    to = ["predict", out, tmp_path / "ids.csv", "--out", tmp_path / "ids.parquet"]
    done(*to, "--keep", "id,ward", "--quantiles", "0.5")
    kept = pd.read_parquet(tmp_path / "ids.parquet")
    assert kept.columns.tolist() == ["id", "ward", "mean", "lower", "upper", "50%"]
    assert kept["id"][6] == "006"  # a name, not the number 6
    np.testing.assert_allclose(kept["50%"], post.predict(new, quantiles=0.5).quantiles[0.5])
    for option, why in (("--keep=idd", "did you mean 'id'"), ("--keep=upper", "rename yours")):
        assert why in failed(*to, "--overwrite", option)
    new.assign(ward="Z").to_parquet(tmp_path / "new.parquet")
    nowhere = tmp_path / "missing" / "q.csv"
    said = failed("predict", out, tmp_path / "new.parquet", "--out", nowhere)
    assert "there is no folder" in said
    wrong = failed("predict", out, tmp_path / "new.parquet", "--out", tmp_path / "q.csv")
    assert "holds 'Z' in row 0" in wrong
    lenient = ["--newlevels", "reference", "--out", tmp_path / "q.csv"]
    done("predict", out, tmp_path / "new.parquet", *lenient)
    assert not list(tmp_path.glob(".*.part"))


def test_outcomes_that_are_text_are_reported(csv, table, tmp_path):
    told = table.assign(well=np.where(table["well"], "yes", "no"))
    told.to_csv(csv, index=False, encoding="utf-16")
    short = [*DRAWN, "--encoding", "utf-16"]
    said = run("fit", csv, "well ~ dose + ward", "--out", tmp_path / "run", *short)
    assert "well: 0 is no, 1 is yes" in said.stdout
    predict = ["predict", tmp_path / "run", csv, "--out", tmp_path / "p.csv"]
    done(*predict, "--encoding", "utf-16")
    assert len(pd.read_csv(tmp_path / "p.csv")) == 300
    assert "encoding" in failed(*predict, "--overwrite")

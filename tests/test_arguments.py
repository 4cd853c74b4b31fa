"""Arguments of other packages: errors say what they are called here, or where that is set."""

import inspect
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.cases import cases
from helpers.refusals import refused
from modicum import plots
from modicum.arguments import INSTEAD, OTHER_NAMES
from modicum.errors import ModicumWarning, UnknownArgumentError, argument, as_options, warn
from modicum.sklearn import Regressor

TABLE = {"x": [0.0, 1.0, 2.0], "y": [0, 1, 0]}
ROWS = mo.Rows(x=np.ones((3, 1)), y=np.ones(3))


@cases(
    "foreign words",
    ("n_chains", "fit() has no argument 'n_chains': it is called chains here."),
    ("prior", "it is called priors here."),
    ("df", "it is called data here."),
    ("rows", "it is called data here."),
    ("iter", "give tune and draws, per chain."),
    ("exposure", "add offset(log(COLUMN)) to the formula"),
    ("sigma", "mo.models.Gaussian(scale=...)"),
    ("drwas", "fit() has no argument 'drwas' (did you mean 'draws'?)."),
    ("zzz", "it has formula, data, family, priors"),
)
def test_fit_says_what_an_argument_is_called(foreign, words):
    refused(UnknownArgumentError, re.escape(words), mo.fit, "y ~ x", TABLE, **{foreign: 1})


@cases(
    "foreign words",
    ("df", "it is called rows here"),
    ("priors", "mo.models.Logistic(priors={...})"),
    ("sample_weight", "mo.Rows(x=X, y=y, weight=w)"),
    ("n_chains", "sample() has no argument 'n_chains': it is called chains here."),
)
def test_sample_has_answers_of_its_own(foreign, words):
    # like Python's own error
    refused(TypeError, re.escape(words), mo.sample, mo.models.Logistic(), ROWS, **{foreign: 1})
    if foreign in ("df", "priors"):  # a digest takes no chains
        refused(TypeError, re.escape(words), mo.digest, mo.models.Logistic(), ROWS, **{foreign: 1})


@cases(
    "question foreign words",
    ("summary", "var_names", "summary() has no argument 'var_names': it is called names here."),
    ("summary", "hdi_prob", "intervals are equal-tailed here: prob=..."),
    ("summary", "round_to", "summary().round(2)"),
    ("predict", "newdata", "predict() has no argument 'newdata': it is called rows here."),
    ("predict", "type", "predictive() draws outcomes"),
    ("predict", "missing", "drop rows with missing values beforehand, as by table.dropna()"),
    ("predict", "allow_new_levels", "groups='any' takes new groups"),
    ("predictive", "num_samples", "it is called draws here."),
    ("predictive", "re_formula", "'known', 'new' or 'any'"),
)
def test_so_have_questions_to_a_posterior(question, foreign, words):
    with pytest.raises(UnknownArgumentError, match=re.escape(words)):
        getattr(mo.Posterior, question)(None, **{foreign: 1})


def test_so_have_pictures_and_reports():
    """A histogram has no table, and a table is no title."""
    with pytest.raises(UnknownArgumentError, match=r"'data'; it has post, name, bins, ax\.$"):
        plots.marginal(None, "x", data=TABLE)
    words = "title must be text or None, not a DataFrame"
    refused(mo.SettingError, words, mo.Posterior.report, None, "a.html", pd.DataFrame(TABLE))


def test_the_table_names_what_there_is():
    asked = (mo.Posterior.summary, mo.Posterior.predict, mo.Posterior.predictive)
    doors = {name for door in (mo.fit, mo.sample, mo.interval, *asked) for name in _arguments(door)}
    assert set(OTHER_NAMES) <= {*doors, *inspect.signature(Regressor).parameters}
    foreign = {name for names in OTHER_NAMES.values() for name in names.split()}
    # `data` in one is `rows` in the other, scikit-learn has its own name for seeds, and
    # `prior` of `predictive` is not a list of priors
    assert foreign.isdisjoint(doors - {"data", "rows", "random_seed", "prior"})
    called = re.findall(r"mo\.(models\.)?(\w+)\((\w+)=", " ".join(INSTEAD.values()))
    assert len(called) > 8
    for family, name, setting in called:
        kind = getattr(mo.models if family else mo, name)
        assert setting in inspect.signature(kind).parameters or name == "Rows", (name, setting)


def _arguments(function):
    return inspect.signature(function).parameters


def test_warnings_point_at_the_line_that_called(monkeypatch):
    note = ModicumWarning("r-hat", "chains differ", "draw more")
    here = {"warn": warn, "note": note, "__name__": "modicum.somewhere"}
    exec("def inner(): warn(note)\ndef outer(): inner()", here)  # as if in the library
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        here["outer"]()
    assert caught[0].filename == __file__


def test_options_of_the_command_line_are_named_in_their_own_thread_only():
    """Blocks of two threads overlap: neither changes what the other says."""
    with ThreadPoolExecutor(2) as pool, as_options():
        assert argument("overwrite", True) == "--overwrite"
        assert pool.submit(argument, "overwrite", True).result() == "overwrite=True"
    begun, ended = Event(), Event()

    def command():
        with as_options():
            begun.set()
            assert ended.wait(10)
            return argument("groups", "new")

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(command)
        assert begun.wait(10)
        with as_options():
            ended.set()
            assert running.result() == "--groups new"
            assert argument("groups", "new") == "--groups new"
        assert argument("groups", "new") == "groups='new'"


@cases(
    "make sentence",
    (lambda: mo.NUTS(target_accept=2), "between 0 and 1 or None, not 2; 0.8 is usual."),
    (lambda: mo.HMC(trajectory=0), "must be a positive number, not 0; 1.2 is usual."),
    (lambda: mo.HMCECS(ddof=0), "estimator='paper'"),
    (lambda: mo.HMCECS(fused=False), "expert settings of HMC-ECS: mo.HMCECS(expert="),
    (lambda: mo.NUTS(adapt_delta=0.9), "mo.NUTS(target_accept=...)"),
    (lambda: mo.SignedHMCECS(centre="c"), "not 'c'; None chooses it automatically."),
    (lambda: mo.priors.default(ROWS, 3), "family must be a name or a family, not int."),
)
def test_refusals_of_settings_keep_their_hints(make, sentence):
    refused(mo.SettingError, re.escape(sentence), make)

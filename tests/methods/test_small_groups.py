"""NUTS on few rows in small groups takes steps short enough near a zero scale."""

import numpy as np
import pandas as pd
import pytest

import modicum as mo
from helpers.interrupted import planned
from modicum.methods.full_data import ACCEPT, CAREFUL
from modicum.runtime import in_double_precision

PEOPLE, DAYS = 18, 10


def sleepers(intercepts, slopes, seed=5):
    """Return a table like lme4's sleepstudy: 18 people, ten days each."""
    rng = np.random.default_rng(seed)
    person, day = np.repeat(np.arange(PEOPLE), DAYS), np.tile(np.arange(DAYS), PEOPLE)
    level = 250 + rng.normal(0, intercepts, PEOPLE)[person]
    slope = 10 + rng.normal(0, slopes, PEOPLE)[person]
    reaction = level + slope * day + rng.normal(0, 25, len(day))
    return pd.DataFrame({"reaction": reaction, "day": day, "person": person.astype(str)})


def fitted(table, method):
    formula, settings = "reaction ~ day + (1 + day | person)", {"draws": 2_000, "tune": 400}
    return mo.fit(
        formula, table, "gaussian", method=method, random_seed=1, progressbar=False, **settings
    )


def rate_for(intercepts, slopes):
    """Return the target acceptance rate that NUTS chooses."""
    table = sleepers(intercepts, slopes)
    rows = mo.Rows(
        x=table[["day"]].to_numpy(float), y=table["reaction"].to_numpy(), columns=["day"],
        codes={"person": table["person"].astype(int).to_numpy()},
    )  # fmt: skip
    groups = [mo.models.GroupTerm("person", ("1", "day"))]
    plan, _ = planned(mo.models.Gaussian(groups=groups), rows, mo.NUTS())
    return plan.kernel.target_accept


@in_double_precision
def test_steps_are_planned_by_what_data_say_of_the_effects():
    assert rate_for(0.01, 0.01) == CAREFUL
    assert rate_for(60, 15) == ACCEPT  # easy cases are not slowed down


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::modicum.ModicumWarning")
def test_steps_are_shorter_where_data_say_little_of_the_effects():
    weak, clear = sleepers(0.01, 0.01), sleepers(60, 15)
    careful, usual = fitted(weak, "nuts"), fitted(weak, mo.NUTS(target_accept=0.8))
    assert careful.stats["acceptance_rate"].mean() > 0.9
    # over twelve seeds .001 on average, and .01 at the usual rate
    assert careful.stats["diverging"].mean() < 0.004
    assert careful.stats["diverging"].mean() < usual.stats["diverging"].mean() / 2
    plain = fitted(clear, "nuts")
    assert plain.stats["acceptance_rate"].mean() < 0.88  # easy cases are not slowed down
    assert not plain.stats["diverging"].any()

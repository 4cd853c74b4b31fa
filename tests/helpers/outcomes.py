"""Simulated rows for every family: one design, with outcomes that the family itself draws.

That they have scipy's distributions is tested in `models/families/test_drawing.py`.
"""

import numpy as np

import modicum as mo

SLOPES, INTERCEPT = np.array([0.5, -0.3]), 0.3
EXTRAS = {  # further parameters, on the coordinate on which each is sampled
    "log_precision": np.log(8),
    "logit_edge_chance": -1.4,
    "logit_one_share": 0.4,
    "log_overdispersion": np.log(0.5),
    "logit_zero_inflation": -0.85,
    "logit_zero_chance": -0.85,
    "log_shape": np.log(2),
    "log_scale": np.log(0.7),
    "log_dispersion": 0.0,
    "log_concentration": np.log(3),
    **{"log_gap_0001": np.log(0.9), "log_gap_0002": np.log(1.1)},
    **{"shift_0001": 0.9, "shift_0002": 2.0},
}


def family_rows(name, n=400, seed=1):
    """Return rows whose outcomes are drawn from the family called `name`; times are censored."""
    rng = np.random.default_rng(seed)
    ordered = name in ("Ordinal", "StoppingRatio", "AdjacentCategory")
    model = family(name, **({"classes": 4} if ordered else {}))
    x = rng.normal(size=(n, 2))
    given = {"trials": rng.integers(1, 9, n)} if "trials" in model.drawn_given else {}
    extras = [np.full(n, EXTRAS[extra]) for extra in model.extras]
    y = model.draw_outcomes(rng, np.column_stack([INTERCEPT + x @ SLOPES, *extras]), given)
    if name in ("Exponential", "Weibull"):
        until = rng.exponential(3.0, n)
        y, given = np.minimum(y, until), {"event": (y < until) * 1.0}
    return mo.Rows(x=x, y=y, **given)


def family(name, **settings):
    return getattr(mo.models, name)(**settings)

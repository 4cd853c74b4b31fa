"""Posteriors of made-up draws: what they are asked can be computed by hand."""

from dataclasses import replace

import numpy as np

import modicum as mo
from modicum.models import Target
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import FitRows


def made(model, rows, draws, stats=None, **about):
    """Return a posterior as a fit of `model` to `rows` would, with these draws."""
    about = {"rows": rows, "fit_rows": FitRows.of(rows)} | about
    return bare(model, draws, len(rows), stats=stats or {}, **about)


def bare(model, draws, n=1, stats=None, **about):
    """Return a posterior of n rows that knows its model (None: not even that), but no rows."""
    predictor = None if model is None else ModelPredictor(model)
    return mo.Posterior(draws, stats or {}, mo.Ledger(rows=n), predictor=predictor, **about)


def normal_draws(mean, cov, shape=(4, 500), seed=1):
    """Return independent normal draws of coefficients, of which the intercept comes last."""
    return named(np.random.default_rng(seed).multivariate_normal(mean, cov, shape))


def named(z):
    """Name coefficients (..., d), of which the intercept comes last."""
    return {"beta": z[..., :-1], "intercept": z[..., -1]}


def fixed(number=100, chains=1, **values):
    """Return draws that all have these values."""
    return {
        name: np.tile(np.asarray(x, float), (chains, number, *[1] * np.ndim(x)))
        for name, x in values.items()
    }


def at_nodes(model, rows, draws):
    """Return a model of integrated effects with its nodes at the first of the draws."""
    target, _ = Target.of(model, model.units(rows))
    first = {name: x[0, :1] for name, x in draws.items()}
    return replace(model, nodes_at=tuple(target.ravel_reported(first)[0]))

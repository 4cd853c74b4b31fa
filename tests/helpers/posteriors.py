"""Posteriors of made-up draws: what they are asked can be computed by hand."""

from dataclasses import replace

import numpy as np

import modicum as mo
from modicum.fit import model_for
from modicum.models import Target
from modicum.models.over_draws import ModelPredictor
from modicum.posterior import FitRows
from modicum.rows.reading import read_formula


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


def drawn(model, rows, shape=(1, 60), seed=1):
    """Return draws of all parameters, normal about the point where searches start."""
    target, start = Target.of(model, rows)
    points = start + np.random.default_rng(seed).normal(size=(*shape, len(start)))
    reported = target.reports(points.reshape(-1, len(start)))
    return {name: x.reshape(*shape, *x.shape[1:]) for name, x in reported.items()}


def of_formula(formula, table, model, draws=None, how=None, **settings):
    """Return a posterior as a fit of a formula would: with normal draws, unless they are given."""
    rows = read_formula(formula, table, progressbar=False, **settings)
    model = model_for(rows, model, groups=how).model.resolved(rows)
    return made(model, rows, drawn(model, rows) if draws is None else draws, table=table)


def at_nodes(model, rows, draws):
    """Return a model of integrated effects with its nodes at the first of the draws."""
    target, _ = Target.of(model, model.units(rows))
    first = {name: x[0, :1] for name, x in draws.items()}
    return replace(model, nodes_at=tuple(target.ravel_reported(first)[0]))

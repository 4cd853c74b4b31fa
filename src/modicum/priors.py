"""Priors: distributions for a model's parameters, and the defaults.

Examples
--------
>>> import modicum as mo
>>> model = mo.models.Logistic(
...     priors={"common": mo.priors.Normal(0, 1), "age": mo.priors.Laplace(0, 0.5)}
... )
>>> dict(model.priors)["age"]
Laplace(mean=0.0, scale=0.5)
"""

from __future__ import annotations

from modicum.errors import SettingError
from modicum.models import LinearPredictorModel, Target
from modicum.models.families import family_named
from modicum.models.priors import (
    LKJ,
    Exponential,
    Flat,
    Gamma,
    HalfCauchy,
    HalfNormal,
    Horseshoe,
    Laplace,
    LogNormal,
    Normal,
    Prior,
    StudentT,
)
from modicum.models.target import check_model_and_rows
from modicum.rows import Rows

__all__ = [
    "LKJ",
    "Exponential",
    "Flat",
    "Gamma",
    "HalfCauchy",
    "HalfNormal",
    "Horseshoe",
    "Laplace",
    "LogNormal",
    "Normal",
    "Prior",
    "StudentT",
    "default",
]


def default(rows: Rows, family: str | LinearPredictorModel = "logistic") -> dict[str, str]:
    """Return the priors that a fit to `rows` would use, by one pass over them.

    Parameters
    ----------
    rows
        The data.
    family
        A name ("logistic", "poisson" ...), or a family with settings; defaults then fill in the
        priors that it does not set.

    Returns
    -------
    dict of str to str
        A description of each parameter's prior, as in `Posterior.tuning["priors"]` after a fit.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rows = mo.Rows(x=np.array([[30], [40], [50]]), y=np.array([0, 1, 1]), columns=["age"])
    >>> mo.priors.default(rows, family="logistic")["beta"]
    'normal(0, 0.3062)'
    """
    model = family_named(family)() if isinstance(family, str) else family
    if not isinstance(model, LinearPredictorModel):
        raise SettingError(f"family must be a name or a family, not {type(model).__name__}.")
    check_model_and_rows(model, rows)
    target, _ = Target.of(model, rows)
    return target.model.describe_priors(rows)

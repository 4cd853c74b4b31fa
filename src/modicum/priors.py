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

from modicum.errors import SettingError, suggestion
from modicum.models import FAMILIES, LinearPredictorModel, Target
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
    if not isinstance(rows, Rows):
        raise SettingError(
            f"default priors need mo.Rows, not {type(rows).__name__}; convert a table with "
            "mo.Rows.from_table(table, outcome='y')."
        )
    if isinstance(family, str):
        if family not in FAMILIES:
            raise SettingError(
                f"there is no family {family!r}{suggestion(family, FAMILIES)}; the families are "
                f"{', '.join(FAMILIES)}."
            )
        family = FAMILIES[family]()
    if not isinstance(family, LinearPredictorModel):
        raise SettingError(f"family must be a name or a family, not {type(family).__name__}.")
    target, _ = Target.of(family, rows)
    return target.model.describe_priors(rows)

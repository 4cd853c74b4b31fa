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

from collections.abc import Mapping, Sequence
from typing import Any

from modicum.arguments import names_checked
from modicum.errors import SettingError
from modicum.fit import Table, model_for, one_text
from modicum.models import LinearPredictorModel, Target
from modicum.models import priors as distributions
from modicum.models.families import as_family, terms_by_class
from modicum.models.multilevel import HoldEffects
from modicum.models.priors import *  # noqa: F403 - the names in its `__all__`
from modicum.models.priors import Prior
from modicum.models.target import check_model_and_rows
from modicum.rows import Rows
from modicum.rows.reading import Missing, read_formula

__all__ = ["default"]
__all__ += distributions.__all__


@names_checked
def default(
    formula: str | Sequence[str] | Rows,
    data: Table | LinearPredictorModel | None = None,
    family: str | type[LinearPredictorModel] | LinearPredictorModel = "logistic",
    *,
    priors: Mapping[str, Prior] | None = None,
    weights: str | None = None,
    offset: str | None = None,
    matrices: Mapping[str, object] | None = None,
    groups: HoldEffects | None = None,
    missing: Missing = "refuse",
) -> dict[str, str]:
    """Return the priors that a fit would use, by reading the table as the fit would.

    Parameters
    ----------
    formula, data
        As in `mo.fit`; or `mo.Rows` alone, and the family after them: ``default(rows, "poisson")``.
    family, priors, weights, offset, matrices, groups, missing
        As in `mo.fit`: a name ("logistic", "poisson" ...) or a family with settings, and `priors`,
        which replace defaults.

    Returns
    -------
    dict of str to str
        A description of each parameter's prior, as in `Posterior.tuning["priors"]` after a fit.

    Examples
    --------
    >>> import numpy as np, pandas as pd, modicum as mo
    >>> table = pd.DataFrame({"age": [30, 40, 50], "ward": ["a", "b", "a"], "well": [0, 1, 1]})
    >>> for name, prior in mo.priors.default("well ~ age + (1 | ward)", table).items():
    ...     print(name, "~", prior)
    beta ~ normal(0, 0.3062)
    intercept ~ normal(0, 10), of the predictor at the mean of the columns
    group_sd[ward] ~ half-normal(2.5)
    """
    if isinstance(formula, Sequence):
        if data is None:
            raise SettingError("a formula needs a table: priors.default(formula, table, family).")
        text = one_text(formula)
        how: dict[str, Any] = {"offset": offset, "weights": weights, "missing": missing}
        how |= {"progressbar": False, "matrices": matrices, "by_class": terms_by_class(family)}
        rows = read_formula(text, data, **how)
        model = model_for(rows, family, priors, groups).model
    else:
        chosen: Any = family if data is None else data  # `default(rows, family)`
        own, rows = as_family(chosen), formula
        if own is None:
            raise SettingError(f"family must be a name or a family, not {type(chosen).__name__}.")
        model = own
        check_model_and_rows(model, rows)
    units = model.units(rows)
    target, _ = Target.of(model, units)
    return target.model.describe_priors(units)

"""Models whose rows a digest can hold, and whether a model has the likelihood of a digest."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError
from modicum.models import BaseModel, Target
from modicum.models.linear_predictor import family_of
from modicum.models.model import Batch, Params
from modicum.models.priors.units import MomentSums
from modicum.models.tracing import expression_digest
from modicum.rows import Rows
from modicum.runtime import in_double_precision

TRACED = 8  # rows of the batch on which user-defined functions are traced


def require_digestible(model: BaseModel, rows: Rows) -> None:
    """Refuse models whose rows cannot be expanded individually about a mode."""
    if model.integrated_group is not None:
        raise SettingError(
            "a digest keeps rows, and a model that integrates out group effects needs all rows of "
            "a group together; keep the effects explicit (groups='explicit')."
        )
    if not model.has_mode or rows.dtype.kind == "u":
        raise SettingError(
            f"a digest is an expansion about the posterior mode, and {type(model).__name__} has no "
            "mode that represents its posterior; sample it from the rows."
        )


@in_double_precision
def identity_of(target: Target, rows: Rows) -> str:
    """Return a text that identifies the likelihood, whatever the priors."""
    likelihood = target.likelihood
    if not likelihood.model.users_functions:
        return likelihood.model.identity()
    theta = likelihood.unravel(np.zeros(likelihood.size))
    batch = {
        name: jax.ShapeDtypeStruct((TRACED, *shape), rows.dtypes[name])
        for name, shape in rows.fields.items()
    }

    def computed(theta: Params, batch: Batch) -> tuple[jax.Array, Params]:
        values, pull_back = jax.vjp(lambda t: likelihood.model.log_likelihood(t, batch), theta)
        return values, pull_back(jnp.ones_like(values))

    traced, _ = expression_digest(computed, theta, batch)
    return f"{likelihood.model.identity()} computing {traced} by JAX {version('jax')}"


def refuse_other_likelihood(model: BaseModel, ours: str, theirs: str) -> None:
    """Refuse a model whose likelihood differs from that of the digest."""
    if ours == theirs:
        return
    own = model.users_functions and f"by JAX {version('jax')}" not in theirs
    if own and " computing " in theirs:
        raise SettingError(
            "the digest was made with another version of JAX, so user-defined likelihoods cannot "
            f"be compared (this is JAX {version('jax')}): use that version, or make the digest "
            "again with mo.digest."
        )
    family = theirs.partition("(")[0]
    other_likelihood = f"{family} with other settings" if family == type(model).__name__ else family
    raise SettingError(
        f"the digest was made for the likelihood of another model ({other_likelihood}) than this "
        f"{type(model).__name__}, and only priors can be changed without the data: make a digest "
        "of this model with mo.digest(model, rows)."
    )


def with_known_data(
    model: BaseModel, rows: Rows, units: MomentSums | None, classes: int | None
) -> BaseModel:
    """Return the model with what depends on all rows: prior units and number of classes."""
    if classes is not None and open_classes(model):
        model = replace(model, classes=classes)  # type: ignore[type-var]
    if model.has_predictors and units is not None:
        known: BaseModel = family_of(model).resolved(rows, units.moments())
    else:
        known = model.resolved(rows)
    if known.constrained:
        raise SettingError(
            "a digest is an expansion in coefficients that may be any number, and the prior of one "
            "has bounds, or is that of mo(...); leave them out, or sample from the rows."
        )
    return known


def open_classes(model: BaseModel) -> bool:
    """Whether the model takes its number of classes from the rows."""
    named = is_dataclass(model) and "classes" in {f.name for f in fields(model)}
    return named and getattr(model, "classes", 0) is None

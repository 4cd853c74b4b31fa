"""Which likelihood a digest is of: priors may change without the data, a likelihood may not."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError
from modicum.models import BaseModel, IntegratedEffects, LinearPredictorModel, Target
from modicum.models.base import Batch, Params
from modicum.models.priors.units import MomentSums
from modicum.models.tracing import expression_digest
from modicum.rows import Rows
from modicum.runtime import in_double_precision

__all__ = ["identity_of", "refuse_other_likelihood", "require_digestible", "with_known_data"]

TRACED = 8  # rows: what functions of one's own compute is traced on so many


def require_digestible(model: BaseModel, rows: Rows) -> None:
    """Refuse models whose rows cannot be expanded one by one about a mode."""
    if isinstance(model, IntegratedEffects):
        raise SettingError(
            "a digest keeps rows, and a model that integrates the effects of groups out needs all "
            "rows of a group together; hold the effects explicitly (groups='explicit')."
        )
    if not model.has_mode or rows.dtype.kind == "u":
        raise SettingError(
            f"a digest is expanded about the posterior's mode, and {type(model).__name__} has no "
            "mode that stands for all of its posterior; sample it from the rows."
        )


@in_double_precision
def identity_of(target: Target, rows: Rows) -> str:
    """A text that differs where likelihoods differ, whatever the priors are."""
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
    """Refuse a model of another likelihood than that of the digest."""
    if ours == theirs:
        return
    own = model.users_functions and f"by JAX {version('jax')}" not in theirs
    if own and " computing " in theirs:
        raise SettingError(
            "the digest was made with another version of JAX, by which functions of your own are "
            f"known, so that whether the likelihood is the same cannot be told (this is JAX "
            f"{version('jax')}): use that version, or make the digest anew with mo.digest."
        )
    family = theirs.partition("(")[0]
    other_likelihood = f"{family} with other settings" if family == type(model).__name__ else family
    raise SettingError(
        f"the digest was made for the likelihood of another model ({other_likelihood}) than this "
        f"{type(model).__name__}: priors can be changed without the data, a likelihood cannot; "
        "make a digest of this model with mo.digest(model, rows)."
    )


def with_known_data(
    model: BaseModel, rows: Rows, units: MomentSums | None, classes: int | None
) -> BaseModel:
    """The model with what all rows say of it: the units of its priors, the number of classes."""
    if classes is not None and _classes(model) == "open":
        model = replace(model, classes=classes)  # type: ignore[type-var]
    if isinstance(model, LinearPredictorModel) and units is not None:
        return model.resolved(rows, units.moments())
    return model.resolved(rows)


def _classes(model: BaseModel) -> str:
    named = is_dataclass(model) and "classes" in {f.name for f in fields(model)}
    return "open" if named and getattr(model, "classes", 0) is None else "known"


def open_classes(model: BaseModel) -> bool:
    """Whether the number of classes is left to the rows."""
    return _classes(model) == "open"

"""The name of a fitted model, and the code that repeats the fit."""

from __future__ import annotations

from collections.abc import Mapping

from modicum.models import FAMILIES, BaseModel, IntegratedEffects


def model_name(model: BaseModel | None) -> str:
    """Return the name of a model."""
    if model is None:
        return "an unknown model"
    if isinstance(model, IntegratedEffects):
        return f"{model_name(model.family)}, with effects of {model.group} integrated out"
    return type(model).__name__


def code_for(
    settings: Mapping[str, object],
    fields: Mapping[str, tuple[str, ...]],
    model: str,
    chains: int,
    draws: int,
) -> str:
    """Return Python code that repeats the fit on the same data, without priors and settings.

    `fields` are those that the formula's encoding adds to the outcome.
    """
    names = {kind.__name__: name for name, kind in FAMILIES.items()}
    first = model.split(",")[0]
    arguments = f"draws={draws}, tune={settings.get('tune')}, chains={chains}"
    if settings.get("thin", 1) != 1:
        arguments += f", thin={settings['thin']}"
    arguments += f", random_seed={settings.get('seed')}"
    method = f'method="{settings.get("method")}"'
    if "formula" in settings:
        formula = str(settings["formula"])
        family = f'family="{names[first]}"' if first in names else "family=..."
        for argument, field in (("offset", "offset"), ("weights", "weight")):
            for column in fields.get(field, ()):
                if f"{field}({column})" not in formula.replace(" ", ""):
                    family += f", {argument}={column!r}"
        call = f"mo.fit({formula!r}, data, {family}, {method},\n              {arguments})"
    else:
        model_code = f"mo.models.{first}()" if first in names else "model"
        call = f"mo.sample({model_code}, rows, {method},\n                 {arguments})"
    note = "# with the priors and settings above, where they are not the defaults"
    return f"import modicum as mo\n\n{note}\npost = {call}"

"""The name of a fit, the code that repeats it, and its box in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modicum.errors import ModicumWarning
from modicum.markup import box, table, tag
from modicum.models import FAMILIES, BaseModel, IntegratedEffects
from modicum.posterior.draws import Draws
from modicum.posterior.summary import summarise

__all__ = ["code_for", "model_name", "posterior_box"]

SHOWN = 12  # scalars shown in a notebook


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


def posterior_box(source: Draws, title: str, warnings: Sequence[ModicumWarning]) -> str:
    """Return what a notebook shows of a posterior: its first scalars, and its warnings."""
    frame = summarise(source, _first_names(source), 0.9).head(SHOWN)
    lines = [
        (name, *(f"{line[c]:.4g}" for c in frame.columns[:4]), f"{line['ess_bulk']:,.0f}",
         f"{line['r_hat']:.3f}")
        for name, line in frame.iterrows()
    ]  # fmt: skip
    head = ("", *frame.columns[:4], "ess_bulk", "r_hat")
    total = sum(x[0, 0].size for x in source.draws.values())
    more = f"{total - len(frame):,} more scalars: post.summary()" if total > len(frame) else None
    doubts = tag("ul", [tag("li", str(doubt)) for doubt in warnings]) if warnings else None
    return box(tag("b", title.strip("<>")), table(head, lines), more and tag("div", more), doubts)


def _first_names(source: Draws) -> list[str]:
    """Return the first parameters, enough for `SHOWN` scalars; effects of groups come last."""
    ordered = sorted(source.draws, key=lambda name: "|" in name)
    names: list[str] = []
    count = 0
    for name in ordered:
        if count < SHOWN:
            names.append(name)
            count += int(source.draws[name][0, 0].size)
    return names

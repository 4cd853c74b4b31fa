"""The subsample of perturbed HMC-ECS: m, G and K, from a pilot study or set by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modicum.estimators import Perturbed
from modicum.methods.ecs_study import Composition, Study
from modicum.tuning import Choice, choose

__all__ = ["PAPER_BLOCKS", "choose_for", "perturbed"]

PAPER_BLOCKS = {"blocks": 100, "refreshes": 1}


def choose_for(
    study: Study, fixed: Mapping[str, int] | None = None, fixed_by: str = "set by hand"
) -> Choice:
    """Choose m, G and K; what is given in `fixed` or set by the user stays."""
    method = study.method
    names = ("subsample", "blocks", "refreshes")
    settings = {name: getattr(method, name) for name in names if getattr(method, name) is not None}
    given = dict(fixed or {}) | settings
    needs = (study.pilot, study.steps, method.bias, method.ddof)
    return choose(*needs, fixed_by=fixed_by, fresh=study.fresh, **given)


def perturbed(method: Any, choice: Choice) -> Composition:
    """The perturbed estimator on m rows in G blocks."""
    return Composition(Perturbed(method.ddof), choice.subsample, choice.blocks, choice.refreshes)

"""What the EWSG paper's experiments share: many short chains of a method, quietly, on the books."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from modicum.errors import ModicumWarning
from modicum.methods import Method
from modicum.models import BaseModel
from modicum.posterior import Posterior
from modicum.rows import Rows
from modicum.sample import sample
from modicum_lab.papers.experiment import Result

__all__ = ["LABELS", "label_of", "realisations", "states"]

LABELS = {
    "sgld": "SGLD",
    "psgld": "pSGLD",
    "svrg-ld": "SVRG-LD",
    "sghmc": "SGHMC",
    "cp-sghmc": "CP-SGHMC",
    "ewsg": "EWSG",
    "flymc": "FlyMC",
}
"""Methods as the paper writes them."""


def label_of(name: str) -> str:
    """Return a method, with what is said of it after a comma, as the paper writes it.

    Examples
    --------
    >>> label_of("psgld, h / n")
    'pSGLD, h / n'
    """
    first, *rest = name.split(", ")
    return ", ".join([LABELS.get(first, first), *rest])


MATTERS = ("gradient-noise", "chains-diverged")  # the warnings that are part of the finding


def realisations(
    result: Result, name: str, model: BaseModel, rows: Rows, method: Method | None, **settings: Any
) -> Posterior:
    """Run `method`, or the default one; enter its cost and what Modicum warned of in `result`.

    Every chain is one realisation. The paper's step sizes are meant to be too large for exactness,
    so that warnings are part of the finding and not of the screen.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModicumWarning)
        given = {"tune": 0} | settings
        post = sample(model, rows, method=method, progressbar=False, **given)
    result.ledger[name] = result.ledger.get(name, 0) + post.ledger.evaluations
    told = [doubt for doubt in post.warnings if doubt.code in MATTERS]
    for doubt in told[:1]:
        note = f"Modicum's guard on {name}: {doubt}"
        if not any(known.startswith(f"Modicum's guard on {name}:") for known in result.notes):
            result.notes.append(note)
    return post


def states(post: Posterior, now: dict[str, np.ndarray]) -> Posterior:
    """One state of every realisation, name to (chain, *shape), as a posterior to be scored."""
    return replace(post, draws={name: x[:, None] for name, x in now.items()}, stats={})

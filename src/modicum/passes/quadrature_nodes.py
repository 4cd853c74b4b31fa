"""Places of the quadrature nodes at the anchor, computed in one pass and kept with the groups."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from modicum.ledger import Ledger
from modicum.models import IntegratedEffects, Target
from modicum.models.base import Params
from modicum.passes.engine import Engine
from modicum.passes.groups import group_places, group_places_by_numpy
from modicum.passes.mode import find_mode
from modicum.passes.sums import Sums
from modicum.rows import Rows
from modicum.rows.groups import GroupedRows, NodePlaces

CLOSE = 0.5  # tolerance of a start for the mode, in posterior standard deviations


def with_nodes(sums: Sums, t: np.ndarray) -> tuple[Target, GroupedRows]:
    """Find the mode of each group's integrand at `t` in one pass; keep it with the groups."""
    target, groups = sums.target, sums.rows
    model = target.model
    assert isinstance(model, IntegratedEffects)
    assert isinstance(groups, GroupedRows)
    sums.enter("nodes", 1, "gradient", passes=1)
    chunk_places = group_places_by_numpy if sums.by_numpy else group_places
    point = np.array(t, np.float64)[: target.likelihood.size]
    places = sums.engine.map_rows(partial(chunk_places, target.likelihood), point, groups, "nodes")
    nodes = NodePlaces(places, point)
    fixed = replace(model, nodes_at=tuple(float(value) for value in t))
    return replace(target, model=fixed), groups.with_nodes(nodes)


def units_of(target: Target, rows: Rows, engine: Engine, ledger: Ledger) -> Rows:
    """Return the units of a fitted model: its rows, or its groups with the nodes of the fit."""
    units = target.model.units(rows)
    model = target.model
    if not isinstance(model, IntegratedEffects) or model.nodes_at is None:
        return units
    return with_nodes(Sums(target, units, engine, ledger), np.array(model.nodes_at))[1]


def common_start(sums: Sums, start: np.ndarray, seed: int) -> np.ndarray:
    """Find a start for the mode: coefficients as if there were no groups, and small effects."""
    model, groups = sums.target.model, sums.rows
    assert isinstance(model, IntegratedEffects)
    assert isinstance(groups, GroupedRows)
    ledger = Ledger(rows=len(groups.members))
    target, first = Target.of(model.family, groups.members)
    if target.size == 0:  # y ~ 0 + (1 | g), without a scale
        return start
    plain = Sums(target, groups.members, sums.engine, ledger)
    at, _ = find_mode(plain, first, seed, within=CLOSE)
    sums.enter("mode", ledger.sweeps, "hessian", passes=ledger.sweeps)
    theta: Params = dict(sums.target.unravel(start)) | target.unravel(at.point)
    return sums.target.ravel(theta)

"""Passes over all rows: an engine adds up values, gradients and Hessians of chunks, in order.

From these sums come the posterior mode, its curvature, and the anchor, about which rows are
expanded.
"""

from modicum.passes.anchor import Anchor, anchor_at, anchor_at_mode
from modicum.passes.engine import Engine, EngineChoice, Hosts, LocalEngine, engine_for
from modicum.passes.integrated_groups import common_start, units_of, with_nodes
from modicum.passes.mode import NEAR, ModeRecord, find_mode
from modicum.passes.other_modes import Modes, Starts
from modicum.passes.sums import Quadratic, Sums

__all__ = [
    "NEAR",
    "Anchor",
    "Engine",
    "EngineChoice",
    "Hosts",
    "LocalEngine",
    "ModeRecord",
    "Modes",
    "Quadratic",
    "Starts",
    "Sums",
    "anchor_at",
    "anchor_at_mode",
    "common_start",
    "engine_for",
    "find_mode",
    "units_of",
    "with_nodes",
]

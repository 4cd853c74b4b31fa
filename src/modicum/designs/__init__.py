"""How rows are drawn: uniformly, by their expected residual, or so many of each group."""

from modicum.designs.base import Design, Drawn
from modicum.designs.stratified import Stratified, strata_tables
from modicum.designs.uniform import Uniform
from modicum.designs.weighted import Weighted, draw_on_host, weight_tables

__all__ = [
    "Design",
    "Drawn",
    "Stratified",
    "Uniform",
    "Weighted",
    "draw_on_host",
    "strata_tables",
    "weight_tables",
]

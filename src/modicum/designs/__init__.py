"""How rows are drawn: uniformly, or in proportion to their expected residual."""

from modicum.designs.base import Design, Drawn
from modicum.designs.uniform import Uniform
from modicum.designs.weighted import Weighted, weight_tables

__all__ = ["Design", "Drawn", "Uniform", "Weighted", "weight_tables"]

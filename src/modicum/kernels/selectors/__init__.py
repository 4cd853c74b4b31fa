"""Selectors: which of the drawn batches is used. A new one is a file here and a line below."""

from modicum.kernels.selectors.base import Selector
from modicum.kernels.selectors.exponential import Exponential
from modicum.kernels.selectors.plain import Plain

__all__ = ["SELECTORS", "Exponential", "Plain", "Selector"]

SELECTORS: dict[str, type[Selector]] = {"plain": Plain, "exponential": Exponential}

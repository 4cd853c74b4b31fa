"""Choosing what the user need not: subsample size, products, blocks, refreshes, weights."""

from modicum.tuning.expected import expected_residuals
from modicum.tuning.pilot import Pilot, study
from modicum.tuning.products import Products, choose_products
from modicum.tuning.sign_theory import NormalFactors
from modicum.tuning.subsample import Choice, choose, refresh_acceptance

__all__ = [
    "Choice",
    "NormalFactors",
    "Pilot",
    "Products",
    "choose",
    "choose_products",
    "expected_residuals",
    "refresh_acceptance",
    "study",
]

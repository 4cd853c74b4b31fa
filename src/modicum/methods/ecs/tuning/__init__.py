"""Choosing what the user need not: subsample size, products, blocks, refreshes."""

from modicum.methods.ecs.tuning.block_poisson import Products, choose_products
from modicum.methods.ecs.tuning.coordinates import Expansion, choose_coordinates
from modicum.methods.ecs.tuning.rehearsal import Rehearsal, log_ratios, proxy_ratios, rehearse
from modicum.methods.ecs.tuning.residuals import Pilot, study
from modicum.methods.ecs.tuning.sign_theory import NormalFactors
from modicum.methods.ecs.tuning.subsample import Choice, choose, refresh_acceptance

__all__ = [
    "Choice",
    "Expansion",
    "NormalFactors",
    "Pilot",
    "Products",
    "Rehearsal",
    "choose",
    "choose_coordinates",
    "choose_products",
    "log_ratios",
    "proxy_ratios",
    "refresh_acceptance",
    "rehearse",
    "study",
]

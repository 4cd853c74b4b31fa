"""Choosing what the user need not: subsample size, products, blocks, refreshes, certain rows."""

from modicum.methods.ecs.tuning.block_poisson import Products, choose_products
from modicum.methods.ecs.tuning.certainty import Certainty, cheapest_certainty
from modicum.methods.ecs.tuning.coordinates import Expansion, choose_coordinates
from modicum.methods.ecs.tuning.rehearsal import SIDE_BY_SIDE, Rehearsal, proxy_ratios, rehearse
from modicum.methods.ecs.tuning.residuals import Pilot, Residuals, evaluate, study
from modicum.methods.ecs.tuning.sign_theory import NormalFactors
from modicum.methods.ecs.tuning.subsample import Choice, choose, refresh_acceptance

__all__ = [
    "SIDE_BY_SIDE",
    "Certainty",
    "Choice",
    "Expansion",
    "NormalFactors",
    "Pilot",
    "Products",
    "Rehearsal",
    "Residuals",
    "cheapest_certainty",
    "choose",
    "choose_coordinates",
    "choose_products",
    "evaluate",
    "proxy_ratios",
    "refresh_acceptance",
    "rehearse",
    "study",
]

"""Automatic choice of subsample size, products, blocks, refreshes and certainty rows."""

from modicum.methods.ecs.tuning.block_poisson import Products, choose_products
from modicum.methods.ecs.tuning.certainty import Certainty, cheapest_certainty
from modicum.methods.ecs.tuning.coordinates import Expansion, choose_coordinates
from modicum.methods.ecs.tuning.coreset import DISTANCES, Coreset, fit_coreset
from modicum.methods.ecs.tuning.moments import Pilot
from modicum.methods.ecs.tuning.pilot_chains import (
    FAR,
    OF_LEVELS,
    ONE_BY_ONE,
    SIDE_BY_SIDE,
    PilotChains,
    log_proxies,
    run_pilot_chains,
    straightened,
)
from modicum.methods.ecs.tuning.pilot_draws import SHARED, PilotDraws, pilot_draws
from modicum.methods.ecs.tuning.residuals import Residuals, Tails, evaluate, study
from modicum.methods.ecs.tuning.sign_theory import NormalFactors
from modicum.methods.ecs.tuning.subsample import Choice, choose, refresh_acceptance

__all__ = [
    "DISTANCES",
    "FAR",
    "OF_LEVELS",
    "ONE_BY_ONE",
    "SHARED",
    "SIDE_BY_SIDE",
    "Certainty",
    "Choice",
    "Coreset",
    "Expansion",
    "NormalFactors",
    "Pilot",
    "PilotChains",
    "PilotDraws",
    "Products",
    "Residuals",
    "Tails",
    "cheapest_certainty",
    "choose",
    "choose_coordinates",
    "choose_products",
    "evaluate",
    "fit_coreset",
    "log_proxies",
    "pilot_draws",
    "refresh_acceptance",
    "run_pilot_chains",
    "straightened",
    "study",
]

"""Stochastic-gradient MCMC: integrators, gradient estimators and selectors under their names."""

from modicum.methods.sgmcmc.family import StochasticGradient
from modicum.methods.sgmcmc.named import NAMED
from modicum.methods.sgmcmc.step_size import Decay

__all__ = ["NAMED", "Decay", "StochasticGradient"]

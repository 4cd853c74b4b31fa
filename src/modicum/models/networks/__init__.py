"""Bayesian neural networks: layered ones, and those of the user's own."""

from modicum.models.networks.base import NeuralModel
from modicum.models.networks.layered import CNN, MLP
from modicum.models.networks.own import Network

__all__ = ["CNN", "MLP", "Network", "NeuralModel"]

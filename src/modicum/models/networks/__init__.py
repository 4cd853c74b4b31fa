"""Bayesian neural networks: built-in layered ones, and user-defined ones."""

from modicum.models.networks.base import NeuralModel
from modicum.models.networks.layered import CNN, MLP
from modicum.models.networks.own import Network

__all__ = ["CNN", "MLP", "Network", "NeuralModel"]

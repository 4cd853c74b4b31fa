"""Modicum: Bayesian inference on tall data by Markov chains that touch a few rows a step."""

from importlib.metadata import version

from modicum import datasets, diagnostics, models, rows
from modicum.errors import (
    ConvergenceError,
    DataError,
    ModicumError,
    ModicumWarning,
    SettingError,
)
from modicum.ledger import Ledger
from modicum.methods import HMC, HMCECS, NUTS, FlyMC, SignedHMCECS
from modicum.models import Model
from modicum.posterior import Posterior
from modicum.rows import Rows
from modicum.sample import sample

__version__ = version("modicum")

__all__ = [
    "HMC",
    "HMCECS",
    "NUTS",
    "ConvergenceError",
    "DataError",
    "FlyMC",
    "Ledger",
    "Model",
    "ModicumError",
    "ModicumWarning",
    "Posterior",
    "Rows",
    "SettingError",
    "SignedHMCECS",
    "datasets",
    "diagnostics",
    "models",
    "rows",
    "sample",
]

"""What a row is worth: log-likelihoods of families, networks and users' functions, and priors.

A model is a family and a predictor for each of its parameters, a predictor is a sum of terms, and a
term is columns times coefficients with a fixed, pooled or shrunk prior.
"""

from modicum.models import families
from modicum.models.families import *  # noqa: F403 - the names in its `__all__`
from modicum.models.families import FAMILIES
from modicum.models.integrated import IntegratedEffects
from modicum.models.linear_predictor import LinearPredictorModel
from modicum.models.model import BaseModel, Batch, Params
from modicum.models.networks import CNN, MLP, Network
from modicum.models.observed import Support
from modicum.models.own import Model
from modicum.models.target import Target
from modicum.models.terms import GroupTerm

__all__ = [
    "CNN",
    "FAMILIES",
    "MLP",
    "BaseModel",
    "Batch",
    "GroupTerm",
    "IntegratedEffects",
    "LinearPredictorModel",
    "Model",
    "Network",
    "Params",
    "Support",
    "Target",
]
__all__ += families.__all__
__all__.remove("PoissonRates")  # for modicum.sklearn alone

"""What is believed about a row: linear-predictor families, networks, models of one's own."""

from modicum.models.base import BaseModel, Batch, Model, Params
from modicum.models.families import Gaussian, Logistic, Poisson, Softmax, StudentT
from modicum.models.integrated import IntegratedEffects
from modicum.models.linear import LinearPredictorModel
from modicum.models.networks import CNN, MLP
from modicum.models.neural import Network
from modicum.models.target import Target

__all__ = [
    "CNN",
    "FAMILIES",
    "MLP",
    "BaseModel",
    "Batch",
    "Gaussian",
    "IntegratedEffects",
    "LinearPredictorModel",
    "Logistic",
    "Model",
    "Network",
    "Params",
    "Poisson",
    "Softmax",
    "StudentT",
    "Target",
]

# One line per family: what the command line calls it.
FAMILIES: dict[str, type[LinearPredictorModel]] = {
    "logistic": Logistic,
    "gaussian": Gaussian,
    "poisson": Poisson,
    "student-t": StudentT,
    "softmax": Softmax,
}

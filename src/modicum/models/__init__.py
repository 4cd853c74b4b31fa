"""What is believed about a row: linear-predictor families, and models of one's own."""

from modicum.models.base import BaseModel, Batch, Model, Params
from modicum.models.families import Gaussian, Logistic, Poisson, Softmax, StudentT
from modicum.models.linear import LinearPredictorModel
from modicum.models.target import Target

__all__ = [
    "BaseModel",
    "Batch",
    "Gaussian",
    "LinearPredictorModel",
    "Logistic",
    "Model",
    "Params",
    "Poisson",
    "Softmax",
    "StudentT",
    "Target",
]

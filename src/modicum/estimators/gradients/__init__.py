"""The gradient of U = -log posterior from a batch. A new one is a file here and a line below."""

from modicum.estimators.gradients.base import GradientEstimator
from modicum.estimators.gradients.minibatch import Minibatch
from modicum.estimators.gradients.svrg import SVRG
from modicum.estimators.gradients.taylor import Taylor

__all__ = ["ESTIMATORS", "SVRG", "GradientEstimator", "Minibatch", "Taylor"]

ESTIMATORS: dict[str, type[GradientEstimator]] = {
    "minibatch": Minibatch,
    "taylor": Taylor,
    "svrg": SVRG,
}

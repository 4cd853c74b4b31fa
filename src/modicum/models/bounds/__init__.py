"""Lower bounds of a row's likelihood whose sum over all rows is known in closed form."""

from modicum.models.bounds.base import Bound
from modicum.models.bounds.choice import BOUNDS, bound_of
from modicum.models.bounds.logistic import LogisticBound
from modicum.models.bounds.softmax import SoftmaxBound
from modicum.models.bounds.student import StudentTBound

__all__ = ["BOUNDS", "Bound", "LogisticBound", "SoftmaxBound", "StudentTBound", "bound_of"]

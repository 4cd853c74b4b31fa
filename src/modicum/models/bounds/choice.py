"""Which family has which bound."""

from __future__ import annotations

from modicum.errors import SettingError
from modicum.models.base import BaseModel
from modicum.models.bounds.base import Bound
from modicum.models.bounds.logistic import LogisticBound
from modicum.models.bounds.softmax import SoftmaxBound
from modicum.models.bounds.student import StudentTBound
from modicum.models.families import Logistic, Softmax, StudentT

__all__ = ["BOUNDS", "bound_of"]

BOUNDS: dict[type[BaseModel], type[Bound]] = {
    Logistic: LogisticBound,
    StudentT: StudentTBound,
    Softmax: SoftmaxBound,
}


def bound_of(model: BaseModel) -> Bound:
    """Return the bound of a model's likelihood.

    Raises
    ------
    SettingError
        If none is known. A subclass may have changed the likelihood, so it has none either.
    """
    if type(model) not in BOUNDS:
        known = ", ".join(family.__name__ for family in BOUNDS)
        raise SettingError(
            f"FlyMC needs a lower bound of each row's likelihood, which is known for {known} and "
            f"not for {type(model).__name__}; use method='hmc-ecs', or method='nuts' on all rows."
        )
    return BOUNDS[type(model)](model)

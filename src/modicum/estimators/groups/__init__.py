"""Control variates of groups, whose residuals are differences of integrals over their effects."""

from modicum.estimators.groups.coordinates import group_proxy, variance_unit
from modicum.estimators.groups.taylor import GroupTaylor

__all__ = ["GroupTaylor", "group_proxy", "variance_unit"]

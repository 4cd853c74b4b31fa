"""Firefly Monte Carlo: exact sampling in which rows are switched on and off."""

from modicum.methods.flymc.method import FlyMC

__all__ = ["FlyMC"]

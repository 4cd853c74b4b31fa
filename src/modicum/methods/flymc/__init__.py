"""Firefly Monte Carlo: exact, by rows that are switched on and off."""

from modicum.methods.flymc.method import FlyMC

__all__ = ["FlyMC"]

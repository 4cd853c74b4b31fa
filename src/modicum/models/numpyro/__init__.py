"""Conversion of NumPyro models to models of rows."""

from modicum.models.numpyro.wrapping import from_numpyro

__all__ = ["from_numpyro"]

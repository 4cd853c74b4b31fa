"""A NumPyro model as a model of rows."""

from modicum.models.numpyro.wrapping import from_numpyro

__all__ = ["from_numpyro"]

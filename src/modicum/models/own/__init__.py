"""A model of one's own: any JAX functions over named parameters, within bounds or not."""

from modicum.models.own.model import Model, as_handed_over

__all__ = ["Model", "as_handed_over"]

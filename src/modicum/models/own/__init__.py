"""User-defined models: any JAX functions of named parameters, with or without constraints."""

from modicum.models.own.model import Model, with_given_types

__all__ = ["Model", "with_given_types"]

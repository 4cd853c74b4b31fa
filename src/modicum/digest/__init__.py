"""A posterior without the data: made, saved, extended, reduced."""

from modicum.digest.digest import Digest
from modicum.digest.making import digest

__all__ = ["Digest", "digest"]

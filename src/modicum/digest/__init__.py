"""A posterior without the data: made, carried, added to, taken from."""

from modicum.digest.digest import Digest
from modicum.digest.making import digest

__all__ = ["Digest", "digest"]

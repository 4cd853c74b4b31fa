"""Digests: posteriors that can be sampled, updated and saved without the data."""

from modicum.digest.digest import Digest, digest

__all__ = ["Digest", "digest"]

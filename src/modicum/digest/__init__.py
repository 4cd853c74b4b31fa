"""Digests: posteriors that can be sampled, updated and saved without the data.

A digest is sums over all rows about an anchor, and a pool of some rows for what the sums leave out.
"""

from modicum.digest.digest import Digest, digest

__all__ = ["Digest", "digest"]

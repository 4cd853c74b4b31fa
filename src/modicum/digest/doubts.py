"""Reasons to doubt a digest, or what was added to it or removed: each a warning."""

from __future__ import annotations

from modicum.errors import ModicumWarning

__all__ = ["anchor_left", "overlap", "parts_mixed_up", "pool_crude", "unknown_rows"]


def anchor_left(distance: float) -> ModicumWarning:
    """The mode has moved away from where rows are expanded."""
    return ModicumWarning(
        "anchor-left",
        f"the mode lies {distance:.1f} posterior sd from the point that the digest's rows are "
        "expanded about, so that the rows it keeps are no longer those that matter",
        "a pass is due: make the digest anew from the rows with mo.digest",
        distance=distance,
    )


def parts_mixed_up(error: float) -> ModicumWarning:
    """Removed rows may have come from any of several digests that were added."""
    return ModicumWarning(
        "digest-crude",
        "the digest is the sum of several that were expanded about points of their own, and the "
        "rows it keeps do not tell well which of them the removed rows came from, which leaves "
        f"posterior means uncertain by up to {error:.2g} posterior sd",
        "remove rows from the digest that holds them before it is added to others",
        error=error,
    )


def overlap(shared: int) -> ModicumWarning:
    """Rows of both digests that are added are equal."""
    return ModicumWarning(
        "digest-overlap",
        f"{shared:,} rows that occur once in each of the two digests are equal, and count twice if "
        "they are the same observations",
        "add digests of different rows, or remove those of both from one; if equal rows are "
        "different observations all is well",
        rows=shared,
    )


def unknown_rows(removed: int, present: int, pool: int) -> ModicumWarning:
    """Fewer removed rows are in the pool than chance allows."""
    return ModicumWarning(
        "digest-unknown-rows",
        f"of {removed:,} rows that were removed {present:,} are among the {pool:,} that the digest "
        "keeps, fewer than there would be if all had been among its data",
        "remove rows as they were when the digest was made, and only those that were in it",
        removed=removed,
        present=present,
    )


def pool_crude(size: int, error: float) -> ModicumWarning:
    """The rows that are kept are too few."""
    return ModicumWarning(
        "digest-crude",
        f"the {size:,} rows of the digest leave posterior means uncertain by up to {error:.2g} "
        "posterior sd",
        "make the digest anew from the rows, and keep more of them (size)",
        error=error,
    )

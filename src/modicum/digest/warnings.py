"""Warnings about a digest, and about rows added to it or removed from it."""

from __future__ import annotations

from modicum.errors import ModicumWarning


def anchor_left(distance: float) -> ModicumWarning:
    """Warn that the mode has moved away from the anchor."""
    return ModicumWarning(
        "anchor-left",
        f"the mode is {distance:.1f} posterior sd from the point about which the digest expands "
        "its rows, so the rows it keeps are no longer those that matter most",
        "make the digest again from all rows with mo.digest",
        distance=distance,
    )


def parts_mixed_up(error: float) -> ModicumWarning:
    """Warn that removed rows may have come from any of several added digests."""
    return ModicumWarning(
        "digest-crude",
        "the digest is the sum of several digests expanded about different points, and the rows it "
        "keeps show only roughly which of them the removed rows came from, which leaves posterior "
        f"means uncertain by up to {error:.2g} posterior sd",
        "remove rows from the digest that holds them before it is added to others",
        error=error,
    )


def overlap(shared: int) -> ModicumWarning:
    """Warn that two added digests have equal rows."""
    return ModicumWarning(
        "digest-overlap",
        f"{shared:,} rows that occur once in each of the two digests are equal, and count twice if "
        "they are the same observations",
        "add digests of different rows, or remove the shared rows from one of them; if equal rows "
        "are different observations, ignore this warning",
        rows=shared,
    )


def unknown_rows(removed: int, present: int, pool: int) -> ModicumWarning:
    """Warn that the pool holds fewer of the removed rows than chance allows."""
    return ModicumWarning(
        "digest-unknown-rows",
        f"of {removed:,} removed rows {present:,} are among the {pool:,} rows that the digest "
        "keeps, fewer than expected if all of them had been in its data",
        "remove only rows that were in the data, with the values they had then",
        removed=removed,
        present=present,
    )


def pool_crude(size: int, error: float) -> ModicumWarning:
    """Warn that the pool is too small."""
    return ModicumWarning(
        "digest-crude",
        f"the {size:,} rows of the digest leave posterior means uncertain by up to {error:.2g} "
        "posterior sd",
        "make the digest again from all rows, and keep more of them (size)",
        error=error,
    )

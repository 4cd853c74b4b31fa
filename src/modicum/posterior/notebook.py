"""What a notebook shows of a posterior."""

from __future__ import annotations

from collections.abc import Sequence

from modicum.errors import ModicumWarning
from modicum.markup import box, table, tag
from modicum.posterior.draws import Draws
from modicum.posterior.summary import summarise

SHOWN = 12  # scalars shown


def posterior_box(source: Draws, title: str, warnings: Sequence[ModicumWarning]) -> str:
    """Return a box with the first scalars of a posterior, and its warnings."""
    frame = summarise(source, _first_names(source), 0.9).head(SHOWN)
    lines = [
        (name, *(f"{line[c]:.4g}" for c in frame.columns[:4]), f"{line['ess_bulk']:,.0f}",
         f"{line['r_hat']:.3f}")
        for name, line in frame.iterrows()
    ]  # fmt: skip
    head = ("", *frame.columns[:4], "ess_bulk", "r_hat")
    total = sum(x[0, 0].size for x in source.draws.values())
    more = f"{total - len(frame):,} more scalars: post.summary()" if total > len(frame) else None
    doubts = tag("ul", [tag("li", str(doubt)) for doubt in warnings]) if warnings else None
    return box(tag("b", title.strip("<>")), table(head, lines), more and tag("div", more), doubts)


def _first_names(source: Draws) -> list[str]:
    """Return the first parameters, enough for `SHOWN` scalars; effects of groups come last."""
    ordered = sorted(source.draws, key=lambda name: "|" in name)
    names: list[str] = []
    count = 0
    for name in ordered:
        if count < SHOWN:
            names.append(name)
            count += int(source.draws[name][0, 0].size)
    return names

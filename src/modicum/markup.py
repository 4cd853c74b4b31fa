"""Build HTML that is safe by construction: everything that is not `Markup` is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

VOID = frozenset({"meta", "line", "circle", "rect", "path", "polyline", "polygon", "br"})
STYLE = (
    "border:1px solid #8886;border-radius:6px;padding:.5em .8em;display:inline-block;"
    "font-size:90%;max-width:100%;overflow-x:auto"
)


class Markup(str):
    """Text that is already HTML, and is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element; attributes, and children that are not `Markup`, are escaped.

    Underscores in attribute names become hyphens; a trailing one is dropped.

    Examples
    --------
    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{words}/>" if name not in ("meta", "br") else f"<{name}{words}>")
    inner = "".join(
        child if isinstance(child, Markup) else escape(str(child)) for child in _flat(children)
    )
    return Markup(f"<{name}{words}>{inner}</{name}>")


def _flat(children: Iterable[object]) -> Iterable[object]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, list | tuple):
            yield from _flat(child)
        else:
            yield child


def table(
    head: Sequence[object], lines: Iterable[Sequence[object]], **attributes: object
) -> Markup:
    """Return a table whose first column holds row headers."""

    def line(cells: Sequence[object]) -> Markup:
        first, *rest = cells
        return tag("tr", tag("th", first, scope="row"), [tag("td", cell) for cell in rest])

    top = tag("tr", [tag("th", cell, scope="col") for cell in head]) if head else None
    body = [line(cells) for cells in lines]
    return tag("table", tag("thead", top) if top else None, tag("tbody", body), **attributes)


def box(*children: object) -> str:
    """Return the box that a notebook shows for an object."""
    return str(tag("div", *children, style=STYLE))

"""The experiments of a folder as a page of the documentation: Markdown, and pictures beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modicum_lab.papers.catalogue import PAPERS
from modicum_lab.papers.page import records_of

__all__ = ["write_gallery"]

LEAD = """\
# Gallery

What `modicum reproduce` wrote when it was last run for these pages. Columns that end in "(paper)"
hold the printed figures.
"""


def write_gallery(out: Path, folder: Path) -> Path:
    """Gather every experiment found under `out` into FOLDER/index.md, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    parts = [LEAD]
    for paper, title in PAPERS.items():
        records = [(at, r) for at, r in records_of(out / paper) if "error" not in r]
        if records:
            parts.append(f"## {title}\n")
            parts += [_section(at, record, folder) for at, record in records]
    path = folder / "index.md"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _section(at: Path, record: dict[str, Any], folder: Path) -> str:
    ran = f"{record['seconds']:,.0f} s on a {record['versions']['backend'].upper()}"
    lines = [
        f"### {record['title']}\n",
        f"`modicum reproduce {record['paper']} {record['experiment']} --scale {record['scale']}`, "
        f"seed {record['seed']}, {ran}.\n",
    ]
    for one in record["figures"]:
        name = f"{record['paper']}-{record['experiment']}-{one['name']}.png"
        _copy_smaller(at / f"{one['name']}.png", folder / name)
        lines.append(f"![{one['name']}]({name})\n")
        lines += [f"*{one['caption']}*\n"] if one["caption"] else []
    lines += [(at / f"{one['name']}.md").read_text(encoding="utf-8") for one in record["tables"]]
    lines += [f"- {note}" for note in record["notes"]]
    return "\n".join([*lines, ""])


def _copy_smaller(source: Path, target: Path) -> None:
    """A picture of lines needs no more than 64 colours, and a third of the bytes."""
    from PIL import Image

    with Image.open(source) as picture:
        picture.convert("RGB").quantize(64).save(target, optimize=True)

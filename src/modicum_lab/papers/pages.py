"""Show all experiments of a folder on one page: self-contained HTML, or a page of the docs."""

from __future__ import annotations

import csv
import json
from base64 import b64encode
from html import escape
from pathlib import Path

from modicum_lab.markdown import shown
from modicum_lab.papers.experiments import PAPERS
from modicum_lab.papers.report import RECORD, Record

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --faint: #667; --line: #d9dce1; --paper: #fff;
  --band: #f5f6f8; --mark: #fff7e6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --faint: #a2a7b0; --line: #3a3f47;
  --paper: #16181c; --band: #1f2227; --mark: #33291a; } }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.2rem 6rem; color: var(--ink);
  background: var(--paper); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.3rem; margin: 3rem 0 .2rem; border-top: 2px solid var(--line);
  padding-top: 1.2rem; }
h3 { font-size: 1.1rem; margin: 2.2rem 0 .2rem; }
p, li { max-width: 48rem; }
.small, figcaption { color: var(--faint); font-size: .86rem; }
nav ul { columns: 2 18rem; padding-left: 1.1rem; }
a { color: inherit; }
.wide { overflow-x: auto; margin: .8rem 0 .3rem; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid var(--line); }
td { border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
td.paper, th.paper { color: var(--faint); background: var(--band); }
figure { margin: 1.2rem 0; }
figure img { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line); }
.notes { background: var(--mark); padding: .6rem 1rem .6rem 2rem; border-radius: 6px; }
.failed { background: var(--mark); padding: .6rem 1rem; border-radius: 6px; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--faint); font-size: .86rem; }
pre { background: var(--band); padding: .8rem; overflow-x: auto; font-size: .8rem; }
"""


def write_page(out: Path) -> Path:
    """Gather every experiment under `out` into OUT/index.html, and return its path."""
    papers = {paper: records_of(out / paper) for paper in PAPERS}
    parts = ["<h1>The papers, reproduced</h1>", _contents(papers)]
    for paper, records in papers.items():
        if records:
            parts.append(f"<h2>{escape(PAPERS[paper])}</h2>")
            parts += [_section(folder, record) for folder, record in records]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Modicum: the papers, reproduced</title><style>{STYLE}</style></head>\n<body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )
    path = out / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def records_of(folder: Path) -> list[tuple[Path, Record]]:
    """Return folder and record of every experiment under `folder`, sorted by name."""
    paths = sorted(folder.glob(f"*/{RECORD}"))
    return [(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def _contents(papers: dict[str, list[tuple[Path, Record]]]) -> str:
    items = "".join(
        f'<li><a href="#{_anchor(r)}">{escape(r["experiment"])}</a>: {escape(r["title"])}</li>'
        for records in papers.values()
        for _, r in records
    )
    lead = (
        "Tables show the paper's printed figures (shaded) beside ours; the folder of this page has "
        "the same tables as CSV and Markdown, and the figures as PNG and SVG."
    )
    return f"<p>{lead}</p><nav><ul>{items}</ul></nav>"


def _anchor(record: Record) -> str:
    return escape(f"{record['paper']}-{record['experiment']}")


def _section(folder: Path, record: Record) -> str:
    versions = ", ".join(f"{name} {v}" for name, v in record["versions"].items())
    took = f", {record['seconds']:,.0f} s on {_where(record)}" if "seconds" in record else ""
    took += f", {record['date']}" if "date" in record else ""
    lines = [
        f'<section id="{_anchor(record)}"><h3>{escape(record["title"])}</h3>',
        f'<p class="small">{escape(record["experiment"])}: scale {record["scale"]}, seed '
        f"{record['seed']}{took}; {escape(versions)}</p>",
    ]
    if "error" in record:
        return "\n".join([*lines, f'<p class="failed">{escape(record["error"])}</p></section>'])
    lines += [_table(folder, table) for table in record["tables"]]
    lines += [_figure(folder, figure) for figure in record["figures"]]
    if record["notes"]:
        notes = "".join(f"<li>{escape(note)}</li>" for note in record["notes"])
        lines.append(f'<ul class="notes">{notes}</ul>')
    about = {name: record[name] for name in ("settings", "ledger")}
    lines.append(
        "<details><summary>Settings, and row evaluations by method</summary>"
        f"<pre>{escape(json.dumps(about, indent=1))}</pre></details></section>"
    )
    return "\n".join(lines)


def _table(folder: Path, table: dict[str, str]) -> str:
    with open(folder / f"{table['name']}.csv", newline="", encoding="utf-8") as file:
        head, *body = csv.reader(file)
    kinds = [' class="paper"' if name.endswith("(paper)") else "" for name in head]
    top = "".join(f"<th{k}>{escape(name)}</th>" for k, name in zip(kinds, head, strict=True))
    rows = "".join(
        "<tr>"
        + "".join(f"<td{k}>{escape(_cell(c))}</td>" for k, c in zip(kinds, row, strict=True))
        + "</tr>"
        for row in body
    )
    note = f'<p class="small">{escape(table["note"])}</p>' if table["note"] else ""
    body_html = f"<table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>"
    title = f"<h4>{escape(table.get('title', table['name']))}</h4>"
    return f'{title}<div class="wide">{body_html}</div>{note}'


def _cell(text: str) -> str:
    """Return the text of a CSV cell, with numbers rounded."""
    for kind in (int, float):
        try:
            return shown(kind(text))
        except ValueError:
            continue
    return text


def _figure(folder: Path, figure: dict[str, str]) -> str:
    data = b64encode((folder / f"{figure['name']}.png").read_bytes()).decode()
    caption = escape(figure["caption"])
    image = f'<img src="data:image/png;base64,{data}" alt="{caption or escape(figure["name"])}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


LEAD = """\
# Gallery

What `modicum reproduce` wrote when each experiment was last run for this page. Columns that end in
"(paper)" hold the printed figures.
"""
PAPER_HEADING, HEADING, COMMAND = "## ", "### ", "`modicum reproduce "


def write_gallery(out: Path, folder: Path) -> Path:
    """Put every experiment under `out` into FOLDER/index.md, and return its path.

    Experiments that are on the page and not under `out` stay as they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.md"
    sections = _sections(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for paper in PAPERS:
        for at, record in records_of(out / paper):
            if "error" not in record:
                name = paper, record["experiment"]
                sections[name] = _gallery_section(at, record, folder)
    parts = [LEAD]
    for paper, title in PAPERS.items():
        here = [sections[name] for name in sorted(sections) if name[0] == paper]
        parts += [f"{PAPER_HEADING}{title}\n", *here] if here else []
    text = "\n".join(parts)
    path.write_text(text, encoding="utf-8")
    for picture in folder.glob("*.png"):
        if f"]({picture.name})" not in text:
            picture.unlink()
    return path


def _sections(page: str) -> dict[tuple[str, str], str]:
    """Return the sections of a gallery by paper and experiment, as their commands name them."""
    found: dict[tuple[str, str], str] = {}
    for part in f"\n{page}".split(f"\n{HEADING}")[1:]:
        section = part.split(f"\n{PAPER_HEADING}")[0].rstrip("\n")
        paper, name, *_ = section[section.index(COMMAND) + len(COMMAND) :].split()
        found[paper, name] = f"{HEADING}{section}\n"
    return found


def _where(record: Record) -> str:
    """Return the machine that the record names, or its backend."""
    return str(record.get("machine") or f"a {record['versions']['backend'].upper()}")


def _gallery_section(at: Path, record: Record, folder: Path) -> str:
    ran = f"{record['seconds']:,.0f} s on {_where(record)}"
    when = f" ({_where(record)}, {record['date']})" if "date" in record else ""
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("modicum", "jax"))
    lines = [
        f"{HEADING}{record['title']}{when}\n",
        f"{COMMAND}{record['paper']} {record['experiment']} --scale {record['scale']}`, "
        f"seed {record['seed']}, {ran}; {versions}.\n",
    ]
    for figure in record["figures"]:
        name = f"{record['paper']}-{record['experiment']}-{figure['name']}.png"
        _copy_smaller(at / f"{figure['name']}.png", folder / name)
        lines.append(f"![{figure['name']}]({name})\n")
        lines += [f"*{figure['caption']}*\n"] if figure["caption"] else []
    lines += [
        (at / f"{table['name']}.md").read_text(encoding="utf-8") for table in record["tables"]
    ]
    lines += [f"- {note}" for note in record["notes"]]
    return "\n".join([*lines, ""])


def _copy_smaller(source: Path, target: Path) -> None:
    """Reduce to 64 colours, which is enough for lines and takes a third of the bytes."""
    from PIL import Image

    with Image.open(source) as picture:
        picture.convert("RGB").quantize(64).save(target, optimize=True)

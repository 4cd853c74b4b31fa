"""The files an experiment writes: tables, figures, and a record of how they were made.

OUT/PAPER/EXPERIMENT holds TABLE.csv and TABLE.md, FIGURE.png and FIGURE.svg, and settings.json.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from modicum.plots import pyplot
from modicum_lab.bench.machine import describe_machine
from modicum_lab.markdown import table_lines
from modicum_lab.papers.experiments import Experiment, Figure, Result, Scale, Table

RECORD = "settings.json"
Record: TypeAlias = dict[str, Any]  # its content


def write_result(
    experiment: Experiment, result: Result, out: Path, scale: Scale, seed: int, seconds: float
) -> Path:
    """Write the result of an experiment in place of an earlier one; return the folder."""
    folder = out / experiment.paper / experiment.name
    shutil.rmtree(folder, ignore_errors=True)  # remove tables of earlier versions
    folder.mkdir(parents=True)
    for table in result.tables:
        _write_table(table, folder)
    for figure in result.figures:
        _write_figure(figure, folder)
    record = _header(experiment, scale, seed) | {
        "seconds": round(seconds, 1),
        "settings": result.settings,
        "ledger": result.ledger,
        "notes": result.notes,
        "tables": [{"name": t.name, "title": t.title, "note": t.note} for t in result.tables],
        "figures": [{"name": f.name, "caption": f.caption} for f in result.figures],
    }
    _write_record(record, folder)
    return folder


def write_failure(experiment: Experiment, out: Path, scale: Scale, seed: int, error: str) -> None:
    """Record why an experiment could not be run; earlier results are kept."""
    folder = out / experiment.paper / experiment.name
    if (folder / RECORD).is_file() and "error" not in json.loads((folder / RECORD).read_text()):
        return
    folder.mkdir(parents=True, exist_ok=True)
    _write_record(_header(experiment, scale, seed) | {"error": error}, folder)


def _write_table(table: Table, folder: Path) -> None:
    with open(folder / f"{table.name}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        writer.writerows(table.rows)
    lines = table_lines(table.columns, table.rows)
    text = "\n".join([f"**{table.title}**", "", *lines])
    text += (f"\n\n{table.note}" if table.note else "") + "\n"
    (folder / f"{table.name}.md").write_text(text, encoding="utf-8")


def _write_figure(figure: Figure, folder: Path) -> None:
    plt = pyplot()
    drawing = figure.draw()
    drawing.savefig(folder / f"{figure.name}.png", dpi=130)
    drawing.savefig(folder / f"{figure.name}.svg", metadata={"Date": None})
    plt.close(drawing)


def _header(experiment: Experiment, scale: Scale, seed: int) -> Record:
    import jax

    machine = describe_machine()
    return {
        "paper": experiment.paper,
        "experiment": experiment.name,
        "title": experiment.title,
        "scale": scale,
        "seed": seed,
        "date": machine["date"][:10],
        "machine": _machine(machine),
        "versions": {
            "modicum": version("modicum"),
            "jax": jax.__version__,
            "numpy": version("numpy"),
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "backend": jax.default_backend(),
        },
    }


def _machine(machine: dict[str, Any]) -> str:
    """Return the name of the accelerator, or the processor and the available cores."""
    kind, _, name = machine["device"].partition(": ")
    return name if kind != "cpu" else f"{machine['cores']} cores of {machine['processor']}"


def _write_record(record: Record, folder: Path) -> None:
    text = json.dumps(record, indent=1, default=_plain)
    (folder / RECORD).write_text(text + "\n", encoding="utf-8")


def _plain(value: object) -> object:
    """Convert NumPy numbers and arrays to plain values, and anything else to text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)

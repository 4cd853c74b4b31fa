"""Run every module here that has `run(quick)`, and print its tables.

They are also written to bench-output/parts.json, or, in a checkout with `--docs`, into the
documentation (see `modicum_lab.bench.figures`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from dataclasses import asdict
from pathlib import Path

from modicum_lab.bench import figures, parts
from modicum_lab.bench.tables import Table

OUT = Path("bench-output/parts.json")


def main() -> None:
    """Run the benchmarks that the command line names, or all of them."""
    names = sorted(m.name for m in pkgutil.iter_modules(parts.__path__) if m.name[0] != "_")
    parser = argparse.ArgumentParser(prog="python -m modicum_lab.bench.parts", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--docs", action="store_true", help="keep the figures in docs/")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; all by default")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(names))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(names)}")
    if arguments.docs and arguments.quick:
        parser.error("--quick is to see that it runs: its figures are not for --docs")
    everything: list[Table] = []
    for name in arguments.names or names:
        module = importlib.import_module(f"modicum_lab.bench.parts.{name}")
        if not hasattr(module, "run"):  # `gpu` has its own command line
            continue
        measured = figures.measured_now(f"python -m modicum_lab.bench.parts {name}")
        tables = []
        for table in module.run(quick=arguments.quick):
            print(table.markdown(), flush=True)
            tables.append(table)
        print(f"{measured}.\n", flush=True)
        if arguments.docs:
            figures.keep(name, tables, measured)
        everything += tables
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps([asdict(table) for table in everything], indent=1))


if __name__ == "__main__":
    main()

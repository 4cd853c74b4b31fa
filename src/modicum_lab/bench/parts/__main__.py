"""Run every module here that has a `run(quick)`, print tables, write bench-output/parts.json."""

import argparse
import importlib
import json
import pkgutil
from dataclasses import asdict
from pathlib import Path

from modicum_lab.bench import parts


def main():
    parser = argparse.ArgumentParser(prog="python -m modicum_lab.bench.parts", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("names", nargs="*", help="only these benchmarks (default: all)")
    chosen = parser.parse_args()
    found = sorted(m.name for m in pkgutil.iter_modules(parts.__path__))
    unknown = set(chosen.names) - set(found)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {found}")
    tables = []
    for name in chosen.names or found:
        if name.startswith("__"):
            continue
        module = importlib.import_module(f"modicum_lab.bench.parts.{name}")
        if not hasattr(module, "run"):
            continue
        for table in module.run(quick=chosen.quick):
            print(table.markdown(), flush=True)
            tables.append(table)
    out = Path("bench-output/parts.json")
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([asdict(table) for table in tables], indent=1))


if __name__ == "__main__":
    main()

"""What a benchmark hands back, and how it is shown."""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median


@dataclass
class Table:
    """One table: a row a measurement."""

    title: str
    columns: list[str]
    rows: list[list] = field(default_factory=list)

    def markdown(self):
        lines = [f"### {self.title}", "", _line(self.columns), _line(["---"] * len(self.columns))]
        return "\n".join([*lines, *(_line([_shown(v) for v in row]) for row in self.rows), ""])


def _line(cells):
    return "| " + " | ".join(cells) + " |"


def _shown(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def interleaved(functions, repeats):
    """Median seconds of each function; they take turns, so that a busy moment hits all."""
    for function in functions.values():
        function()  # compile, fill caches
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: median(seconds) for name, seconds in times.items()}


def in_process(module, call):
    """What `module.call` returns in a fresh interpreter: cold, and with memory of its own."""
    code = f"import json, {module} as m; print(json.dumps(m.{call}))"
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def verdict(value, limit):
    return "yes" if value <= limit else "NO"


def write_json(tables, path):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(json.dumps([asdict(table) for table in tables], indent=1))

"""Print the oldest dependencies that pyproject.toml allows, as requirements for pip.

Standard library only: it runs before anything is installed.
"""

import re
import tomllib
from pathlib import Path

EXTRAS = ("test",)
"""Extras whose requirements are pinned too: what the unit tests need."""


def requirements(project):
    """Return the requirements of the project and EXTRAS, with its own extras resolved."""
    wanted, optional = list(project["dependencies"]), project["optional-dependencies"]
    queue = list(EXTRAS)
    while queue:
        for line in optional[queue.pop()]:
            own = re.fullmatch(rf"{project['name']}\[(.*)\]", line)
            if own:
                queue += [extra.strip() for extra in own[1].split(",")]
            else:
                wanted.append(line)
    return wanted


def lowest(requirements):
    """Pin every requirement to its lower bound, sorted; a missing lower bound is an error.

    A line may have only an upper bound if another line has the lower bound.
    """
    floors, names = {}, set()
    for line in requirements:
        name, limits = re.match(r"([\w.\-]+(?:\[[\w,\-]*\])?)\s*([^;]*)", line).groups()
        names.add(name)
        floor = re.search(r"(?:>=|==)\s*([\w.]+)", limits)
        if floor:
            floors[name] = f"{name}=={floor[1]}"
    if names - floors.keys():
        raise SystemExit(f"no lowest version in pyproject.toml: {sorted(names - floors.keys())}")
    return sorted(floors.values())


if __name__ == "__main__":
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text())["project"]
    print("\n".join(lowest(requirements(project))))

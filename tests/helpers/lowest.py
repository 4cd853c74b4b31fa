"""Print the oldest versions that pyproject.toml allows, one requirement per line for pip.

Standard library only: it runs before anything is installed.
"""

import re
import tomllib
from pathlib import Path

EXTRAS = ("test",)
"""Extras whose requirements are pinned too: what the unit tests need."""


def requirements(project):
    """The project's requirements with those of EXTRAS, extras of the project itself resolved."""
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


def lowest(requirement):
    """`name>=1.2` as `name==1.2`; a requirement without a floor is an error."""
    name, floor = re.fullmatch(
        r"([\w.\-\[\],]+)\s*(?:>=|==)\s*([\w.]+)(?:\s*,.*)?", requirement
    ).groups()
    return f"{name}=={floor}"


if __name__ == "__main__":
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    for line in sorted(
        {lowest(r) for r in requirements(tomllib.loads(pyproject.read_text())["project"])}
    ):
        print(line)

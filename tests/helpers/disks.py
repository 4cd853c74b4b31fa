"""Disks that are full, without filling one, and saved files that somebody has changed."""

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Have the system refuse files of this process that are longer than `size` bytes."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def change_page(path: Path, name: str, change: Callable[[Any], object]) -> None:
    """Rewrite a saved file after `change`, which gets the contents of its JSON page `name`."""
    with zipfile.ZipFile(path) as archive:
        held = {member: archive.read(member) for member in archive.namelist()}
    page = json.loads(held[name])
    change(page)
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in (held | {name: json.dumps(page).encode()}).items():
            archive.writestr(member, content)

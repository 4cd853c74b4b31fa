"""Downloads that are whole and right, or not there at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

from modicum.progress import Progressbar, phase

__all__ = ["DownloadError", "fetch"]

CHUNK = 1 << 20
PATIENCE = 30.0  # seconds without a byte


class DownloadError(Exception):
    """Why a download did not succeed, in a few words."""


def fetch(
    url: str,
    target: Path,
    digest: str | None,
    progressbar: Progressbar = True,
    sizes: tuple[int, int] | None = None,
) -> None:
    """Download `url` to `target`.

    The bytes go to a file beside it, which takes the name only when all of them are there and their
    checksum is right (where none is known, their number plausible), so that an interrupted or
    spoilt download leaves nothing behind.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            checksum = _copy(url, file, digest, target.name, progressbar)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        if sizes is not None and not sizes[0] <= size <= sizes[1]:
            raise DownloadError(
                f"it has {size:,} bytes, and the file has between {sizes[0]:,} and {sizes[1]:,}"
            )
        if digest is not None and checksum != digest:
            raise DownloadError(f"its checksum is {checksum} instead of {digest}")
        os.replace(temporary, target)
    except (OSError, HTTPException, ValueError) as fault:  # no network, no such file, no room
        raise DownloadError(str(fault) or type(fault).__name__) from fault
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _copy(
    url: str, file: BinaryIO, digest: str | None, title: str, progressbar: Progressbar
) -> str:
    """Copy the bytes, and return their checksum in the form of `digest`."""
    from urllib.request import Request, urlopen  # slow to import, and seldom needed

    kind = (digest or "sha256:").split(":")[0]
    sum_ = hashlib.new(kind, usedforsecurity=False)
    request = Request(url, headers={"User-Agent": "modicum"})
    with urlopen(request, timeout=PATIENCE) as answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        done = 0
        with phase(f"download {title}", total, progressbar, "bytes") as going:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                sum_.update(chunk)
                done += len(chunk)
                going.advance(len(chunk))
    if total is not None and done != total:
        raise DownloadError(f"it broke off after {done:,} of {total:,} bytes")
    return f"{kind}:{sum_.hexdigest()}"

"""Downloads that are complete and verified, or else leave no file."""

from __future__ import annotations

import contextlib
import hashlib
import os
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte


class DownloadError(Exception):
    """A download failed; the message says why in a few words."""


def fetch(
    url: str,
    target: Path,
    digest: str | None,
    progressbar: bool = True,
    sizes: tuple[int, int] | None = None,
) -> None:
    """Download `url` to `target`.

    The bytes are written to a temporary file beside it, which is renamed when the download is
    complete and its checksum is correct (or, without a checksum, its size is plausible). An
    interrupted or corrupted download leaves no file.
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
            raise DownloadError(f"it has {size:,} bytes instead of {sizes[0]:,} to {sizes[1]:,}")
        if digest is not None and checksum != digest:
            raise DownloadError(f"its checksum is {checksum} instead of {digest}")
        os.replace(temporary, target)
    except (OSError, HTTPException, ValueError) as fault:  # no network, no such file, disk full
        raise DownloadError(str(fault) or type(fault).__name__) from fault
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _copy(url: str, file: BinaryIO, digest: str | None, title: str, progressbar: bool) -> str:
    """Copy the bytes, and return their checksum in the form of `digest`."""
    from urllib.request import Request, urlopen  # slow to import and rarely needed

    from rich.console import Console
    from rich.progress import Progress

    kind = (digest or "sha256:").split(":")[0]
    sum_ = hashlib.new(kind, usedforsecurity=False)
    request = Request(url, headers={"User-Agent": "modicum"})
    with urlopen(request, timeout=TIMEOUT) as answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        done = 0
        console = Console(stderr=True)
        with Progress(console=console, disable=not (progressbar and console.is_terminal)) as bar:
            task = bar.add_task(f"download {title}", total=total)
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                sum_.update(chunk)
                done += len(chunk)
                bar.advance(task, len(chunk))
    if total is not None and done != total:
        raise DownloadError(f"it stopped after {done:,} of {total:,} bytes")
    return f"{kind}:{sum_.hexdigest()}"

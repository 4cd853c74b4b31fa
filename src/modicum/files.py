"""Files that users ask for: complete or not at all, and one sentence where a disk is full."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from modicum.errors import ResourceError, SettingError

__all__ = ["DISK_FULL", "full_disk", "require_writable", "whole_file", "within_disk"]

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def require_writable(path: str | os.PathLike[str]) -> None:
    """Refuse an output file that cannot be written, before the work begins."""
    try:
        target = Path(path)
    except TypeError:
        raise SettingError(f"the name of a file is needed, not {type(path).__name__}.") from None
    try:
        if target.is_dir():
            raise SettingError(f"'{target}' is a folder: name a file in it.")
        if target.exists() and not target.is_file():
            raise SettingError(f"'{target}' is not a file: name another.")
        if not target.parent.is_dir():
            raise SettingError(
                f"there is no folder '{target.parent}' to write '{target.name}' to: make it first, "
                "or name another."
            )
        existing = target if target.exists() else target.parent
    except (OSError, ValueError) as error:  # an unreadable folder, a name that is too long
        raise _not_written(path, error) from error
    if not os.access(existing, os.W_OK):
        raise SettingError(f"'{target}' cannot be written (no permission): name another file.")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file beside `path` to write to, which takes its place at the end.

    If the block fails or the process is killed, `path` is as it was before. Each call has a
    temporary file of its own, so that of several threads that write one file the last one counts.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with whole_file(path) as part:
    ...     _ = part.write_text("complete")
    >>> path.read_text()
    'complete'
    """
    require_writable(path)
    target = Path(os.path.realpath(path))  # what a link points to, not the link
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with within_disk(path):
            yield part
            with open(part, "r+b") as file:
                os.fsync(file.fileno())
            os.replace(part, target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


@contextlib.contextmanager
def within_disk(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a full disk, or any other failure to write the file `path`, into a Modicum error."""
    try:
        yield
    except OSError as error:
        raise (
            full_disk(path) if error.errno in DISK_FULL else _not_written(path, error)
        ) from error


def full_disk(path: str | os.PathLike[str] | None) -> ResourceError:
    """Return an error that says a disk is full."""
    where = f"of '{os.fspath(path)}' " if path else ""
    return ResourceError(f"the disk {where}is full; free some space and try again.")


def _not_written(path: str | os.PathLike[str], error: Exception) -> SettingError:
    reason = getattr(error, "strerror", None) or error
    return SettingError(f"'{os.fspath(path)}' cannot be written ({reason}): name another file.")

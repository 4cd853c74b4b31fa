"""Finds the file of a data set in a folder, or downloads it from its public address."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from modicum.errors import DataError
from modicum_lab.datasets.download import DownloadError, fetch

Folder: TypeAlias = str | os.PathLike[str] | None


def data_folder(folder: Folder = None) -> Path:
    """Return the folder in which data sets are found and saved.

    This is the argument, or by default the environment variable ``MODICUM_DATA``, or ``modicum`` in
    the user's cache folder.

    Examples
    --------
    >>> data_folder("tables").name
    'tables'
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "modicum"
    return Path(folder or os.environ.get("MODICUM_DATA") or cache).expanduser()


@dataclass(frozen=True)
class Source:
    """One file of a data set.

    Parameters
    ----------
    name
        Name of the data set in messages.
    folder
        Folder of its files inside the data folder; the data folder itself is searched too.
    files
        Names that the file may have, in order of preference.
    url
        Its public address.
    saved
        File name of the download.
    digest
        Checksum of the download, as "sha256:..." or "md5:..."; None if none is known.
    sizes
        Smallest and largest plausible size of the download in bytes, to reject error pages and
        partial files if there is no checksum.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    url: str
    saved: str
    digest: str | None = None
    sizes: tuple[int, int] | None = None

    def look(self, folder: Folder = None) -> Path | None:
        """Return the file if it exists."""
        top = data_folder(folder)
        places = [place / file for file in self.files for place in (top / self.folder, top)]
        return next((place for place in places if place.is_file()), None)

    def find(self, folder: Folder = None, download: bool = True, progressbar: bool = True) -> Path:
        """Return the file, downloaded if necessary; the error says which file to put where."""
        path = self.look(folder)
        if path is not None:
            return path
        target = data_folder(folder) / self.folder / self.saved
        reason = "and downloads are off"
        if download:
            try:
                fetch(self.url, target, self.digest, progressbar, self.sizes)
                return target
            except DownloadError as fault:
                reason = f"and cannot be downloaded ({fault})"
        raise DataError(
            f"the data set {self.name} is not in {target.parent} {reason}; put {self.url} there "
            f"as {self.saved}, or name a folder that has it (folder=, or MODICUM_DATA)."
        )

"""What a loader returns: rows, a model for them, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from modicum.models import BaseModel
from modicum.rows import Rows
from modicum_lab.datasets.source import Folder, Source

Arrays: TypeAlias = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table as rows, with a suitable model.

    Attributes
    ----------
    name
        Name of the loader.
    rows
        The rows to fit.
    model
        A model for these rows.
    description
        What the rows, the outcome and the columns are. Simulated data sets say "stand-in" here.
    source
        The public address of the file.
    test
        Test rows for predictions, if the table has any.
    """

    name: str
    rows: Rows
    model: BaseModel
    description: str
    source: str
    test: Rows | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of ``x``."""
        return self.rows.columns

    def __repr__(self) -> str:
        parts = f"{len(self.rows):,} rows" + (f" + {len(self.test):,}" if self.test else "")
        return f"<Dataset {self.name}: {parts}; {self.description}>"


@dataclass(frozen=True)
class Recipe:
    """How a data set is made: its file, the arrays read from the file, and the rows.

    Reading may need pandas; building needs only NumPy and SciPy.
    """

    source: Source
    read: Callable[[Path], Arrays]
    build: Callable[[Arrays], Dataset]

    def load(self, folder: Folder, download: bool, progressbar: bool) -> Dataset:
        """Find or download the file, and make the data set."""
        return self.build(self.read(self.source.find(folder, download, progressbar)))

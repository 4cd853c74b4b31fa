"""The command line: `modicum fit`, `ingest`, `summary`, `demo`, `reproduce`, `bench`."""

from modicum.cli.columns import ColumnChoice
from modicum.cli.commands import app, main
from modicum.cli.fitting import build_model, read_rows

__all__ = ["ColumnChoice", "app", "build_model", "main", "read_rows"]

"""The command line: `modicum fit`, `ingest`, `summary`, `demo`, `reproduce`, `bench`.

Commands parse options, call what Python users call, and print errors as one sentence.
"""

from modicum.cli.commands import app, main
from modicum.cli.fitting import ColumnChoice, build_model, read_rows
from modicum.cli.laboratory import bench, demo, reproduce

__all__ = ["ColumnChoice", "app", "bench", "build_model", "demo", "main", "read_rows", "reproduce"]

"""The command line: `modicum fit`, `ingest`, `summary`, `demo`, `reproduce`, `bench`.

Commands parse options, call what Python users call, and print errors as one sentence.
"""

from modicum.cli.commands import app, main
from modicum.cli.laboratory import bench, demo, reproduce

__all__ = ["app", "bench", "demo", "main", "reproduce"]

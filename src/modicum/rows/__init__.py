"""Where rows live and how they are fetched: arrays in memory, or a store on disk."""

from modicum.rows.description import RowsSchema
from modicum.rows.ingestion import ingest
from modicum.rows.rows import Rows

__all__ = ["Rows", "RowsSchema", "ingest"]

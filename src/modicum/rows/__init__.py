"""Where rows live and how they are fetched: arrays in memory, or a store on disk."""

from modicum.rows.description import RowsSchema
from modicum.rows.ingestion import ingest
from modicum.rows.rows import NotFinite, Rows, first_not_finite

__all__ = ["NotFinite", "Rows", "RowsSchema", "first_not_finite", "ingest"]

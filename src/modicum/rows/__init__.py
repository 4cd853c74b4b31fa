"""Data sets of rows: arrays in memory or stores on disk, and how rows are read from them."""

from modicum.rows.coding import CodedTerm, Coding
from modicum.rows.description import RowsSchema
from modicum.rows.reading import ingest
from modicum.rows.rows import NotFinite, Rows, first_not_finite

__all__ = ["CodedTerm", "Coding", "NotFinite", "Rows", "RowsSchema", "first_not_finite", "ingest"]

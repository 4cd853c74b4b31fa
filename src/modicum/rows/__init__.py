"""Tables as rows: sources are read in order, and a formula or roles of columns encode them.

`Rows` is a data set of named fields with one interface, whether it is in memory, in a store on disk
or on object storage.
"""

from modicum.rows.coding import CodedTerm, Coding
from modicum.rows.description import RowsSchema
from modicum.rows.reading import ingest
from modicum.rows.rows import NotFinite, Rows, first_not_finite

__all__ = ["CodedTerm", "Coding", "NotFinite", "Rows", "RowsSchema", "first_not_finite", "ingest"]

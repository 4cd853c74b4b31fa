"""From a source with columns to packed rows: find the levels, then encode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modicum.errors import DataError, SettingError
from modicum.rows.checks import as_dtype
from modicum.rows.description import Array, Description
from modicum.rows.encode import Encoder, floating
from modicum.rows.levels import collect
from modicum.rows.roles import resolve
from modicum.rows.sources import Source, TableSource, is_table


def read_source(
    source: Source,
    outcome: str | None,
    predictors: Sequence[str] | None,
    offset: str | None,
    weight: str | None,
    categorical: Sequence[str] | Mapping[str, Any],
    dtype: Any,
) -> tuple[Encoder, Iterator[Array]]:
    """Return the encoder for a source, and the packed blocks of its rows, in order.

    A source with categorical columns is read twice, the first time only those columns.
    """
    roles = resolve(source.names, outcome, predictors, offset, weight, categorical)
    if source.rows == 0:
        raise DataError("there are no rows in the data: at least one is needed.")
    plain = [name for name in roles.needed if name not in roles.categorical]
    kind = as_dtype(dtype, floating(source.types(plain)))
    found = {}
    if roles.categorical:
        references = {name: (roles.references or {})[name] for name in roles.categorical}
        found = collect(source.batches(roles.categorical), references)
    encoder = Encoder(roles, found, kind)
    return encoder, encoder.blocks(source.batches(roles.needed))


def read_table(table: Any, *settings: Any) -> tuple[Description, Iterator[Array]]:
    """Describe and encode a table in memory; `settings` are those of `read_source`."""
    if not is_table(table):
        raise SettingError(
            f"from_table takes a pandas, polars or pyarrow table, not {type(table).__name__}: "
            "for arrays use Rows(x=..., y=...), for files modicum.rows.ingest."
        )
    source = TableSource(table)
    encoder, blocks = read_source(source, *settings)
    return encoder.describe(source.rows or 0), blocks

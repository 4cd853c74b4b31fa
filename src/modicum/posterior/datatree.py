"""A posterior as an ArviZ DataTree: plots, comparisons and netCDF come with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import numpy as np

from modicum.errors import ModicumWarning, warn
from modicum.posterior.draws import Draws
from modicum.posterior.labels import axis_labels

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["to_datatree", "weight_name"]


def to_datatree(
    source: Draws, settings: Mapping[str, object], warnings: Sequence[ModicumWarning]
) -> xr.DataTree:
    """Convert by ArviZ's conventions: groups ``posterior`` and ``sample_stats``."""
    from arviz_base import from_dict

    dims: dict[str, list[str]] = {}
    coords: dict[str, list[str | int]] = {}
    for name, x in source.draws.items():
        shape = x.shape[2:]
        dims[name] = [f"{name}_dim_{i}" for i in range(len(shape))]  # ArviZ's own default names
        labels = axis_labels(name, shape, source.labels)
        coords.update(zip(dims[name], labels, strict=True))
    stats = dict(source.stats)
    if source.weights is not None:
        name = weight_name(source.weights)
        stats[name] = source.weights
        if source.weighted:
            warn(
                ModicumWarning(
                    "weights-ignored",
                    f"these draws carry a {name} each (sample_stats[{name!r}]), which ArviZ's "
                    "summaries and plots ignore",
                    "use Posterior.summary(), which respects it",
                ),
                stacklevel=4,
            )
    groups = {"posterior": source.draws} | ({"sample_stats": stats} if stats else {})
    attrs = _attributes(source, settings, warnings)
    return from_dict(
        groups,
        dims=dims,
        coords=coords,
        attrs={"/": attrs, **dict.fromkeys(groups, attrs)},
    )


def weight_name(weights: np.ndarray) -> str:
    """Tell signs from importance weights."""
    return "sign" if np.isin(weights, (-1.0, 1.0)).all() else "weight"


def _attributes(
    source: Draws, settings: Mapping[str, object], warnings: Sequence[ModicumWarning]
) -> dict[str, str | int | float]:
    """Keep what netCDF can store of the settings, with the ledger's totals."""
    try:
        modicum_version = version("modicum")
    except PackageNotFoundError:  # run from a source folder that was never installed
        modicum_version = "unknown"
    known = {k: v for k, v in settings.items() if isinstance(v, str | int | float)}
    attrs = {k: int(v) if isinstance(v, bool) else v for k, v in known.items()}
    ledger = source.ledger
    attrs |= {
        "inference_library": "modicum",
        "inference_library_version": modicum_version,
        "row_evaluations": ledger.evaluations,
        "data_passes": ledger.passes,
        "data_rows": ledger.rows,
        "warnings": "\n".join(map(str, warnings)),
    }
    if ledger.share is not None:
        attrs["share_of_full_data"] = ledger.share
    return attrs

"""The file of a digest: a zip file of plain arrays and a JSON page, and what is checked in it.

It holds raw rows of the data. Files are not trusted: one whose shapes, ranges or types are not
those of a digest is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from modicum.digest.pool import Pool
from modicum.errors import ModicumWarning
from modicum.files import Archive, Json, integer, mapping, text
from modicum.ledger import Ledger
from modicum.models.over_draws import ModelPredictor
from modicum.models.priors.units import MomentSums
from modicum.passes import Quadratic
from modicum.posterior import FitRows
from modicum.rows import Rows
from modicum.rows.description import Description
from modicum.rows.memory import MemoryBackend

KIND = Archive("modicum digest", 1, "digest.json", "a digest")
PARTS = ("arrays", "fields", "units", "model")
SUMS = ("point", "C", "A", "B")  # arrays of a `Quadratic`
STRATA = ("share", "count", "stratum", "size", "drawn", "part")  # and of a `Pool`
WHOLE = ("stratum", "part")  # arrays of integers


def write(path: str | os.PathLike[str], held: Mapping[str, Any]) -> None:
    """Write the fields of a digest, by name."""
    pool, total, units, model = (held[name] for name in ("pool", "total", "units", "model"))
    sums = {name: np.asarray(getattr(total, name)) for name in SUMS}
    fields = pool.rows.slice(0, len(pool))
    parts = {
        "arrays": sums | {"anchors": held["anchors"]} | {k: getattr(pool, k) for k in STRATA},
        "fields": {k: np.ascontiguousarray(v) for k, v in fields.items()},
        "units": None if units is None else asdict(units),
        "model": None if model is None else ModelPredictor(model).to_dict(),
    }
    plain = {
        "description": pool.rows._description.to_json(),
        "likelihood": held["likelihood"],
        "rows": held["number"],
        "fit": held["fit_rows"].to_dict(),
        "classes": held["classes"],
        "notes": [note.to_dict() for note in held["notes"]],
        "ledger": held["ledger"].to_dict(),
    }
    KIND.write(path, parts, plain)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Json] | None]:
    """Return the fields of a digest but for its model, after checks, and how that is described."""
    return KIND.read(path, PARTS, _checked)


def _checked(
    parts: dict[str, Json], page: dict[str, Json]
) -> tuple[dict[str, Any], dict[str, Json] | None]:
    # the rows of the pool, after checking the arrays against the description
    description = Description.from_json(page["description"])
    fields, held_fields = mapping(parts["fields"]), dict[str, np.ndarray]()
    for name, shape in description.fields.items():
        values, kind = fields.get(name), description.dtypes[name]
        if not isinstance(values, np.ndarray) or values.shape != (description.n, *shape):
            raise ValueError(f"the field {name!r} does not have the shape it declares")
        if values.dtype != kind or (kind.kind == "f" and not np.isfinite(values).all()):
            raise ValueError(f"the field {name!r} holds something other than numbers")
        held_fields[name] = values
    if set(fields) != set(held_fields):
        raise ValueError("it holds fields that it does not describe")
    if description.coding is not None and description.coding.fault(held_fields) is not None:
        raise ValueError("a code is out of range")
    rows = Rows._at(MemoryBackend(description, held_fields))
    arrays = _checked_arrays(mapping(parts["arrays"]), len(rows))
    units, classes, model = parts["units"], page["classes"], parts["model"]
    columns = len(rows._description.columns)
    held = {
        "likelihood": text(page["likelihood"]),
        "number": integer(page["rows"], 1),
        "total": Quadratic(arrays["point"], float(arrays["C"]), arrays["A"], arrays["B"]),
        "anchors": arrays["anchors"],
        "pool": Pool(rows, *(arrays[name] for name in STRATA)),
        "fit_rows": FitRows.from_dict(page["fit"]),
        "units": None if units is None else _checked_units(mapping(units), columns),
        "classes": None if classes is None else integer(classes, 2),
        "notes": tuple(ModicumWarning.from_dict(note) for note in page["notes"]),
        "ledger": Ledger.from_dict(page["ledger"]),
    }
    return held, None if model is None else mapping(model)


def _checked_arrays(arrays: dict[str, object], n: int) -> dict[str, np.ndarray]:
    """Return the arrays of the pool and sums, after checking that they are consistent."""
    loaded: dict[str, np.ndarray] = {}
    for name, values in arrays.items():
        if not isinstance(values, np.ndarray):
            raise TypeError(f"{name!r} is not an array")
        kind = "iu" if name in WHOLE else "f"
        if values.dtype.kind not in kind or not np.isfinite(values).all():
            raise ValueError(f"{name!r} holds something other than numbers")
        loaded[name] = values.astype(np.int32 if name in WHOLE else np.float64)
    d, strata, parts = len(loaded["point"]), len(loaded["size"]), len(loaded["anchors"])
    shapes = {
        "point": (d,), "C": (), "A": (d,), "B": (d, d), "anchors": (parts, d),
        "share": (n,), "count": (n,), "stratum": (n,),
        "size": (strata,), "drawn": (strata,), "part": (strata,),
    }  # fmt: skip
    for name, shape in shapes.items():
        if loaded[name].shape != shape:
            raise ValueError(f"{name!r} has a shape that does not match the rest")
    size, drawn, stratum, part = (loaded[k] for k in ("size", "drawn", "stratum", "part"))
    if not (np.all(drawn >= 1) and np.all(drawn <= size) and np.all(loaded["count"] > 0)):
        raise ValueError("its strata keep more rows than they have")
    if not (np.all(loaded["share"] > 0) and np.all(loaded["share"] <= 1)):
        raise ValueError("the shares of its rows are not between 0 and 1")
    if np.any(np.diff(stratum) < 0) or stratum.min() < 0 or stratum.max() >= strata:
        raise ValueError("its rows are not sorted by stratum")
    if (
        part.min() < 0
        or part.max() >= parts
        or np.any(np.bincount(stratum) > drawn[: stratum.max() + 1])
    ):
        raise ValueError("its strata have no anchor")
    return loaded


def _checked_units(saved: dict[str, Json], columns: int) -> MomentSums:
    """Return the units of priors, after checking them against the number of columns."""
    units = MomentSums(**saved)
    numbers = (units.weight, units.counts, units.log_exposure)
    shapes = {np.shape(part) for part in (units.mean, units.squares, units.low, units.high)}
    if shapes != {(columns + 1,)} or not all(isinstance(n, float | int) for n in numbers):
        raise ValueError("its units do not match its columns")
    return units

"""A posterior in a file, and as ArviZ's DataTree, which ArviZ plots and netCDF stores."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Literal, TypeVar

import numpy as np

from modicum.arguments import FromZero
from modicum.errors import ModicumWarning, SettingError, warn_of
from modicum.files import Archive, Json, require_writable, whole_file
from modicum.ledger import Ledger
from modicum.libraries import arviz_base
from modicum.libraries import xarray as xr
from modicum.models.over_draws import log_priors, prior_draws
from modicum.posterior.fit_rows import AlignedRows, FitRows
from modicum.posterior.fitted import FittedDraws, named_axes
from modicum.posterior.outcomes import (
    OutcomeDraws,
    density_pieces,
    outcome_array,
    prior_outcome_draws,
)
from modicum.posterior.population import random_rows
from modicum.random import Stream, generator

PAGE = "posterior.json"
POSTERIOR = Archive("modicum posterior", 2, PAGE, "a posterior")
T = TypeVar("T")
PARTS = ("draws", "stats", "weights", "labels", "tuning", "settings", "predictor")


def save(post: FittedDraws, path: str | os.PathLike[str]) -> None:
    """Save atomically to one file, which holds no executable code.

    Raises
    ------
    ResourceError
        If the disk is full; an existing file is left unchanged.
    SettingError
        If the file cannot be written, for instance because its folder does not exist.
    """
    fit = post.fit_rows
    held = vars(post) | {"predictor": post.predictor_spec}
    plain = {
        "warnings": [doubt.to_dict() for doubt in post.warnings],
        "ledger": post.ledger.to_dict(),
        "rows": None if fit is None else fit.to_dict(),
    }
    POSTERIOR.write(path, {part: held[part] for part in PARTS}, plain)


def load(path: str | os.PathLike[str], make: Callable[..., T]) -> T:
    """Read a file that `save` wrote; `make` is given its contents, named as in `FittedDraws`."""

    def made(parts: dict[str, Json], page: dict[str, Json]) -> T:
        for name in ("draws", "stats", "labels", "tuning", "settings"):
            if not isinstance(parts[name], dict):
                raise TypeError(f"its {name} are not listed by name")
        for name in ("draws", "stats"):
            if not all(isinstance(x, np.ndarray) for x in parts[name].values()):
                raise TypeError(f"its {name} are not arrays")
        if not isinstance(parts["weights"], np.ndarray | None):
            raise TypeError("its weights are not an array")
        if not isinstance(parts["predictor"], dict | None):
            raise TypeError("its predictor is not described by name")
        rows = page["rows"]
        return make(
            predictor_spec=parts.pop("predictor"),
            **parts,
            ledger=Ledger.from_dict(page["ledger"]),
            warnings=[ModicumWarning.from_dict(doubt) for doubt in page["warnings"]],
            fit_rows=None if rows is None else FitRows.from_dict(rows),
        )

    return POSTERIOR.read(path, PARTS, made)


MOST_DRAWS = 4_000  # used for groups with a row dimension
PRIOR_DRAWS = 1_000
LARGEST_WHOLE = 2.0**53  # up to this, floats represent every integer
ROW = "row"  # the dimension of sampled rows


def to_datatree(post: FittedDraws, sample: FromZero = 500, random_seed: int = 0) -> xr.DataTree:
    """Convert to an ArviZ DataTree, with dimensions named and labelled.

    The groups are `posterior` and `sample_stats`; if the model is known, `log_prior`, and
    `prior` if it can be sampled; and if the posterior holds its rows, for a random sample of
    them, `observed_data`, `log_likelihood`, `posterior_predictive` and `prior_predictive`.

    Parameters
    ----------
    sample
        Number of rows to sample; with 0, only `posterior` and `sample_stats`, which is instant.
    random_seed
        Seed of the sample of rows, and of the predictive draws.
    """
    dims, coords = named_axes(post)
    stats = dict(post.stats)
    if post.weights is not None:
        name = weight_name(post.weights)
        stats[name] = post.weights
        if post.weighted:
            warn_of(
                "weights-ignored",
                f"these draws carry a {name} each (sample_stats[{name!r}]), which ArviZ's "
                "summaries and plots ignore",
                "use Posterior.summary(), which respects it"
                + (", or post.resample().to_datatree()" if name == "weight" else ""),
            )
    groups = {"posterior": post.draws} | ({"sample_stats": stats} if stats else {})
    # what netCDF can store of the settings, with the totals of the ledger
    plain = {k: v for k, v in post.settings.items() if isinstance(v, str | int | float)}
    ledger = post.ledger
    attrs = {k: int(v) if isinstance(v, bool) else v for k, v in plain.items()} | {
        "inference_library": "modicum",
        "inference_library_version": version("modicum"),
        "row_evaluations": ledger.evaluations,
        "data_passes": ledger.passes,
        "data_rows": ledger.rows,
        "warnings": "\n".join(map(str, post.warnings)),
    }
    if ledger.share is not None:
        attrs["share_of_full_data"] = ledger.share
    tree = arviz_base.from_dict(
        groups,
        dims=dims,
        coords=coords,
        attrs={"/": attrs, **dict.fromkeys(groups, attrs)},
    )
    if sample and post.predictor_if_any() is not None:
        _add_groups(tree, post, sample, random_seed)
    return tree


def to_netcdf(post: FittedDraws, path: str | os.PathLike[str], sample: int = 500) -> None:
    """Write the DataTree of `to_datatree` atomically to a netCDF file, which ArviZ reads.

    This needs h5netcdf or netCDF4.
    """
    require_writable(path)
    engine = _netcdf_engine()
    tree = to_datatree(post, sample)
    content = tree.to_netcdf(engine=engine)  # in memory: HDF5 crashes where a disk is full
    with whole_file(path) as part:
        part.write_bytes(content)


def _add_groups(tree: xr.DataTree, post: FittedDraws, sample: int, seed: int) -> None:
    """Add the groups that the model and the rows allow, for `sample` random rows."""
    predictor = post.model_predictor()
    model = predictor.model
    every = max(1, -(-post.chains * post.num_draws // MOST_DRAWS))
    draws = {name: x[:, ::every] for name, x in post.draws.items()}
    chains, number = next(iter(draws.values())).shape[:2]
    coords = {"chain": np.arange(chains), "draw": every * np.arange(number)}
    with suppress(SettingError):  # priors scaled by data that the model has not seen
        log_prior = log_priors(model, draws, stated=True)  # which ArviZ raises to powers
        tree["log_prior"] = xr.Dataset({"all": (("chain", "draw"), log_prior)}, coords)
    prior = None
    with suppress(SettingError):  # a flat prior, say, cannot be drawn from
        rng = generator(seed, Stream.PRIOR_DRAWS)
        shapes = {name: x.shape[2:] for name, x in post.draws.items()}
        prior = prior_draws(model, shapes, PRIOR_DRAWS, rng)
        like = tree["posterior"].to_dataset()
        arrays = {name: (like[name].dims, x[None]) for name, x in prior.items()}
        used = {dim for dims, _ in arrays.values() for dim in dims[2:]}
        tree["prior"] = xr.Dataset(arrays, {k: v for k, v in like.coords.items() if k in used})
    name, rows = model.outcome_field, post.held_rows()
    if rows is None or name not in rows.fields:
        return
    ids = np.sort(random_rows(len(rows), sample, seed))
    sampled = AlignedRows.of(rows.subset(ids))
    flat = {parameter: x.reshape(-1, *x.shape[2:]) for parameter, x in draws.items()}
    fields = sampled.rows.slice(0, len(ids))
    parts = [fields[part] for part in model.row_model.drawn_fields]
    outcomes = {"observed_data": np.stack(parts, axis=-1) if parts[1:] else parts[0]}
    drawn = OutcomeDraws.of(post, sampled, flat, np.ones((1, chains * number)), None)
    with suppress(SettingError):  # a model that draws no outcomes
        predictive = outcome_array(drawn, seed)
        outcomes["posterior_predictive"] = predictive.reshape(chains, number, *predictive.shape[1:])
        if prior is not None:
            before = prior_outcome_draws(predictor, prior, sampled, seed)
            outcomes["prior_predictive"] = outcome_array(before, seed)[None]
    # ArviZ recognises counts by their type
    are_whole = all(
        np.all((x == np.floor(x)) & (np.abs(x) < LARGEST_WHOLE)) for x in outcomes.values()
    )
    outcomes = {kind: x.astype(np.int64) if are_whole else x for kind, x in outcomes.items()}
    shape = outcomes["observed_data"].shape[1:]
    dims = (ROW, *(f"{name}_dim_{i}" for i in range(len(shape))))  # ArviZ's own default names
    by_draw = ("chain", "draw", *dims)
    tree["observed_data"] = xr.Dataset({name: (dims, outcomes["observed_data"])}, {ROW: ids})
    if model.integrated_group is None:  # else likelihoods are of groups, not rows
        density = np.concatenate(list(density_pieces(drawn)), axis=1)
        density = density.reshape(chains, number, -1)
        tree["log_likelihood"] = xr.Dataset({name: (by_draw[:3], density)}, coords | {ROW: ids})
    for group, at in (("posterior_predictive", coords), ("prior_predictive", {})):
        if group in outcomes:
            tree[group] = xr.Dataset({name: (by_draw, outcomes[group])}, at | {ROW: ids})


def _netcdf_engine() -> Literal["h5netcdf", "netcdf4"]:
    """Return the installed netCDF library, or say what to install."""
    from importlib.util import find_spec

    if find_spec("h5netcdf") and find_spec("h5py"):
        return "h5netcdf"
    if find_spec("netCDF4"):
        return "netcdf4"
    raise SettingError(
        "netCDF files need h5netcdf and h5py, or netCDF4, which are not installed: "
        "pip install h5netcdf h5py; post.save keeps a posterior without them."
    )


def weight_name(weights: np.ndarray) -> str:
    """Return "sign" for weights that are all 1 or -1, else "weight"."""
    return "sign" if np.isin(weights, (-1.0, 1.0)).all() else "weight"

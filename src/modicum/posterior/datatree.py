"""Convert a posterior to an ArviZ DataTree, for ArviZ's plots and comparisons and for netCDF."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

import numpy as np

from modicum.errors import SettingError, warn_of, whole_number
from modicum.files import require_writable, whole_file
from modicum.models.over_draws import log_priors, prior_draws
from modicum.posterior.fit_rows import AlignedRows
from modicum.posterior.fitted import FittedDraws, named_axes
from modicum.posterior.outcomes import (
    OutcomeDraws,
    density_pieces,
    known_effects,
    outcome_array,
    prior_outcome_draws,
)
from modicum.posterior.population import random_rows
from modicum.random import Stream, generator

if TYPE_CHECKING:
    import xarray as xr

MOST_DRAWS = 4_000  # used for groups with a row dimension
PRIOR_DRAWS = 1_000
LARGEST_WHOLE = 2.0**53  # up to this, floats represent every integer
ROW = "row"  # the dimension of sampled rows


def to_datatree(post: FittedDraws, sample: int = 500, random_seed: int = 0) -> xr.DataTree:
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
    whole_number("sample", sample, 0)
    tree = _draws_and_stats(post)
    if sample and post.restore_predictor() is not None:
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
    import xarray as xr

    predictor = post.model_predictor()
    model = predictor.model
    every = max(1, -(-post.chains * post.num_draws // MOST_DRAWS))
    draws = {name: x[:, ::every] for name, x in post.draws.items()}
    chains, number = next(iter(draws.values())).shape[:2]
    coords = {"chain": np.arange(chains), "draw": every * np.arange(number)}
    with suppress(SettingError):  # priors scaled by data that the model has not seen
        log_prior = log_priors(model, draws)
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
    sampled = AlignedRows(rows.subset(ids), tuple(rows.fields))
    flat = {parameter: x.reshape(-1, *x.shape[2:]) for parameter, x in draws.items()}
    outcomes = {"observed_data": sampled.rows.slice(0, len(ids))[name]}
    ones = np.ones((1, chains * number))
    drawn = OutcomeDraws(flat, predictor, ones, known_effects(post, flat, sampled))
    with suppress(SettingError):  # a model that draws no outcomes
        predictive = outcome_array(drawn, sampled, seed, None)
        outcomes["posterior_predictive"] = predictive.reshape(chains, number, *predictive.shape[1:])
        if prior is not None:
            before = prior_outcome_draws(predictor, prior, sampled, seed)
            outcomes["prior_predictive"] = outcome_array(*before, seed, None)[None]
    outcomes = _as_whole_numbers(outcomes)
    shape = outcomes["observed_data"].shape[1:]
    dims = (ROW, *(f"{name}_dim_{i}" for i in range(len(shape))))  # ArviZ's own default names
    by_draw = ("chain", "draw", *dims)
    tree["observed_data"] = xr.Dataset({name: (dims, outcomes["observed_data"])}, {ROW: ids})
    if model.integrated_group is None:  # else likelihoods are of groups, not rows
        density = np.concatenate(list(density_pieces(drawn, sampled)), axis=1)
        density = density.reshape(chains, number, -1)
        tree["log_likelihood"] = xr.Dataset({name: (by_draw[:3], density)}, coords | {ROW: ids})
    for group, at in (("posterior_predictive", coords), ("prior_predictive", {})):
        if group in outcomes:
            tree[group] = xr.Dataset({name: (by_draw, outcomes[group])}, at | {ROW: ids})


def _as_whole_numbers(outcomes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert integer-valued outcomes to integers: ArviZ recognises counts by their type."""
    are_whole = all(
        np.all((x == np.floor(x)) & (np.abs(x) < LARGEST_WHOLE)) for x in outcomes.values()
    )
    return {kind: x.astype(np.int64) if are_whole else x for kind, x in outcomes.items()}


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


def _draws_and_stats(post: FittedDraws) -> xr.DataTree:
    """Convert by ArviZ's conventions: groups ``posterior`` and ``sample_stats``."""
    from arviz_base import from_dict

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
    attrs = _attributes(post)
    return from_dict(
        groups,
        dims=dims,
        coords=coords,
        attrs={"/": attrs, **dict.fromkeys(groups, attrs)},
    )


def weight_name(weights: np.ndarray) -> str:
    """Return "sign" for weights that are all 1 or -1, else "weight"."""
    return "sign" if np.isin(weights, (-1.0, 1.0)).all() else "weight"


def _attributes(post: FittedDraws) -> dict[str, str | int | float]:
    """Keep what netCDF can store of the settings, with the ledger's totals."""
    plain = {k: v for k, v in post.settings.items() if isinstance(v, str | int | float)}
    attrs = {k: int(v) if isinstance(v, bool) else v for k, v in plain.items()}
    ledger = post.ledger
    attrs |= {
        "inference_library": "modicum",
        "inference_library_version": version("modicum"),
        "row_evaluations": ledger.evaluations,
        "data_passes": ledger.passes,
        "data_rows": ledger.rows,
        "warnings": "\n".join(map(str, post.warnings)),
    }
    if ledger.share is not None:
        attrs["share_of_full_data"] = ledger.share
    return attrs

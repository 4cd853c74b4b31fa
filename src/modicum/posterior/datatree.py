"""Convert a posterior to an ArviZ DataTree, for ArviZ's plots and comparisons and for netCDF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal

import numpy as np

from modicum.errors import ModicumWarning, SettingError, warn
from modicum.models import IntegratedEffects
from modicum.models.over_draws import ModelPredictor, log_priors, prior_draws
from modicum.posterior.draws import Draws, axis_labels
from modicum.posterior.fit_rows import AlignedRows
from modicum.posterior.fitted import FittedDraws
from modicum.posterior.population import random_rows
from modicum.posterior.predict import (
    OutcomeDraws,
    density_array,
    known_effects,
    outcome_array,
    prior_outcome_draws,
)
from modicum.random import Stream, generator

if TYPE_CHECKING:
    import xarray as xr

MOST_DRAWS = 4_000  # used for groups with a row dimension
PRIOR_DRAWS = 1_000
LARGEST_WHOLE = 2.0**53  # up to this, floats represent every integer
ROW = "row"  # the dimension of sampled rows


@dataclass
class SampledGroups:
    """Arrays for the further groups of a DataTree; None for a group that there is not.

    Attributes
    ----------
    draws
        Every `every`-th draw of each chain, for groups with a row dimension.
    every
        Thinning interval of `draws`.
    outcome
        The field of the rows that holds the outcomes.
    row_ids
        Indices of the sampled rows.
    observed
        Outcomes of the sampled rows.
    log_prior
        Log prior density (chain, draw).
    log_likelihood, posterior_predictive
        Log-likelihoods and drawn outcomes of the sampled rows (chain x draw, row).
    prior, prior_predictive
        Draws of the prior, and outcomes of the same rows (draw, row).
    """

    draws: dict[str, np.ndarray]
    every: int
    outcome: str = "y"
    row_ids: np.ndarray | None = None
    observed: np.ndarray | None = None
    log_prior: np.ndarray | None = None
    log_likelihood: np.ndarray | None = None
    posterior_predictive: np.ndarray | None = None
    prior: dict[str, np.ndarray] | None = None
    prior_predictive: np.ndarray | None = None


def sampled_groups(source: FittedDraws, sample: int, seed: int) -> SampledGroups:
    """Compute the groups that the model and the rows allow, for `sample` random rows."""
    fit = source.fit()
    every = max(1, -(-source.chains * source.num_draws // MOST_DRAWS))
    thinned_draws = {name: x[:, ::every] for name, x in source.draws.items()}
    groups = SampledGroups(thinned_draws, every)
    with suppress(SettingError):  # priors scaled by data that the model has not seen
        groups.log_prior = log_priors(fit.model, thinned_draws)
    shapes = {name: x.shape[2:] for name, x in source.draws.items()}
    with suppress(SettingError):  # a flat prior, say, cannot be drawn from
        rng = generator(seed, Stream.PRIOR_DRAWS)
        groups.prior = prior_draws(fit.model, shapes, PRIOR_DRAWS, rng)
    field = fit.model.outcome_field
    rows = source.held_rows()
    if rows is None or field not in rows.fields:
        return groups
    ids = np.sort(random_rows(len(rows), sample, seed))
    sampled = AlignedRows(rows.subset(ids), tuple(rows.fields))
    groups.observed, groups.row_ids = sampled.rows.slice(0, len(ids))[field], ids
    groups.outcome = field
    flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in thinned_draws.items()}
    predictor = ModelPredictor(fit.model)
    if not isinstance(fit.model, IntegratedEffects):  # whose likelihoods are of groups, not rows
        groups.log_likelihood = density_array(predictor, flat, sampled)
    with suppress(SettingError):  # a model that draws no outcomes
        posterior = OutcomeDraws(flat, predictor, known_effects(source, flat, sampled))
        groups.posterior_predictive = outcome_array(posterior, sampled, seed, None)
        if groups.prior is not None:
            prior, sampled = prior_outcome_draws(predictor, groups.prior, sampled, seed)
            groups.prior_predictive = outcome_array(prior, sampled, seed, None)
    return groups


def add_groups(tree: xr.DataTree, groups: SampledGroups) -> None:
    """Add the computed groups to a tree of `to_datatree`."""
    import xarray as xr

    chains, number = next(iter(groups.draws.values())).shape[:2]
    coords = {"chain": np.arange(chains), "draw": groups.every * np.arange(number)}
    if groups.log_prior is not None:
        tree["log_prior"] = xr.Dataset({"all": (("chain", "draw"), groups.log_prior)}, coords)
    if groups.prior is not None:
        posterior = tree["posterior"].to_dataset()
        arrays = {
            name: (("chain", "draw", *posterior[name].dims[2:]), x[None])
            for name, x in groups.prior.items()
        }
        labels = {k: v for k, v in posterior.coords.items() if k not in ("chain", "draw")}
        dims_present = {dim for dims, _ in arrays.values() for dim in dims}
        tree["prior"] = xr.Dataset(arrays, {k: v for k, v in labels.items() if k in dims_present})
    if groups.row_ids is None:
        return
    rows = {ROW: groups.row_ids}
    groups = _as_whole_numbers(groups)
    assert groups.observed is not None
    name, shape = groups.outcome, groups.observed.shape[1:]
    dims = (ROW, *(f"{name}_dim_{i}" for i in range(len(shape))))  # ArviZ's own default names
    tree["observed_data"] = xr.Dataset({name: (dims, groups.observed)}, rows)
    density = groups.log_likelihood
    if density is not None:
        shaped = density.reshape(chains, number, -1)
        tree["log_likelihood"] = xr.Dataset({name: (("chain", "draw", ROW), shaped)}, coords | rows)
    predictive = groups.posterior_predictive
    if predictive is not None:
        shaped = predictive.reshape(chains, number, *predictive.shape[1:])
        outcomes = {name: (("chain", "draw", *dims), shaped)}
        tree["posterior_predictive"] = xr.Dataset(outcomes, coords | rows)
    if groups.prior_predictive is not None:
        prior = {name: (("chain", "draw", *dims), groups.prior_predictive[None])}
        tree["prior_predictive"] = xr.Dataset(prior, rows)


def _as_whole_numbers(groups: SampledGroups) -> SampledGroups:
    """Convert integer-valued outcomes to integers: ArviZ recognises counts by their type."""
    kinds = ("observed", "posterior_predictive", "prior_predictive")
    outcomes = {kind: x for kind in kinds if (x := getattr(groups, kind)) is not None}
    are_whole = all(
        np.all((x == np.floor(x)) & (np.abs(x) < LARGEST_WHOLE)) for x in outcomes.values()
    )
    if not are_whole:
        return groups
    return replace(groups, **{kind: x.astype(np.int64) for kind, x in outcomes.items()})


def netcdf_engine() -> Literal["h5netcdf", "netcdf4"]:
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
                    "use Posterior.summary(), which respects it"
                    + (", or post.resample().to_datatree()" if name == "weight" else ""),
                ),
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
    """Return "sign" for weights that are all 1 or -1, else "weight"."""
    return "sign" if np.isin(weights, (-1.0, 1.0)).all() else "weight"


def _attributes(
    source: Draws, settings: Mapping[str, object], warnings: Sequence[ModicumWarning]
) -> dict[str, str | int | float]:
    """Keep what netCDF can store of the settings, with the ledger's totals."""
    try:
        modicum_version = version("modicum")
    except PackageNotFoundError:  # run from a source folder that was never installed
        modicum_version = "unknown"
    plain = {k: v for k, v in settings.items() if isinstance(v, str | int | float)}
    attrs = {k: int(v) if isinstance(v, bool) else v for k, v in plain.items()}
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

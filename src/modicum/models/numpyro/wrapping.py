"""Conversion of a NumPyro model to a model of rows, with a prior and a log-likelihood per row.

A NumPyro model is a function that draws. Run on a batch of rows with parameters substituted, it
yields sites with distributions and values: the sites of the parameters give the log-prior, and the
observed sites in the plate over the rows give one log-likelihood per row, whatever the
`subsample_size`. The function is a black box, so it is first tried on a few rows: a model that
Modicum cannot sample correctly is refused with an explanation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from modicum.errors import SettingError, fault_text
from modicum.models.base import Batch, Params
from modicum.models.constraints import Constraint, real
from modicum.models.numpyro.program import Program, Site, Sites, frames, is_factor, is_observed
from modicum.models.numpyro.supports import as_constraint
from modicum.models.own import Model, with_given_types
from modicum.models.own.independence import agree, refuse_mixed_rows, two_batches
from modicum.rows import Rows
from modicum.runtime import in_double_precision

STARTS = 4  # starting points: the middle, and some around it
RADIUS = 2.0  # radius of the others in unconstrained space, as in Stan and NumPyro


def from_numpyro(model: Callable[..., Any], rows: Rows, **arguments: Any) -> Model:
    """Convert a NumPyro model function with one plate over the rows to a model.

    Parameters
    ----------
    model
        The function. Its arguments are fields of the rows, by name, and `arguments`. Sites outside
        the plate are parameters; observed sites in the plate form the likelihood; deterministic
        sites that do not depend on the rows are reported.
    rows
        The data: `mo.Rows(data=X, obs=y)` for a model of `data` and `obs`.
    **arguments
        All other arguments of the function. A `subsample_size` is ignored: Modicum draws rows
        itself.

    Returns
    -------
    Model
        A model for `mo.sample(model, rows)`. Predictions are means of the observed site, if there
        is a single one with a mean; predictive draws are draws of that site, and prior draws are
        draws of all other sites.

    Examples
    --------
    NumPyro's HMCECS example, unchanged:

    >>> import jax.numpy as jnp, numpy as np, modicum as mo
    >>> import numpyro, numpyro.distributions as dist
    >>> def model(data, obs, subsample_size):
    ...     n, m = data.shape
    ...     theta = numpyro.sample("theta", dist.Normal(jnp.zeros(m), 0.5 * jnp.ones(m)))
    ...     with numpyro.plate("N", n, subsample_size=subsample_size):
    ...         batch_feats = numpyro.subsample(data, event_dim=1)
    ...         batch_obs = numpyro.subsample(obs, event_dim=0)
    ...         numpyro.sample("obs", dist.Bernoulli(logits=theta @ batch_feats.T), obs=batch_obs)
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(2_000, 2))
    >>> rows = mo.Rows(data=X, obs=rng.random(2_000) < 1 / (1 + np.exp(-X[:, 0])))
    >>> post = mo.sample(mo.from_numpyro(model, rows, subsample_size=100), rows, draws=300,
    ...                  tune=300, chains=2, random_seed=1, progressbar=False)
    >>> post.mean("theta").round(1)
    array([ 1., -0.])
    """
    if not callable(model):
        raise SettingError(f"a NumPyro model must be a function, not {type(model).__name__}.")
    if not isinstance(rows, Rows):
        raise SettingError(
            "the second argument must be mo.Rows whose fields are arguments of the model, such as "
            f"mo.Rows(data=X, obs=y), not {type(rows).__name__}."
        )
    _require_numpyro()
    fields = _row_arguments(model, rows, arguments)
    return _Study(Program(model, fields, arguments, len(rows)), rows).model()


def _require_numpyro() -> None:
    try:
        import numpyro  # noqa: F401
    except ImportError:
        raise SettingError(
            "mo.from_numpyro needs NumPyro, which is not installed: pip install numpyro."
        ) from None


def _row_arguments(
    model: Callable[..., Any], rows: Rows, arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the fields of the rows that the function takes; check its other arguments."""
    takes = inspect.signature(model).parameters
    if "weight" in rows.fields and "weight" in takes:
        raise SettingError(
            "the field 'weight' is reserved: Modicum multiplies every row's log-likelihood by it; "
            "give the model's argument and the field another name."
        )
    fields = tuple(name for name in rows.fields if name != "weight")
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values())
    listed = ", ".join(takes)
    for name in fields:
        if name not in takes and not open_ended:
            raise SettingError(
                f"the rows hold the field {name!r}, which is not an argument of the model "
                f"({listed}); name the fields of mo.Rows like the model's arguments."
            )
        if name in arguments:
            raise SettingError(f"{name!r} is both a field of the rows and an argument: give one.")
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in takes.items():
        needed = parameter.kind in named and parameter.default is inspect.Parameter.empty
        if needed and name not in fields and name not in arguments:
            raise SettingError(
                f"the model takes {name!r}, which is neither a field of the rows "
                f"({', '.join(rows.fields)}) nor given; write mo.from_numpyro(model, rows, "
                f"{name}=...), or make it a field of the rows."
            )
    return fields


class _NumpyroModel(Model):
    """A model whose functions run a NumPyro model."""

    def check_independence(self, theta: Params, rows: Rows) -> None:
        """Skip the check, which was made when the function was studied."""

    def check_simulate(self, theta: Params, batch: Batch, rows: Rows) -> None:
        """Skip the check: chains draw no outcomes, and drawing them reports its own errors."""


class _Study:
    """A trial of a NumPyro function on a few rows, before it becomes a model."""

    def __init__(self, program: Program, rows: Rows) -> None:
        batches = [with_given_types(batch, rows.kinds) for batch in two_batches(rows)]
        self.batch, self.other_batch = ({k: np.asarray(v) for k, v in b.items()} for b in batches)
        self.rows, self.program = rows, program

    @in_double_precision
    @np.errstate(divide="ignore", invalid="ignore")  # deterministic sites, where parameters are 0
    def model(self) -> Model:
        """Return the model; refuse a function that cannot be sampled correctly."""
        sites, other_sites = (self._run(batch, 0.0) for batch in (self.batch, self.other_batch))
        plate = self._plate(sites, other_sites)
        self._refuse(sites, plate)
        free = [name for name, site in sites.items() if _is_parameter(site)]
        reported = _reported(sites, other_sites, plate)
        self.program = replace(
            self.program,
            plate=plate,
            parameters=tuple(free),
            reported=tuple(reported),
            sample_rows=self.batch,
        )
        points = [_values(self._run(self.batch, radius), free) for radius in _radii()]
        elsewhere = self.program.run(self.batch, points[1])
        constraints = {name: _constraint(name, sites, elsewhere) for name in free}
        self._refuse_dependence_on_rows(points[1])
        model = _NumpyroModel(
            self.program.log_prior,
            self.program.log_likelihood,
            init=points[0],
            predict=self.program.expected,
            simulate=self.program.simulate,
            simulate_prior=self.program.simulate_prior,
            outcome=self.program.outcome_field(points[0]),
            constraints={k: c for k, c in constraints.items() if c is not real},
            report=self.program.report if reported else None,
        )
        return model.with_points(tuple(points), self.rows.kinds)

    def _run(self, batch: Batch, radius: float) -> Sites:
        """Return all sites, with parameters drawn uniformly within `radius`, unconstrained."""
        from numpyro.infer.initialization import init_to_uniform

        choose = init_to_uniform(radius=radius)
        try:
            return self.program.run(batch, None, choose)
        except Exception as fault:
            with suppress(Exception):  # the plate may be as long as all rows
                return self.program.run(batch, None, choose, as_all=True)
            raise SettingError(
                f"the NumPyro model fails on a few rows ({fault_text(fault)}); everything that has "
                "one entry per row must be a field of the rows and an argument of the model, and "
                "nothing may be as long as all rows."
            ) from fault

    def _plate(self, sites: Sites, other_sites: Sites) -> str:
        """Return the plate over the rows, which is as long as the batch or as all rows."""
        sizes = {
            name: (site["args"][0], other_sites[name]["args"][0] if name in other_sites else None)
            for name, site in sites.items()
            if site["type"] == "plate"
        }
        counts = tuple(len(b[self.program.fields[0]]) for b in (self.batch, self.other_batch))
        over = [name for name, size in sizes.items() if size == counts]
        over = over or [n for n, size in sizes.items() if size == (len(self.rows),) * 2]
        if not over:
            has = f"its plates are {', '.join(sizes)}" if sizes else "it has none"
            raise SettingError(
                f"the model has no plate over the rows ({has}): put the observed sites under "
                'numpyro.plate("rows", y.shape[0]), which says that they are independent given the '
                "parameters."
            )
        if len(over) > 1:
            raise SettingError(
                f"the model has {len(over)} plates over the rows ({', '.join(over)}): put all "
                "observed sites of a row into one plate."
            )
        return over[0]

    def _refuse(self, sites: Sites, plate: str) -> None:
        """Refuse sites that belong neither to the prior nor to the likelihood of a row."""
        observes = False
        for name, site in sites.items():
            if site["type"] == "param":
                raise SettingError(
                    f"'{name}' is a numpyro.param, which has no prior: make it a sample site, or a "
                    "constant."
                )
            if site["type"] != "sample":
                continue
            within = plate in frames(site)
            observes = observes or (within and is_observed(site))
            if within and not is_observed(site):
                raise SettingError(
                    f"the plate over the rows holds the latent site '{name}', one value per row, "
                    "so rows cannot be left out: integrate it out of the likelihood (a "
                    "mixture, a Student-t, a negative binomial), or, for effects that rows share, "
                    "use mo.fit with a term such as (1 | group)."
                )
            if not within and is_observed(site):
                kind = "factor" if is_factor(site) else "observed"
                raise SettingError(
                    f"the {kind} site '{name}' lies outside the plate over the rows ('{plate}'), "
                    "so it belongs to no row: move it into the plate, or make it part of the "
                    "distribution of a parameter."
                )
            if not within and site["fn"].support.is_discrete:
                raise SettingError(
                    f"'{name}' is discrete, but chains need gradients: sum over its values in the "
                    "likelihood (numpyro.distributions.MixtureGeneral)."
                )
        if not observes:
            raise SettingError(
                f"nothing is observed in the plate '{plate}': give the data as fields of the rows."
            )

    def _refuse_dependence_on_rows(self, theta: Params) -> None:
        """Refuse a prior that depends on the batch, or a row's likelihood that does on others."""
        batches = (self.batch, self.other_batch)
        programs = [replace(self.program, sample_rows=batch) for batch in batches]
        if not agree(*jax.jit(lambda theta: [p.log_prior(theta) for p in programs])(theta)):
            raise SettingError(
                "the prior changes with the rows of a batch (a distribution outside the plate has "
                "an argument that is computed from the rows or their number): compute it from "
                "all rows beforehand, and pass it as an argument."
            )
        refuse_mixed_rows(self.program.log_likelihood, theta, batches)


def _constraint(name: str, sites: Sites, elsewhere: Sites) -> Constraint:
    """Return a parameter's constraint; refuse a support that depends on other parameters."""
    here, there = (as_constraint(s[name]["fn"].support) for s in (sites, elsewhere))
    if here != there:
        raise SettingError(
            f"the support of '{name}' depends on another parameter: draw it on a fixed range, "
            "such as (0, 1), and multiply."
        )
    return here


def _radii() -> list[float]:
    """Radii of the starting points, 0 first; one point is drawn per radius, with a fixed seed."""
    return [0.0, *(RADIUS * share for share in np.linspace(1.0, 0.5, STARTS - 1))]


def _is_parameter(site: Site) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _values(sites: Sites, names: list[str]) -> dict[str, np.ndarray]:
    return {name: np.asarray(sites[name]["value"], np.float64) for name in names}


def _reported(sites: Sites, other_sites: Sites, plate: str) -> list[str]:
    """Names of the deterministic sites that do not depend on the rows."""
    names = [name for name, site in sites.items() if site["type"] == "deterministic"]
    return [
        name
        for name in names
        if plate not in frames(sites[name])
        and name in other_sites
        and np.array_equal(sites[name]["value"], other_sites[name]["value"], equal_nan=True)
    ]

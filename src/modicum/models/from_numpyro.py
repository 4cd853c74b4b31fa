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
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError, fault_text
from modicum.models.constraints import (
    Constraint,
    Interval,
    Shape,
    cholesky_corr,
    ordered,
    positive,
    real,
    simplex,
)
from modicum.models.model import Batch, Params
from modicum.models.own import Model, agree, refuse_mixed_rows, two_batches, with_given_types
from modicum.rows import Rows
from modicum.runtime import in_double_precision


def as_constraint(support: Any) -> Constraint:  # NumPyro has no types
    """Convert a NumPyro constraint; wrap NumPyro's bijection where Modicum has no equivalent."""
    from numpyro.distributions import constraints as supports

    base = support
    while isinstance(base, supports.independent):
        base = base.base_constraint
    if base is supports.real:
        return real
    for theirs, ours in (
        (supports.simplex, simplex),
        (supports.ordered_vector, ordered),
        (supports.corr_cholesky, cholesky_corr),
    ):
        if base is theirs:
            return ours
    if isinstance(base, supports.greater_than | supports.less_than | supports.interval):
        ends = getattr(base, "lower_bound", -np.inf), getattr(base, "upper_bound", np.inf)
        if base is not supports.circular and all(np.ndim(end) == 0 for end in ends):
            low, high = (float(end) for end in ends)
            return positive if (low, high) == (0, np.inf) else Interval(low, high)
    return _Bijected.of(support)


@dataclass(frozen=True)
class _Bijected(Constraint):
    """A NumPyro support with NumPyro's bijection to it."""

    transform: Any  # a NumPyro transform, which is a pytree
    within: Any
    support: str

    @classmethod
    def of(cls, support: Any) -> _Bijected:
        from numpyro.distributions import biject_to

        try:
            return cls(biject_to(support), support, f"values in NumPyro's {support}")
        except NotImplementedError:
            raise SettingError(f"NumPyro has no bijection to {support}.") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Bijected):
            return False
        structure, other_structure = (str(jax.tree.structure(b.transform)) for b in (self, other))
        leaves, other_leaves = (jax.tree.leaves(b.transform) for b in (self, other))
        return structure == other_structure and all(map(np.array_equal, leaves, other_leaves))

    def __hash__(self) -> int:
        return hash(type(self.transform))

    def free_shape(self, shape: Shape) -> Shape:
        return tuple(self.transform.inverse_shape(shape))

    def constrain(self, free: jax.Array) -> jax.Array:
        return jnp.asarray(self.transform(free))

    def log_jacobian(self, free: jax.Array) -> jax.Array:
        return jnp.sum(self.transform.log_abs_det_jacobian(free, self.transform(free)))

    def free(self, value: jax.Array) -> jax.Array:
        return jnp.asarray(self.transform.inv(value))

    def allows(self, value: np.ndarray) -> bool:
        return bool(np.all(self.within(value)))


Site: TypeAlias = dict[str, Any]  # an entry of a NumPyro trace
Sites: TypeAlias = dict[str, Site]
Sample: TypeAlias = Mapping[str, np.ndarray]  # a few rows


@dataclass(frozen=True)
class Program:
    """A NumPyro model function, and how to run it on a batch of rows.

    `sample_rows` are a few rows to run on where only parameters matter; `plate` is the name of the
    plate over the rows, once it is known.
    """

    function: Callable[..., Any]  # its return value is ignored
    fields: tuple[str, ...]
    arguments: Mapping[str, Any]  # other arguments of the function
    rows: int
    sample_rows: Sample
    plate: str = ""
    parameters: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()

    def run(
        self,
        batch: Batch,
        theta: Params | None,
        choose: Callable[[Site], jax.Array] | None = None,
        as_all: bool = False,
    ) -> Sites:
        """Return all sites on `batch`, with the parameters `theta` or values from `choose`.

        While the plate over the rows is unknown, `as_all` takes it to be one as long as all rows.
        """
        from numpyro import handlers

        count = len(batch[self.fields[0]])
        inputs = {name: jnp.asarray(batch[name]) for name in self.fields}
        with (
            handlers.trace() as sites,
            _all_rows(self.plate, count, self.rows if as_all else None),
            handlers.substitute(data=theta, substitute_fn=choose),
            nullcontext() if choose is None else handlers.seed(rng_seed=0),
        ):
            self.function(**inputs, **self.arguments)
        return dict(sites)

    def log_prior(self, theta: Params) -> jax.Array:
        """Log-density of the parameters."""
        sites = self.run(self.sample_rows, theta)
        return sum((_log_density(sites[name]).sum() for name in self.parameters), jnp.zeros(()))

    def log_likelihood(self, theta: Params, batch: Batch) -> jax.Array:
        """Log-density of the observed sites of each row."""
        sites = self.run(batch, theta)
        count = len(batch[self.fields[0]])
        total = jnp.zeros(count)
        for site in sites.values():
            if is_observed(site) and self.plate in frames(site):
                total = total + self._per_row(site, count, sites)
        return total

    def _per_row(self, site: Site, count: int, sites: Sites) -> jax.Array:
        """Sum over all axes but the rows', undoing the scale of a plate as long as all rows."""
        density = _log_density(site) * (count / sites[self.plate]["args"][0])
        axis = frames(site)[self.plate]
        return jnp.moveaxis(density, axis, 0).reshape(count, -1).sum(axis=1)

    def report(self, theta: Params) -> dict[str, jax.Array]:
        """Return values of the deterministic sites that do not depend on the rows."""
        sites = self.run(self.sample_rows, theta)
        return {name: sites[name]["value"] for name in self.reported}

    def expected(self, theta: Params, batch: Batch) -> jax.Array:
        """Mean of the observed site."""
        site, axis = self._outcome(theta, batch)
        try:
            return jnp.moveaxis(jnp.asarray(site["fn"].mean), axis, 0)
        except NotImplementedError:
            raise SettingError(
                f"the distribution of the observed site '{site['name']}' has no mean to predict."
            ) from None

    def simulate(self, theta: Params, row: Batch, key: jax.Array) -> jax.Array:
        """Draw an outcome of the observed site, for one row."""
        batch = {name: jnp.asarray(value)[None] for name, value in row.items()}
        site, axis = self._outcome(theta, batch or {self.fields[0]: self._zeros(1)[self.fields[0]]})
        try:
            drawn = site["fn"].sample(key)
        except NotImplementedError:
            raise SettingError(
                f"NumPyro cannot draw from the distribution of the observed site '{site['name']}', "
                "so there are no predictive draws."
            ) from None
        return jnp.moveaxis(drawn, axis, 0)[0]

    def _outcome(self, theta: Params, batch: Batch) -> tuple[Site, int]:
        """Return the observed site, and the axis of the rows in its draws.

        Fields that new rows lack, such as outcomes, are filled with zeros.
        """
        sites = self.run({**self._zeros(len(next(iter(batch.values())))), **batch}, theta)
        observed = [site for site in sites.values() if is_observed(site)]
        if len(observed) != 1 or is_factor(observed[0]):
            number = "a factor" if len(observed) == 1 else f"{len(observed)} sites"
            raise SettingError(
                f"the model observes {number}, so it is not clear what to predict; compute "
                "predictions from the draws."
            )
        return observed[0], frames(observed[0])[self.plate] - observed[0]["fn"].event_dim

    def _zeros(self, count: int) -> Batch:
        """Return `count` rows of zeros."""
        like = self.sample_rows
        return {k: jnp.zeros((count, *like[k].shape[1:]), like[k].dtype) for k in like}

    def simulate_prior(self, key: jax.Array) -> Params:
        """Draw parameters from their distributions."""
        from numpyro import handlers

        try:
            seeded = replace(self, function=handlers.seed(self.function, key))
            sites = seeded.run(self.sample_rows, {})
        except NotImplementedError:
            raise SettingError(
                "a parameter of the model has an improper distribution, which cannot be drawn "
                "from; give it a proper one."
            ) from None
        return {name: sites[name]["value"] for name in self.parameters}

    def outcome_field(self, theta: Params) -> str:
        """Name of the field that the observed site takes its values from; empty if there is none.

        A field qualifies if the site's values equal the field's, also after the field is changed.
        """
        batch = self.sample_rows
        for name in self.fields:
            changed = ~batch[name] if batch[name].dtype == bool else batch[name] + 1
            batches = [batch, {**batch, name: changed}]
            try:
                sites = [self._outcome(theta, b)[0]["value"] for b in batches]
            except SettingError:
                return ""
            if all(np.array_equal(v, b[name]) for v, b in zip(sites, batches, strict=True)):
                return name
        return ""


def _all_rows(plate: str, count: int, rows: int | None) -> Any:  # a NumPyro handler
    """Return a handler that makes plates hold all rows of a batch, in order.

    The plate over the rows is the one called `plate`, or any of size `rows`.
    """
    from numpyro.primitives import Messenger

    class AllRows(Messenger):  # type: ignore[misc]
        def process_message(self, msg: Site) -> None:
            if msg["type"] == "plate":
                size = msg["args"][0]
                length = count if msg["name"] == plate or size == rows else size
                msg["value"], msg["args"] = jnp.arange(length), (size, length)
            if msg["type"] == "subsample":  # keep all rows of the batch
                msg["kwargs"] = {**msg["kwargs"], "event_dim": None}

    return AllRows()


def frames(site: Site) -> dict[str, int]:
    """Return the plates that a site is in, and the axis of each."""
    return {frame.name: frame.dim for frame in site.get("cond_indep_stack", ())}


def is_observed(site: Site) -> bool:
    """Whether a site has data."""
    return site["type"] == "sample" and bool(site["is_observed"])


def is_factor(site: Site) -> bool:
    """Whether a site is a `numpyro.factor`, which only adds to the log-density."""
    return type(site["fn"]).__name__ == "Unit"


def _log_density(site: Site) -> jax.Array:
    density = site["fn"].log_prob(site["value"])
    return density if site["scale"] is None else density * site["scale"]


# Radii of the starting points in unconstrained space, one point each: the middle, and some around
# it, up to the radius of Stan and NumPyro.
RADII = (0.0, 2.0, 1.5, 1.0)


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
    batches = [with_given_types(batch, rows.kinds) for batch in two_batches(rows)]
    batch, other = ({k: np.asarray(v) for k, v in b.items()} for b in batches)
    return _studied(Program(model, fields, arguments, len(rows), batch), other, rows.kinds)


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


@in_double_precision
@np.errstate(divide="ignore", invalid="ignore")  # deterministic sites, where parameters are 0
def _studied(program: Program, other_batch: Sample, kinds: Mapping[str, str]) -> Model:
    """Return the model; refuse a function that cannot be sampled correctly, after a few trials.

    It is tried on the sample rows of the program, and on another batch.
    """
    batch = program.sample_rows
    sites, other_sites = _tried(program, batch, 0.0), _tried(program, other_batch, 0.0)
    counts = tuple(len(b[program.fields[0]]) for b in (batch, other_batch))
    plate = _plate_over_rows(sites, other_sites, counts, program.rows)
    _refuse_sites(sites, plate)
    free = [k for k, s in sites.items() if s["type"] == "sample" and not s["is_observed"]]
    reported = _reported(sites, other_sites, plate)
    program = replace(program, plate=plate, parameters=tuple(free), reported=tuple(reported))
    starts = [_tried(program, batch, radius) for radius in RADII]
    points = [{k: np.asarray(at[k]["value"], np.float64) for k in free} for at in starts]
    elsewhere = program.run(batch, points[1])
    constraints = {name: _constraint(name, sites, elsewhere) for name in free}
    _refuse_dependence_on_rows(program, (batch, other_batch), points[1])
    model = _NumpyroModel(
        program.log_prior,
        program.log_likelihood,
        init=points[0],
        predict=program.expected,
        simulate=program.simulate,
        simulate_prior=program.simulate_prior,
        outcome=program.outcome_field(points[0]),
        constraints={k: c for k, c in constraints.items() if c is not real},
        report=program.report if reported else None,
    )
    return model.with_points(tuple(points), kinds)


def _tried(program: Program, batch: Batch, radius: float) -> Sites:
    """Return all sites, with parameters drawn uniformly within `radius`, unconstrained."""
    from numpyro.infer.initialization import init_to_uniform

    choose = init_to_uniform(radius=radius)
    try:
        return program.run(batch, None, choose)
    except Exception as fault:
        with suppress(Exception):  # the plate may be as long as all rows
            return program.run(batch, None, choose, as_all=True)
        raise SettingError(
            f"the NumPyro model fails on a few rows ({fault_text(fault)}); everything that has "
            "one entry per row must be a field of the rows and an argument of the model, and "
            "nothing may be as long as all rows."
        ) from fault


def _plate_over_rows(sites: Sites, other_sites: Sites, counts: tuple[int, ...], rows: int) -> str:
    """Return the plate over the rows, which is as long as the batch or as all rows."""
    sizes = {
        name: (site["args"][0], other_sites[name]["args"][0] if name in other_sites else None)
        for name, site in sites.items()
        if site["type"] == "plate"
    }
    over = [name for name, size in sizes.items() if size == counts]
    over = over or [n for n, size in sizes.items() if size == (rows,) * 2]
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


def _refuse_sites(sites: Sites, plate: str) -> None:
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


def _refuse_dependence_on_rows(
    program: Program, batches: tuple[Sample, Sample], theta: Params
) -> None:
    """Refuse a prior that depends on the batch, or a row's likelihood that does on others."""
    programs = [replace(program, sample_rows=batch) for batch in batches]
    if not agree(*jax.jit(lambda theta: [p.log_prior(theta) for p in programs])(theta)):
        raise SettingError(
            "the prior changes with the rows of a batch (a distribution outside the plate has "
            "an argument that is computed from the rows or their number): compute it from "
            "all rows beforehand, and pass it as an argument."
        )
    refuse_mixed_rows(program.log_likelihood, theta, batches)


def _constraint(name: str, sites: Sites, elsewhere: Sites) -> Constraint:
    """Return a parameter's constraint; refuse a support that depends on other parameters."""
    here, there = (as_constraint(s[name]["fn"].support) for s in (sites, elsewhere))
    if here != there:
        raise SettingError(
            f"the support of '{name}' depends on another parameter: draw it on a fixed range, "
            "such as (0, 1), and multiply."
        )
    return here


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

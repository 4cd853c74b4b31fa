"""Run a NumPyro model function on a batch of rows, and read densities and values of its sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from modicum.errors import SettingError
from modicum.models.base import Batch, Params

Site: TypeAlias = dict[str, Any]  # an entry of a NumPyro trace
Sites: TypeAlias = dict[str, Site]


@dataclass(frozen=True)
class Program:
    """A NumPyro model function, and how to run it on a batch of rows.

    `plate` is the name of the plate over the rows, once it is known; `sample_rows` are a few rows
    to run on where only parameters matter.
    """

    function: Callable[..., Any]  # its return value is ignored
    fields: tuple[str, ...]
    arguments: Mapping[str, Any]  # other arguments of the function
    rows: int
    plate: str = ""
    parameters: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    sample_rows: Mapping[str, np.ndarray] | None = None

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
        sites = self.run(self._sample_rows, theta)
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
        sites = self.run(self._sample_rows, theta)
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
        like = self._sample_rows
        return {k: jnp.zeros((count, *like[k].shape[1:]), like[k].dtype) for k in like}

    def simulate_prior(self, key: jax.Array) -> Params:
        """Draw parameters from their distributions."""
        from numpyro import handlers

        try:
            seeded = replace(self, function=handlers.seed(self.function, key))
            sites = seeded.run(self._sample_rows, {})
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
        batch = self._sample_rows
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

    @property
    def _sample_rows(self) -> Mapping[str, np.ndarray]:
        assert self.sample_rows is not None, "set once the function has been studied"
        return self.sample_rows


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

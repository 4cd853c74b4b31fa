"""The digest: sums over all rows at an anchor, and a pool of rows for the remainder.

With q_k the second-order expansion of row k about the anchor t*, the log-likelihood of n rows is
sum_k q_k, a quadratic of which the sums C, A, B are kept, plus sum_k (l_k - q_k), which a pool of
rows estimates without bias. The pool is fixed: chains sample the posterior with the log-likelihood

    l(t) = C + A'dt + dt'B dt / 2 + sum_i w_i (l_i(t) - q_i(t)),      dt = t - t*,

where i runs over the pool, whose rows represent w_i rows each. It differs from the log-likelihood
of all rows by a smooth function e(t), of which only the variation over the posterior matters: to
first order the posterior mean of h moves by Cov(h, e), at most sd(h) sd(e).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from hashlib import blake2b
from importlib.metadata import version
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.arguments import names_checked
from modicum.digest import digest_file
from modicum.digest.pool import Pool, expansion, keep, proxy_at, removed_sums
from modicum.errors import DataError, ModicumWarning, SettingError, warn, warn_of, whole_number
from modicum.kernels.control_variates import control_variate
from modicum.kernels.protocols import ControlVariate, Proxy
from modicum.ledger import Ledger
from modicum.models import BaseModel, Target
from modicum.models.linear_predictor import family_of
from modicum.models.model import DENSE_LIMIT, Batch, Params
from modicum.models.observed import count_classes
from modicum.models.over_draws import rebuild
from modicum.models.priors.units import MomentSums, moment_sums
from modicum.models.target import check_model_and_rows
from modicum.models.tracing import expression_digest
from modicum.passes import (
    NEAR,
    Engine,
    EngineChoice,
    LocalEngine,
    Quadratic,
    Sums,
    anchor_at_mode,
    engine_for,
)
from modicum.passes.curvature import Curvature, expanded_prior, flat_prior, whitening_factor
from modicum.passes.hyperparameters import settle
from modicum.posterior import FitRows, Posterior
from modicum.posterior.fit_rows import rows_of_fit, whole_rows_like
from modicum.progress import Progressbar, phase
from modicum.random import fresh_seed
from modicum.rows import Rows, RowsSchema
from modicum.rows.checks import NewLevelError
from modicum.rows.description import Description
from modicum.runtime import Array, Pytree, computed_on_cpu, in_double_precision, jit, refuse_forked


def anchor_left(distance: float) -> ModicumWarning:
    """Warn that the mode has moved away from the anchor."""
    return ModicumWarning(
        "anchor-left",
        f"the mode is {distance:.1f} posterior sd from the point about which the digest expands "
        "its rows, so the rows it keeps are no longer those that matter most",
        "make the digest again from all rows with mo.digest",
        distance=distance,
    )


DRAWS = 32  # draws from the normal approximation at which the pool's error is measured
BLOCK = 4096  # rows of the pool expanded at a time
FAR = 3.0  # posterior sds between anchor and mode beyond which the digest should be made again
FEWEST = 2000  # smallest pool of added rows
CRUDE = 0.1  # posterior sds by which the pool may move a mean without a warning
FEW_SHARED, SHARED = 3, 0.01  # equal rows of two digests, number and share, that cause a warning
NO_NEW_LEVELS = "leave such rows out, or make a digest of a fit to rows that have them"
UNLIKELY = 1e-4  # warn if finding so few removed rows in the pool is less probable than this


class Ready(NamedTuple):
    """What chains need from a digest.

    Attributes
    ----------
    target, start
        The target of the requested model, and the point where the search for its mode starts.
    rows
        The pool, with each row weighted by the number of rows it represents.
    rest
        The sums over all rows minus the expansion of the weighted pool.
    """

    target: Target
    start: np.ndarray
    rows: Rows
    rest: Quadratic


@dataclass(frozen=True, eq=False, repr=False)
class Digest:
    """A posterior without the data: sums over all rows, and a pool of weighted rows.

    Made by `mo.digest`, sampled by ``mo.sample(model, digest)``. Priors may be changed; another
    likelihood is refused. **A digest holds raw rows**: treat its file as you treat the data.

    Attributes
    ----------
    model
        The model it was made for; None for a digest of a user-defined model loaded without it.
    ledger
        The cost of making it.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=(20_000, 2))
    >>> y = rng.random(20_000) < 1 / (1 + np.exp(-x[:, 0]))
    >>> rows = mo.Rows(x=x, y=y)
    >>> digest = mo.digest(mo.models.Logistic(), rows, size=2_000, random_seed=1,
    ...                    progressbar=False)
    >>> digest
    <Digest of 20,000 rows for Logistic: 2,00... rows kept, ... kB>
    >>> less = digest.remove(mo.Rows(x=x[:100], y=y[:100]))
    >>> len(less), digest.error < 0.05
    (19900, True)
    """

    model: BaseModel | None
    likelihood: str
    number: int
    total: Quadratic
    anchors: np.ndarray
    pool: Pool
    fit_rows: FitRows
    units: MomentSums | None = None
    classes: int | None = None
    notes: tuple[ModicumWarning, ...] = ()
    ledger: Ledger = field(default_factory=lambda: Ledger(rows=1))

    # Description -------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.number

    @property
    def schema(self) -> RowsSchema:
        """Columns, fields, levels and formula of the rows, for `Rows.from_table(like=digest)`."""
        return self.fit_rows.schema

    @property
    def nbytes(self) -> int:
        """Bytes in memory, which is about the size of its file."""
        pool = self.pool.rows.nbytes + self.pool.share.nbytes + self.pool.count.nbytes
        return pool + self.pool.stratum.nbytes + self.total.B.nbytes + self.anchors.nbytes

    def __repr__(self) -> str:
        name = self.likelihood.partition("(")[0]
        size = (
            f"{self.nbytes / 1000:.0f} kB" if self.nbytes < 1e6 else f"{self.nbytes / 1e6:.1f} MB"
        )
        return f"<Digest of {len(self):,} rows for {name}: {len(self.pool):,} rows kept, {size}>"

    def fingerprint(self) -> str:
        """Return a short hash of everything in the digest."""
        digest = blake2b(self.likelihood.encode(), digest_size=16)
        pool = self.pool
        parts = (self.total.point, np.asarray(self.total.C), self.total.A, self.total.B)
        for part in (*parts, self.anchors, pool.share, pool.stratum, pool.size, pool.drawn):
            digest.update(np.ascontiguousarray(part).tobytes())
        digest.update(pool.rows.fingerprint().encode())
        return digest.hexdigest()

    # Accuracy ----------------------------------------------------------------------------------

    @cached_property
    def error(self) -> float:
        """How far the pool may move any posterior mean, in posterior standard deviations.

        This is the standard deviation of the log-likelihood's error over the posterior, estimated
        from the strata of the pool at draws from the normal approximation. To first order it is a
        bound: most means move by much less.
        """
        return self.error_at(*self._normal)

    @cached_property
    def distance(self) -> float:
        """Distance from the anchor to the mode, in posterior sds of the farthest parameter.

        The mode is that of one Newton step. The distance is zero when the digest is made, and grows
        as rows are added and removed, and as digests with other anchors are added.
        """
        _, mode, factor = self._normal
        return self._distance(mode, factor)

    def _distance(self, point: np.ndarray, factor: np.ndarray) -> float:
        size = len(self.total.point)
        sd = np.sqrt(np.sum(factor**2, axis=1))[:size]
        return float(np.max(np.abs(point[:size] - self.anchors) / sd))

    @cached_property
    def _normal(self) -> tuple[Target, np.ndarray, np.ndarray]:
        """The target under the priors of `self.model`, the mode, and the factor L there."""
        target, start = self._target(self._model())
        at = self._expand(target, start)
        return target, at.point + at.newton_step(), whitening_factor(at.dense_precision)[0]

    def _model(self) -> BaseModel:
        if self.model is None:
            raise SettingError(
                "the digest was loaded without its model, since a file does not keep user-defined "
                "models; use mo.Digest.load(path, model=...)."
            )
        return self.model

    @in_double_precision
    def _expand(self, target: Target, start: np.ndarray) -> Curvature:
        more = (0, target.size - len(self.total.A))  # parameters of the prior alone
        A, B = np.pad(self.total.A, more), np.pad(self.total.B, more)
        flat = flat_prior(target)
        prior = expanded_prior(target, start) if flat is None else flat.expanded(start)
        at = Curvature(start, self.total.C, A, B, *prior)
        return at if flat is None else settle(at, target, flat)[0]

    @in_double_precision
    def error_at(self, target: Target, point: np.ndarray, factor: np.ndarray) -> float:
        """Return `error` for a posterior that is normal about `point` with covariance L L'."""
        normal = np.random.default_rng(DRAWS).standard_normal((DRAWS, len(point)))
        draws = (point + normal @ factor.T)[:, : len(self.total.point)]
        values = self._residuals(target, draws)
        values -= values.mean(axis=0)
        return float(np.sqrt(self.pool.variance(values).sum() / (DRAWS - 1)))

    def _residuals(self, target: Target, draws: np.ndarray) -> np.ndarray:
        """Return l_i - q_i of the rows of the pool at each of `draws`, (draws, rows)."""
        form, size = control_variate(target, 2), len(self.total.point)
        part = self.pool.part[self.pool.stratum]
        out = np.empty((len(draws), len(self.pool)))
        for k, anchor in enumerate(self.anchors):
            pool_rows = np.flatnonzero(part == k)
            proxy = proxy_at(anchor, np.eye(size))
            for first in range(0, len(pool_rows), BLOCK):
                block = pool_rows[first : first + BLOCK]
                row_ids = np.resize(block, min(BLOCK, len(pool_rows)))  # one shape for all blocks
                batch = self.pool.rows.take(row_ids) | {"probability": np.ones(len(row_ids))}
                values = np.asarray(_values(form, batch, proxy, draws - anchor))
                out[:, block] = values[:, : len(block)]
        return out

    def doubts(self, point: np.ndarray, factor: np.ndarray, error: float) -> list[ModicumWarning]:
        """Return warnings about a posterior around `point` with covariance L L' and this error."""
        distance = self._distance(point, factor)
        notes = [note for note in self.notes if note.code == "separation"]
        if distance > FAR:
            notes.append(anchor_left(distance))
        if error > CRUDE:
            notes.append(
                ModicumWarning(
                    "digest-crude",
                    f"the {len(self.pool):,} rows of the digest leave posterior means uncertain by "
                    f"up to {error:.2g} posterior sd",
                    "make the digest again from all rows, and keep more of them (size)",
                    error=error,
                )
            )
        return notes

    # Use ---------------------------------------------------------------------------------------

    def ready(self, model: BaseModel) -> Ready:
        """Prepare the digest for chains of `model`; refuse a model with another likelihood."""
        target, start = self._target(model)
        engine, rest = LocalEngine(progressbar=False), self.total
        for k, anchor in enumerate(self.anchors):
            rows = self.pool.weighted(k)
            rest = rest - expansion(Sums(target, rows, engine, Ledger(rows=len(rows))), anchor)
        return Ready(target, start, self.pool.weighted(), rest)

    def _target(self, model: BaseModel, rows: Rows | None = None) -> tuple[Target, np.ndarray]:
        """Return the target of a model with the units of all rows, and the anchor in its layout.

        Its rows are `rows`, or those of the pool.
        """
        known = self.pool.rows if rows is None else rows
        require_digestible(model, known)
        complete_model = with_known_data(model, known, self.units, self.classes)
        target, start = Target.of(complete_model, self.pool.weighted() if rows is None else rows)
        refuse_other_likelihood(model, identity_of(target, known), self.likelihood)
        start[: len(self.total.point)] = self.total.point
        return target, start

    def __add__(self, other: object) -> Digest:
        """Return the digest of the rows of both, which must be different rows of one schema."""
        if not isinstance(other, Digest):
            return NotImplemented
        if self.likelihood != other.likelihood:
            raise SettingError(
                "the two digests have different likelihoods, so their sums cannot be added: make "
                "both with the same model."
            )
        self._require_schema(other.schema, other.pool.rows._description)
        if self.fit_rows.fingerprint == other.fit_rows.fingerprint:
            raise DataError(
                "the two digests are of the same rows, which would count twice: add digests of "
                "different rows."
            )
        places, anchors = [], list(self.anchors)
        for anchor in other.anchors:  # anchors that both digests have are kept once
            same = [k for k, known in enumerate(anchors) if np.array_equal(known, anchor)]
            places.append(same[0] if same else len(anchors))
            anchors += [] if same else [anchor]
        joined = replace(
            self,
            number=self.number + other.number,
            total=self.total + other.total,
            anchors=np.stack(anchors),
            pool=self.pool.joined(other.pool, np.asarray(places)),
            units=None if self.units is None or other.units is None else self.units + other.units,
            notes=tuple(note for note in self.notes if note in other.notes),
            fit_rows=_merged_rows(self.fit_rows, other.fit_rows),
        )
        shared, single = self.pool.shared(other.pool)
        if shared >= max(FEW_SHARED, SHARED * single):
            warn_of(
                "digest-overlap",
                f"{shared:,} rows that occur once in each of the two digests are equal, and "
                "count twice if they are the same observations",
                "add digests of different rows, or remove the shared rows from one of them; if "
                "equal rows are different observations, ignore this warning",
                rows=shared,
            )
        return joined.guarded()

    def add(self, rows: object) -> Digest:
        """Return the digest with `rows` added: `mo.Rows`, or a table, which is encoded alike."""
        added_rows = self.rows_like(rows)
        size = max(FEWEST, ceil(len(self.pool) * len(added_rows) / self.number))
        engine = LocalEngine(progressbar=False)
        return self + self.shard(self._model(), added_rows, size, self.number, engine)

    @computed_on_cpu
    def shard(self, model: BaseModel, rows: Rows, size: int, seed: int, engine: Engine) -> Digest:
        """Return a digest of other rows at this digest's anchor, to be added to it."""
        self._require_schema(rows.schema, rows._description)
        target, start = self._target(model, rows)
        ledger = Ledger(rows=len(rows))
        sums = Sums(target, rows, engine, ledger)
        new = expansion(sums, self.total.point)
        at = replace(self, total=self.total + new)._expand(target, start)
        factor, _ = whitening_factor(at.dense_precision)
        return replace(
            self,
            model=model,
            number=len(rows),
            total=new,
            anchors=self.total.point[None],
            pool=keep(sums, at.point, factor, factor.T @ at.gradient, size, seed),
            units=None if self.units is None else moment_sums(rows),
            fit_rows=FitRows.of(rows),
            notes=(),
            ledger=ledger,
        )

    def remove(self, rows: object) -> Digest:
        """Return the digest without these rows: their sums are subtracted, their copies deleted.

        Rows are identified by their values. The pool holds only some of the digest's rows, so it
        cannot show whether all removed rows were among them. Rows that cannot have been are
        refused, and a warning is issued if the pool contains fewer of them than chance allows.
        """
        removed_rows, model = self.rows_like(rows), self._model()
        if len(removed_rows) >= self.number:
            raise DataError(
                f"{len(removed_rows):,} rows cannot be removed from a digest of {self.number:,}: "
                "at least one must be left."
            )
        target, _ = self._target(model)
        engine = LocalEngine(progressbar=False)
        removed = removed_sums(target, removed_rows, self.pool, self.anchors, engine)
        pool, parts_left = self.pool.without(removed_rows).parts_used()
        least, present = self.pool.presence(removed_rows)
        if least < UNLIKELY:
            warn_of(
                "digest-unknown-rows",
                f"of {len(removed_rows):,} removed rows {present:,} are among the "
                f"{len(self.pool):,} rows that the digest keeps, fewer than expected if all of "
                "them had been in its data",
                "remove only rows that were in the data, with the values they had then",
                removed=len(removed_rows),
                present=present,
            )
        remaining = replace(
            self,
            number=self.number - len(removed_rows),
            total=self.total - removed.sums,
            anchors=self.anchors[parts_left],
            pool=pool,
            units=None if self.units is None else self.units - moment_sums(removed_rows),
            notes=(),
            fit_rows=_merged_rows(self.fit_rows, FitRows.of(removed_rows)),
        )
        _, mode, factor = remaining._normal
        error = removed.error(mode[: len(self.total.point)], factor)
        if error > CRUDE:
            warn_of(
                "digest-crude",
                "the digest is the sum of several digests expanded about different points, and "
                "the rows it keeps show only roughly which of them the removed rows came from, "
                f"which leaves posterior means uncertain by up to {error:.2g} posterior sd",
                "remove rows from the digest that holds them before it is added to others",
                error=error,
            )
        return remaining.guarded()

    def guarded(self) -> Digest:
        """Return this digest, after a warning if the mode has left the anchor."""
        if self.model is not None and self.distance > FAR:
            warn(anchor_left(self.distance))
        return self

    def rows_like(self, rows: object) -> Rows:
        """Return rows with the digest's columns, levels and type, from rows or a table."""
        try:
            made = whole_rows_like(rows, self.fit_rows)
        except NewLevelError as fault:
            if self.schema.encoding is None:
                raise
            raise NewLevelError(fault.place, NO_NEW_LEVELS) from None
        if made is not None and made is not rows:
            return made  # in the digest's own encoding
        if isinstance(rows, Mapping):
            made = Rows(**rows, columns=self.schema.columns or None)
        if made is None:
            raise SettingError(
                f"rows of a digest must be mo.Rows or a table, not {type(rows).__name__}."
            )
        self._require_schema(made.schema, made._description)
        return made

    def _require_schema(self, schema: RowsSchema, description: Description) -> None:
        ours = self.schema
        alike = (
            ours.columns == schema.columns
            and {k: tuple(v) for k, v in ours.fields.items()} == dict(schema.fields)
            and dict(ours.levels) == dict(schema.levels)
            and ours.coding == schema.coding
        )
        if not alike:
            raise DataError(
                "the rows have other fields, columns or levels than the rows of the digest: make "
                "them from a table with mo.Rows.from_table(table, like=digest)."
            )
        if ours.encoding and schema.encoding and _meaning(ours) != _meaning(schema):
            raise DataError(
                "the formula has learned other means, knots or levels from the table of these rows "
                "than from that of the digest, so that columns of the same name hold different "
                "quantities: encode the table as that of the digest was, by digest.add(table), or "
                "mo.digest(digest.model, mo.Rows.from_table(table, like=digest), like=digest)."
            )
        if description.dtype != self.pool.rows.dtype:
            raise DataError(
                f"the rows are {description.dtype.name} and the rows of the digest are "
                f"{self.pool.rows.dtype.name}, so equal numbers may differ by rounding: make them "
                f"with dtype='{self.pool.rows.dtype.name}'."
            )

    # On disk -----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save to one file, atomically; nothing in it is executable.

        The file holds raw rows of the data: protect it as you protect the data.
        """
        digest_file.write(path, vars(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: BaseModel | None = None) -> Digest:
        """Load a digest written by `save`; raise `DataError` for a damaged or foreign file.

        Parameters
        ----------
        path
            The file.
        model
            The model, if it is user-defined: a file keeps only Modicum's models.
        """
        held, spec = digest_file.read(path)
        digest = cls(model=None, **held)
        if spec is not None:
            if model is not None:
                raise SettingError("the file contains the model of this digest: leave `model` out.")
            predictor = rebuild(spec)
            return digest if predictor is None else replace(digest, model=predictor.model)
        if model is not None:
            digest._target(model)  # refuses a model with another likelihood
        return replace(digest, model=model)


# Models whose rows a digest can hold ---------------------------------------------------------

TRACED = 8  # rows of the batch on which user-defined functions are traced


def require_digestible(model: BaseModel, rows: Rows) -> None:
    """Refuse models whose rows cannot be expanded individually about a mode."""
    if model.integrated_group is not None:
        raise SettingError(
            "a digest keeps rows, and a model that integrates out group effects needs all rows of "
            "a group together; keep the effects explicit (groups='explicit')."
        )
    if not model.has_mode or rows.dtype.kind == "u":
        raise SettingError(
            f"a digest is an expansion about the posterior mode, and {type(model).__name__} has no "
            "mode that represents its posterior; sample it from the rows."
        )


@in_double_precision
def identity_of(target: Target, rows: Rows) -> str:
    """Return a text that identifies the likelihood, whatever the priors."""
    likelihood = target.likelihood
    if not likelihood.model.users_functions:
        return likelihood.model.identity()
    theta = likelihood.unravel(np.zeros(likelihood.size))
    batch = {
        name: jax.ShapeDtypeStruct((TRACED, *shape), rows.dtypes[name])
        for name, shape in rows.fields.items()
    }

    def computed(theta: Params, batch: Batch) -> tuple[jax.Array, Params]:
        values, pull_back = jax.vjp(lambda t: likelihood.model.log_likelihood(t, batch), theta)
        return values, pull_back(jnp.ones_like(values))

    traced, _ = expression_digest(computed, theta, batch)
    return f"{likelihood.model.identity()} computing {traced} by JAX {version('jax')}"


def refuse_other_likelihood(model: BaseModel, ours: str, theirs: str) -> None:
    """Refuse a model whose likelihood differs from that of the digest."""
    if ours == theirs:
        return
    own = model.users_functions and f"by JAX {version('jax')}" not in theirs
    if own and " computing " in theirs:
        raise SettingError(
            "the digest was made with another version of JAX, so user-defined likelihoods cannot "
            f"be compared (this is JAX {version('jax')}): use that version, or make the digest "
            "again with mo.digest."
        )
    family = theirs.partition("(")[0]
    other_likelihood = f"{family} with other settings" if family == type(model).__name__ else family
    raise SettingError(
        f"the digest was made for the likelihood of another model ({other_likelihood}) than this "
        f"{type(model).__name__}, and only priors can be changed without the data: make a digest "
        "of this model with mo.digest(model, rows)."
    )


def with_known_data(
    model: BaseModel, rows: Rows, units: MomentSums | None, classes: int | None
) -> BaseModel:
    """Return the model with what depends on all rows: prior units and number of classes."""
    if classes is not None and open_classes(model):
        model = replace(model, classes=classes)  # type: ignore[type-var]
    if model.has_predictors and units is not None:
        known: BaseModel = family_of(model).resolved(rows, units.moments())
    else:
        known = model.resolved(rows)
    if known.constrained:
        raise SettingError(
            "a digest is an expansion in coefficients that may be any number, and the prior of one "
            "has bounds, or is that of mo(...); leave them out, or sample from the rows."
        )
    return known


def open_classes(model: BaseModel) -> bool:
    """Whether the model takes its number of classes from the rows."""
    named = is_dataclass(model) and "classes" in {f.name for f in fields(model)}
    return named and getattr(model, "classes", 0) is None


def _meaning(schema: RowsSchema) -> dict[str, object]:
    """Return what a formula's columns are computed from, by entry of its encoding."""
    entries = dict(schema.origin or {})
    outcome = entries.pop("outcome")
    if isinstance(outcome, Mapping):  # whether its levels are alphabetical does not change them
        entries |= {f"outcome {key}": outcome[key] for key in ("expression", "levels")}
    return {key: v for key, v in entries.items() if key not in ("formula", "kinds", "dropped")}


def _merged_rows(ours: FitRows, theirs: FitRows) -> FitRows:
    """Return the facts about two sets of rows, with a fingerprint that no data set has."""
    fingerprints = f"{ours.fingerprint} and {theirs.fingerprint}".encode()
    return replace(ours, hashed="digest-" + blake2b(fingerprints, digest_size=8).hexdigest())


@jit(static=0)
def _values(form: ControlVariate[Pytree], batch: Batch, proxy: Proxy, steps: Array) -> jax.Array:
    cached = form.cache({k: jnp.asarray(v) for k, v in batch.items()}, proxy)
    return jax.lax.map(lambda z: form.values(cached, z, proxy), steps)


@names_checked
@computed_on_cpu
def digest(
    model: BaseModel | Posterior,
    rows: object,
    size: int = 100_000,
    *,
    like: Digest | None = None,
    random_seed: int | None = None,
    engine: EngineChoice | None = None,
    progressbar: Progressbar = True,
) -> Digest:
    """Make a digest: what a posterior needs from the data, in tens of megabytes whatever n is.

    The mode is found as for HMC-ECS. The digest keeps sums over all rows at the mode and a pool of
    rows, chosen by how much each is expected to matter. ``mo.sample(model, digest)`` then samples
    the posterior without the data, under any prior. **A digest holds raw rows.**

    Parameters
    ----------
    model
        A family or a user-defined model; or a posterior from `mo.fit` or `mo.sample`, whose model
        and encoding are used.
    rows
        The data, as for `mo.sample`; with a posterior, the table of the fit or its rows.
    size
        Number of rows to keep; all of them if there are fewer.
    like
        Another digest, whose anchor is used, so that digests of shards, months or hospitals can be
        added without loss. By default the anchor is the mode of these rows.
    random_seed
        Seed of the choice of rows.
    engine
        The engine that makes the passes: see `mo.engines`.
    progressbar
        As in `mo.sample`.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=(20_000, 2))
    >>> rows = mo.Rows(x=x, y=rng.random(20_000) < 1 / (1 + np.exp(-x[:, 0])))
    >>> digest = mo.digest(mo.models.Logistic(), rows, size=2_000, random_seed=1,
    ...                    progressbar=False)
    >>> post = mo.sample(mo.models.Logistic(prior_scale=1.0), digest, draws=200, tune=200,
    ...                  random_seed=1, progressbar=False)
    >>> list(post.summary().index)
    ['beta[x0]', 'beta[x1]', 'intercept']
    """
    refuse_forked()
    if isinstance(model, Posterior):
        post, model = model, model.fitted_model()
        rows = rows_of_fit(rows, post.fit_rows, "a digest")
    data = check_model_and_rows(model, rows, ", or a posterior")
    if like is not None and not isinstance(like, Digest):
        raise SettingError(f"like must be another digest, not {type(like).__name__}.")
    require_digestible(model, data)
    whole_number("size", size)
    seed = fresh_seed() if random_seed is None else whole_number("random_seed", random_seed, 0)
    passing = engine_for(engine, progressbar)
    with phase("digest", None, progressbar):
        if like is not None:
            return like.shard(model, data, size, seed, passing)
        return _make(model, data, size, seed, passing)


def _make(model: BaseModel, rows: Rows, size: int, seed: int, engine: Engine) -> Digest:
    """Make a digest whose anchor is the mode of `rows`."""
    ledger = Ledger(rows=len(rows))
    model.check(rows)
    classes = count_classes(rows) if open_classes(model) else None
    units = None
    if model.has_predictors:
        units = moment_sums(rows)
        ledger.add("priors", len(rows), "density", passes=1)
    target, start = Target.of(with_known_data(model, rows, units, classes), rows, ledger)
    if target.size > DENSE_LIMIT:
        raise SettingError(
            f"a digest holds the Hessian of all parameters, of which there are {target.size:,}; "
            f"the limit is {DENSE_LIMIT:,}."
        )
    sums = Sums(target, rows, engine, ledger)
    anchor = anchor_at_mode(sums, start, seed=seed, within=NEAR)
    likelihood_size = target.likelihood.size
    total = Quadratic(
        anchor.point[:likelihood_size],
        anchor.C,
        anchor.A[:likelihood_size],
        anchor.dense_hessian[:likelihood_size, :likelihood_size],
    )
    return Digest(
        model=model,
        likelihood=identity_of(target, rows),
        number=len(rows),
        total=total,
        anchors=total.point[None],
        pool=keep(sums, anchor.point, anchor.dense_factor, np.zeros(target.size), size, seed),
        fit_rows=FitRows.of(rows),
        units=units,
        classes=classes,
        notes=tuple(note for note in anchor.notes if note.code == "separation"),
        ledger=ledger,
    )

"""`mo.digest`: makes a digest from a model and rows."""

from __future__ import annotations

import numpy as np

from modicum.digest.digest import Digest
from modicum.digest.keeping import keep
from modicum.digest.likelihood import (
    identity_of,
    open_classes,
    require_digestible,
    with_known_data,
)
from modicum.engines import EngineChoice, engine_for
from modicum.errors import SettingError, whole_number
from modicum.ledger import Ledger
from modicum.models import BaseModel, LinearPredictorModel, Target
from modicum.models.base import DENSE_LIMIT
from modicum.models.outcomes import count_classes
from modicum.models.prediction import ModelPredictor
from modicum.models.priors.units import moment_sums
from modicum.passes import NEAR, Engine, Quadratic, Sums, anchor_at_mode
from modicum.posterior import FitRows, Posterior
from modicum.posterior.alignment import rows_of_fit
from modicum.progress import Progressbar, phase
from modicum.random import fresh_seed
from modicum.rows import Rows
from modicum.runtime import in_double_precision, refuse_forked


@in_double_precision
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
    model, data = _model_and_rows(model, rows) if isinstance(model, Posterior) else (model, rows)
    _check(model, data, like)
    assert isinstance(data, Rows)
    whole_number("size", size)
    seed = fresh_seed() if random_seed is None else whole_number("random_seed", random_seed, 0)
    passing = engine_for(engine, progressbar)
    with phase("digest", None, progressbar):
        if like is not None:
            return like.shard(model, data, size, seed, passing)
        return _make(model, data, size, seed, passing)


def _model_and_rows(post: Posterior, rows: object) -> tuple[BaseModel, Rows]:
    """Return the model of a posterior, and `rows` in the encoding of its fit."""
    predictor = post.restore_predictor()
    if not isinstance(predictor, ModelPredictor):
        raise SettingError(
            "this posterior has no model: it was made without one, or it was loaded from a file, "
            "which does not keep user-defined models; use Posterior.load(path, model=...)."
        )
    known = rows_of_fit(rows, post.fit_rows, "a digest")
    return predictor.model, known


def _check(model: object, rows: object, like: object) -> None:
    if not isinstance(model, BaseModel):
        raise SettingError(
            "the first argument must be a model such as mo.models.Logistic(), or a posterior, not "
            f"{type(model).__name__}."
        )
    if not isinstance(rows, Rows):
        raise SettingError(
            f"the second argument must be mo.Rows, not {type(rows).__name__}; wrap arrays as "
            "mo.Rows(x=X, y=y) and a table as mo.Rows.from_table(table, outcome='y')."
        )
    if like is not None and not isinstance(like, Digest):
        raise SettingError(f"like must be another digest, not {type(like).__name__}.")
    require_digestible(model, rows)


def _make(model: BaseModel, rows: Rows, size: int, seed: int, engine: Engine) -> Digest:
    """Make a digest whose anchor is the mode of `rows`."""
    ledger = Ledger(rows=len(rows))
    model.check(rows)
    classes = count_classes(rows) if open_classes(model) else None
    units = None
    if isinstance(model, LinearPredictorModel):
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
    pool = keep(sums, anchor.point, anchor.dense_factor, np.zeros(target.size), size, seed)
    return Digest(
        model=model,
        likelihood=identity_of(target, rows),
        number=len(rows),
        total=total,
        anchors=total.point[None],
        pool=pool,
        fit_rows=FitRows.of(rows),
        units=units,
        classes=classes,
        notes=tuple(note for note in anchor.notes if note.code == "separation"),
        ledger=ledger,
    )

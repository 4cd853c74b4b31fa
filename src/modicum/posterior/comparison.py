"""Compare models by leave-one-out prediction and by evidence, and weight them for averages.

Stacking (Yao, Vehtari, Simpson and Gelman 2018) takes the weights w >= 0 of sum one that maximise

    sum_i log sum_k w_k exp(elpd_ik),

the log score of a mixture of the models on rows that were left out. If rows were subsampled, the
sum over all rows is the difference estimator, as for elpd. Pseudo-BMA weights are proportional to
exp(elpd); with the Bayesian bootstrap, they are averaged over bootstrap replicates of elpd.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from scipy.special import softmax

from modicum.arguments import FromTwo, Share, arguments_checked
from modicum.errors import DataError, SettingError, is_number, warn_of
from modicum.libraries import pandas as pd
from modicum.models import BaseModel
from modicum.posterior.evidence import log_evidence
from modicum.posterior.fit_rows import Groups, RowsLike
from modicum.posterior.loo import Enough, LeaveOneOut, Subject, leave_one_out
from modicum.posterior.posterior import Posterior
from modicum.posterior.predict import NewGroups, Prediction, mixed_prediction, to_predict
from modicum.random import Stream, generator
from modicum.rows import Rows
from modicum.rows.formula import NewLevels
from modicum.rows.reading import is_tabular, whole_field

Weighting = Literal["stacking", "bb-pseudo-bma", "pseudo-bma"]
BOOTSTRAPS = 1_000


def model_weights(models: Sequence[LeaveOneOut], method: Weighting, seed: int) -> np.ndarray:
    """Return weights, which sum to one, of models with the same rows left out."""
    if method == "stacking":
        return _stacking_weights(*_terms(models))
    totals = np.array([left_out.total().value for left_out in models])
    if method == "pseudo-bma":
        return np.asarray(softmax(totals))
    rng = generator(seed, Stream.MODEL_WEIGHTS)
    if models[0].sample.times is None:
        rows, mass = _terms(models)
        drawn = rng.standard_gamma(np.broadcast_to(mass, (BOOTSTRAPS, len(mass))))
        shares = drawn / drawn.sum(axis=1, keepdims=True)
        return np.asarray(softmax(mass.sum() * shares @ rows, axis=1).mean(axis=0))
    # with many rows the bootstrap sums are normal, and only their differences matter
    gaps = np.array([[models[0].total(1, other).value] for other in models[1:]]).reshape(-1)
    # the covariance of elpd differences from the first model, from pairwise variances
    count = len(models)
    squares = np.zeros((count, count))
    for i in range(count):
        for j in range(i):
            squares[i, j] = squares[j, i] = models[i].error(models[j]) ** 2
    raw = (squares[:1, 1:] + squares[1:, :1] - squares[1:, 1:]) / 2
    values, vectors = np.linalg.eigh(raw)  # estimates may leave it slightly indefinite
    covariance = (vectors * np.maximum(values, 0.0)) @ vectors.T
    drawn = rng.multivariate_normal(-gaps, covariance, size=BOOTSTRAPS)
    first = np.zeros((BOOTSTRAPS, 1))
    return np.asarray(softmax(np.concatenate([first, drawn], axis=1), axis=1).mean(axis=0))


def _terms(models: Sequence[LeaveOneOut]) -> tuple[np.ndarray, np.ndarray]:
    """Return elpd (terms, models), and the weight of each term in a sum over all rows."""
    sample, weight = models[0].sample, models[0].weight
    left_out = np.stack([model.elpd for model in models], axis=1)
    if sample.times is None:
        return left_out, weight
    near = np.stack([model.approximate.elpd.astype(float) for model in models], axis=1)
    mass = weight[sample.row_ids] * sample.times / sample.probability / sample.times.sum()
    terms = np.concatenate([near, left_out, near[sample.row_ids]])
    return terms, np.concatenate([weight, mass, -mass])


def _stacking_weights(terms: np.ndarray, mass: np.ndarray) -> np.ndarray:
    from scipy.optimize import minimize

    count = terms.shape[1]
    density = np.exp(terms - terms.max(axis=1, keepdims=True))
    scale = mass.sum()

    def score(weights: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = np.maximum(density @ weights, 1e-300)
        return -float(mass @ np.log(mixed)) / scale, -((mass / mixed) @ density) / scale

    best = minimize(
        score,
        np.full(count, 1 / count),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-10, "maxiter": 500},
    )
    weights = np.clip(best.x, 0.0, 1.0)
    return np.asarray(weights / weights.sum())


POINTS = 500  # importance points of the evidence, each evaluated on all rows

# What two fits may have observed differently, and why they cannot be compared then.
DIFFERENCES = {
    "rows": "different rows: missing values dropped as many from both, but not the same ones; fit "
    "both to the rows that are complete for both",
    "outcome": "different outcomes, or to the same in another order: densities of different "
    "outcomes cannot be compared; if the rows are sorted by different groups, give the table they "
    "were made from, by mo.compare(posteriors, table)",
    "weight": "different weights, or to the same in another order, so that rows count differently: "
    "fit both with the same weights",
    "trials": "different numbers of trials, which makes their counts different outcomes: fit both "
    "with the same trials",
    "event": "different events: where a time is censored for one and an event for the other, a "
    "probability would be compared with a density; fit both with the same events",
    "cens": "outcomes that are censored differently, so that a probability would be compared with "
    "a density; fit both with the same censoring",
}
# What a model that does not read a field takes it to be.
UNCENSORED = {"event": 1.0, "cens": 0.0, "lb": -np.inf, "ub": np.inf}


@arguments_checked
def compare(
    posteriors: Mapping[str, Posterior],
    data: RowsLike | Mapping[str, RowsLike] | None = None,
    *,
    method: Weighting = "stacking",
    evidence: bool = False,
    subsample: FromTwo | None = None,
    draws: Enough = 4000,
    random_seed: int = 0,
    progressbar: bool = True,
    moment_match: bool = False,
) -> pd.DataFrame:
    """Compare models of the same outcomes by how well they predict rows they have not seen.

    The same rows are left out of all models (see `Posterior.loo`), so that the standard error of a
    difference is that of paired rows, much smaller than the standard errors of the two sums.

    Parameters
    ----------
    posteriors
        Posteriors by name, of the same rows; columns, families and priors may differ.
    data
        The table or the rows all of them were fitted to, or a dict of either by the posteriors'
        names; by default the rows that the posteriors hold.
    method
        How to compute the weights: "stacking", "bb-pseudo-bma" (with the Bayesian bootstrap) or
        "pseudo-bma".
    evidence
        Whether to compute log evidences too (see `Posterior.log_evidence`), which takes a pass with
        many evaluations of every row for each model.
    subsample, draws, random_seed, progressbar, moment_match
        As in `Posterior.loo`.

    Returns
    -------
    DataFrame
        One line per model, the best first: `rank`, `elpd`, `p` (effective number of parameters),
        `elpd_diff` (how much worse than the best), `weight` (the model's weight in the mixture of
        all models that predicts best), `se`, `dse` (standard error of the difference),
        `subsampling_dse` (the part of it due to subsampling rows) and `warning` (whether some rows
        could not be left out reliably). With `evidence` also `log_evidence`, `evidence_error` and
        `log_bayes_factor`, against the model that is best by `elpd`.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> dose = rng.normal(size=(800, 1))
    >>> rows = mo.Rows(x=dose, y=0.5 * dose[:, 0] + rng.normal(size=800), columns=["dose"])
    >>> def fitted(slope):
    ...     draws = {"beta": rng.normal(slope, 0.035, size=(2, 500, 1))}
    ...     post = mo.Posterior(draws, {}, mo.Ledger(rows=800), rows=rows)
    ...     model = mo.models.Gaussian(scale=1.0, intercept=False)
    ...     post.predictor = mo.models.over_draws.ModelPredictor(model)
    ...     return post
    >>> table = mo.compare({"no effect": fitted(0.0), "an effect": fitted(0.5)})
    >>> list(table.index)
    ['an effect', 'no effect']
    >>> bool(table.loc["no effect", "elpd_diff"] > 4 * table.loc["no effect", "dse"])
    True
    """
    subjects = _subjects(posteriors, data)
    _require_same_outcomes(subjects)
    # Is the likelihood of one family a density and that of another a probability?
    kinds: dict[bool, str] = {}  # a model by whether its likelihood is a probability
    for name, (post, _, _) in subjects.items():
        family = post.fitted_model().row_model
        if family.has_whole_outcomes is not None:
            kinds.setdefault(family.has_whole_outcomes, name)
    if len(kinds) > 1:
        warn_of(
            "density-and-probability",
            f"the elpd of {kinds[False]!r} sums logarithms of densities, which depend on the unit "
            f"of the outcome, and that of {kinds[True]!r} logarithms of probabilities, so that "
            "their difference may say nothing about the models",
            "compare models of one kind; only for whole numbers that vary by much more than 1 is a "
            "density close to a probability",
        )
    results = leave_one_out(
        list(subjects.values()), subsample, draws, random_seed, progressbar, moment_match
    )
    for name, left_out in zip(subjects, results, strict=True):
        left_out.warn(name)
    table = _table(dict(zip(subjects, results, strict=True)), method, random_seed)
    if not evidence:
        return table
    found = [
        log_evidence(*subjects[name][:2], POINTS, random_seed, progressbar) for name in table.index
    ]
    values = np.array([one.value for one in found])
    return table.assign(
        log_evidence=values,
        evidence_error=[one.error for one in found],
        log_bayes_factor=values - values[0],
    )


@arguments_checked
def average_predictions(
    posteriors: Mapping[str, Posterior],
    rows: RowsLike,
    weights: Mapping[str, float] | None = None,
    draws: int | None = None,
    prob: Share = 0.9,
    newlevels: NewLevels = "refuse",
    groups: Groups | None = None,
    newgroups: NewGroups | None = None,
) -> Prediction:
    """Predict rows by several models, averaged with their weights.

    Parameters
    ----------
    posteriors
        Posteriors by name, of the same outcome.
    rows
        Rows or a table, as in `Posterior.predict`.
    weights
        Weight of each model, such as the column `weight` of `mo.compare`; they need not sum to 1.
        None: stacking weights, from a comparison on the rows that the posteriors hold.
    draws, prob, newlevels, groups, newgroups
        As in `Posterior.predict`, for each model; `groups` for those that have groups.

    Returns
    -------
    Prediction
        The interval is that of the mixture of the models' draws.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> def fitted(slope):
    ...     post = mo.Posterior({"beta": np.full((1, 9, 1), slope)}, {}, mo.Ledger(rows=1))
    ...     model = mo.models.Gaussian(scale=1.0, intercept=False)
    ...     post.predictor = mo.models.over_draws.ModelPredictor(model)
    ...     return post
    >>> both = {"flat": fitted(0.0), "steep": fitted(2.0)}
    >>> mo.average_predictions(both, {"x": [[1.0], [3.0]]}, {"flat": 1, "steep": 3}).mean
    array([1.5, 4.5])
    """
    if not isinstance(posteriors, Mapping) or len(posteriors) < 2:
        raise SettingError("averages need a dict of two or more posteriors by name.")
    meant = {(p.outcome_name(), *p.class_names()) for p in posteriors.values() if p.encoding}
    if len(meant) > 1:
        raise SettingError(
            f"these posteriors predict different things ({' and '.join(map(str, meant))}): fit all "
            "to one outcome, written alike, with its classes in one order."
        )
    chosen = compare(posteriors, progressbar=False)["weight"] if weights is None else weights
    shares = {str(name): weight for name, weight in getattr(chosen, "items", list)()}
    if set(shares) != set(posteriors) or not all(
        is_number(w) and 0 <= w < np.inf for w in shares.values()
    ):
        raise SettingError(
            f"weights must give each of {', '.join(map(repr, posteriors))} a number from 0 on, "
            f"not {shares or chosen!r}."
        )
    total = float(sum(shares.values()))
    used = {name: share / total for name, share in shares.items() if share > 0}
    if not used:
        raise SettingError("all weights are 0: at least one model needs a positive one.")
    grouped = {name: bool(posteriors[name].fitted_model().group_terms) for name in used}
    fits = []
    for name in used:  # models without groups are asked for none, where others have them
        asked = (groups, newgroups) if grouped[name] or not any(grouped.values()) else (None, None)
        fits.append(to_predict(posteriors[name], rows, draws, newlevels, *asked))
    classes = posteriors[next(iter(used))].class_names()
    return mixed_prediction(fits, list(used.values()), prob, rows, classes)


def _subjects(posteriors: object, data: object) -> dict[str, Subject]:
    if not isinstance(posteriors, Mapping) or len(posteriors) < 2:
        raise SettingError(
            "mo.compare takes a dict of two or more posteriors by name, such as "
            '{"with age": post, "without": other}.'
        )
    for name, post in posteriors.items():
        if not isinstance(post, Posterior):
            raise SettingError(f"{name!r} must be a posterior, not {type(post).__name__}.")
    by_posterior = isinstance(data, Mapping) and set(data) == set(posteriors)
    subjects: dict[str, Subject] = {}
    for name, post in posteriors.items():
        own = data[name] if isinstance(data, Mapping) and by_posterior else data
        try:
            rows = post.rows_of_fit(own, "a comparison")
        except DataError as fault:
            sentence = f"{name!r}: {fault}"
            if own is not None and not by_posterior and not is_tabular(own):
                sentence += (
                    " Fits to different columns have different rows: give a dict of rows by the "
                    "posteriors' names, or leave data out if the posteriors hold their rows."
                )
            raise DataError(sentence) from None
        subjects[str(name)] = post, rows, post.table_numbers(own, rows)
    return subjects


def _require_same_outcomes(subjects: Mapping[str, Subject]) -> None:
    """Refuse posteriors of different rows, or that leave out different units."""
    (first, (post, rows, numbers)), *others = subjects.items()
    model = post.fitted_model()
    for name, (other_post, other, its_numbers) in others:
        other_model = other_post.fitted_model()
        if len(other) != len(rows):
            raise DataError(
                f"{first!r} was fitted to {len(rows):,} rows and {name!r} to {len(other):,}, but "
                "only fits to the same rows can be compared (rows with missing values may have "
                "been dropped from one of them); fit both to the rows that are complete for both."
            )
        if model.integrated_group != other_model.integrated_group:
            raise SettingError(
                f"{first!r} and {name!r} leave out different things: whole groups where effects "
                "were integrated out, rows otherwise; hold the effects explicitly "
                "(groups='explicit'), or integrate both over the same group."
            )
        field = _difference((model, rows, numbers), (other_model, other, its_numbers))
        if field is not None:
            why = DIFFERENCES.get(field, f"different values of the field {field!r}")
            raise DataError(f"{first!r} and {name!r} were fitted to {why}.")


def _difference(*fits: tuple[BaseModel, Rows, np.ndarray | None]) -> str | None:
    """Return what two fits, (model, rows, table indices), observed differently; None if nothing.

    Rows whose table indices are known are compared in the table's order. What only one of the
    models reads says nothing about the other, except for censoring: a model without it takes every
    time for that of an event.
    """
    numbers = [np.sort(indices) for _, _, indices in fits if indices is not None]
    if len(numbers) == 2 and not np.array_equal(numbers[0], numbers[1]):
        return "rows"
    same_rows = fits[0][1] is fits[1][1]
    observed = [  # the fields of what was observed in a row, by what they hold
        {"outcome": model.outcome_field}
        | {k: k for k in ("weight", *model.row_model.row_fields[1:])}
        for model, _, _ in fits
    ]
    for field in observed[0] | observed[1]:
        names = {fields.get(field) for fields in observed}
        if (same_rows and len(names) == 1) or (None in names and field not in UNCENSORED):
            continue
        ours, theirs = (
            _values(rows, fields.get(field), indices, UNCENSORED.get(field, 1.0))
            for (_, rows, indices), fields in zip(fits, observed, strict=True)
        )
        if not np.array_equal(ours, theirs):
            return field
    return None


def _values(
    rows: Rows, field: str | None, numbers: np.ndarray | None, nothing: float
) -> np.ndarray:
    """Return a field in the table's order; `nothing` for each row if there is none."""
    if field not in rows.fields:
        return np.full(len(rows), nothing)
    values = whole_field(rows, field)
    return values if numbers is None else values[np.argsort(numbers)]


def _table(results: Mapping[str, LeaveOneOut], method: Weighting, random_seed: int) -> pd.DataFrame:
    order = sorted(results, key=lambda name: -results[name].total().value)
    best = results[order[0]]
    weights = model_weights([results[name] for name in order], method, random_seed)
    lines = []
    for rank, name in enumerate(order):
        own, result = results[name], results[name].result()
        apart = best.total(1, own)
        lines.append(
            {
                "rank": rank,
                "elpd": result.elpd,
                "p": result.p,
                "elpd_diff": apart.value if rank else 0.0,
                "weight": float(weights[rank]),
                "se": result.se,
                "dse": best.error(own) if rank else 0.0,
                "subsampling_dse": float(np.sqrt(apart.variance)) if rank else 0.0,
                "warning": result.warning,
            }
        )
    return pd.DataFrame(lines, index=pd.Index(order, name="model"))

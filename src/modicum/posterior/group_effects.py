"""Effects of groups, how far they are pooled, and their share of the variance.

Explicit effects are among the draws, integrated ones are found afterwards: they follow from the
rows of the fit, a chunk of groups at a time (`passes.integrated_groups`). For a table of them
nothing is drawn: given a draw of the parameters, a group's effects have a mean and a variance, and
their distribution is a mixture of such normals.

The intraclass correlation is the share of the variance that is between groups. On the scale of the
linear predictor, given the common columns, this is the variance of a group's effects divided by the
sum of the variances of all groups' effects and of a row's noise (the "adjusted ICC" of Nakagawa,
Johnson and Schielzeth 2017). If slopes vary by group, the variance of their effects is averaged
over the rows (Johnson 2014).

The unpooled effect of a level is the u that maximises sum_i f(y_i, eta_i + z_i u) over the rows of
the level, with all other parameters at their posterior means. It is infinite for levels whose
outcomes are all equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr, ndtri

from modicum.arguments import Share
from modicum.diagnostics.weighted import (
    ends_of,
    normalised,
    tabulated,
    weighted_mcse,
    weighted_mean,
)
from modicum.errors import DataError, SettingError, suggestion, warn_of
from modicum.ledger import Ledger
from modicum.libraries import pandas as pd
from modicum.models import BaseModel, GroupTerm, IntegratedEffects, LinearPredictorModel, Target
from modicum.models.linear_predictor import family_of
from modicum.models.terms import INTERCEPT, effect_columns
from modicum.passes import LocalEngine, units_of
from modicum.passes.integrated_groups import draw_effects, effect_moments
from modicum.posterior.fit_rows import Batch, RowsLike
from modicum.posterior.fitted import (
    FittedDraws,
    affordable,
    flat_points,
    not_held,
    thinned,
)
from modicum.posterior.smooth_curves import smooth_table, smooths_of
from modicum.posterior.summary import interval_table
from modicum.rows import Rows
from modicum.rows.coding import Level, level_names, level_places
from modicum.rows.grouped_rows import GroupedRows, GroupIndex, as_groups
from modicum.rows.reading import whole_field
from modicum.runtime import Array, computed_on_cpu, jit

CHUNK = 65_536  # rows read at a time
STICKY = 0.2  # acceptance rate below which four proposals per draw are too few
PLENTY = 100  # draws from which effects are tabulated at least: nothing but their means is random
NEWTON_STEPS, CLOSE = 20, 1e-6  # to a quantile of a mixture, within which probability
TINY, SQRT_2PI = 1e-300, float(np.sqrt(2 * np.pi))


def effects(
    post: FittedDraws,
    group: str | None = None,
    levels: Sequence[object] | None = None,
    rows: RowsLike | None = None,
    draws: int | None = None,
    prob: Share = 0.9,
) -> pd.DataFrame:
    """Tabulate the effects of groups, or a smooth: mean, sd, interval, and number of rows.

    A row with a weight counts as so many rows, as it does in the fit.

    A smooth, named as in ``post.effects("s(hour)")``, is tabulated along its variable in the units
    of the data, as differences of the predictor from its average over the rows of the fit. Effects
    of groups that were integrated out are computed now, given draws of all other parameters, from
    the rows of the requested groups.

    Parameters
    ----------
    group
        The field the rows are grouped by, or a smooth; may be left out if there is only one.
    levels
        Groups to tabulate, by their values; all by default. Of a smooth, values of its variable
        (pairs of values, of a smooth of two), by default a grid.
    rows
        The rows the posterior was sampled with, or their table; needed for integrated effects
        if the posterior was loaded from a file without its rows.
    draws
        Posterior draws to use for integrated effects, evenly spaced: by default all, or as many
        as take about 10^8 evaluations of a row, but at least 100. Explicit effects use all.
    prob
        Posterior probability of the equal-tailed interval.

    Returns
    -------
    DataFrame
        Indexed by level, or by level and effect if a group has several; `mcse_mean` is the
        Monte Carlo error of the mean, and `attrs` says how many "draws" were used.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> rng = np.random.default_rng(1)
    >>> g = np.repeat(np.arange(30), 20)
    >>> y = rng.random(600) < 1 / (1 + np.exp(-rng.normal(size=30)[g]))
    >>> rows = mo.Rows(x=rng.normal(size=(600, 1)), y=y, codes={"clinic": g})
    >>> model = mo.models.Logistic(groups="clinic")
    >>> post = mo.sample(model, rows, method="nuts", draws=200, tune=200, chains=2,
    ...                  random_seed=1, progressbar=False)
    >>> list(post.effects("clinic", levels=[3, 4]).columns)
    ['mean', 'sd', '5%', '95%', 'mcse_mean', 'rows']
    """
    rows_of_fit = post.rows_if_any(rows, "a table of effects")
    model, smooths = post.fitted_model(), smooths_of(post)
    group = _group_of(model, tuple(smooths), group, levels)
    if group in smooths:
        return smooth_table(post, smooths[group], levels, prob)
    if model.integrated_group != group:
        return _explicit_effects(post, rows_of_fit, group, levels, prob)
    if rows_of_fit is None:
        raise not_held("a table of effects that were integrated out")
    assert isinstance(model, IntegratedEffects)
    groups = groups_of(rows_of_fit, group)
    names = group_levels(groups)
    ids = _level_ids(names, group, levels)
    evaluations = int(groups.index.size[ids].sum()) * model.per_effect**model.effects
    subset, weights = thinned(post, affordable(post, evaluations, draws, PLENTY))
    target, chosen, points = _chosen(post, groups, ids, subset)
    parts = []
    for batch, present in map(chosen.chunk, range(len(chosen.chunk_starts) - 1)):
        mean, variance = effect_moments(target, batch, points)
        parts.append(_mixtures(mean[:, present], variance[:, present], weights, prob))
    size = _rows_of(rows_of_fit, group, groups.index.values)[ids]
    return _frame(np.concatenate(parts), model, group, names[ids], size, prob, weights.size)


def groups_of(rows: Rows, factor: str) -> GroupedRows:
    """Return the rows of a fit as groups."""
    return GroupedRows(rows, GroupIndex.of(rows, factor))


def _group_of(model: BaseModel, smooths: tuple[str, ...], group: str | None, levels: object) -> str:
    """Return the factor or smooth asked for, or the only one there is.

    Refuse a factor without effects, and levels that are not a list.
    """
    names = (*group_names(model), *smooths)
    if group is None:
        if len(names) != 1:
            raise SettingError(
                f"name the group or smooth to tabulate: {', '.join(names)}."
                if names
                else "there are no effects to tabulate; the model has no groups or smooths."
            )
        (group,) = names
    if group not in names:
        raise SettingError(
            f"there are no effects of {group!r}{suggestion(group, names)}; "
            + (f"there are effects of {', '.join(names)}." if names else "the model has no groups.")
        )
    if isinstance(levels, str) or hasattr(levels, "columns"):  # a table, or rows
        raise SettingError(
            f"levels must be a list of levels of '{group}', not "
            f"{'a name' if isinstance(levels, str) else type(levels).__name__}; give the rows of "
            "the fit, if needed, as rows=..."
        )
    return group


def group_names(model: BaseModel) -> tuple[str, ...]:
    """Return the factors whose levels have effects."""
    return tuple(dict.fromkeys(term.field for term in model.group_terms))


def terms_of(model: BaseModel, group: str) -> tuple[GroupTerm, ...]:
    """Return the group terms of a factor."""
    return tuple(term for term in model.group_terms if term.field == group)


def effect_names(model: BaseModel, group: str) -> list[str]:
    """Return the names of the effects of a factor's levels."""
    return [name for term in terms_of(model, group) for name in term.sd_names]


def _levels_of_fit(post: FittedDraws, rows: Rows | None, group: str) -> Sequence[Level]:
    """Return the levels as the table of the fit holds them: numbers are numbers.

    Users join effects with their tables by these levels, and text would match no number.
    """
    if rows is not None:
        return rows.levels.get(group, ())
    groupings = () if post.encoding is None else post.encoding.groupings
    return next((grouping.levels for grouping in groupings if grouping.field == group), ())


def _explicit_effects(
    post: FittedDraws,
    rows: Rows | None,
    group: str,
    levels: Sequence[object] | None,
    prob: float,
) -> pd.DataFrame:
    """Tabulate effects that are among the draws."""
    model, number = post.fitted_model(), post.chains * post.num_draws
    names = [name for term in terms_of(model, group) for name in term.names]
    (entries,) = post.labels[names[0]]
    ids = _level_ids(np.asarray(entries, object), group, levels)
    x = np.stack([post.draws[name][:, :, ids] for name in names], axis=-1)
    size = None if rows is None else _rows_of(rows, group, np.arange(len(entries)))[ids]
    fit_levels = _levels_of_fit(post, rows, group)
    names_of_levels = fit_levels if level_names(fit_levels) == tuple(entries) else entries
    called = np.asarray(names_of_levels, object)[ids]
    return _frame(tabulated(x, post.weights, prob), model, group, called, size, prob, number)


def _rows_of(rows: Rows, group: str, codes: np.ndarray) -> np.ndarray:
    """Return the number of rows with each of these codes, in order; weights count copies."""
    total = np.zeros(len(codes))
    for chunk in rows.chunks(CHUNK):
        total += np.bincount(codes.searchsorted(chunk[group]), chunk.get("weight"), len(codes))
    return total.astype(int) if np.all(total == np.rint(total)) else total


def _mixtures(
    mean: np.ndarray, variance: np.ndarray, weights: np.ndarray, prob: float
) -> np.ndarray:
    """Return mean, sd, interval and error of mixtures of normals (draws, groups, effects)."""
    centre = weighted_mean(mean[None], weights)
    sd = np.sqrt(weighted_mean((variance + (mean - centre) ** 2)[None], weights))
    share, width = normalised(weights)[0], np.sqrt(np.maximum(variance, TINY))
    ends = []
    for level in ends_of(prob):
        end = centre + ndtri(level) * sd
        for _ in range(NEWTON_STEPS):
            z = (end - mean) / width
            above = np.tensordot(share, ndtr(z), axes=1) - level
            if not np.any(np.abs(above) > CLOSE):
                break
            density = np.tensordot(share, np.exp(-0.5 * z**2) / width, axes=1) / SQRT_2PI
            end = end - np.clip(above / np.maximum(density, TINY), -0.5 * sd, 0.5 * sd)
        ends.append(end)
    return np.stack([centre, sd, *ends, weighted_mcse(mean[None], weights)], axis=-1)


def _frame(
    table: np.ndarray,
    model: BaseModel,
    group: str,
    levels: np.ndarray,
    size: np.ndarray | None,
    prob: float,
    draws: int,
) -> pd.DataFrame:
    """Return a frame with one line per level, or per level and effect if there are several."""
    effects = effect_names(model, group)
    parts = {group: levels.tolist()} | ({"effect": effects} if len(effects) > 1 else {})
    frame = interval_table(table, product(*parts.values()), list(parts), prob, draws=draws)
    return frame if size is None else frame.assign(rows=np.repeat(size, len(effects)))


def group_levels(groups: GroupedRows) -> np.ndarray:
    """Return the names of the groups: levels if the rows have them, else numbers."""
    names = groups.levels.get(groups.index.field)
    values = groups.index.values
    return values if names is None else np.asarray(names, object)[values]


def _level_ids(names: np.ndarray, group: str, levels: Sequence[object] | None) -> np.ndarray:
    """Return the indices of the requested levels; refuse one that the fit did not have."""
    if levels is None:
        return np.arange(len(names))
    if not len(levels):
        raise SettingError(f"levels is empty: name levels of {group!r}, or leave it out for all.")
    places = np.asarray(level_places(names.tolist(), levels), int)
    if places.min() < 0:
        unknown = list(levels)[int(places.argmin())]
        raise DataError(
            f"there is no '{group}' {unknown!r} among the rows of the fit; all that is known "
            "of a new group is the spread of its effects, group_sd."
        )
    return places


def effect_draws(
    post: FittedDraws, groups: GroupedRows, ids: np.ndarray, draws: dict[str, np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield draws of the effects of some groups in chunks, (draws, groups, effects) each."""
    target, chosen, points = _chosen(post, groups, ids, draws)
    accepted: list[np.ndarray] = []
    for k in range(len(chosen.chunk_starts) - 1):
        batch, present = chosen.chunk(k)
        drawn = draw_effects(target, batch, points, 0, k)  # the same whenever they are asked for
        accepted.append(drawn.acceptance[present])
        yield drawn.effects[:, present]
    _check_acceptance(np.concatenate(accepted), group_levels(chosen), groups.index.field)


@computed_on_cpu
def _chosen(
    post: FittedDraws, groups: GroupedRows, ids: np.ndarray, draws: dict[str, np.ndarray]
) -> tuple[Target, GroupedRows, np.ndarray]:
    """Return the likelihood, some groups with their nodes, and the draws as flat points."""
    target, points = flat_points(post, groups, draws)
    chosen_groups = groups
    if not np.array_equal(ids, np.arange(len(groups))):
        chosen_groups = groups.subset(ids)
        # smaller arrays for few groups: whole chunks at thousands of draws would take a minute
        rows = int(chosen_groups.index.size.sum())
        chosen_groups.flat_rows = min(groups.flat_rows, 1 << rows.bit_length())
        chosen_groups.flat_groups = min(groups.flat_groups, 1 << len(ids).bit_length())
    plain, quiet = target.likelihood, LocalEngine(progressbar=False)
    placed = units_of(target, chosen_groups, quiet, Ledger(rows=len(chosen_groups)))
    return plain, as_groups(placed), np.ascontiguousarray(points[:, : plain.size])


def _check_acceptance(acceptance: np.ndarray, names: np.ndarray, group: str) -> None:
    """Warn if proposals for some groups are rarely accepted, so that their draws stand still."""
    worst, stuck = int(np.argmin(acceptance)), int(np.sum(acceptance < STICKY))
    if not stuck:
        return
    warn_of(
        "effects-stuck",
        f"the proposals that drew effects of '{group}' fit {stuck} of {len(names):,} groups "
        f"badly ({100 * acceptance[worst]:.2g}% were accepted for {names[worst]}), so that "
        "their means, standard deviations and intervals are rough",
        "ask for more draws (draws=...), or hold the effects explicitly (groups='explicit')",
        acceptance=float(acceptance[worst]),
        groups=stuck,
    )


def icc(post: FittedDraws, rows: RowsLike | None = None, prob: Share = 0.9) -> pd.DataFrame:
    """Tabulate intraclass correlations: the share of the variance that is between groups.

    On the scale of the linear predictor, given the common columns, this is the variance of a
    group's effects divided by the sum of the variances of all groups' effects and of a row's
    noise. The noise has variance pi^2/3 for the logit (of ordered classes too), 1 for the
    probit, the square of a Gaussian's scale, and log(1 + 1/mean) for Poisson counts. If slopes
    vary by group, their variance is averaged over the rows.

    Parameters
    ----------
    rows
        The rows the posterior was sampled with, or their table; needed for varying slopes and
        counts if the posterior was loaded from a file without its rows.
    prob
        Posterior probability of the equal-tailed interval.

    Returns
    -------
    DataFrame
        One line per grouping factor, and one for all of them if there are several.

    Examples
    --------
    >>> import numpy as np, modicum as mo
    >>> g = np.repeat(np.arange(30), 20)
    >>> rng = np.random.default_rng(1)
    >>> y = rng.normal(size=30)[g] + rng.normal(size=600)
    >>> rows = mo.Rows(x=rng.normal(size=(600, 1)), y=y, codes={"ward": g})
    >>> model = mo.models.Gaussian(scale=1.0, groups="ward")
    >>> post = mo.sample(model, rows, draws=200, tune=200, random_seed=1, progressbar=False)
    >>> bool(0.3 < post.icc().loc["ward", "mean"] < 0.7)
    True
    """
    rows_of_fit = post.rows_if_any(rows, "an intraclass correlation")
    model = post.fitted_model()
    if not model.group_terms:
        raise SettingError("an intraclass correlation needs groups, and this model has none.")
    family = family_of(model)
    has_noise = type(family).noise_variance is not LinearPredictorModel.noise_variance
    if family.modelled and has_noise:
        raise SettingError(
            f"an intraclass correlation needs one variance of the noise, and "
            f"{family.modelled[0]!r} differs between rows; compare group_sd instead."
        )
    # the variance that the effects of each factor add to a predictor, (chain, draw)
    sds = post.draws["group_sd"]
    between: dict[str, np.ndarray] = {}
    sd = pair = 0
    for term in model.group_terms:
        size = len(term.effects)
        own = sds[..., sd : sd + size]
        sd += size
        covariance = own[..., :, None] * own[..., None, :]
        i, j = np.tril_indices(size, -1)
        shared: np.ndarray | float = 0.0
        if term.has_correlations and len(i):
            shared = post.draws["group_cor"][..., pair : pair + len(i)]
            pair += len(i)
        for rows_of, columns_of in ((i, j), (j, i)):
            covariance[..., rows_of, columns_of] *= shared
        variance = np.sum(covariance * _second_moments(term, rows_of_fit), axis=(-1, -2))
        between[term.field] = between.get(term.field, 0.0) + variance

    why = "the noise of counts depends on their mean"
    of_rows = partial(_average, rows_of_fit, why, lambda _, chunk: chunk["y"])
    within = np.asarray(family.noise_variance(post.draws, lambda: float(of_rows())))
    total = sum(between.values()) + within
    shares = {name: part / total for name, part in between.items()}
    if len(shares) > 1:
        shares["all groups"] = sum(between.values()) / total
    x = np.stack(list(shares.values()), axis=-1)
    table = interval_table(tabulated(x, post.weights, prob), zip(shares), ["group"], prob)
    return table.iloc[:, :4]


def _second_moments(term: GroupTerm, rows: Rows | None) -> np.ndarray:
    """Return the mean over the rows of z z', where z is a row's vector of effect columns."""
    if term.effects == (INTERCEPT,):
        return np.ones((1, 1))

    def squares(rows: Rows, chunk: Batch) -> np.ndarray:
        z = effect_columns(term, rows, chunk["x"])
        return z[:, :, None] * z[:, None]

    return _average(rows, "slopes vary", squares)


def _average(rows: Rows | None, why: str, of: Callable[[Rows, Batch], np.ndarray]) -> np.ndarray:
    """Return the average over the rows of what each of them has, on the first axis."""
    if rows is None:
        raise not_held(f"an intraclass correlation where {why}")
    total, weight = np.zeros(()), 0.0
    for chunk in rows.chunks(CHUNK):
        counts = np.asarray(chunk.get("weight", np.ones(len(chunk["y"]))), float)
        total = total + np.tensordot(counts, of(rows, chunk), axes=1)
        weight += float(counts.sum())
    return np.asarray(total / weight)


MOST_LEVELS = 400  # levels whose unpooled effects are computed


def shrinkage(
    post: FittedDraws, rows: Rows, group: str, effect: str, table: pd.DataFrame
) -> tuple[pd.DataFrame, np.ndarray, float]:
    """Compute unpooled effects of a group's levels; of many levels, a choice from few rows to many.

    `table` is that of `Posterior.effects`, with the number of rows of each level.

    Returns
    -------
    table
        The lines of this effect and of the chosen levels.
    unpooled
        The effects that best fit the rows of their own level; infinite if none does.
    sd
        Standard deviation of the effects in the population, the median of its draws.
    """
    names = effect_names(post.fitted_model(), group)
    lines = one_effect(table, effect)
    places = np.arange(len(lines))
    if len(places) > MOST_LEVELS:
        by_rows = lines["rows"].to_numpy().argsort(kind="stable")
        places = by_rows[np.linspace(0, len(places) - 1, MOST_LEVELS).astype(int)]
    pooled = table["mean"].to_numpy().reshape(-1, len(names))[places]
    (entries,) = post.labels["group_sd"]
    assert entries is not None
    sd = float(post.quantile("group_sd", 0.5)[entries.index(effect)])
    lines, k = lines.iloc[places], names.index(effect)
    return lines, _unpooled_effects(post, rows, group, k, lines.index, pooled, sd), sd


def one_effect(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the lines of one effect, if levels have several."""
    if table.index.nlevels == 1:
        return table
    return table[table.index.get_level_values("effect") == name].droplevel("effect")


@computed_on_cpu
def _unpooled_effects(
    post: FittedDraws,
    rows: Rows,
    group: str,
    k: int,
    levels: pd.Index[Any],
    pooled: np.ndarray,
    sd: float,
) -> np.ndarray:
    """Return the k-th effects of some levels that best fit their own rows; infinite if none does.

    The other effects are held at their posterior means, `pooled` (levels, effects); steps have the
    unit `sd`.
    """
    model = post.fitted_model()
    family = family_of(model)
    # the values of the group field that stand for these levels
    if model.integrated_group == group:
        groups = groups_of(rows, group)
        names, values = group_levels(groups), groups.index.values
    else:
        names = np.asarray(rows.levels[group], object)
        values = np.arange(len(names))
    place = {str(name): value for name, value in zip(names.tolist(), values, strict=True)}
    # the rows whose factor has one of these codes, and the index of the code of each row
    codes = np.array([place[str(level)] for level in levels])
    order = np.argsort(codes)
    batch = rows.take(np.flatnonzero(np.isin(whole_field(rows, group), codes)))
    which = order[np.searchsorted(codes[order], batch[group])]
    named = {name: post.mean(name) for name in post.draws}
    predict = jax.jit(lambda named, batch: family.predictor_vector(model.restore(named), batch))
    predictors = np.array(predict(named, batch))
    x = np.asarray(batch.get("x", np.empty((len(which), 0))))
    z = np.column_stack([effect_columns(term, rows, x) for term in terms_of(model, group)])
    if model.integrated_group == group:  # the predictors do not include the effects
        others = pooled * (np.arange(pooled.shape[1]) != k)
        predictors[:, 0] += np.sum(z * others[which], axis=1)
    else:
        predictors[:, 0] -= z[:, k] * pooled[which, k]
    frequency = np.asarray(batch.get("weight", np.ones(len(which))))
    arguments = (predictors, np.asarray(family.outcome(batch)), z[:, k], frequency, which)
    return np.asarray(_level_modes(family.without_priors(), *arguments, pooled[:, k], sd))


STEPS = 40  # Newton steps
LONGEST = 5.0  # longest step, in sds of the effects or standard errors of one, whichever is larger
SETTLED = 1e-3  # longest last step of a converged level, in the smaller of these units


@jit(static=0)
def _level_modes(
    family: LinearPredictorModel,
    predictors: Array,
    y: Array,
    z: Array,
    frequency: Array,
    which: Array,
    start: Array,
    sd: float,
) -> jax.Array:
    """Maximize the log-likelihood of each level's rows in its effect; infinite without a maximum.

    Parameters
    ----------
    family
        The family, for its log-density.
    predictors, y
        Predictors (without the effect) and outcomes of the rows.
    z, frequency, which
        Multiplier of the effect, frequency weight and level of each row.
    start
        Starting effect of each level.
    sd
        Standard deviation of the effects in the population.
    """

    def density(shift: jax.Array, predictors: jax.Array, y: jax.Array) -> jax.Array:
        return family.row_density(predictors.at[0].add(shift), y)

    slope = jax.vmap(jax.grad(density))
    bend = jax.vmap(jax.grad(jax.grad(density)))

    def step(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        u = state[0]
        shift = z * u[which]
        along = jax.ops.segment_sum(frequency * z * slope(shift, predictors, y), which, len(start))
        curved = frequency * z**2 * bend(shift, predictors, y)
        information = jnp.maximum(-jax.ops.segment_sum(curved, which, len(start)), 1e-12 / sd**2)
        unit = jnp.minimum(sd, 1 / jnp.sqrt(information))
        longest = LONGEST * jnp.maximum(sd, 1 / jnp.sqrt(information))
        move = jnp.clip(along / information, -longest, longest)
        return u + move, jnp.abs(move) / unit

    first = (jnp.asarray(start), jnp.zeros(len(start)))
    u, moved = jax.lax.fori_loop(0, STEPS, step, first)
    return jnp.where(moved < SETTLED, u, jnp.sign(u) * jnp.inf)

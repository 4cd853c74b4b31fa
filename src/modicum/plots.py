"""Plots of a posterior. They need matplotlib: ``pip install 'modicum[plots]'``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from modicum.arguments import Count, Share, arguments_checked
from modicum.diagnostics.weighted import ends_of
from modicum.errors import SettingError
from modicum.passes.sums import log_likelihoods
from modicum.posterior import Posterior, group_effects
from modicum.posterior.charts import INK, Band, Picture, draw, effect_picture, new_axes, pyplot
from modicum.posterior.fit_rows import RowsLike
from modicum.posterior.fitted import (
    evenly_spaced,
    require_finite,
    require_positive_sum,
    sums_at,
    thinned,
    weights_of,
)
from modicum.posterior.group_effects import terms_of
from modicum.posterior.population import random_rows
from modicum.posterior.ppc import survival_picture, survival_table
from modicum.posterior.smooth_curves import smooths_of
from modicum.posterior.summary import added_words, interval_words, is_pooled, percent
from modicum.rows.checks import names_like

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = [
    "METHOD_COLOURS",
    "caterpillar",
    "colour_of",
    "cost",
    "effect",
    "error_against_cost",
    "forest",
    "marginal",
    "new_axes",
    "pyplot",
    "residual_weights",
    "shrinkage",
    "smooth",
    "survival",
]

METHOD_COLOURS = {
    "laplace": "#3b5bdb",
    "hmc": "#0b5fa5",
    "nuts": "#3a923a",
    "hmc-ecs": "#c2410c",
    "hmc-ecs-uniform": "#f2a65a",
    "hmc-ecs-signed": "#7b3fa0",
    "flymc": "#6b8e23",
    "sgld": "#b8860b",
    "sgld-cv": "#d9a520",
    "psgld": "#8c564b",
    "svrg-ld": "#17858b",
    "sghmc": "#1f77b4",
    "sghmc-cv": "#6baed6",
    "cp-sghmc": "#7f7f7f",
    "ewsg": "#d62728",
    "ewsg-ld": "#e377c2",
    "ewsg-svrg": "#ff7f0e",
    "baoab": "#2ca02c",
}
"""One colour per method, the same in every plot."""

STEP = 0.1  # e: residuals are accurate to e^2, and rounding is 1e-16 / e^2
ROUNDING = 1e-13  # smaller residuals, relative to the row's log-likelihood, count as zero
MOMENTS = 60  # points along an error curve
WIDEST = 1.6  # limit of a plot of shrinkage, in multiples of the largest posterior mean


def colour_of(method: str | Posterior) -> str:
    """Return the colour of a method, given its name or a posterior it sampled."""
    name = method if isinstance(method, str) else method.settings.get("method", "")
    return METHOD_COLOURS.get(str(name), INK)


@arguments_checked
def forest(
    post: Posterior,
    names: Sequence[str] | str | None = None,
    *,
    labels: Sequence[str] | None = None,
    transform: Callable[[np.ndarray], np.ndarray] | None = None,
    prob: Share = 0.9,
    ax: Axes | None = None,
) -> Axes:
    """Plot medians and equal-tailed intervals, one line per scalar, the first on top.

    Parameters
    ----------
    post
        The posterior.
    names
        Parameters (``"beta"`` for all its entries) or single scalars named as in the summary
        (``"beta[age]"``); all but effects of groups and smooths by default, if there are others.
    labels
        Tick label of each line; the scalar's name by default.
    transform
        An increasing function of the values, such as `numpy.exp` for odds ratios.
    prob
        Posterior probability of the interval.
    ax
        Matplotlib axes; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
    """
    most = [name for name in post.draws if not is_pooled(name)]
    chosen = [names] if isinstance(names, str) else list(names or most or post.draws)
    scalars = post.lines(chosen)
    written = scalars if labels is None else list(labels)
    if len(written) != len(scalars):
        raise SettingError(f"there are {len(written)} labels for {len(scalars)} scalars.")
    levels = list(np.insert(ends_of(prob), 1, 0.5))
    quantiles = [post.quantile(name, levels).reshape(len(levels), -1) for name in chosen]
    ends = np.concatenate(quantiles, axis=1)
    ends = ends if transform is None else np.asarray(transform(ends))  # increasing: of quantiles
    words = f"median and {percent(prob)} interval"
    picture = Picture("levels", written, {"": Band(*ends)}, "", "", words)
    return draw(picture, ax, colour_of(post))


def effect(table: pd.DataFrame, *, ax: Axes | None = None, label: str | None = None) -> Axes:
    """Plot the effect of a column, from the table of `post.marginal` or `post.contrast`.

    Of two columns, the first is on the axis, and there is a line for each value of the second.

    Parameters
    ----------
    table
        Mean and interval by value, or by contrast.
    ax
        Matplotlib axes; a new figure by default.
    label
        Label in the legend.

    Returns
    -------
    matplotlib.axes.Axes
    """
    return draw(effect_picture(table, label or ""), ax)


@arguments_checked
def survival(
    post: Posterior,
    times: Sequence[float] | None = None,
    *,
    draws: int = 200,
    prob: Share = 0.9,
    ax: Axes | None = None,
) -> Axes:
    """Plot the survival curve of the rows of the fit, and their Kaplan-Meier estimate.

    The curve is the chance that an outcome is larger than a time, averaged over the rows. Where a
    model describes the times, the steps of the estimate stay near the band, except for their noise.

    Parameters
    ----------
    post
        The posterior of a family with a distribution function, such as Weibull.
    times
        Times of the curve; 60 up to the largest one by default.
    draws
        Posterior draws to use.
    prob
        Posterior probability of the band.
    ax
        Matplotlib axes; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
    """
    table = survival_table(post, None if times is None else np.asarray(times), draws, prob)
    ax = draw(survival_picture(table, post.outcome_name(), prob), ax, colour_of(post))
    ax.lines[-1].set_drawstyle("steps-post")  # the estimate falls where somebody dies
    return ax


def cost(posteriors: Mapping[str, Posterior], *, ax: Axes | None = None) -> Axes:
    """Plot each fit's row evaluations by purpose, with the cost of HMC on all rows.

    Parameters
    ----------
    posteriors
        Posteriors by name.
    ax
        Matplotlib axes; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
    """
    if not posteriors:
        raise SettingError("plots.cost needs at least one posterior.")
    ax = new_axes(ax, (6.0, 1.4 + 0.5 * len(posteriors)))
    purposes = list(dict.fromkeys(k for p in posteriors.values() for k in p.ledger.by_purpose))
    for at, post in enumerate(posteriors.values()):
        left = 0.0
        for k, purpose in enumerate(purposes):
            passes = post.ledger.by_purpose.get(purpose, 0) / post.ledger.rows
            legend = purpose if at == 0 else None
            ax.barh(at, passes, left=left, color=f"C{k % 10}", height=0.6, label=legend)
            left += passes
        if post.ledger.share:
            words = f"{left:,.0f} passes; HMC on all rows: {left / post.ledger.share:,.0f}"
            ax.text(left, at, f"  {words}", va="center", fontsize=8)
    ax.set_yticks(range(len(posteriors)), list(posteriors))
    ax.set_ylim(len(posteriors) - 0.5, -0.5)
    ax.set_xlim(0, 1.9 * ax.get_xlim()[1])
    ax.set_xlabel("row evaluations, in passes over the data")
    ax.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.35))
    return ax


@arguments_checked
def residual_weights(
    post: Posterior,
    data: RowsLike | None = None,
    *,
    subsample: Count = 5_000,
    draws: Count = 50,
    random_seed: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Plot how unevenly rows matter: the share of all residuals held by the largest ones.

    A row's residual is the part of its log-likelihood that a quadratic about the posterior mean
    misses; its size is the root mean square over draws. On the diagonal all rows matter alike, and
    uniform subsampling loses nothing; the further the curve is above it, the more there is to gain
    from subsampling rows by weight, as HMC-ECS does.

    Parameters
    ----------
    post
        The posterior.
    data
        The rows of the fit, or their table; by default the rows that the posterior holds.
    subsample
        The most rows to evaluate; if there are more, a random sample, which misses rare rows.
    draws
        Posterior draws to use, evenly spaced.
    random_seed
        Seed of the random sample of rows.
    ax
        Matplotlib axes; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
    """
    sizes = np.sort(_residual_sizes(post, data, subsample, draws, random_seed))[::-1]
    if not sizes.sum() > 0:
        raise SettingError(
            "the log-likelihood of every row is exactly quadratic, so all residuals are zero: "
            "there is nothing to plot."
        )
    share = np.arange(1, len(sizes) + 1) / len(sizes)
    covered = np.cumsum(sizes) / sizes.sum()
    ax = new_axes(ax)
    ax.plot(100 * share, 100 * covered, color=colour_of(post), label="rows of this fit")
    ax.plot(100 * share, 100 * share, color=INK, linewidth=0.8, label="all rows alike")
    top = max(1, len(sizes) // 100)
    where = (100 * share[top - 1], 100 * covered[top - 1])
    ax.plot(*where, "o", color=colour_of(post), markersize=4)
    text = f"  {where[0]:.2g}% of rows: {where[1]:.0f}%"
    ax.annotate(text, where, va="bottom", ha="right" if covered[top - 1] > 0.6 else "left")
    ax.set(
        xscale="log",
        xlabel="% of rows, largest residuals first",
        ylabel="% of all residuals",
        ylim=(0, 103),
    )
    ax.legend(frameon=False)
    return ax


def _residual_sizes(
    post: Posterior, data: RowsLike | None, number: int, draws: int, random_seed: int
) -> np.ndarray:
    """Return the root mean square residual over draws, of up to `number` random rows.

    A subsample estimates the sum over rows of l_k(theta) - q_k(theta), with q_k the second-order
    Taylor expansion of the row's log-likelihood. Its error is small if rows are drawn in proportion
    to the size of their residuals, and large if a few rows hold most of the residuals but are drawn
    as rarely as all others. The expansion along delta = theta - mean uses central differences: with
    f(s) the row's log-likelihood at mean + s delta,

        q = f(0) + [f(e) - f(-e)] / 2e + [f(e) + f(-e) - 2 f(0)] / 2e^2.
    """
    rows = post.rows_of_fit(data, "a plot of residuals")
    subset, (weights,) = thinned(post, None, "a plot of residuals")
    sums, points = sums_at(post, rows, subset, progressbar=False)
    mean = np.average(points, axis=0, weights=weights)
    delta = points[evenly_spaced(len(points), draws)] - mean
    ids = np.sort(random_rows(len(sums.rows), number, random_seed))
    evaluated_at = np.concatenate(
        [mean[None], mean + delta, mean + STEP * delta, mean - STEP * delta]
    )
    parts = []
    for values in log_likelihoods(sums.target, sums.rows, ids, evaluated_at):
        centre, (value, above, below) = values[0], values[1:].reshape(3, len(delta), -1)
        slope = (above - below) / (2 * STEP)
        curvature = (above + below - 2 * centre) / STEP**2
        residual = value - centre - slope - curvature / 2
        size = np.sqrt(np.mean(residual**2, axis=0))
        parts.append(np.where(size > ROUNDING * np.maximum(np.abs(centre), 1.0), size, 0.0))
    sizes = np.concatenate(parts)
    if "weight" in sums.rows.fields:
        sizes = sizes * sums.rows.subset(ids).slice(0, len(ids))["weight"]
    return np.asarray(sizes)


def error_against_cost(
    posteriors: Mapping[str, Posterior],
    reference: Posterior,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Plot how fast fits approach a reference: error of posterior means against passes.

    The error is that of the running mean of all draws so far (with their signs or weights), for
    the worst scalar, in posterior standard deviations of the reference. The cost includes
    everything before the first draw: mode, pilot and warm-up. A curve that levels off shows a bias,
    of the fit or of the reference.

    Parameters
    ----------
    posteriors
        Posteriors by name, of the same rows.
    reference
        A posterior taken as the truth, such as a long run of ``method="nuts"``. A dashed line
        shows its Monte Carlo error; smaller errors cannot be resolved.
    ax
        Matplotlib axes; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
    """
    if not posteriors:
        raise SettingError("plots.error_against_cost needs at least one posterior.")
    ax = new_axes(ax)
    for name, post in posteriors.items():
        passes, errors = _errors(post, reference, name)
        colour, taken = colour_of(post), {INK, *(line.get_color() for line in ax.lines)}
        ax.plot(passes, errors, label=name, color=None if colour in taken else colour)
    table = reference.summary()
    noise = float(np.nanmax(table["mcse_mean"] / table["sd"].where(table["sd"] > 0)))
    ax.axhline(noise, color=INK, linewidth=0.8, linestyle="--", label="error of the reference")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="row evaluations, in passes over the data",
        ylabel="largest error of a mean, in posterior sd",
    )
    ax.legend(frameon=False)
    return ax


def _errors(post: Posterior, reference: Posterior, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return passes and the worst error of the running means, at log-spaced draws."""
    if set(post.draws) != set(reference.draws) or "rows_touched" not in post.stats:
        raise SettingError(
            f"{name!r} cannot be plotted: it must have the parameters of the reference, and its "
            "stats must count the rows each draw touched ('rows_touched')."
        )
    touched = post.stats["rows_touched"].sum(axis=0, dtype=float)
    before = max(post.ledger.evaluations - touched.sum(), 0.0)
    passes = (before + np.cumsum(touched)) / post.ledger.rows
    weight = weights_of(post)
    mass = np.cumsum(weight.sum(axis=0))
    worst = np.zeros(len(passes))
    for parameter, x in post.draws.items():
        flat = x.reshape(*x.shape[:2], -1)
        with np.errstate(all="ignore"):  # signs may cancel at first, and constants have no sd
            mean = np.cumsum(np.einsum("cd,cdk->dk", weight, flat), axis=0) / mass[:, None]
            off = np.abs(mean - np.ravel(reference.mean(parameter)))
            off = off / np.ravel(reference.sd(parameter))
        worst = np.fmax(worst, np.max(np.where(np.isfinite(off), off, 0.0), axis=1, initial=0.0))
    at = np.unique(np.geomspace(1, len(passes), MOMENTS).astype(int)) - 1
    return passes[at], np.maximum(worst[at], 1e-12)


def caterpillar(
    post: Posterior,
    group: str,
    *,
    effect: str | None = None,
    levels: Sequence[object] | None = None,
    prob: Share = 0.9,
    ax: Axes | None = None,
) -> Axes:
    """Plot the effects of a group's levels, sorted by mean, each with its interval.

    Parameters
    ----------
    post
        The posterior of a model with groups.
    group
        The grouping factor, or a term such as ``car(region)``.
    effect
        Which effect to plot if levels have several, named as in `post.effects` or the formula; the
        first by default.
    levels
        Levels to plot; all by default.
    prob
        Posterior probability of the interval.
    ax
        Matplotlib axes; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
    """
    name, table = _effect_name(post, group, effect), post.effects(group, levels=levels, prob=prob)
    table = group_effects.one_effect(table, name).sort_values("mean")
    words, names = (added_words(post, name), interval_words(prob)), [str(k) for k in table.index]
    picture = Picture("levels", names, {"": Band.of_estimates(table)}, group, *words)
    ax = draw(picture, ax, colour_of(post))
    ax.invert_yaxis()  # the largest on top
    return ax


def shrinkage(
    post: Posterior,
    group: str,
    *,
    effect: str | None = None,
    levels: Sequence[object] | None = None,
    prob: Share = 0.9,
    ax: Axes | None = None,
) -> Axes:
    """Plot how far partial pooling shrinks each level's effect from its unpooled estimate.

    Hollow points are the effects that best fit the rows of their own level, with all other
    parameters at their posterior means; lines lead from them to the posterior means. The fewer rows
    a level has, the stronger the shrinkage. Triangles at the edge mark levels whose unpooled
    estimate lies beyond it, or is infinite because all outcomes of the level are equal. The band
    holds the effects of new levels with probability `prob`.

    Parameters
    ----------
    post
        The posterior of a model with groups. It must hold its rows: load one from a file with
        ``Posterior.load(path, data=...)``.
    group, effect, levels, prob, ax
        As in `caterpillar`; of more than 400 levels, 400 are plotted, from few rows to many.

    Returns
    -------
    matplotlib.axes.Axes
    """
    rows = post.rows_of_fit(None, "a plot of shrinkage")
    effects = post.effects(group, levels=levels, prob=prob)
    name = _effect_name(post, group, effect)
    table, raw, sd = group_effects.shrinkage(post, rows, group, name, effects)
    counts, mean = (table[column].to_numpy() for column in ("rows", "mean"))
    wide = float(ndtri((1 + prob) / 2)) * sd  # which new levels exceed with probability 1 - prob
    edge = 1.15 * max(wide, WIDEST * float(np.abs(mean).max()))
    colour = colour_of(post)
    ax = new_axes(ax)
    inside = np.clip(raw, -edge, edge)
    beyond = np.abs(raw) > edge
    ax.plot(counts, mean, "o", color=colour, markersize=4, label="posterior mean", zorder=3)
    ax.vlines(counts, mean, inside, color=colour, linewidth=0.8, alpha=0.5)
    for marker, mask, label in (
        ("o", ~beyond, "unpooled estimate"),
        ("^", beyond & (raw > 0), None),
        ("v", beyond & (raw < 0), None),
    ):
        (line,) = ax.plot(counts[mask], inside[mask], marker, color=colour, label=label)
        line.set(markersize=4, markerfacecolor="white", clip_on=False)
    ax.axhspan(-wide, wide, color=INK, alpha=0.12, label=f"{prob:.0%} of new levels", zorder=0)
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.set(xscale="log", xlabel=f"rows per {group}", ylim=(-edge, edge))
    ax.set_ylabel(added_words(post, name))
    ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return ax


def smooth(
    post: Posterior, name: str | None = None, *, prob: Share = 0.9, ax: Axes | None = None
) -> Axes:
    """Plot a smooth of a formula along its variable, with a band; of two variables, its mean.

    It shows how far the predictor is from its average over the rows of the fit.

    Parameters
    ----------
    post
        The posterior of a formula with smooths.
    name
        The smooth, named as in the formula: ``"s(hour)"``; may be left out if there is only one.
    prob
        Posterior probability of the band at each value.
    ax
        Matplotlib axes; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
    """
    smooths = smooths_of(post)
    if name is None and len(smooths) == 1:
        (name,) = smooths
    if name not in smooths:
        known = f"it has {', '.join(smooths)}" if smooths else "it has none"
        raise SettingError(f"name a smooth of the formula: {known}.")
    drawn, table = smooths[name], post.effects(name, prob=prob)
    if not drawn.is_curve:
        raise SettingError(f"{name} is no curve: draw it with plots.caterpillar(post, {name!r}).")
    if len(drawn.variables) == 1:
        parts = {"": table} if drawn.by is None else dict(iter(table.groupby(level=0)))
        bands = {f"{drawn.by} {k}" if k else "": Band.of_estimates(p) for k, p in parts.items()}
        at = next(iter(parts.values())).index.get_level_values(-1).to_numpy()
        picture = Picture(
            "curves", at, bands, drawn.variables[0], added_words(post, name), interval_words(prob)
        )
        return draw(picture, ax)
    if len(drawn.variables) > 2:
        raise SettingError(f"{name} has three variables: tabulate it with post.effects({name!r}).")
    surface = table["mean"].unstack(0)
    most = float(np.abs(surface.to_numpy()).max())
    ax = new_axes(ax)
    mesh = ax.pcolormesh(
        surface.columns, surface.index, surface, cmap="RdBu_r", vmin=-most, vmax=most
    )
    ax.figure.colorbar(mesh, ax=ax, label=f"{added_words(post, name)}, mean")
    ax.set(xlabel=drawn.variables[0], ylabel=drawn.variables[1])
    return ax


def _effect_name(post: Posterior, group: str, effect: str | None) -> str:
    """Return the name in `post.effects` of an effect given by it or as in the formula (1, dose)."""
    terms = terms_of(post.fitted_model(), group)
    if not terms:  # a term with one effect of each level
        return group
    written = {e: n for t in terms for e, n in zip(t.effects, t.sd_names, strict=True)}
    names = list(written.values())
    if effect is None:
        return names[0]
    if effect not in names and effect not in written:
        raise SettingError(f"there is no effect {effect!r}: {names_like(effect, names)}")
    return effect if effect in names else written[effect]


@arguments_checked
def marginal(post: Posterior, name: str, *, bins: Count = 40, ax: Axes | None = None) -> Axes:
    """Plot the distribution of one scalar as a histogram that respects signs and weights.

    Parameters
    ----------
    post
        The posterior.
    name
        A scalar named as in the summary, such as ``"beta[age]"``.
    bins
        Number of bars.
    ax
        Matplotlib axes; a new figure by default.

    Returns
    -------
    matplotlib.axes.Axes
    """
    count = len(post.lines([name]))
    if count > 1:
        raise SettingError(f"{name!r} has {count} entries: name one of them.")
    values, weights = post[name].reshape(-1), weights_of(post).reshape(-1)
    require_finite({name: post[name]}, "a histogram")
    require_positive_sum(weights, "a histogram")
    ax = new_axes(ax)
    colour = colour_of(post)
    heights, edges = np.histogram(values, bins, weights=weights / weights.sum(), density=False)
    ax.stairs(heights / np.diff(edges), edges, fill=True, color=colour, alpha=0.35)
    ax.axvline(
        post.mean(name).item(),
        color=colour,
        label=f"{post.settings.get('method', 'draws')}, and its mean",
    )
    ax.set(xlabel=name, ylabel="posterior density")
    ax.legend(frameon=False)
    return ax

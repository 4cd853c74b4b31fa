"""Effects of groups: explicit ones are among the draws, integrated ones are found afterwards.

Integrated effects follow from the rows of the fit, a chunk of groups at a time
(`modicum.passes.effects`). For a table of them nothing is drawn: given a draw of the parameters, a
group's effects have a mean and a variance, and their distribution is a mixture of such normals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from modicum.errors import (
    DataError,
    ModicumWarning,
    SettingError,
    suggestion,
    warn,
)
from modicum.ledger import Ledger
from modicum.models import GroupTerm, IntegratedEffects, LinearPredictorModel, Target
from modicum.passes import LocalEngine, Sums, with_nodes
from modicum.passes.effects import draw_effects, effect_moments
from modicum.posterior.draws import Draws, affordable, check_interval, thinned
from modicum.posterior.fitted import Fit, flat_points
from modicum.posterior.summary import percent
from modicum.posterior.weighted import (
    normalised,
    weighted_mcse,
    weighted_mean,
    weighted_quantile,
    weighted_variance,
)
from modicum.rows import Rows
from modicum.rows.formula import FormulaEncoding
from modicum.rows.groups import GroupedRows
from modicum.rows.level_names import Level, level_names
from modicum.runtime import in_double_precision

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 65_536  # rows read at a time
STICKY = 0.2  # acceptance rate below which four proposals per draw are too few
PLENTY = 100  # draws from which effects are tabulated at least: nothing but their means is random
NEWTON_STEPS, CLOSE = 20, 1e-6  # to a quantile of a mixture, within which probability
TINY, SQRT_2PI = 1e-300, float(np.sqrt(2 * np.pi))


def effects(
    source: Draws,
    fit: Fit,
    rows: Rows | None,
    group: str | None,
    levels: Sequence[object] | None,
    draws: int | None,
    prob: float,
) -> pd.DataFrame:
    """Tabulate the effects of groups; see `Posterior.effects`."""
    check_interval(prob)
    model = fit.model
    group = _group_of(model, group, levels)
    family = model.family if isinstance(model, IntegratedEffects) else model
    assert isinstance(family, LinearPredictorModel)
    if any(term.field == group for term in family.group_terms):
        fit_levels = _levels_of_fit(fit, rows, group)
        return _explicit_effects(source, family, rows, group, fit_levels, levels, prob)
    if rows is None:
        raise SettingError(
            "effects that were integrated out follow from the rows of the fit, which a file "
            "does not keep; give the rows, or their table, as rows=..."
        )
    assert isinstance(model, IntegratedEffects)
    groups = model.units(rows)
    names = group_levels(groups)
    ids = _level_ids(names, group, levels)
    size = groups.index.size[ids]
    evaluations = int(size.sum()) * model.per_effect**model.effects
    subset, weights = thinned(source, affordable(source, evaluations, draws, PLENTY))
    target, chosen, points = _chosen(fit, groups, ids, subset)
    parts = []
    for batch, present in map(chosen.chunk, range(len(chosen.chunk_starts) - 1)):
        mean, variance = effect_moments(target, batch, points)
        parts.append(_mixtures(mean[:, present], variance[:, present], weights, prob))
    table = _frame(np.concatenate(parts), group, names[ids], model.effect_names, size, prob)
    table.attrs["draws"] = weights.size
    return table


def _group_of(model: object, group: str | None, levels: object) -> str:
    """Return the factor asked for, or the only one there is.

    Refuse a factor without effects, and levels that are not a list.
    """
    names = group_names(model)
    if group is None:
        if len(names) != 1:
            raise SettingError(
                f"name the group whose effects to tabulate: {', '.join(names)}."
                if names
                else "there are no effects to tabulate; the model has no groups."
            )
        (group,) = names
    if group not in names:
        raise SettingError(
            f"there are no effects of {group!r}{suggestion(group, names)}; "
            + (f"there are effects of {', '.join(names)}." if names else "the model has no groups.")
        )
    if isinstance(levels, str) or hasattr(levels, "columns") or isinstance(levels, Rows):
        raise SettingError(
            f"levels must be a list of levels of '{group}', not "
            f"{'a name' if isinstance(levels, str) else type(levels).__name__}; give the rows of "
            "the fit, if needed, as rows=..."
        )
    return group


def group_names(model: object) -> tuple[str, ...]:
    """Return the factors whose levels have effects."""
    if isinstance(model, IntegratedEffects):
        return (model.group, *group_names(model.family))
    if isinstance(model, LinearPredictorModel):
        return tuple(dict.fromkeys(term.field for term in model.group_terms))
    return ()


def terms_of(model: object, group: str) -> tuple[GroupTerm, ...]:
    """Return the group terms of a factor."""
    if isinstance(model, IntegratedEffects):
        return (model.term,) if group == model.group else terms_of(model.family, group)
    assert isinstance(model, LinearPredictorModel)
    return tuple(term for term in model.group_terms if term.field == group)


def _levels_of_fit(fit: Fit, rows: Rows | None, group: str) -> Sequence[Level]:
    """Return the levels as the table of the fit holds them: numbers are numbers.

    Users join effects with their tables by these levels, and text would match no number.
    """
    if rows is not None:
        return rows.levels.get(group, ())
    if fit.rows is None or fit.rows.schema.origin is None:
        return ()
    groupings = FormulaEncoding.from_dict(fit.rows.schema.origin).groupings
    return next((grouping.levels for grouping in groupings if grouping.field == group), ())


def _explicit_effects(
    source: Draws,
    model: LinearPredictorModel,
    rows: Rows | None,
    group: str,
    fit_levels: Sequence[Level],
    levels: Sequence[object] | None,
    prob: float,
) -> pd.DataFrame:
    """Tabulate effects that are among the draws; `fit_levels` are the levels of the fit's rows."""
    terms = terms_of(model, group)
    names = [name for term in terms for name in term.names]
    effect_labels = [name for term in terms for name in term.sd_names]
    (entries,) = source.labels[names[0]]
    ids = _level_ids(np.asarray(entries, object), group, levels)
    x = np.stack([source.draws[name][:, :, ids] for name in names], axis=-1)
    weights = np.ones(x.shape[:2]) if source.weights is None else source.weights
    size = None
    if rows is not None:
        counts = sum(
            np.bincount(chunk[group], minlength=len(entries)) for chunk in rows.chunks(CHUNK)
        )
        size = np.asarray(counts)[ids]
    names_of_levels = fit_levels if level_names(fit_levels) == tuple(entries) else entries
    called = np.asarray(names_of_levels, object)[ids]
    table = np.concatenate([tabulated(x, weights, prob), _error(x, weights)], axis=-1)
    frame = _frame(table, group, called, effect_labels, size, prob)
    frame.attrs["draws"] = weights.size
    return frame


def tabulated(x: np.ndarray, weights: np.ndarray, prob: float) -> np.ndarray:
    """Return mean, sd and interval of draws (chains, draws, groups, effects) on a last axis."""
    low, high = weighted_quantile(x, weights, [(1 - prob) / 2, (1 + prob) / 2])
    sd = np.sqrt(weighted_variance(x, weights))
    return np.stack([weighted_mean(x, weights), sd, low, high], axis=-1)


def _error(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the Monte Carlo error of means, as one more column."""
    return np.asarray(weighted_mcse(x, weights))[..., None]


def _mixtures(
    mean: np.ndarray, variance: np.ndarray, weights: np.ndarray, prob: float
) -> np.ndarray:
    """Return mean, sd, interval and error of mixtures of normals (draws, groups, effects)."""
    from scipy.special import ndtr, ndtri  # slow to import

    centre = weighted_mean(mean[None], weights)
    sd = np.sqrt(weighted_mean(variance[None], weights) + weighted_variance(mean[None], weights))
    share, width = normalised(weights)[0], np.sqrt(np.maximum(variance, TINY))
    ends = []
    for level in ((1 - prob) / 2, (1 + prob) / 2):
        end = centre + ndtri(level) * sd
        for _ in range(NEWTON_STEPS):
            z = (end - mean) / width
            above = np.tensordot(share, ndtr(z), axes=1) - level
            if not np.any(np.abs(above) > CLOSE):
                break
            density = np.tensordot(share, np.exp(-0.5 * z**2) / width, axes=1) / SQRT_2PI
            end = end - np.clip(above / np.maximum(density, TINY), -0.5 * sd, 0.5 * sd)
        ends.append(end)
    return np.concatenate(
        [np.stack([centre, sd, *ends], axis=-1), _error(mean[None], weights)], axis=-1
    )


def _frame(
    table: np.ndarray,
    group: str,
    levels: np.ndarray,
    effect_names: Sequence[str],
    size: np.ndarray | None,
    prob: float,
) -> pd.DataFrame:
    """Return a frame with one line per level, or per level and effect if there are several."""
    import pandas as pd

    columns = ["mean", "sd", percent((1 - prob) / 2), percent((1 + prob) / 2), "mcse_mean"]
    kinds = set(map(type, levels.tolist()))
    if kinds <= {int, float} or kinds == {bool}:  # numbers join with a table's, objects do not
        levels = np.asarray(levels.tolist())
    index: pd.Index[Any] = pd.Index(levels, name=group)
    if len(effect_names) > 1:
        index = pd.MultiIndex.from_product([levels, effect_names], names=[group, "effect"])
    frame = pd.DataFrame(table.reshape(-1, len(columns)), index=index, columns=columns)
    return frame if size is None else frame.assign(rows=np.repeat(size, len(effect_names)))


def group_levels(groups: GroupedRows) -> np.ndarray:
    """Return the names of the groups: levels if the rows have them, else numbers."""
    names = groups.levels.get(groups.index.field)
    values = groups.index.values
    return values if names is None else np.asarray(names, object)[values]


def _level_ids(names: np.ndarray, group: str, levels: Sequence[object] | None) -> np.ndarray:
    """Return the indices of the requested levels; refuse one that the fit did not have."""
    if levels is None:
        return np.arange(len(names))
    place = {str(level): k for k, level in enumerate(names.tolist())}
    if not len(levels):
        raise SettingError(f"levels is empty: name levels of {group!r}, or leave it out for all.")
    unknown = [level for level in levels if str(level) not in place]
    if unknown:
        raise DataError(
            f"there is no '{group}' {unknown[0]!r} among the rows of the fit; all that is known "
            "of a new group is the spread of its effects, group_sd."
        )
    return np.array([place[str(level)] for level in levels], int)


def effect_draws(
    fit: Fit, groups: GroupedRows, ids: np.ndarray, draws: dict[str, np.ndarray], seed: int = 0
) -> Iterator[np.ndarray]:
    """Yield draws of the effects of some groups in chunks, (draws, groups, effects) each."""
    target, chosen, points = _chosen(fit, groups, ids, draws)
    accepted: list[np.ndarray] = []
    for k in range(len(chosen.chunk_starts) - 1):
        batch, present = chosen.chunk(k)
        drawn = draw_effects(target, batch, points, seed, k)
        accepted.append(drawn.acceptance[present])
        yield drawn.effects[:, present]
    _check_acceptance(np.concatenate(accepted), group_levels(chosen), groups.index.field)


@in_double_precision
def _chosen(
    fit: Fit, groups: GroupedRows, ids: np.ndarray, draws: dict[str, np.ndarray]
) -> tuple[Target, GroupedRows, np.ndarray]:
    """Return the likelihood, some groups with their nodes, and the draws as flat points."""
    target, points = flat_points(fit, groups, draws)
    model = target.model
    assert isinstance(model, IntegratedEffects)
    assert model.nodes_at is not None, "a run records where its nodes are"
    chosen_groups = groups
    if not np.array_equal(ids, np.arange(len(groups))):
        chosen_groups = groups.subset(ids)
        # smaller arrays for few groups: whole chunks at thousands of draws would take a minute
        rows = int(chosen_groups.index.size.sum())
        chosen_groups.flat_rows = min(groups.flat_rows, 1 << rows.bit_length())
        chosen_groups.flat_groups = min(groups.flat_groups, 1 << len(ids).bit_length())
    plain = target.likelihood
    sums = Sums(
        target, chosen_groups, LocalEngine(progressbar=False), Ledger(rows=len(chosen_groups))
    )
    chosen_groups = with_nodes(sums, np.array(model.nodes_at))[1]
    return plain, chosen_groups, np.ascontiguousarray(points[:, : plain.size])


def _check_acceptance(acceptance: np.ndarray, names: np.ndarray, group: str) -> None:
    """Warn if proposals for some groups are rarely accepted, so that their draws stand still."""
    worst, stuck = int(np.argmin(acceptance)), int(np.sum(acceptance < STICKY))
    if not stuck:
        return
    warn(
        ModicumWarning(
            "effects-stuck",
            f"the proposals that drew effects of '{group}' fit {stuck} of {len(names):,} groups "
            f"badly ({100 * acceptance[worst]:.2g}% were accepted for {names[worst]}), so that "
            "their means, standard deviations and intervals are rough",
            "ask for more draws (draws=...), or hold the effects explicitly (groups='explicit')",
            acceptance=float(acceptance[worst]),
            groups=stuck,
        ),
    )

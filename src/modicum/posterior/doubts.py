"""Reasons to doubt a run, each in one sentence with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from scipy.special import chdtri

from modicum.diagnostics import nested_r_hat, r_hat
from modicum.diagnostics.convergence import finite_and_moving, over_chains
from modicum.diagnostics.weighted import diagnose, influence, kish_share, unequal, weighted_mcse
from modicum.errors import ModicumWarning
from modicum.models.coefficients import parameter_of
from modicum.posterior.fitted import (
    FittedDraws,
    LabelsLike,
    evenly_spaced,
    scalar_names,
    tidy_labels,
)

LARGEST_R_HAT = 1.01
SMALLEST_ESS = 400  # Vehtari et al. (2021): below it, R-hat and ESS themselves are unreliable
EACH_ITS_MODE = "leave a single mode: the chains sit in different ones, however many the draws"
FEWEST_DRAWS = 20  # per chain; with fewer, R-hat and ESS say nothing
OPEN = 100  # ratio of the ends of a 90% interval above which the rows bound one of them at most
MOST_CHAINS, MOST_SCALARS = 64, 500  # of more, evenly spaced ones are checked, to be quick


def convergence_warnings(
    draws: Mapping[str, np.ndarray],
    stats: Mapping[str, np.ndarray],
    weights: np.ndarray | None = None,
    labels: LabelsLike | None = None,
    target_accept: float = 0.8,
    modes_apart: bool = False,
    superchains: int | None = None,
    mixing: bool = True,
) -> list[ModicumWarning]:
    """List what is wrong with the draws, the gravest problem first.

    The checks are for values that are not finite, chains that stand still, signs that cancel or
    weights that degenerate, divergences, acceptance, tree depth, R-hat and effective sample size.
    Short runs are not blamed for being short: the limits of R-hat and ESS widen to what a good
    chain of that length would reach.

    Parameters
    ----------
    draws, stats, weights, labels
        As for `modicum.posterior.Posterior`.
    target_accept
        The acceptance rate that was aimed at.
    modes_apart
        Whether the chains are known to sit in different modes, which more draws do not cure.
    superchains
        Number of groups of chains that share a starting point: nested R-hat shows whether short
        chains have forgotten it.
    mixing
        Whether to check R-hat and effective sample size, which say nothing about independent
        draws.

    Examples
    --------
    >>> x = np.random.default_rng(1).normal(size=(4, 500))
    >>> convergence_warnings({"beta": x}, {})
    []
    >>> print(convergence_warnings({"beta": x + np.arange(4)[:, None]}, {})[0])
    the chains disagree: R-hat is 1.55 for beta (limit 1.01); draw more, or tune longer.
    """
    arrays = {name: np.asarray(x) for name, x in draws.items()}
    doubts = list(_not_finite(arrays))
    if doubts:
        return doubts  # nothing else can be measured
    doubts += _standing_still(arrays)
    measurable = mixing and not doubts
    if weights is not None:
        weights = np.asarray(weights, dtype=float)
        doubts += _signs_and_weights(weights, mixing)
        measurable = measurable and weights.sum() > 0  # else estimates are NaN, and this says why
        weights = unequal(weights)
    doubts += _steps({name: np.asarray(x) for name, x in stats.items()}, target_accept)
    if measurable and any(x.size for x in arrays.values()):
        tidy = tidy_labels(labels, arrays)
        names = [line for k, x in arrays.items() for line in scalar_names(k, x.shape[2:], tidy)]
        at = evenly_spaced(len(names), MOST_SCALARS)
        if superchains is not None:
            doubts += _check_nested_r_hat(names, arrays, weights, superchains)
        chains = len(next(iter(arrays.values())))
        part = evenly_spaced(chains, MOST_CHAINS)
        parts = [x[part].reshape(len(part), x.shape[1], -1) for x in arrays.values()]
        values = np.concatenate(parts, axis=2, dtype=float)
        values = values if len(at) == len(names) else values[:, :, at]
        some = None if weights is None else weights[part]
        checked = [names[k] for k in at]
        doubts += _check_r_hat_and_ess(checked, values, some, chains, modes_apart)
    return doubts


def _not_finite(draws: dict[str, np.ndarray]) -> Iterator[ModicumWarning]:
    for name, x in draws.items():
        (finite,) = over_chains(x, lambda a: (np.isfinite(a).all(axis=tuple(range(1, a.ndim))),))
        if not finite.all():
            chain = int(finite.argmin())
            draw = int(np.argwhere(~np.isfinite(x[chain]))[0][0])
            yield ModicumWarning(
                "not-finite",
                f"the draws of {name} are not finite from draw {draw} of chain {chain} on",
                "rescale the columns of the rows or use a proper prior",
                chain=chain,
                draw=draw,
            )
            return


def _standing_still(draws: dict[str, np.ndarray]) -> Iterator[ModicumWarning]:
    """Find the chain that stays longest in one place: a pseudo-marginal chain can get stuck."""
    chains, number = next(iter(draws.values())).shape[:2]
    if number < 2:
        return
    moved = np.zeros((chains, number - 1), dtype=bool)

    def changes(a: np.ndarray) -> tuple[np.ndarray]:
        changed = a[:, 1:] != a[:, :-1]
        return (changed.reshape(len(a), number - 1, -1).any(axis=-1),)

    for x in draws.values():
        moved |= over_chains(x, changes)[0]
    edge = np.ones((chains, 1), bool)  # the longest run of equal draws lies between two moves
    moves = np.concatenate([edge, moved, edge], axis=1)
    longest = np.array([np.diff(np.flatnonzero(chain)).max() for chain in moves])
    worst = int(longest.argmax())
    remedy = "use a smaller step or, where rows are subsampled, more of them per step"
    if longest[worst] == number:
        count = int((longest == number).sum())
        yield ModicumWarning(
            "chains-stuck",
            f"{count} of {chains} chains never moved (the first is chain {worst})",
            remedy,
            chains=count,
        )
    elif longest[worst] >= max(10, number // 5):
        yield ModicumWarning(
            "chain-rested",
            f"chain {worst} stood still for {longest[worst]} of its {number} draws",
            f"{remedy}, so that the likelihood estimate varies less",
            chain=worst,
            draws=longest[worst],
        )


def _signs_and_weights(weights: np.ndarray, mixing: bool) -> Iterator[ModicumWarning]:
    bad = ~np.isfinite(weights)
    if bad.any():
        chain, draw = np.argwhere(bad)[0]
        yield ModicumWarning(
            "not-finite",
            f"{int(bad.sum())} of {weights.size} signs or weights are not finite (the first is "
            f"that of draw {draw} of chain {chain}), so that every estimate is NaN",
            "rescale the columns of the rows or use more rows per step",
            weights=int(bad.sum()),
        )
        return
    yield from _cancelling_signs(weights) if (weights < 0).any() else _uneven_weights(weights)
    if mixing and weights.shape[1] >= FEWEST_DRAWS and finite_and_moving(weights):
        ratio, limit = float(r_hat(weights)), largest_r_hat(weights.shape[0], weights.shape[1], 1)
        if not ratio <= limit:
            yield ModicumWarning(
                "weights-r-hat",
                f"the chains disagree about the signs or weights: their R-hat is {ratio:.2f}",
                "draw more, or use more rows per step",
                r_hat=ratio,
            )


def _cancelling_signs(weights: np.ndarray) -> Iterator[ModicumWarning]:
    mean = float(weights.mean())
    # the error of this mean matters by itself, since every estimate is divided by the mean
    error = float(weighted_mcse(weights, np.ones_like(weights)))
    if np.isnan(error):  # too few draws for batch means: treat them as independent
        error = float(weights.std() / np.sqrt(weights.size))
    if not mean > 0 or mean < 5 * error:
        sentence = (
            f"the signs cancel: their mean is {mean:.2g} with an error of {error:.2g}, and every "
            "estimate is divided by it"
        )
    elif mean < 0.5:
        sentence = f"the mean sign is only {mean:.2f}, so errors are {1 / mean:.1f} times larger"
    else:
        return
    remedy = "use more products (lambda) or more rows in each"
    yield ModicumWarning("signs-cancel", sentence, remedy, mean=mean, error=error)


def _uneven_weights(weights: np.ndarray) -> Iterator[ModicumWarning]:
    share = kish_share(weights)
    if not share >= 0.1:
        yield ModicumWarning(
            "weights-uneven",
            "all importance weights are zero"
            if np.isnan(share)
            else f"the importance weights are concentrated on {share:.1%} of the draws",
            "use more rows per step, so that the draws come nearer to the posterior",
            share=share,
        )


def _steps(stats: dict[str, np.ndarray], target_accept: float) -> Iterator[ModicumWarning]:
    if "diverging" in stats and stats["diverging"].any():
        count = int(stats["diverging"].sum())
        yield ModicumWarning(
            "divergences",
            f"{count} of {stats['diverging'].size} trajectories diverged, so parts of the "
            "posterior may be missing",
            "use smaller steps (target_accept=0.95, a setting of the method), or rescale the "
            "columns",
            trajectories=count,
        )
    rates = stats.get("acceptance_rate", np.empty(0))
    worst = int(rates.mean(axis=1).argmin()) if rates.size else 0  # NaN counts as the lowest
    rate = float(rates[worst].mean()) if rates.size else 1.0
    if not rate >= 0.625 * target_accept:  # 0.5 for the usual target of 0.8
        sentence = f"chain {worst} accepted only {rate:.0%} of its proposals"
        remedy = "tune longer or use a smaller step"
        if np.isnan(rate):
            sentence = f"chain {worst} made proposals whose acceptance rate is NaN"
            remedy = "rescale the columns of the rows or use a proper prior"
        yield ModicumWarning("acceptance-low", sentence, remedy, chain=worst, rate=rate)
    if "reached_max_treedepth" in stats and stats["reached_max_treedepth"].size:
        share = float(stats["reached_max_treedepth"].mean())
        if not share <= 0.05:
            yield ModicumWarning(
                "tree-depth",
                f"{share:.0%} of the trajectories were cut off at the largest tree depth",
                "allow deeper trees or tune longer",
                share=share,
            )


def _check_nested_r_hat(
    names: list[str], arrays: dict[str, np.ndarray], weights: np.ndarray | None, superchains: int
) -> Iterator[ModicumWarning]:
    """Check whether chains with one starting point remain closer to each other than to others."""
    compared = (x if weights is None else influence(x, weights) for x in arrays.values())
    by_name = [np.ravel(nested_r_hat(x, superchains)) for x in compared]  # each may be gigabytes
    ratios = np.nan_to_num(np.concatenate(by_name), nan=0.0)
    chains, draws = next(iter(arrays.values())).shape[:2]
    # its square is about 1 + F / n for superchains worth n draws, (superchains - 1) F chi-squared
    limit = _limit(superchains - 1, chains / superchains * max(draws / 2, 1), len(names))
    worst = int(ratios.argmax())
    if ratios[worst] > limit:
        yield ModicumWarning(
            "nested-r-hat",
            f"chains still remember their starting points: nested R-hat of {superchains} "
            f"superchains is {ratios[worst]:.2f} for {names[worst]} (limit {limit:.2f})",
            "tune longer, or draw more",
            nested_r_hat=ratios[worst],
            limit=limit,
        )


def _check_r_hat_and_ess(
    names: list[str],
    values: np.ndarray,
    weights: np.ndarray | None,
    chains: int,
    modes_apart: bool,
) -> Iterator[ModicumWarning]:
    """Check R-hat and effective sample size of the worst scalar, by some of all `chains`."""
    some, number, count = values.shape
    if number < FEWEST_DRAWS:
        return
    measured = diagnose(values, weights)
    # A constant scalar has neither R-hat nor ESS; one that moves must have both.
    moving = finite_and_moving(values)
    ratios = np.where(moving, measured["r_hat"], 0.0)
    bulk, tail = measured["ess_bulk"], measured["ess_tail"]
    sizes = np.where(np.isnan(tail), bulk, np.minimum(bulk, tail)) * chains / some
    sizes = np.where(moving, sizes, np.inf)
    limit = largest_r_hat(some, number, count)
    unknown = np.isnan(ratios) | (np.isnan(sizes) & ~(ratios > limit))
    if unknown.any():
        signed = weights is not None
        yield ModicumWarning(
            "not-finite",
            f"neither R-hat nor ESS can be computed for {names[int(unknown.argmax())]}"
            + (", whose variance comes out negative under the signs" if signed else ""),
            "draw more, or use more rows per step"
            if signed
            else "rescale the columns of the rows, so that squares of draws stay finite",
        )
        return
    sizes = np.where(np.isnan(sizes), np.inf, sizes)  # no ESS if chains are apart: R-hat warns
    worst = int(ratios.argmax())
    if ratios[worst] > limit:
        yield ModicumWarning(
            "r-hat",
            f"the chains disagree: R-hat is {ratios[worst]:.2f} for {names[worst]} "
            f"(limit {limit:.2f})",
            EACH_ITS_MODE if modes_apart else "draw more, or tune longer",
            r_hat=ratios[worst],
            limit=limit,
        )
    worst = int(sizes.argmin())
    if sizes[worst] < smallest_ess(chains * number):
        yield ModicumWarning(
            "ess",
            f"the {chains * number} draws are worth only {sizes[worst]:.0f} independent ones "
            f"for {names[worst]} (ESS)",
            EACH_ITS_MODE
            if modes_apart
            else "draw more, or use more rows per step if subsampling slows it",
            ess=sizes[worst],
        )


def open_ended(post: FittedDraws) -> Iterator[ModicumWarning]:
    """Warn of outcomes that vary no more than a simpler family's, so that nothing says how little.

    The likelihood is then flat on one side of a precision or overdispersion, where its prior ends
    the posterior: it spans powers of ten, and its mean says nothing.
    """
    family = post.fitted_model().row_model
    name = parameter_of(family.extras[0]) if family.simpler else ""
    if name not in post.draws:  # it may be known, or have a formula
        return
    low, high = map(float, post.quantile(name, [0.05, 0.95]))
    if not high <= OPEN * low:
        yield ModicumWarning(
            "dispersion-open",
            f"the outcomes vary no more than those of family={family.simpler!r}, so only the prior "
            f"bounds {name} on one side: 90% of its draws lie between {low:.2g} and {high:.2g}",
            "use that family, or report a bound rather than an estimate",
            low=low,
            high=high,
        )


def smallest_ess(total: int) -> float:
    """Return the limit of ESS: 400, or a quarter of the draws, or less below a thousand draws.

    An ESS estimated from a few hundred draws is noise, and the worst of many parameters more so.
    """
    return min(SMALLEST_ESS, total / 4 * min(1.0, total / 1000))


def largest_r_hat(chains: int, draws: int, scalars: int) -> float:
    """Return the limit of R-hat that a good chain of this length keeps, at least 1.01.

    R-hat squared is about 1 + F / n for half chains worth n independent draws, where
    (2 chains - 1) F is chi-squared: in short runs 1.01 would be exceeded by chance. A good chain
    is one with an inefficiency factor of two, like HMC in the papers.
    """
    return _limit(2 * chains - 1, max(draws / 4, 1), scalars)


def _limit(freedom: int, worth: float, scalars: int) -> float:
    by_chance = chdtri(freedom, 1e-3 / scalars) / freedom  # the tail of chi-squared
    return float(max(LARGEST_R_HAT, np.sqrt(1 + by_chance / worth)))

"""Tables 1 to 4 of the HMC-ECS paper, relative CT and efficiencies, and the notes below them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.stats import norm

from modicum.diagnostics import optimal_variance, r_hat, relative_computational_time
from modicum_lab.papers.experiments import Claim, Table
from modicum_lab.papers.fits import CONVERGED, Fit, Length
from modicum_lab.papers.hmc_ecs.comparison import (
    BLOCKS,
    DEFAULT,
    LEAPFROGS,
    PERTURBED,
    SCHEDULE,
    SIGNED_SCHEDULE,
    TRUTH,
    Problem,
    Size,
    gradient_step,
    stable_step,
)

TUNE, DRAWS = 1_000, 2_000  # iterations of the paper's runs


def length_of(problem: Problem) -> Length:
    """Return the length of the paper's run, on as many rows."""
    return Length(TUNE, DRAWS, problem.rows)


def relative_table(name: str, problem: Problem, fits: Mapping[str, Fit], note: str) -> Table:
    """Return RCT = CT(method) / CT(perturbed): least, median and largest over the parameters.

    As the captions of Tables 1 and 3 say, HMC-ECS is compared by its entire run and stochastic
    gradients by sampling alone, on both sides of the ratio. Costs are those of runs as long as the
    paper's, from the cost of an iteration here. Chains that disagree have no IF, and so no RCT.
    """
    rows = []
    for label, fit in fits.items():
        whole, printed = fit.contender.training, problem.figures(label)
        worst = _worst_r_hat(fit)
        ratio, other = (_relative(label, problem, fits, way) for way in (whole, not whole))
        least, median, most, reverse = (
            (*np.percentile(ratio, (0, 50, 100)).tolist(), float(np.median(other)))
            if worst < CONVERGED
            else (None, "not comparable", None, None)
        )
        quotient = median / printed["median"] if reverse and "median" in printed else None
        row: list[object] = [label, "entire run" if whole else "sampling alone"]
        for quantile, ours in (("min", least), ("median", median), ("max", most)):
            row += [ours, printed.get(quantile)]
        rows.append([*row, quotient, reverse, worst])
    columns = ["method", "charged for"]
    for quantile in ("min", "median", "max"):
        columns += [f"RCT {quantile}", f"RCT {quantile} (paper)"]
    columns += ["median over the paper's", "RCT median, charged the other way", "R-hat"]
    lost = f"Not comparable: an R-hat above {CONVERGED}, so that draws do not tell an IF."
    return Table(name, columns, rows, f"{lost} {note}".strip())


def _worst_r_hat(fit: Fit) -> float:
    return float(np.max(r_hat(fit.draws)))


def _relative(label: str, problem: Problem, fits: Mapping[str, Fit], training: bool) -> np.ndarray:
    """Return RCT of each scalar; both sides of the ratio have the paper's schedule, or neither."""
    like = SCHEDULE if label == SIGNED_SCHEDULE else PERTURBED
    own, base = (
        fits[name].computational_time(training=training, length=length_of(problem))
        for name in (label, like)
    )
    return np.asarray(relative_computational_time(base, own))


MEASURES = {
    "acceptance": "acceptance_rate",
    "acceptance u": "acceptance_rate_u",
    "L": "n_steps",
    "IF": "",
    "ESS of 2,000": "",
    "tau": "",
    "100 m/n": "",
    "full HMC, times the cost": "",
}


def efficiency_table(name: str, problem: Problem, fits: Mapping[str, Fit], note: str) -> Table:
    """Tabulate acceptance, steps, IF, ESS, signs, share of rows, and cost of full HMC."""
    columns = ["method"]
    for measure in MEASURES:
        columns += [measure, f"{measure} (paper)"]
    rows = []
    for label, fit in fits.items():
        if fit.contender.training:  # HMC-ECS and full HMC
            ours, printed = _measures(fit, problem.rows), problem.figures(label)
            row: list[object] = [label]
            for measure in MEASURES:
                row += [ours[measure], printed.get(measure)]
            rows.append([*row, ours["IF"] / printed["IF"] if "IF" in printed else None])  # type: ignore[operator]
    return Table(name, [*columns, "IF over the paper's"], rows, note)


def _measures(fit: Fit, rows: int) -> dict[str, float | None]:
    everything = fit.label == TRUTH
    factor = float(fit.inefficiency.mean())
    return {
        **{name: fit.stat(stat) for name, stat in MEASURES.items() if stat},
        "IF": factor,
        "ESS of 2,000": 2_000 / factor,
        "tau": fit.positive if fit.post.weights is not None else None,
        "100 m/n": 100.0 if everything else 100 * _rows_held(fit) / rows,
        "full HMC, times the cost": None if everything else full_data_ratio(fit, rows),
    }


def _rows_held(fit: Fit) -> float:
    """Return the rows of one evaluation of the estimate."""
    if "factors" in fit.post.stats:
        return float(fit.post.stats["factors"].mean()) * fit.post.tuning["batch"]["value"]
    return float(fit.post.tuning["subsample"]["value"] + fit.post.tuning["certainty"]["value"])


def full_data_ratio(fit: Fit, rows: int) -> float:
    """Return evaluations of full HMC (L = 6, 3,000 iterations) over those of this method."""
    sampling = fit.post.ledger.by_purpose["sampling"]
    iteration = sampling / (fit.post.chains * fit.contender.draws)  # rows of one of them
    length = TUNE + DRAWS
    return length * (LEAPFROGS + 1) * rows / (fit.preparations(rows) + length * iteration)


def accuracy_table(name: str, fits: Mapping[str, Fit], truth: Fit, note: str) -> Table:
    """Tabulate errors of means in posterior sd, and ratios of sds, against full HMC."""
    rows = []
    for label, fit in fits.items():
        off, spread = fit.off(truth), fit.sd / truth.sd
        rows.append([label, float(off.max()), float(np.sqrt(np.mean(off**2))),
                     float(spread.min()), float(spread.max())])  # fmt: skip
    columns = ["method", "largest error of a mean, sd", "rms error of means, sd",
               "least sd ratio", "largest sd ratio"]  # fmt: skip
    return Table(name, columns, rows, note)


CLOSE, BIASED = 0.3, 0.5  # limits of the largest error of a mean, in posterior sd


def _judged(what: str, fit: Fit, found: str, agree: bool) -> Claim:
    """Return the claim, without a verdict if the chains of `fit` have not converged."""
    worst = _worst_r_hat(fit)
    if worst < CONVERGED:
        return (what, found, "yes", agree)
    return (what, f"{found}; not comparable, since R-hat is {worst:.3g}", "yes", None)


def accurate(label: str, fits: Mapping[str, Fit], truth: Fit, where: str) -> Claim:
    """Judge the claim that a method's means are right, up to Monte Carlo error."""
    off = float(fits[label].off(truth).max())
    found = f"means off by {off:.2g} sd at most"
    return _judged(f"{where}: {label} is accurate", fits[label], found, off < CLOSE)


def bias_claim(label: str, fits: Mapping[str, Fit], truth: Fit, where: str) -> Claim:
    """Judge the claim that a method's means or variances are wrong."""
    off, spread = float(fits[label].off(truth).max()), fits[label].sd / truth.sd
    wrong = off > BIASED or not 0.8 < float(spread.min()) <= float(spread.max()) < 1.25
    found = f"means off by {off:.2g} sd, sd {spread.min():.2g} to {spread.max():.2g} times"
    return _judged(f"{where}: {label} is not", fits[label], found, wrong)


PRINTED_M = (62_000, 1_000)  # section 6.6: m at the first anchor, and after 100 iterations
PLACES = ((10, 100), (150, 200))  # iterations of burn-in from which each anchor is judged


def calibration_table(fit: Fit, rows: int, note: str) -> Table:
    """Return m at the first anchor and after 100 iterations, by our rule and by the paper's.

    The paper's rule is a variance of the log-likelihood estimate that minimises computational time
    for errors with a correlation of .99 (Quiroz et al.); variances are those along the burn-in.
    """
    best = optimal_variance(1 - 1 / BLOCKS)
    path = np.asarray(fit.post.tuning["burn-in variance"])
    chosen = fit.post.tuning["recalibration"]
    anchors = ("mean of a 1 % subset", "after 100 iterations")
    lines = []
    for anchor, m, (first, last), printed in zip(anchors, chosen, PLACES, PRINTED_M, strict=True):
        variance = float(np.median(path[first:last]))
        theirs = max(1, round(m * variance / best))
        lines.append([anchor, int(m), printed, 100 * m / rows, variance, theirs])
    columns = ["anchor", "m", "m (paper)", "100 m/n", "variance of lhat, median",
               f"m for a variance of {best:.0f}"]  # fmt: skip
    words = (
        "Section 6.6: m is set at the first anchor and recalibrated after 100 iterations; the "
        "paper finds 62,000, then 1,000. Ours is the smallest m with a variance of at most 1 and "
        "hardly any bias, bounded by half of the rows. The last column is the rule of Quiroz et "
        "al., by which computational time alone is least: so noisy an estimate would be far from "
        "unbiased here, and the pilot study does not allow it."
    )
    return Table("recalibration", columns, lines, f"{words} {note}")


BATCH = 30  # rows of a mini-batch of the signed method (section 6.3)
DEVIATIONS = np.linspace(-9, 9, 4_001)  # of a factor of the block-Poisson estimate, in sds


def optimal_products(deviation: float, refreshed: float) -> int:
    """Return the lambda that minimises computational time (eq. 5.4; Quiroz et al. 2018c).

    Estimates of a mini-batch are taken as normal with sd `deviation`, and the soft lower bound as
    optimal, so that factors have mean 1 and sd `deviation` / lambda. A share `refreshed` of the
    products is drawn anew per iteration.

    Examples
    --------
    >>> optimal_products(10.0, 0.01), optimal_products(100.0, 0.01)
    (33, 412)
    """
    chance = norm.pdf(DEVIATIONS) / norm.pdf(DEVIATIONS).sum()
    candidates = np.unique(np.geomspace(max(1.0, deviation), 20 * deviation + 20, 400).round())
    times = []
    for products in candidates:
        factor = 1 + DEVIATIONS * deviation / products
        log_variance = products * (chance @ np.log(np.abs(factor) + 1e-12) ** 2)
        accepted = 2 * norm.cdf(-np.sqrt(2 * log_variance * refreshed) / 2)
        sign = np.exp(-2 * products * norm.cdf(-products / deviation))  # 2 tau - 1
        times.append(products * (2 - accepted) / accepted / max(sign, 1e-12) ** 2)
    return int(candidates[np.argmin(times)])


def rule_table(problem: Problem, fit: Fit, rows: int, note: str) -> Table:
    """Return m and lambda by the rules of Quiroz et al. beside those that the paper prints.

    Both follow from the variance of the log-likelihood estimate along the chain of `fit`.
    """
    best = optimal_variance(1 - 1 / BLOCKS)
    of_one_row = float(fit.post.tuning["subsample"]["value"]) * (fit.stat("variance_estimate") or 0)
    deviation = float(np.sqrt(of_one_row / BATCH))
    lines = [
        ["m", problem.subsample, max(1, round(of_one_row / best)), f"a variance of {best:.0f}"],
        ["lambda", problem.products, optimal_products(deviation, 1 / BLOCKS),
         f"mini-batches of {BATCH} rows have an sd of {deviation:.2g}"],
    ]  # fmt: skip
    words = (
        f"The rules of Quiroz et al. with a correlation of {1 - 1 / BLOCKS:g}, on {rows:,} rows "
        "and at our anchor, the mode of all rows. The paper does not print what its own values "
        "come from; its anchors were less exact, and its rows are other ones."
    )
    return Table("rules", ["setting", "as printed (paper)", "by the rule", "since"], lines,
                 f"{words} {note}")  # fmt: skip


def charging_note(problem: Problem, size: Size) -> str:
    """Return a note on what RCT charges for."""
    return (
        "RCT is CT(method) / CT(perturbed). As in the paper's captions HMC-ECS is compared "
        "by its entire run, stochastic gradients with the perturbed method by sampling alone; "
        "the last column has the median by the other way of charging. A method by the paper's "
        "schedule is compared with the perturbed one by the same schedule. "
        f"Costs are those of {TUNE:,} + {DRAWS:,} iterations and {problem.rows:,} "
        "rows, as in the paper, at the evaluations an iteration took and the passes that were made "
        f"here, with {size.rows:,} rows (a draw of SG-HMC is a trajectory, one of SGLD 6 steps); "
        "so are 100 m/n and the cost of full HMC. IFs are those of "
        f"{size.chains} chains of up to {size.draws:,} draws. Perturbed and signed chains share "
        "their random numbers, and so have much the same draws where both estimates are precise."
    )


def stochastic_gradients_cost(problem: Problem, fits: Mapping[str, Fit]) -> str:
    """Return a note on the cost of SG-HMC relative to the perturbed method, both ways."""
    sentences = []
    for steps in problem.sghmc_steps:
        fit = fits[problem.sghmc_label(steps)]
        if _worst_r_hat(fit) >= CONVERGED:
            sentences.append(f"{fit.label} cannot be compared, since its chains disagree")
            continue
        alone, whole = (
            float(np.median(_relative(fit.label, problem, fits, way))) for way in (False, True)
        )
        printed = problem.figures(fit.label).get("median")
        theirs = "" if printed is None else f", against the paper's {printed:g}"
        sentences.append(
            f"{fit.label} has a mean IF of {fit.inefficiency.mean():.1f} here and costs "
            f"{alone:.2g} times the perturbed method in sampling alone{theirs}; by entire runs, "
            f"{whole:.2g} times"
        )
    return f"{'. '.join(sentences)}."


def too_large(problem: Problem, size: Size, fits: Mapping[str, Fit]) -> str:
    """Return a note on whether SGLD with the paper's step can be stable on these rows."""
    ratio = gradient_step(problem, size) / (4 * stable_step(fits[PERTURBED]))
    overshoots = "so that the recursion overshoots and its IFs mean nothing"
    regime = overshoots if ratio > 1 else "where the recursion is stable"
    return (
        f"SGLD's step of {problem.sgld_step:g} (times {problem.rows:,} / n) is {ratio:.2g} times 4 "
        f"over the largest eigenvalue of the precision of these columns, {regime}; the paper does "
        "not say how it scaled the covariates. The line with a stable step takes one over that "
        "eigenvalue."
    )


def full_cost(problem: Problem, fits: Mapping[str, Fit]) -> str:
    """Return a note on how the costs of full HMC and HMC-ECS are counted."""
    labels = [label for label in (PERTURBED, SCHEDULE) if label in fits]
    total = {label: full_data_ratio(fits[label], problem.rows) for label in (*labels, DEFAULT)}
    cheaper = " and ".join(
        f"{total[DEFAULT] / total[label]:.2g} times ({label})" for label in labels
    )
    return (
        "Cost of full HMC: 3,000 iterations of L + 1 = 7 evaluations of all rows, as the paper "
        "counts, over a run of HMC-ECS as long with all of its passes. HMC-ECS, too, is charged "
        "L + 1 evaluations of its rows, and those of its refreshes. With its "
        f"passes the weighted default is cheaper than uniform rows by {cheaper}; without them by "
        f"{_sampling(fits):.2g} times."
    )


def _sampling(fits: Mapping[str, Fit]) -> float:
    """Return the ratio of rows touched per iteration, uniform over weighted."""
    own, other = (
        fits[label].evaluations(training=False) / fits[label].contender.draws
        for label in (PERTURBED, DEFAULT)
    )
    return own / other


def monte_carlo_error(truth: Fit) -> str:
    """Return a note on how large errors of means may be by chance alone."""
    noise = float(np.sqrt(2 * truth.inefficiency.mean() / truth.draws[..., 0].size))
    return (
        "Errors of means hold the Monte Carlo error of two runs: a standard deviation of "
        f"{noise:.2f} if both have as many draws and mix as full HMC did; the largest of "
        f"{len(truth.mean)} is then about {2.5 * noise:.2f}."
    )

"""Notes below Tables 1 to 4 of the HMC-ECS paper, with the figures of the run they are about."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from modicum_lab.papers.fits import Fit
from modicum_lab.papers.hmc_ecs.contenders import (
    DEFAULT,
    PERTURBED,
    SCHEDULE,
    Problem,
    Size,
    gradient_step,
    stable_step,
)
from modicum_lab.papers.hmc_ecs.tables import DRAWS, TUNE, full_data_ratio, length_of

__all__ = ["charged", "full_cost", "monte_carlo_error", "stochastic_gradients_cost", "too_large"]


def charged(problem: Problem, size: Size) -> str:
    """What RCT charges for."""
    return (
        "RCT is CT(method) / CT(perturbed). As in the paper HMC-ECS is charged for its entire run, "
        "stochastic gradients for what follows warm-up; the last columns charge every method for "
        f"sampling alone. Costs are those of {TUNE:,} + {DRAWS:,} iterations and {problem.rows:,} "
        "rows, as in the paper, at the evaluations an iteration took and the passes that were made "
        f"here, with {size.rows:,} rows (a draw of SG-HMC is a trajectory, one of SGLD 6 steps); "
        "so are 100 m/n and the cost of full HMC. IFs are those of "
        f"{size.chains} chains of up to {size.draws:,} draws. Perturbed and signed chains share "
        "their random numbers, and so have much the same draws where both estimates are precise."
    )


def stochastic_gradients_cost(problem: Problem, fits: Mapping[str, Fit]) -> str:
    """Why SG-HMC may look cheaper than in the paper: passes are charged to HMC-ECS alone."""
    base, length = fits[PERTURBED], length_of(problem)
    own = base.computational_time(training=False, length=length)
    whole = base.computational_time(length=length)
    said = []
    for steps in problem.sghmc_steps:
        fit = fits[problem.sghmc_label(steps)]
        time = fit.computational_time(length=length)
        said.append(
            f"{fit.label} has a mean IF of {fit.inefficiency.mean():.1f} here: it costs "
            f"{np.median(time / own):.2g} times the perturbed method where sampling alone is "
            f"charged, and {np.median(time / whole):.2g} times where that method alone pays for "
            "passes"
        )
    return f"{'; '.join(said)} ({base.passes:.1f} of them)."


def too_large(problem: Problem, size: Size, fits: Mapping[str, Fit]) -> str:
    """Whether SGLD with the paper's step can be stable on these rows."""
    ratio = gradient_step(problem, size) / (4 * stable_step(fits[PERTURBED]))
    overshoots = "so that the recursion overshoots and its IFs mean nothing"
    what = overshoots if ratio > 1 else "where the recursion is stable"
    return (
        f"SGLD's step of {problem.sgld_step:g} (times {problem.rows:,} / n) is {ratio:.2g} times 4 "
        f"over the largest eigenvalue of the precision of these columns, {what}; the paper does "
        "not say how it scaled the covariates. The line with a stable step takes one over that "
        "eigenvalue."
    )


def full_cost(problem: Problem, fits: Mapping[str, Fit]) -> str:
    """How full HMC and HMC-ECS are counted."""
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
    """Rows an iteration touches, uniform over weighted."""
    one, other = (
        fits[label].evaluations(training=False) / fits[label].contender.draws
        for label in (PERTURBED, DEFAULT)
    )
    return one / other


def monte_carlo_error(truth: Fit) -> str:
    """How large errors of means are that mean nothing."""
    noise = float(np.sqrt(2 * truth.inefficiency.mean() / truth.draws[..., 0].size))
    return (
        "Errors of means hold the Monte Carlo error of two runs: a standard deviation of "
        f"{noise:.2f} if both have as many draws and mix as full HMC did; the largest of "
        f"{len(truth.mean)} is then about {2.5 * noise:.2f}."
    )

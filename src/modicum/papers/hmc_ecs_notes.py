"""Notes below Tables 1 to 4 of the HMC-ECS paper, with the figures of the run they are about."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from modicum.papers.fits import Fit
from modicum.papers.hmc_ecs_contenders import (
    DEFAULT,
    PERTURBED,
    Problem,
    Size,
    gradient_step,
    stable_step,
)
from modicum.papers.hmc_ecs_tables import LENGTH, full_data_ratio, preparations

__all__ = ["charged", "full_cost", "monte_carlo_error", "stochastic_gradients_cost", "too_large"]


def charged(size: Size) -> str:
    """What RCT charges for."""
    return (
        "RCT is CT(method) / CT(perturbed). As in the paper HMC-ECS is charged for its entire run, "
        "stochastic gradients for what follows warm-up; the last columns charge every method for "
        f"sampling alone. Costs are those of {LENGTH.tune:,} + {LENGTH.draws:,} iterations, as in "
        "the paper, at what an iteration took here (a draw of SG-HMC is a trajectory, one of SGLD "
        f"6 steps); IFs are those of {size.chains} chains of up to {size.draws:,} draws."
    )


def stochastic_gradients_cost(problem: Problem, fits: Mapping[str, Fit]) -> str:
    """Why SG-HMC may look cheaper than in the paper: passes are charged to HMC-ECS alone."""
    base = fits[PERTURBED]
    passes = preparations(base) / base.post.ledger.rows
    own = base.computational_time(training=False, length=LENGTH)
    whole = base.computational_time(length=LENGTH)
    said = []
    for steps in problem.sghmc_steps:
        fit = fits[problem.sghmc_label(steps)]
        time = fit.computational_time(length=LENGTH)
        said.append(
            f"{fit.label} has a mean IF of {fit.inefficiency.mean():.1f} here: it costs "
            f"{np.median(time / own):.2g} times the perturbed method where sampling alone is "
            f"charged, and {np.median(time / whole):.2g} times where that method alone pays for "
            "passes"
        )
    return f"{'; '.join(said)}. The perturbed method made {passes:.1f} passes before it sampled."


def too_large(problem: Problem, size: Size, fits: Mapping[str, Fit]) -> str:
    """Whether SGLD with the paper's step can be stable on these rows."""
    ratio = gradient_step(problem, size) / (4 * stable_step(fits[PERTURBED]))
    what = "so that the recursion overshoots" if ratio > 1 else "where the recursion is stable"
    return (
        f"SGLD's step of {problem.sgld_step:g} (times {problem.rows:,} / n) is {ratio:.2g} times 4 "
        f"over the largest eigenvalue of the precision of these columns, {what}; the paper does "
        "not say how it scaled the covariates. The line with a stable step takes one over that "
        "eigenvalue."
    )


def full_cost(fits: Mapping[str, Fit]) -> str:
    """How full HMC and HMC-ECS are counted."""
    perturbed, default = full_data_ratio(fits[PERTURBED]), full_data_ratio(fits[DEFAULT])
    return (
        "Cost of full HMC: 3,000 iterations of L + 1 = 7 evaluations of all rows, as the paper "
        "counts, over a run of HMC-ECS as long with all of its passes. HMC-ECS is charged L + 2 "
        "evaluations of its rows here, one of them for the residuals at the new point. The "
        f"weighted default costs {default / perturbed:.2g} times less than uniform rows with the "
        f"paper's settings; its sampling alone {_sampling(fits):.3g} times less."
    )


def _sampling(fits: Mapping[str, Fit]) -> float:
    one, other = (fits[k].evaluations(training=False, length=LENGTH) for k in (PERTURBED, DEFAULT))
    return one / other


def monte_carlo_error(truth: Fit) -> str:
    """How large errors of means are that mean nothing."""
    noise = float(np.sqrt(2 * truth.inefficiency.mean() / truth.draws[..., 0].size))
    return (
        "Errors of means hold the Monte Carlo error of two runs: a standard deviation of "
        f"{noise:.2f} if both have as many draws and mix as full HMC did; the largest of "
        f"{len(truth.mean)} is then about {2.5 * noise:.2f}."
    )

"""The comparisons of the HMC-ECS paper: its data, its methods with their settings, and ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from modicum import SGHMC, SGHMCCV, SGLD, SGLDCV
from modicum.methods import HMC, HMCECS, ECSExpert, SignedHMCECS
from modicum.rows import Rows
from modicum_lab.datasets import Dataset, bankruptcy_shaped, higgs, higgs_shaped
from modicum_lab.papers.fits import Contender, Fit

PERTURBED = "HMC-ECS perturbed"
SIGNED = "HMC-ECS signed"
SCHEDULE = "HMC-ECS perturbed, paper's schedule"
SIGNED_SCHEDULE = "HMC-ECS signed, paper's schedule"
AS_PRINTED = {SCHEDULE: PERTURBED, SIGNED_SCHEDULE: SIGNED}  # these share printed figures
DEFAULT = "HMC-ECS weighted (our default)"
TRUTH = "HMC, all rows"
LEAPFROG = ECSExpert(integrator="leapfrog")  # the default on a CPU, and the papers' everywhere
PAPER = replace(LEAPFROG, tuning="paper")
STEP, LEAPFROGS, BLOCKS = 0.2, 6, 100  # section 6.3: eps L = 1.2, rho = .99


@dataclass(frozen=True)
class Problem:
    """A data set of the paper: its size, its settings, and the figures it prints.

    Attributes
    ----------
    name
        Name of the data.
    rows
        n of the paper.
    subsample, products
        m of the perturbed method and of the stochastic gradients; lambda of the signed one.
    sghmc_step, sghmc_steps
        eps of SG-HMC, and L of each of its runs.
    sgld_step
        eps of SGLD at n rows; the posterior's variance is proportional to 1/n, and so is eps.
    plain
        Whether SG-HMC and SGLD are also run without control variates.
    recalibrated
        Whether the paper's schedule chooses m, again after 100 iterations, or m is fixed.
    printed
        Printed figures by label.
    """

    name: str
    rows: int
    subsample: int
    products: int
    sghmc_step: float
    sghmc_steps: tuple[int, ...]
    sgld_step: float
    plain: bool
    recalibrated: bool = False
    printed: dict[str, dict[str, float]] = field(default_factory=dict)

    def figures(self, label: str) -> dict[str, float]:
        """Return the figures that the paper prints for a method."""
        return self.printed.get(AS_PRINTED.get(label, label), {})

    def sghmc_label(self, steps: int) -> str:
        """Return the label of SG-HMC in the tables."""
        return "SG-HMC" if len(self.sghmc_steps) == 1 else f"SG-HMC, L = {steps}"


@dataclass(frozen=True)
class Size:
    """How much of a problem is run.

    Attributes
    ----------
    rows
        n.
    chains, draws, tune
        Number of chains, and the draws and warm-up of each.
    most_steps
        The most steps of a chain of SG-HMC, whose draws are one per trajectory.
    to_see_that_it_runs
        Whether this is a smoke test, with fewer contenders and rows: compilation dominates.
    """

    rows: int
    chains: int
    draws: int
    tune: int
    most_steps: int = 1_000_000
    to_see_that_it_runs: bool = False

    def part_of(self, problem: Problem) -> Problem:
        """Return the problem as it is run at this size."""
        if not self.to_see_that_it_runs:
            return problem
        return replace(
            problem,
            subsample=2 * BLOCKS,
            products=BLOCKS,
            sghmc_steps=problem.sghmc_steps[-1:],
            plain=False,
        )


STABLE_LONGER = 20  # times the draws of others: so small a step needs them to converge


def run_problem(
    problem: Problem, size: Size, run: Callable[[Contender], Fit], schedule: bool
) -> dict[str, Fit]:
    """Run all contenders that subsample rows; `schedule` adds those with the paper's burn-in."""
    contenders = [*_energy_conserving(problem, size), *_stochastic_gradients(problem, size)]
    if schedule:
        contenders += [by_schedule(problem, size, order=2), signed_by_schedule(problem, size)]
    fits = {contender.label: run(contender) for contender in contenders}
    stable = SGLDCV(
        step_size=stable_step(fits[PERTURBED]), **_gradients(problem, in_parameters=True)
    )
    draws = size.draws * (1 if size.to_see_that_it_runs else STABLE_LONGER)
    extra = Contender("SGLD, stable step", stable, draws, 0, LEAPFROGS, training=False)
    return fits | {extra.label: run(extra)}


def by_schedule(problem: Problem, size: Size, order: int) -> Contender:
    """Return HMC-ECS with the burn-in of the paper, and control variates of this order.

    At order 0, whose target is far from the posterior, a step of .2 is too large: it is tuned after
    the burn-in.
    """
    m = None if problem.recalibrated else problem.subsample
    settings, tune = _ecs(), 0
    if order == 0:
        settings["step_size"], tune = None, size.tune
    method = HMCECS(order=order, subsample=m, expert=PAPER, **settings)
    return Contender(SCHEDULE, method, size.draws, tune, colour="hmc-ecs-uniform")


def signed_by_schedule(problem: Problem, size: Size) -> Contender:
    """Return signed HMC-ECS with the burn-in of the paper."""
    method = SignedHMCECS(products=problem.products, batch=30, expert=PAPER, **_ecs())
    return Contender(SIGNED_SCHEDULE, method, size.draws, 0)


def our_default(size: Size) -> Contender:
    """Return Modicum's default, self-tuned with weighted rows."""
    return Contender(DEFAULT, HMCECS(), size.draws, size.tune)


def full_hmc(size: Size) -> Contender:
    """Return HMC on all rows with the paper's trajectory; whitened, it needs little warm-up."""
    return Contender(TRUTH, HMC(step_size=STEP), size.draws, min(size.tune, 100))


def stable_step(fit: Fit) -> float:
    """Return 1 / (largest eigenvalue of the precision), a quarter of SGLD's stability limit."""
    draws = fit.draws.reshape(-1, fit.draws.shape[2])
    return float(np.linalg.eigvalsh(np.cov(draws, rowvar=False))[0])


def gradient_step(problem: Problem, size: Size) -> float:
    """Return the paper's step of SGLD for these rows."""
    return problem.sgld_step * problem.rows / size.rows


def _ecs() -> dict[str, Any]:
    return {"design": "uniform", "blocks": BLOCKS, "refreshes": 1, "step_size": STEP}


def _energy_conserving(problem: Problem, size: Size) -> list[Contender]:
    perturbed = HMCECS(subsample=problem.subsample, expert=LEAPFROG, **_ecs())
    signed = SignedHMCECS(products=problem.products, batch=30, **_ecs())
    return [
        Contender(PERTURBED, perturbed, size.draws, size.tune, colour="hmc-ecs-uniform"),
        Contender(SIGNED, signed, size.draws, size.tune),
        our_default(size),
    ]


def _gradients(problem: Problem, in_parameters: bool) -> dict[str, Any]:
    return {"batch": problem.subsample, "design": "uniform", "whiten": not in_parameters}


def _stochastic_gradients(problem: Problem, size: Size) -> list[Contender]:
    """Return SG-HMC and SGLD with control variates of order 2, and without if in the paper."""
    contenders = _of_gradients(problem, size, 2, "")
    if problem.plain:
        contenders += _of_gradients(problem, size, 0, ", no control variates")
    return contenders


def degraded(problem: Problem, size: Size, order: int) -> list[Contender]:
    """Return SG-HMC and SGLD with control variates of this order (section 6.8)."""
    return _of_gradients(problem, size, order, f", order {order}")


def _of_gradients(problem: Problem, size: Size, order: int, suffix: str) -> list[Contender]:
    """Return SG-HMC, whitened (its M is the precision), and SGLD in the parameters.

    SG-HMC gives one draw per trajectory. A control variate of order 0 is a constant, which has no
    gradient: these are the plain methods.
    """
    extra: dict[str, Any] = {"order": order} if order else {}
    hamiltonian, langevin = (SGHMCCV, SGLDCV) if order else (SGHMC, SGLD)
    contenders = []
    for steps in problem.sghmc_steps:
        method = hamiltonian(
            form="friction",
            friction=1.0,  # C = I and B = 0, of the parameters (section 6.2)
            in_parameters=True,
            period=steps,
            step_size=problem.sghmc_step,
            **_gradients(problem, in_parameters=False),
            **extra,
        )
        draws = min(size.draws, size.most_steps // steps)
        label = problem.sghmc_label(steps) + suffix
        contenders.append(Contender(label, method, draws, 0, steps, training=False))
    eps = gradient_step(problem, size)
    slow = langevin(step_size=eps, start="mode", **_gradients(problem, in_parameters=True), **extra)
    sgld = Contender(f"SGLD{suffix}", slow, size.draws, 0, LEAPFROGS, training=False)
    return [*contenders, sgld]  # as many gradients as HMC-ECS


HIGGS_ROWS, HIGGS_TEST = 10_500_000, 500_000  # of the paper
BANKRUPTCY_ROWS = 4_748_089


@lru_cache(maxsize=1)
def higgs_rows(n: int, seed: int) -> Dataset:
    """Return the first `n` rows of HIGGS, or a stand-in if the whole file is not available.

    Test rows are a twentieth of them, as in the paper.
    """
    data = higgs(download=False, progressbar=False)
    if data.test is not None:  # the whole file, whose last rows are for testing
        return _part(data, n, data.test)
    test = n * HIGGS_TEST // HIGGS_ROWS
    return _split(higgs_shaped(n + test, seed=seed, download=False, progressbar=False), n)


@lru_cache(maxsize=1)
def bankruptcy_rows(n: int, seed: int) -> Dataset:
    """Return `n` rows of the stand-in for the paper's firms."""
    return bankruptcy_shaped(n, seed=seed, download=False, progressbar=False)


def _split(data: Dataset, n: int) -> Dataset:
    """Split the data into the first `n` rows to fit and the rest to test."""
    test = _rows(data.rows, n, len(data.rows))
    description = f"{data.description}; {len(test):,} of them kept for testing"
    return _part(replace(data, description=description), n, test)


def _part(data: Dataset, n: int, test: Rows) -> Dataset:
    return replace(data, rows=_rows(data.rows, 0, n), test=test)


def _rows(rows: Rows, first: int, last: int) -> Rows:
    return Rows(**rows.slice(first, last), columns=rows.columns, dtype=rows.dtype)

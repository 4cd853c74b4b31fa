"""Weighted normal draws: no chain where the posterior is nearly normal, as it is on many tables.

S independent draws z of the normal approximation at the mode are each weighted by

    w(z) = exp( sum_k q_k(z) + (1/M) sum_(i in pool) D_i(z) + log prior(z) ) / N(z; centre, I),

where the sum of the control variates q is known exactly and the residuals' sum is estimated by one
pool of M weighted rows, the same for all draws (D_i = d_i / probability of row i). Three numbers
say whether that is enough: the Pareto index k of the weights, their effective sample size, and the
pool's own noise, from two halves of it: (mean by one half - mean by the other) / 2 varies as the
error of the whole pool does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from modicum.designs import WeightTables, draw_on_host
from modicum.errors import ModicumWarning, SettingError, whole_number
from modicum.kernels.base import ControlVariate, Proxy
from modicum.kernels.independent import IndependentContext, IndependentKernel
from modicum.methods.base import Method, Outcome, Plan, Task
from modicum.methods.ecs.perturbed import HMCECS
from modicum.methods.ecs.pilot import Study
from modicum.models.base import Batch
from modicum.random import Stream, generator
from modicum.rows.groups import GroupedRows
from modicum.run import History
from modicum.runtime import Array, in_double_precision, jit

__all__ = ["Laplace", "Verdict", "weigh"]

FAR = 0.7  # Pareto k from which weights cannot be relied on (Vehtari and others, 2024)
ENOUGH = 0.5  # below which they are as good as draws
NOISY = 0.1  # posterior standard deviations by which the pool may move a mean
TOGETHER = 2**22  # numbers evaluated at once


class Verdict(NamedTuple):
    """Whether weighted normal draws will do."""

    tail: float  # Pareto k
    share: float  # effective draws per draw
    noise: float  # of the pool: largest shift of a posterior mean, in posterior sds

    @property
    def enough(self) -> bool:
        """Whether they are as good as draws of the posterior."""
        return self.tail < ENOUGH and self.noise < NOISY / 2

    def text(self, pool: int) -> str:
        """The three numbers, and what they mean."""
        quality = (
            "enough" if self.enough else "usable" if self.tail < FAR else "not to be relied on"
        )
        return (
            f"{quality}: Pareto k {self.tail:.2f}, {self.share:.0%} effective, and the {pool:,} "
            f"rows of the pool move a posterior mean by {self.noise:.2g} posterior sd at most"
        )


@dataclass(frozen=True)
class Laplace(Method):
    """Independent draws of the normal approximation at the mode, weighted by a pool of rows.

    No chain, no warm-up: right where the posterior is nearly normal, and it says whether it is
    (`Posterior.tuning["verdict"]`). Draws carry weights, which all summaries use.

    Parameters
    ----------
    pool
        Rows in the pool, M; all rows where there are no more.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.Laplace(pool=20_000)
    Laplace(pool=20000)
    """

    pool: int = 5_000
    of_few_rows: ClassVar[bool] = False
    name: ClassVar[str] = "laplace"
    summary: ClassVar[str] = "normal draws at the mode, weighted by a pool of rows; no chain"
    has_warmup: ClassVar[bool] = False

    def __post_init__(self) -> None:
        whole_number("pool", self.pool, 2)

    @in_double_precision
    def plan(self, task: Task) -> Plan:
        """Find the mode, study the rows, and draw."""
        if isinstance(task.rows, GroupedRows) or not task.target.model.has_mode:
            raise SettingError(
                "method='laplace' weighs normal draws about a mode row by row, which effects that "
                "are integrated out and networks do not allow; use method='hmc-ecs' or 'nuts'."
            )
        task.refuse_own_parameters("laplace")
        settings = HMCECS()
        settings.check_task(task)
        study = Study(settings, task, task.anchor_at_mode())
        return self.of_study(study)

    def of_study(self, study: Study) -> Plan:
        """The plan, given a pilot study that HMC-ECS would make as well."""
        context = IndependentContext(jnp.asarray(study.centre))
        total = study.task.tune + study.task.draws
        return Plan(
            IndependentKernel(),
            context,
            {"iteration": np.zeros(total, bool)},
            study.anchor,
            notes=list(study.anchor.notes),
            memo=study,
        )

    @in_double_precision
    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Weigh the draws."""
        z = np.asarray(history.position, np.float64)
        assert isinstance(plan.memo, Study)
        weights, verdict, size = weigh(plan.memo, z.reshape(-1, z.shape[-1]), self.pool)
        plan.tuning["verdict"] = verdict.text(size)
        plan.tuning["pareto_k"] = round(verdict.tail, 3)
        plan.tuning["pool_noise"] = float(f"{verdict.noise:.2g}")
        return Outcome(weights=weights.reshape(z.shape[:2]), warnings=_doubts(verdict, size))


def _doubts(verdict: Verdict, size: int) -> list[ModicumWarning]:
    doubts = []
    if verdict.tail >= FAR:
        doubts.append(
            ModicumWarning(
                "laplace-far",
                "the posterior is too far from normal for weighted normal draws: the tail index k "
                f"of their weights is {verdict.tail:.2f} (limit {FAR})",
                "use method='hmc-ecs'",
                pareto_k=verdict.tail,
            )
        )
    if verdict.noise > NOISY:
        doubts.append(
            ModicumWarning(
                "laplace-pool",
                f"the {size:,} rows that weigh the draws are too few: they may move a posterior "
                f"mean by {verdict.noise:.2g} posterior standard deviations",
                "use a larger pool, mo.Laplace(pool=...), or method='hmc-ecs'",
                noise=verdict.noise,
            )
        )
    return doubts


def weigh(study: Study, z: np.ndarray, size: int) -> tuple[np.ndarray, Verdict, int]:
    """Smoothed weights of draws (S, d), the verdict on them, and the rows that were used."""
    task = study.task
    n = len(task.rows)
    everything = n <= size
    if everything:
        batch = task.rows.slice(0, n) | {"probability": np.full(n, 1 / n)}
    else:
        tables = study.weight_tables
        assert isinstance(tables, WeightTables)
        drawn = draw_on_host(generator(task.seed, Stream.LAPLACE_ROWS), size, tables)
        batch = task.rows.take(np.asarray(drawn.row_ids))
        batch = batch | {"probability": np.asarray(drawn.probability)}
    used = min(n, size)
    task.ledger.add("weights", used * len(z), "density")
    together = max(1, TOGETHER // (used * 4))
    sums = np.asarray(_residuals(study.control_variate, together, batch, z, study.proxy))
    known = np.asarray(_known(study.control_variate, z, study.proxy))
    away = 0.5 * np.sum((z - study.centre) ** 2, axis=1)
    weights, tail = _smoothed(known + sums[:, 0] + away)
    noise = 0.0
    if not everything:
        t = z @ study.anchor.factor.T
        first_half, second_half = (_smoothed(known + sums[:, k] + away)[0] @ t for k in (1, 2))
        centre = weights @ t
        sd = np.sqrt(weights @ (t - centre) ** 2)
        noise = float(np.max(np.abs(first_half - second_half) / (2 * np.maximum(sd, 1e-300))))
    return weights * len(z), Verdict(tail, float(1 / np.sum(weights**2) / len(z)), noise), used


def _smoothed(log_ratio: np.ndarray) -> tuple[np.ndarray, float]:
    """Normalised weights by Pareto smoothing, and the tail index."""
    from arviz_stats.base import array_stats

    if not np.all(np.isfinite(log_ratio)):
        log_ratio = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
        if not np.isfinite(log_ratio).any():
            return np.full(len(log_ratio), 1 / len(log_ratio)), np.inf
    centred = np.maximum(log_ratio - log_ratio.max(), -700.0)
    if np.ptp(centred) < 1e-10:
        return np.full(len(centred), 1 / len(centred)), 0.0
    smoothed, tail = array_stats.psislw(-centred)
    weights = np.exp(smoothed - smoothed.max())
    return weights / weights.sum(), float(tail)


@jit(static=(0, 1))
def _residuals(
    control_variate: ControlVariate[Any], together: int, batch: Batch, z: Array, proxy: Proxy
) -> jax.Array:
    """The residuals' sum at each of `z`, by all rows of the pool and by either half: (S, 3)."""
    cached = control_variate.cache(batch, proxy)

    def halves(each: jax.Array) -> jax.Array:
        values = control_variate.values(cached, each, proxy)
        return jnp.stack([jnp.mean(values), jnp.mean(values[0::2]), jnp.mean(values[1::2])])

    return jax.lax.map(halves, jnp.asarray(z), batch_size=together)


@jit(static=0)
def _known(control_variate: ControlVariate[Any], z: Array, proxy: Proxy) -> jax.Array:
    return jax.vmap(partial(control_variate.log_proxy, proxy=proxy))(jnp.asarray(z))

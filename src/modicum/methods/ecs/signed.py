"""Signed HMC-ECS: exact expectations by the block-Poisson estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from modicum.errors import CrudeControlVariateError
from modicum.estimators import BlockPoisson, BlockPoissonTables
from modicum.methods.base import Outcome, Plan, Task
from modicum.methods.ecs.base import Composed, EnergyConserving, check_signed
from modicum.methods.ecs.pilot import Composition, Study
from modicum.methods.ecs.sign_checks import look_ahead, look_back
from modicum.methods.ecs.tuning import Products, choose_products
from modicum.run import History

__all__ = ["SignedHMCECS"]


@dataclass(frozen=True, kw_only=True)
class SignedHMCECS(EnergyConserving):
    """Signed HMC-ECS: unbiased likelihood estimates, whose signs weight the draws.

    The chain runs on the absolute value of a block-Poisson estimate of the likelihood; every
    estimate from its draws respects their signs, so that expectations are exact up to Monte Carlo
    error, whatever the control variates. Every setting left at None is chosen from a pilot study
    and explained in `Posterior.tuning`.

    Parameters
    ----------
    products
        Lambda: the expected number of factors of the likelihood estimate.
    batch
        Rows a factor, m_b; 30 as in the paper. None: as many as need the fewest rows in all.
    centre
        The difference l - sum q to be expected over the posterior; the soft lower bound of the
        paper's eq. 5.1 is a = centre - lambda.
    blocks
        Blocks of the subsample, each with an equal share of the products.
    refreshes
        Blocks proposed anew an iteration.
    design, order, inner, trajectory, jitter, target_accept, step_size, anchor, floor
        As for `HMCECS`.
    precision, memory_limit
        As for `HMCECS`.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.SignedHMCECS(products=40, batch=20).products
    40
    """

    products: int | None = None
    batch: int | None = 30
    centre: float | None = None
    name: ClassVar[str] = "hmc-ecs-signed"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_signed(self)

    def compose(self, task: Task) -> Composed:
        """A block-Poisson estimator with lambda, a, G and K from the pilot study."""
        if self.order < 2:
            # Far out, where D is below -lambda, factors are negative and grow with the distance,
            # and no quadratic is there to outweigh them: |Lhat| has its mass there.
            raise CrudeControlVariateError(
                f"control variates of order {self.order} are too crude for the signed method: away "
                "from the anchor its estimate grows without bound, and chains that get there stay; "
                "use order=2."
            )
        study = Study(self, task, self.find_anchor(task))
        choice = choose_products(
            study.pilot,
            self.batch,
            study.steps,
            self.products,
            self.blocks,
            self.refreshes,
            self.centre,
            study.fresh,
        )
        notes = look_ahead(self, study.pilot, choice, len(task.rows))
        estimator = BlockPoisson(choice.products, choice.batch, choice.blocks)
        parts = Composition(
            estimator,
            estimator.rows,
            choice.blocks,
            choice.refreshes,
            BlockPoissonTables(choice.centre),
        )
        return Composed(study, parts, _explain(choice), notes)

    def finish(self, task: Task, plan: Plan, history: History) -> Outcome:
        """Weight the draws by their signs, close the accounts, and look back at the run."""
        self.account(task, plan, history)
        found = look_back(plan.kernel, history)
        return Outcome(weights=history.stats["sign"], warnings=found)


def _explain(choice: Products) -> dict[str, Any]:
    values = {
        "products": choice.products,
        "batch": choice.batch,
        "blocks": choice.blocks,
        "refreshes": choice.refreshes,
        "centre": choice.centre,
    }
    told: dict[str, Any] = {
        name: {"value": value, "why": choice.why[name]} for name, value in values.items()
    }
    rows = f"{choice.products * choice.batch:,} on average, {choice.batch} for each of the products"
    return {"rows an evaluation": rows} | told | {n: choice.why[n] for n in ("variance", "sign")}

"""A guard: where the data pull a parameter further from its prior than the prior expects."""

from __future__ import annotations

import numpy as np

from modicum.errors import ModicumWarning

__all__ = ["prior_warnings"]

FAR = 3.0  # standard deviations from what the prior expects


def prior_warnings(
    names: tuple[str, ...],
    distance: np.ndarray,
    posterior_sd: np.ndarray,
    normal: np.ndarray | None = None,
) -> list[ModicumWarning]:
    """Say so where the data pull a parameter further from its prior than the prior expects.

    Under the prior, a posterior mean varies with variance tau^2 - v (prior variance less posterior
    variance). A mean many such standard deviations from the prior's centre tells that prior and
    data disagree, also where a tight prior has kept the mean close to itself.

    Parameters
    ----------
    names
        Of the parameters.
    distance
        Posterior means less prior means, in prior standard deviations.
    posterior_sd
        Posterior standard deviations, in prior standard deviations.
    normal
        Which priors are normal; the others have widths: of a normal with tails as far out, its
        standard deviation.
    """
    learnt = np.maximum(1.0 - posterior_sd**2, 1e-6)
    if normal is not None:
        learnt = np.where(normal, learnt, 1.0)  # tails that let go: the distance is what it is
    score = np.abs(distance) / np.sqrt(learnt)
    worst = int(np.argmax(np.where(np.isfinite(score), score, 0.0)))
    if not score[worst] > FAR:
        return []
    others = int((score > FAR).sum()) - 1
    unit = "standard deviations" if normal is None or normal[worst] else "widths"
    called = names[worst] + (f" (and of {others} more)" if others else "")
    return [
        ModicumWarning(
            "prior-far",
            f"the prior of {called} and the data disagree: the posterior mean lies "
            f"{abs(distance[worst]):.2g} prior {unit} from the prior's centre, which "
            f"is {score[worst]:.2g} {unit} further than that prior expects, so the "
            "prior holds the estimate back from what the data say",
            "widen that prior (prior_scale, intercept_scale, scale_prior or priors; None puts it "
            "in the units of the data)",
            distance=float(distance[worst]),
            score=float(score[worst]),
        )
    ]

"""A warning for parameters that the data pull further from their prior than it expects."""

from __future__ import annotations

import numpy as np

from modicum.errors import ModicumWarning

FAR = 3.0  # standard deviations from what the prior expects
MOVED = 0.1  # posterior standard deviations below which it does not matter that a prior disagrees


def prior_warnings(
    names: tuple[str, ...],
    distance: np.ndarray,
    posterior_sd: np.ndarray,
    normal: np.ndarray | None = None,
) -> list[ModicumWarning]:
    """Warn where the data pull a parameter further from its prior than the prior expects.

    Under the prior, a posterior mean has variance tau^2 - v (prior variance minus posterior
    variance). A mean many such standard deviations from the prior's centre shows that prior and
    data disagree, even where a tight prior keeps the mean close to its centre. Without a normal
    prior the mean would lie tau^2 / (tau^2 - v) times as far from the centre; a prior that moves
    it by less than a tenth of a posterior standard deviation is not worth a warning.

    Parameters
    ----------
    names
        Names of the parameters.
    distance
        Posterior means minus prior means, in prior standard deviations.
    posterior_sd
        Posterior standard deviations, in prior standard deviations.
    normal
        Which priors are normal; None means all. For the others `distance` is in widths, see
        `Prior.width`.
    """
    normal = np.ones(len(names), bool) if normal is None else normal
    variance = np.maximum(1.0 - posterior_sd**2, 1e-6)  # of the posterior mean, under the prior
    moved = np.abs(distance) * posterior_sd / variance  # in posterior standard deviations
    variance = np.where(normal, variance, 1.0)  # heavy tails do not hold the mean back
    score = np.abs(distance) / np.sqrt(variance) * (~normal | (moved > MOVED))
    worst = int(np.argmax(np.where(np.isfinite(score), score, 0.0)))
    if not score[worst] > FAR:
        return []
    others = int((score > FAR).sum()) - 1
    if normal[worst]:
        unit = "standard deviations"
        effect = (
            f"and would lie about {moved[worst]:.2g} posterior standard deviations further away "
            "without the prior"
        )
    else:
        unit, effect = "widths", "so the prior holds the estimate back from what the data say"
    label = names[worst] + (f" (and of {others} more)" if others else "")
    return [
        ModicumWarning(
            "prior-far",
            f"the prior of {label} and the data disagree: the posterior mean lies "
            f"{abs(distance[worst]):.2g} prior {unit} from the prior's centre, {effect}",
            "widen that prior (prior_scale, intercept_scale, scale_prior or priors; None puts it "
            "in the units of the data)",
            distance=float(distance[worst]),
            score=float(score[worst]),
        )
    ]

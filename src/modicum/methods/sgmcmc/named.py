"""The named stochastic-gradient methods, each a composition of parts.

They take the settings of `StochasticGradientFamily` in addition to their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from modicum.errors import SettingError
from modicum.kernels.gradients import SVRG, Minibatch, Taylor
from modicum.kernels.integrators import (
    Baoab,
    Friction,
    Integrator,
    Langevin,
    Preconditioned,
    Underdamped,
)
from modicum.kernels.stochastic_gradient import Exponential, Plain
from modicum.methods.sgmcmc.family import DesignName, Parts, StochasticGradientFamily


@dataclass(frozen=True, kw_only=True)
class SGLD(StochasticGradientFamily):
    """Stochastic-gradient Langevin dynamics (Welling and Teh 2011).

    t <- t - (e/2) g + N(0, e), with e = `step_size`.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.SGLD(step_size=0.01, batch=50).batch
    50
    """

    name: ClassVar[str] = "sgld"
    summary: ClassVar[str] = "stochastic-gradient Langevin dynamics"

    def parts(self) -> Parts:
        """Langevin, minibatch, plain."""
        return Parts(Langevin(), Minibatch(), Plain())


@dataclass(frozen=True, kw_only=True)
class SGLDCV(StochasticGradientFamily):
    """SGLD with Taylor control variates about the mode (Baker et al. 2019; HMC-ECS paper, eq. 4.7).

    Rows are weighted by default; design="uniform" is as in the papers.

    Parameters
    ----------
    order
        Order of the control variates: 1 or 2.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.SGLDCV(order=1).parts().estimator.order
    1
    """

    order: int = 2
    design: DesignName = "weighted"
    name: ClassVar[str] = "sgld-cv"
    summary: ClassVar[str] = "SGLD with control variates about the mode"

    def parts(self) -> Parts:
        """Langevin, Taylor, plain."""
        return Parts(Langevin(), Taylor(order=self.order), Plain())


@dataclass(frozen=True, kw_only=True)
class PSGLD(StochasticGradientFamily):
    """SGLD with an RMSprop preconditioner (Li et al. 2016).

    t <- t - (e/2) P g + N(0, e P), with e = `step_size`; see
    `modicum.kernels.integrators.Preconditioned` for `decay`, `floor` and `gamma`.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.PSGLD(step_size=0.001, whiten=False).decay
    0.99
    """

    decay: float = 0.99
    floor: float = 1e-5
    gamma: bool = False
    name: ClassVar[str] = "psgld"
    summary: ClassVar[str] = "SGLD with an RMSprop preconditioner"

    def parts(self) -> Parts:
        """Preconditioned, minibatch, plain."""
        return Parts(Preconditioned(self.decay, self.floor, self.gamma), Minibatch(), Plain())


@dataclass(frozen=True, kw_only=True)
class SVRGLD(StochasticGradientFamily):
    """SGLD with gradients about a snapshot (Dubey et al. 2016).

    Parameters
    ----------
    every
        Steps from one snapshot to the next, each a pass over all rows; None: n / batch.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.SVRGLD(batch=10, every=20).iterations(passes=3, rows=100)
    10
    """

    every: int | None = None
    name: ClassVar[str] = "svrg-ld"
    summary: ClassVar[str] = "SGLD with gradients about a snapshot"

    def parts(self) -> Parts:
        """Langevin, SVRG, plain."""
        return Parts(Langevin(), SVRG(every=self.every), Plain())


@dataclass(frozen=True, kw_only=True)
class SGHMC(StochasticGradientFamily):
    """Stochastic-gradient Hamiltonian Monte Carlo (Chen et al. 2014).

    Parameters
    ----------
    friction
        gamma, or C: 2 is critical damping in whitened coordinates. In raw parameters the right
        value depends on their units.
    form
        "underdamped": r <- r - h (g + gamma r) + sqrt(2 gamma h) xi, as in the EWSG paper.
        "friction": gradient at the new position, as in section 6.2 of the HMC-ECS paper.
    noise
        B, an estimate of e Cov(g) / 2 that is left out of the injected noise (form="friction").
    period
        Steps after which the momentum is refreshed (form="friction").
    in_parameters
        Whether friction and noise refer to the parameters (form="friction").

    Examples
    --------
    >>> import modicum as mo
    >>> mo.SGHMC(step_size=0.1, friction=1.0, form="friction", period=12).parts().integrator
    Friction(friction=1.0, noise=0.0, period=12, in_parameters=False)
    """

    friction: float = 2.0
    form: Literal["underdamped", "friction"] = "underdamped"
    noise: float = 0.0
    period: int | None = None
    in_parameters: bool = False
    name: ClassVar[str] = "sghmc"
    summary: ClassVar[str] = "stochastic-gradient Hamiltonian Monte Carlo"

    def integrator(self) -> Integrator:
        """Return the integrator of the chosen form."""
        if self.form == "friction":
            return Friction(self.friction, self.noise, self.period, self.in_parameters)
        if self.noise or self.period is not None or self.in_parameters:
            raise SettingError('noise, period and in_parameters belong to form="friction".')
        return Underdamped(self.friction)

    def parts(self) -> Parts:
        """Underdamped (or friction), minibatch, plain."""
        return Parts(self.integrator(), Minibatch(), Plain())


@dataclass(frozen=True, kw_only=True)
class SGHMCCV(SGHMC):
    """SGHMC with Taylor control variates about the mode (Baker et al. 2019).

    Rows are weighted by default; design="uniform" is as in the papers.

    Parameters
    ----------
    order
        Order of the control variates: 1 or 2.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.SGHMCCV(friction=1.5).design
    'weighted'
    """

    order: int = 2
    design: DesignName = "weighted"
    name: ClassVar[str] = "sghmc-cv"
    summary: ClassVar[str] = "SGHMC with control variates about the mode"

    def parts(self) -> Parts:
        """Underdamped (or friction), Taylor, plain."""
        return Parts(self.integrator(), Taylor(order=self.order), Plain())


@dataclass(frozen=True, kw_only=True)
class CPSGHMC(SGHMC):
    """SGHMC with batches from clusters of similar rows (Fu and Zhang 2017).

    Rows are clustered once by k-means, and a batch holds its share of every cluster.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.CPSGHMC(clusters=5, batch=50).design
    'stratified'
    """

    design: DesignName = "stratified"
    name: ClassVar[str] = "cp-sghmc"
    summary: ClassVar[str] = "SGHMC with batches from clusters of similar rows"


@dataclass(frozen=True, kw_only=True)
class EWSG(StochasticGradientFamily):
    """Exponentially weighted stochastic gradients on underdamped Langevin dynamics (EWSG paper).

    Parameters
    ----------
    friction
        gamma; 2 is critical damping in whitened coordinates.
    index_steps
        Length M of the index chain; a step costs M + 1 batches.
    x
        "current", "zero", "one" or "rest": the choices of the paper's Figure 1c.
    weights
        "exponential", as in the paper; "linear": without bias from skewed gradients.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.EWSG(batch=50, index_steps=3).iterations(passes=1, rows=10_000)
    50
    """

    friction: float = 2.0
    index_steps: int = 1
    x: Literal["current", "zero", "one", "rest"] = "current"
    weights: Literal["exponential", "linear"] = "exponential"
    name: ClassVar[str] = "ewsg"
    summary: ClassVar[str] = "exponentially weighted batches, underdamped Langevin dynamics"

    def parts(self) -> Parts:
        """Underdamped, minibatch, exponential."""
        selector = Exponential(self.index_steps, self.x, self.weights)
        return Parts(Underdamped(self.friction), Minibatch(), selector)


@dataclass(frozen=True, kw_only=True)
class EWSGSVRG(EWSG):
    """EWSG with gradients about a snapshot.

    Parameters
    ----------
    every
        Steps from one snapshot to the next, each a pass over all rows; None: n / batch.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.EWSGSVRG(every=100).parts().estimator.every
    100
    """

    every: int | None = None
    name: ClassVar[str] = "ewsg-svrg"
    summary: ClassVar[str] = "EWSG with gradients about a snapshot"

    def parts(self) -> Parts:
        """Underdamped, SVRG, exponential."""
        return super().parts()._replace(estimator=SVRG(every=self.every))


@dataclass(frozen=True, kw_only=True)
class EWSGLD(StochasticGradientFamily):
    """Exponentially weighted stochastic gradients on overdamped Langevin dynamics (EWSG paper).

    t <- t - h g + N(0, 2h), with h = `step_size`: twice the step of SGLD for the same number.

    Parameters
    ----------
    index_steps, weights
        As for `EWSG`; linear weights cost one batch more.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.EWSGLD(weights="linear", batch=1).iterations(passes=3, rows=20)
    20
    """

    index_steps: int = 1
    weights: Literal["exponential", "linear"] = "exponential"
    name: ClassVar[str] = "ewsg-ld"
    summary: ClassVar[str] = "exponentially weighted batches, overdamped Langevin dynamics"

    def parts(self) -> Parts:
        """Langevin, minibatch, exponential."""
        selector = Exponential(self.index_steps, weights=self.weights)
        return Parts(Langevin(halved=False), Minibatch(), selector)


@dataclass(frozen=True, kw_only=True)
class BAOAB(StochasticGradientFamily):
    """Underdamped Langevin dynamics by the BAOAB splitting, with minibatch gradients.

    Parameters
    ----------
    friction
        gamma; 2 is critical damping in whitened coordinates.

    Examples
    --------
    >>> import modicum as mo
    >>> mo.BAOAB(friction=1.0).parts().integrator
    Baoab(friction=1.0)
    """

    friction: float = 2.0
    name: ClassVar[str] = "baoab"
    summary: ClassVar[str] = "underdamped Langevin dynamics by the BAOAB splitting"

    def parts(self) -> Parts:
        """BAOAB, minibatch, plain."""
        return Parts(Baoab(self.friction), Minibatch(), Plain())


NAMED: tuple[type[StochasticGradientFamily], ...] = (
    *(SGLD, SGLDCV, PSGLD, SVRGLD),
    *(SGHMC, SGHMCCV, CPSGHMC),
    *(EWSG, EWSGSVRG, EWSGLD),
    BAOAB,
)

"""Integrators of diffusions. To add one, write a file here and add it to INTEGRATORS."""

from modicum.kernels.integrators.baoab import Baoab
from modicum.kernels.integrators.base import Integrator, IntegratorState, NoiseMatch, Response
from modicum.kernels.integrators.friction import Friction
from modicum.kernels.integrators.langevin import Langevin
from modicum.kernels.integrators.preconditioned import Preconditioned
from modicum.kernels.integrators.underdamped import Underdamped

__all__ = [
    "INTEGRATORS",
    "Baoab",
    "Friction",
    "Integrator",
    "IntegratorState",
    "Langevin",
    "NoiseMatch",
    "Preconditioned",
    "Response",
    "Underdamped",
]

INTEGRATORS: dict[str, type[Integrator]] = {
    "langevin": Langevin,
    "preconditioned": Preconditioned,
    "underdamped": Underdamped,
    "friction": Friction,
    "baoab": Baoab,
}

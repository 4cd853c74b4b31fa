"""The contenders: one small function per sampler, from (problem, budget) to its result.

Peers run at settings their own documentation would choose, and are given what a careful user would
bring, at its price: the mode to start at, and where it says so the Hessian there.
"""

# in the order of the tables
# isort: off
from modicum_lab.bench.contenders import modicum_samplers
from modicum_lab.bench.contenders import numpyro_samplers
from modicum_lab.bench.contenders import blackjax_samplers
from modicum_lab.bench.contenders import approximations

# isort: on
from modicum_lab.bench.contenders.base import CONTENDERS, Contender, find_contender

__all__ = [
    "CONTENDERS",
    "Contender",
    "approximations",
    "blackjax_samplers",
    "find_contender",
    "modicum_samplers",
    "numpyro_samplers",
]

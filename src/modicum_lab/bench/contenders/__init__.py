"""The contenders: one small function per sampler, from (problem, budget) to its result.

Peers run with the settings their documentation recommends, and get what a careful user would
provide, at its cost: the mode to start at and, where stated, the Hessian there.
"""

# in the order of the tables
# isort: off
from modicum_lab.bench.contenders import modicum_samplers
from modicum_lab.bench.contenders import numpyro_samplers
from modicum_lab.bench.contenders import blackjax_samplers
from modicum_lab.bench.contenders import pymc_samplers
from modicum_lab.bench.contenders import pdmp_samplers
from modicum_lab.bench.contenders import formulas
from modicum_lab.bench.contenders import approximations

# isort: on
from modicum_lab.bench.contenders.base import CONTENDERS, Contender, find_contender

__all__ = [
    "CONTENDERS",
    "Contender",
    "approximations",
    "blackjax_samplers",
    "find_contender",
    "formulas",
    "modicum_samplers",
    "numpyro_samplers",
    "pdmp_samplers",
    "pymc_samplers",
]

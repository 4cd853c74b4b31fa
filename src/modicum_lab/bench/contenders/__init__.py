"""The contenders: one small function a sampler, from (problem, budget) to what it found.

Peers run at settings their own documentation would choose, and are handed what a careful user
would bring, at its price: the mode to start at, and where it says so the Hessian there.
"""

# in the order of the tables
# isort: off
from modicum_lab.bench.contenders import ours
from modicum_lab.bench.contenders import numpyros
from modicum_lab.bench.contenders import blackjaxs
from modicum_lab.bench.contenders import approximations

# isort: on
from modicum_lab.bench.contenders.base import CONTENDERS, Contender, find_contender

__all__ = [
    "CONTENDERS",
    "Contender",
    "approximations",
    "blackjaxs",
    "find_contender",
    "numpyros",
    "ours",
]

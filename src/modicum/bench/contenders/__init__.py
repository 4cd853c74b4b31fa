"""The contenders: one small function a sampler, from (problem, budget) to what it found.

Peers run at settings their own documentation would choose, and get for free what a careful user
would bring: the mode to start at, and coordinates in which the posterior is about standard normal.
"""

# isort: off - the order of the tables
from modicum.bench.contenders import approximations, blackjaxs, numpyros, ours

# isort: on
from modicum.bench.contenders.base import CONTENDERS, Contender, find_contender

__all__ = [
    "CONTENDERS",
    "Contender",
    "approximations",
    "blackjaxs",
    "find_contender",
    "numpyros",
    "ours",
]

"""Running chains: chunks, threads, rows fetched ahead, progress, checkpoints."""

from modicum.run.advance import BLOCK
from modicum.run.chains import Chains, Parallel, chain_keys, default_parallel
from modicum.run.checkpoint import Checkpoint
from modicum.run.runner import History, Pause, capacity_for, run

__all__ = [
    "BLOCK",
    "Chains",
    "Checkpoint",
    "History",
    "Parallel",
    "Pause",
    "capacity_for",
    "chain_keys",
    "default_parallel",
    "run",
]

"""Running chains: chunks, threads, prefetched rows, progress, checkpoints."""

from modicum.run.chain_tasks import ChainHost, ChainTasks
from modicum.run.chains import (
    ChainCount,
    Chains,
    Layout,
    Parallel,
    auto_layout,
    default_parallel,
)
from modicum.run.checkpoint import Checkpoint
from modicum.run.interrupt import stoppable, within_limits
from modicum.run.iterations import LENGTH, RowPlacement, place_rows
from modicum.run.runner import History, PeriodicHook, capacity_for, run

__all__ = [
    "LENGTH",
    "ChainCount",
    "ChainHost",
    "ChainTasks",
    "Chains",
    "Checkpoint",
    "History",
    "Layout",
    "Parallel",
    "PeriodicHook",
    "RowPlacement",
    "auto_layout",
    "capacity_for",
    "default_parallel",
    "place_rows",
    "run",
    "stoppable",
    "within_limits",
]

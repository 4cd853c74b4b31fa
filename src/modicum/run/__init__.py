"""Running chains: chunks, threads, prefetched rows, progress, checkpoints."""

from modicum.run.advance import LENGTH
from modicum.run.chain_tasks import ChainHost, ChainTasks
from modicum.run.chains import Chains, Parallel, default_parallel
from modicum.run.checkpoint import Checkpoint
from modicum.run.fetching import RowPlacement, place_rows
from modicum.run.interrupt import stoppable
from modicum.run.layout import ChainCount, Layout, auto_layout, check_layout
from modicum.run.limits import within_limits
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
    "check_layout",
    "default_parallel",
    "place_rows",
    "run",
    "stoppable",
    "within_limits",
]

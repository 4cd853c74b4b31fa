"""Runs that are only planned, or that crash midway."""

import json

from helpers.targets import sums_of
from modicum.methods.method import Task


class Crash(BaseException):
    """Simulates the death of the process."""


def planned(model, rows, method, seed=1, checkpoint=None):
    """Return a method's plan without running it."""
    task = task_of(model, rows, seed, checkpoint)
    return method.plan(task), task.ledger


def task_of(model, rows, seed=1, checkpoint=None):
    """Return a task for a method to plan: two chains of a hundred draws."""
    sums, start = sums_of(model, rows)
    names = tuple(f"t{i}" for i in range(len(start)))
    return Task(sums.target, start, rows, sums, names, 100, 100, 2, seed, checkpoint)


def saved_iterations(folder):
    """Return the number of iterations saved in the checkpoint."""
    try:
        return json.loads((folder / "run.json").read_text())["iterations"]
    except FileNotFoundError:
        return 0

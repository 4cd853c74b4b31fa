"""Runs that are planned without a draw, or end in the middle."""

import json

from helpers.targets import sums_of
from modicum.methods.base import Task


class Crash(BaseException):
    """The process dies here."""


def planned(model, rows, method, seed=1, checkpoint=None):
    """What a method plans for, without a draw."""
    task = task_of(model, rows, seed, checkpoint)
    return method.plan(task), task.ledger


def task_of(model, rows, seed=1, checkpoint=None):
    """What a method plans for: two chains of a hundred draws."""
    sums, start = sums_of(model, rows)
    names = tuple(f"t{i}" for i in range(len(start)))
    return Task(sums.target, start, rows, sums, names, 100, 100, 2, seed, checkpoint)


def saved_iterations(folder):
    """How far the checkpoint in `folder` has come."""
    try:
        return json.loads((folder / "run.json").read_text())["iterations"]
    except FileNotFoundError:
        return 0

"""What can go wrong with the workers of a cluster, in sentences."""

from __future__ import annotations

from modicum.engines.ray_library import ray_library
from modicum.errors import ModicumError, ResourceError, SettingError

__all__ = [
    "NO_MEMORY",
    "RESTARTS",
    "SILENCE",
    "could_not_finish",
    "fault_of",
    "first_line",
    "silence_of",
]

RESTARTS = 4  # of one worker, until its death is no accident
SILENCE = 900.0  # seconds without any result after which a cluster is given up
NO_MEMORY = "a worker was stopped because its node had no memory left"


def silence_of(workers: int) -> ResourceError:
    """Say that no worker answers."""
    return ResourceError(
        f"none of the {workers} workers of the Ray cluster answered for {SILENCE / 60:.0f} "
        "minutes: look at it with 'ray status', and run again (with a checkpoint the run goes on "
        "where it was)."
    )


def fault_of(error: Exception) -> ModicumError:
    """What happened to a worker, in a sentence; an error of the model's own is raised unchanged."""
    ray = ray_library()
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        if isinstance(cause, ModicumError):
            return cause
        if isinstance(cause, ImportError):
            return SettingError(
                f"a worker of the Ray cluster cannot import what the model needs ({cause}): "
                "install it on every node, or define the model's functions in the script itself."
            )
        if isinstance(cause, MemoryError):
            return could_not_finish("memory ran out on a worker")
        raise error
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return could_not_finish(NO_MEMORY)
    message = first_line(str(error))
    return could_not_finish(f"a worker died, and so did those that took its place ({message})")


def could_not_finish(what: str) -> ResourceError:
    """Say why a cluster gave up, and what to do."""
    return ResourceError(
        f"the Ray cluster could not finish its work: {what}; take fewer workers per node or nodes "
        "with more memory, and run again (with a checkpoint the run goes on where it was)."
    )


def first_line(text: str) -> str:
    """The first line of Ray's message, which has many."""
    return (text.strip().splitlines() or ["no answer"])[0].rstrip(".")

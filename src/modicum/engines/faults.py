"""Errors for what can go wrong with the workers of a cluster."""

from __future__ import annotations

from modicum.engines.ray_library import ray_library
from modicum.errors import ModicumError, ResourceError, SettingError, first_line

RESTARTS = 4  # restarts of one worker after which its deaths are no accident
SILENCE = 900.0  # seconds without any result after which the run gives up on a cluster
NO_MEMORY = "a worker was stopped because its node had no memory left"


def silence_of(workers: int) -> ResourceError:
    """Return an error that says no worker answers."""
    return ResourceError(
        f"none of the {workers} workers of the Ray cluster answered for {SILENCE / 60:.0f} "
        "minutes: inspect the cluster with 'ray status', and run again (with a checkpoint the run "
        "resumes where it stopped)."
    )


def fault_of(error: Exception) -> ModicumError:
    """Translate a worker's failure; errors raised by the model itself are re-raised unchanged."""
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
    message = first_line(error)
    return could_not_finish(f"a worker died, and so did its replacements ({message})")


def could_not_finish(cause: str) -> ResourceError:
    """Return an error that says why the cluster failed, and what to do."""
    return ResourceError(
        f"the Ray cluster could not finish its work: {cause}; use fewer workers per node or nodes "
        "with more memory, and run again (with a checkpoint the run resumes where it stopped)."
    )

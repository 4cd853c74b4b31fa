"""A call in a fresh interpreter: cold, and with memory of its own."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from typing import Any

__all__ = ["ChildError", "in_process"]


class ChildError(RuntimeError):
    """The call ended without an answer; the message is the last thing it said."""


def in_process(module: str, function: str, *arguments: Any, timeout: float | None = None) -> Any:
    """Return what `module.function(*arguments)` returns in a fresh interpreter, by way of JSON.

    Examples
    --------
    >>> in_process("math", "hypot", 3, 4)
    5.0
    """
    command = [sys.executable, "-W", "ignore", "-m", "modicum_lab.bench.process"]
    try:
        done = subprocess.run(
            [*command, module, function, json.dumps(arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"it was stopped after {timeout:,.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        killed = done.returncode == -signal.SIGKILL
        silent = (
            "the system killed it, as it does when memory runs out"
            if killed
            else (f"it ended with code {done.returncode}")
        )
        raise ChildError(said[-1][:300] if said and not killed else silent)
    return json.loads(done.stdout.splitlines()[-1])


def _serve() -> None:
    module, function, arguments = sys.argv[1:]
    answer = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    print(json.dumps(answer))


if __name__ == "__main__":
    _serve()

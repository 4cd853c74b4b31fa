"""The demo: the probability that a flight out of New York arrives over 30 minutes late."""

from __future__ import annotations

from modicum_lab.demo.main import run_demo

__all__ = ["run_demo"]

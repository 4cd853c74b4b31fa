"""Timings of Modicum's parts, for its developers: `python -m benchmarks`.

Modicum beside other samplers is `modicum bench` (`modicum.bench`).
"""

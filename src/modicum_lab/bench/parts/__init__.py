"""Timings of Modicum's parts, for its developers: `python -m modicum_lab.bench.parts`.

To compare Modicum with other samplers, use `modicum bench` (`modicum_lab.bench`).
"""

"""Timings of Modicum's parts, for its developers: `python -m modicum_lab.bench.parts`.

Modicum beside other samplers is `modicum bench` (`modicum_lab.bench`).
"""

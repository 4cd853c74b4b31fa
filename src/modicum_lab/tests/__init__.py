"""Tests of the laboratory: `python -m pytest src/modicum_lab`."""

"""Targets with known answers, and helpers shared by tests of several packages."""

"""Markov transition kernels as pure functions of arrays."""

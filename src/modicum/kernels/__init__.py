"""Markov transition kernels: one step of a chain, as a pure function of arrays that JAX compiles.

A step is composed of parts with protocols: a design that draws rows, a control variate, an estimate
of the log-likelihood, a move.
"""

"""Markov steps as pure functions: of data sets they know only arrays."""

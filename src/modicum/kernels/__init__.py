"""Markov steps as pure functions: they know no data set, only the arrays they are handed."""

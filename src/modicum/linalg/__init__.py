"""Matrices of rows and factors of precisions, over NumPy and JAX alike."""

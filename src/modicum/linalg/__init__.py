"""Matrices of rows and factors of precisions, over NumPy and JAX alike.

A model matrix is dense columns and codes behind three products; a precision is an arrow where a
factor has many levels.
"""

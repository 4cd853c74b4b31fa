"""The laboratory: programs built on Modicum's public API only.

`papers` reproduces the experiments of the two papers, `bench` compares Modicum's speed with other
libraries, and `demo` fits a model to real flights.
"""

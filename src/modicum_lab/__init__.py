"""The laboratory: what is built on Modicum's public names alone.

`papers` reproduces the experiments of the two papers, `bench` times Modicum beside its peers, and
`demo` fits real flights.
"""

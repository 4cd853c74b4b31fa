"""Experiments of the EWSG paper; a module that is put here is found by `modicum reproduce`."""

"""Experiments of the HMC-ECS paper; a module that is put here is found by `modicum reproduce`."""

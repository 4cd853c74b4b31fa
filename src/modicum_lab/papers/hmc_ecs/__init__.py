"""Experiments of the HMC-ECS paper; `modicum reproduce` finds every module in this folder."""

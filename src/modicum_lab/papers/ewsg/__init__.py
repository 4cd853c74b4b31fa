"""Experiments of the EWSG paper; `modicum reproduce` finds every module in this folder."""

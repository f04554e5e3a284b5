"""Grids of runs: plan them from tables, compute what is missing, keep the results.

`plan` and `store` need no torch, so planning and reporting start at once.
"""

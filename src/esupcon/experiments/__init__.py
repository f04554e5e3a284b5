"""The paper's tables, and any other grid of runs, as data: planned, executed and stored under each run's own key.

Nothing is imported here, so that listing a table needs no torch.
"""

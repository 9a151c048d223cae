"""Baselines: simple models of each kind of task, from counts to gradient boosting."""

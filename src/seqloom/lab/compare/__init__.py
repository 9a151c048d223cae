"""Comparison of baselines and models on a person's data, within a time budget."""

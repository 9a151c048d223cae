"""Compare baselines and models on a user's data, within a time budget."""

"""Baselines without a sequence model; each is scored like the models."""

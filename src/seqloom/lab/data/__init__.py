"""Data as tasks: readers, coders, splits, and generated problems."""

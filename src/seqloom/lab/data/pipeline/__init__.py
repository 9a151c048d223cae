"""From a file to batches: columns, plan, splits, encoding, cache."""

"""From a person's file to batches: columns, plan, splits, encoding, cache."""

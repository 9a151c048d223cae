"""Export a run as files that predict without seqloom."""

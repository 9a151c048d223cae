"""Take a run away: files that predict without seqloom."""

"""Generated tasks with exact seeds."""

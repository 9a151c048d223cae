"""Generated tasks with exact seeds, one problem per file."""

"""Parts of error pages about the test rows of a task."""
